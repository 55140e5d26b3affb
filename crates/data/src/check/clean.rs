//! `holdall data clean`: copies of the CSV without unusable rows. `_cleaned.csv` has the readable rows, `_filtered.csv` those that also
//! pass the filters. Rows are copied byte for byte, and the CSV itself is never changed.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use holdall_files::Existing;
use serde::Serialize;

use super::duplicates::{Repeats, near_contents, with_two_labels};
use super::findings::{is_in_conflict, is_narrow, is_short, is_small};
use super::picture_state::PictureState;
use super::report::{Fault, RowKind};
use super::row_facts::LabelCell;
use super::{AllFacts, CheckConfig, Outcome, Watch, facts};
use crate::config::Validation;
use crate::error::DataError;
use crate::table::{Row, Side, Table, cleaned_names, source_of};
use crate::words::thousands;

/// Treatment of rows that show the same picture under the same label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// The first row stays; a training row that shows a picture of validation or test goes.
    #[default]
    KeepFirst,
    /// Like `KeepFirst`, for near copies too.
    KeepFirstNear,
    /// All rows stay.
    Keep,
}

/// Treatment of rows that show the same picture under different labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conflicts {
    /// All rows of the picture go: the right label is unknown.
    #[default]
    LeaveOut,
    /// The first row stays.
    KeepFirst,
    /// All rows stay.
    Keep,
}

/// Treatment of rows that show the same picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Under the same label, or without a label.
    pub duplicates: Duplicates,
    /// Under different labels.
    pub conflicts: Conflicts,
}

pub type Reason = Fault;

/// Rows that were removed for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gone {
    pub reason: Reason,
    pub count: usize,
    /// Line numbers.
    pub rows: Vec<u32>,
}

/// A CSV that was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CleanFile {
    pub path: PathBuf,
    /// Number of rows.
    pub rows: usize,
    /// Whether it replaced a file of the same name.
    pub replaced: bool,
    /// Rows that were removed: for `_cleaned.csv` from the input, for `_filtered.csv` from `_cleaned.csv`.
    pub gone: Vec<Gone>,
}

/// Result of a cleaning.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cleaned {
    /// The input.
    pub csv: PathBuf,
    /// Rows of the input.
    pub rows: usize,
    pub cleaned: CleanFile,
    pub filtered: CleanFile,
}

/// Checks every row and writes the two CSVs beside the input; `existing` says whether files of their names may be replaced.
pub fn clean(
    config: &CheckConfig,
    copies: Copies,
    existing: Existing,
    watch: Watch<'_>,
) -> Result<Outcome<Cleaned>, DataError> {
    let table = Table::open_separated(&config.csv, config.data.separator)?;
    if !table.has_lines() {
        return Err(DataError::invalid(
            config.csv.display(),
            "a CSV or JSON lines to clean",
            if table.is_listing() {
                "class folders"
            } else {
                "pictures in folders or shards"
            },
            format_args!(
                "`holdall data check {} --json` names the files to move or remove",
                config.csv.display()
            ),
        ));
    }
    if let Some(source_csv) = source_of(&config.csv) {
        return Err(DataError::invalid(
            config.csv.display(),
            "a CSV to clean",
            "the name of one that cleaning writes",
            format_args!("clean {} instead, or rename this one", source_csv.display()),
        ));
    }
    for file in cleaned_names(&config.csv) {
        existing.check_file(&file)?;
    }
    facts(config, watch)?.then(|all| write(config, copies, &all))
}

fn write(config: &CheckConfig, copies: Copies, all: &AllFacts) -> Result<Cleaned, DataError> {
    let unreadable = unreadable(all);
    let mut filtered = unreadable.clone();
    filter(config, copies, all, &mut filtered);
    let [cleaned_path, filtered_path] = cleaned_names(&config.csv);
    if filtered.iter().all(Option::is_some) {
        let gone = gone(all, &filtered, |_| true);
        let commonest = gone.iter().max_by_key(|gone| gone.count);
        return Err(DataError::invalid(
            config.csv.display(),
            "rows that can be used",
            format_args!(
                "that cleaning would remove every one of {}: {}",
                thousands(all.rows.len()),
                commonest.map_or("no rows", |gone| gone.reason.words())
            ),
            format_args!(
                "look at `holdall data check {}`, or ask for less; nothing was written",
                config.csv.display()
            ),
        ));
    }
    let files = [(cleaned_path, &unreadable), (filtered_path, &filtered)];
    let replaced = write_files(all, &files)?;
    let [(cleaned_path, _), (filtered_path, _)] = files;
    let num_left = |reasons: &[Option<Reason>]| reasons.iter().filter(|r| r.is_none()).count();
    Ok(Cleaned {
        csv: config.csv.clone(),
        rows: all.rows.len(),
        cleaned: CleanFile {
            path: cleaned_path,
            rows: num_left(&unreadable),
            replaced: replaced[0],
            gone: gone(all, &unreadable, |_| true),
        },
        filtered: CleanFile {
            path: filtered_path,
            rows: num_left(&filtered),
            replaced: replaced[1],
            gone: gone(all, &filtered, |row| unreadable[row].is_none()),
        },
    })
}

/// By row, why it cannot be read; `None` for readable rows.
fn unreadable(all: &AllFacts) -> Vec<Option<Reason>> {
    let reason = |facts: &super::Facts| match facts.look.state {
        _ if !facts.has_fields => Some(Fault::Row(RowKind::WrongFields)),
        PictureState::Good if facts.has_caption && facts.has_values => None,
        PictureState::Good if facts.has_caption => Some(Fault::Row(RowKind::BadCell)),
        PictureState::Good => Some(Fault::Row(RowKind::EmptyCaption)),
        state => Some(Fault::Picture(state)),
    };
    all.rows.iter().map(reason).collect()
}

/// Adds the reasons of rows that fail a filter. Rows per label are counted last, since every other filter lowers the counts.
fn filter(config: &CheckConfig, copies: Copies, all: &AllFacts, reasons: &mut [Option<Reason>]) {
    let Copies {
        duplicates,
        conflicts,
    } = copies;
    let shown = match duplicates {
        Duplicates::KeepFirst | Duplicates::KeepFirstNear => shown_on_later_sides(config, all),
        Duplicates::Keep => Side::ALL.map(|_| HashSet::new()),
    };
    // All near copies are represented by the contents of the first.
    let near = match duplicates {
        Duplicates::KeepFirstNear => near_contents(all),
        Duplicates::KeepFirst | Duplicates::Keep => HashMap::new(),
    };
    let first_of = |contents: u128| *near.get(&contents).unwrap_or(&contents);
    let near_shown = shown.clone().map(|shown| {
        let firsts = shown.into_iter().map(first_of);
        firsts.collect::<HashSet<u128>>()
    });
    let mut contents_kept: HashMap<u128, u128> = HashMap::new();
    let two_labels = with_two_labels(all);
    let mut first_labels: HashMap<u128, u64> = HashMap::new();
    let mut has_first_label = |facts: &super::Facts| {
        let first = first_labels
            .entry(facts.look.contents)
            .or_insert(facts.label_text);
        conflicts == Conflicts::KeepFirst && *first == facts.label_text
    };
    let mut repeats = Repeats::default();
    for (row, reason) in reasons.iter_mut().enumerate() {
        let facts = &all.rows[row];
        if reason.is_some() {
            continue;
        }
        let kind = if is_small(&facts.look, config.min_size) {
            RowKind::TooSmall
        } else if is_narrow(&facts.look, config.max_aspect) {
            RowKind::TooNarrow
        } else if is_short(&facts.look, config) {
            RowKind::TooShort
        } else if facts.has_null_caption {
            RowKind::NullCaption
        } else if facts.label == LabelCell::Null {
            RowKind::NullLabel
        } else if shown[all.sides[row].index()].contains(&facts.look.contents) {
            RowKind::Leak
        } else if is_in_conflict(facts, &two_labels) && conflicts == Conflicts::Keep {
            continue;
        } else if is_in_conflict(facts, &two_labels) && !has_first_label(facts) {
            RowKind::TwoLabels
        } else if duplicates != Duplicates::Keep && repeats.is_repeated(facts) {
            RowKind::Duplicate
        } else if !near.is_empty() {
            let contents = facts.look.contents;
            let first = first_of(contents);
            if near_shown[all.sides[row].index()].contains(&first) {
                RowKind::NearLeak
            } else if *contents_kept.entry(first).or_insert(contents) != contents {
                RowKind::NearDuplicate
            } else {
                continue;
            }
        } else {
            continue;
        };
        *reason = Some(Fault::Row(kind));
    }
    filter_rare_labels(config, all, reasons);
}

/// Adds the reason of rows whose label has too few of the rows that remain.
fn filter_rare_labels(config: &CheckConfig, all: &AllFacts, reasons: &mut [Option<Reason>]) {
    let label = |row: usize| usize::try_from(all.label_of[row]).ok();
    let mut counts = vec![0; all.labels.len()];
    for row in (0..reasons.len()).filter(|row| reasons[*row].is_none()) {
        if let Some(label) = label(row) {
            counts[label] += 1;
        }
    }
    for (row, reason) in reasons.iter_mut().enumerate() {
        let is_few = label(row).is_some_and(|label| counts[label] < config.min_per_label);
        if reason.is_none() && is_few {
            *reason = Some(Fault::Row(RowKind::FewOfLabel));
        }
    }
}

/// By side, the contents of pictures that the data assigns to a later side. Validation rows drawn at random do not count: the share is
/// drawn anew from the rows that remain.
fn shown_on_later_sides(config: &CheckConfig, all: &AllFacts) -> [HashSet<u128>; 3] {
    let mut shown = Side::ALL.map(|_| HashSet::new());
    let mut add = |facts: &super::Facts, side: Side| {
        if facts.look.state == PictureState::Good {
            for earlier in &mut shown[..side.index()] {
                earlier.insert(facts.look.contents);
            }
        }
    };
    let is_set_apart = |side: Side| match side {
        Side::Train => false,
        Side::Validation => all.has_marked_validation,
        Side::Test => true,
    };
    if let (Validation::File { .. }, Some((_, rows))) = (&config.data.validation, &all.other) {
        rows.iter().for_each(|facts| add(facts, Side::Validation));
    }
    for (facts, &side) in all.rows.iter().zip(&all.sides) {
        if is_set_apart(side) {
            add(facts, side);
        }
    }
    shown
}

fn gone(
    all: &AllFacts,
    reasons: &[Option<Reason>],
    is_counted: impl Fn(usize) -> bool,
) -> Vec<Gone> {
    let mut gone: Vec<Gone> = Vec::new();
    for (row, reason) in reasons.iter().enumerate() {
        let Some(reason) = *reason else {
            continue;
        };
        if !is_counted(row) {
            continue;
        }
        let at = match gone.iter().position(|gone| gone.reason == reason) {
            Some(at) => at,
            None => {
                gone.push(Gone {
                    reason,
                    count: 0,
                    rows: Vec::new(),
                });
                gone.len() - 1
            }
        };
        gone[at].count += 1;
        gone[at].rows.push(all.rows[row].line);
    }
    gone.sort_by_key(|gone| std::cmp::Reverse(gone.count));
    gone
}

/// Copies the rows without a reason; returns by file whether it replaced one.
fn write_files(
    all: &AllFacts,
    files: &[(PathBuf, &Vec<Option<Reason>>); 2],
) -> Result<[bool; 2], DataError> {
    let table = &all.source.table;
    let [cleaned, filtered] = files.each_ref().map(|(_, reasons)| {
        move |number: usize, _: Row<'_>| reasons.get(number).map(Option::is_none)
    });
    let [(cleaned_path, _), (filtered_path, _)] = files;
    copy_rows(
        table,
        Some(all.rows.len()),
        [(cleaned_path, &cleaned), (filtered_path, &filtered)],
    )
}

/// Whether a row stays, given its number from 0; `None` for a row that was not in the table before.
pub(super) type Stays<'a> = &'a dyn Fn(usize, Row<'_>) -> Option<bool>;

/// Copies rows byte for byte with all their columns, to N files. Each file is replaced atomically; returns by file whether it replaced one.
pub(super) fn copy_rows<const N: usize>(
    table: &Table,
    num_expected: Option<usize>,
    files: [(&PathBuf, Stays<'_>); N],
) -> Result<[bool; N], DataError> {
    let mut partials = Vec::new();
    for (path, _) in files {
        partials.push(Partial::create(path)?);
    }
    let mut rows = table.rows()?;
    let header = rows.header().to_vec();
    let mut num_rows = 0;
    while let Some(row) = rows.read_any()? {
        let raw = row.raw().to_vec();
        let mut stay = [false; N];
        for (stay, (_, stays)) in stay.iter_mut().zip(files) {
            *stay = stays(num_rows, row).ok_or_else(|| table.changed())?;
        }
        // The line end is known once the first row is read.
        let line_end = rows.line_end();
        for (partial, stay) in partials.iter_mut().zip(stay) {
            // JSON lines have no header.
            if num_rows == 0 && !header.is_empty() {
                partial.write(&[&header, line_end])?;
            }
            if stay {
                partial.write(&[&raw, line_end])?;
            }
        }
        num_rows += 1;
    }
    if num_expected.is_some_and(|expected| expected != num_rows) {
        return Err(table.changed());
    }
    for partial in &mut partials {
        partial.sync()?;
    }
    let mut replaced = [false; N];
    for (partial, replaced) in partials.into_iter().zip(&mut replaced) {
        *replaced = partial.take_its_place()?;
    }
    Ok(replaced)
}

/// A temporary file beside its target; deleted on drop unless it was renamed to the target.
struct Partial {
    target: PathBuf,
    path: PathBuf,
    file: BufWriter<File>,
}

impl Partial {
    fn create(target: &Path) -> Result<Partial, DataError> {
        let path = holdall_files::partial(target);
        let file = File::create(&path).map_err(|cause| unwritten(target, cause))?;
        Ok(Partial {
            target: target.to_owned(),
            path,
            file: BufWriter::new(file),
        })
    }

    fn write(&mut self, pieces: &[&[u8]]) -> Result<(), DataError> {
        for piece in pieces {
            let written = self.file.write_all(piece);
            written.map_err(|cause| unwritten(&self.target, cause))?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), DataError> {
        let flushed = self.file.flush();
        let synced = flushed.and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|cause| unwritten(&self.target, cause))
    }

    /// Renames the file to its target; returns whether it replaced a file.
    fn take_its_place(self) -> Result<bool, DataError> {
        let was_there = self.target.exists();
        let folder = self.target.parent().unwrap_or(Path::new(""));
        let renamed = holdall_files::rename(&self.path, &self.target);
        let renamed = renamed.and_then(|()| holdall_files::sync_folder(folder));
        renamed.map_err(|cause| unwritten(&self.target, cause))?;
        Ok(was_there)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Fails after the rename, when the temporary file is gone.
        let _ = fs::remove_file(&self.path);
    }
}

fn unwritten(path: &Path, cause: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        action: "write it",
        cause,
    }
}
