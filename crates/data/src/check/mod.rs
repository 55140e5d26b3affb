//! `holdall data check`: finds rows that are unfit for training. These are unreadable pictures, duplicates, pictures under two labels or on
//! two sides of the split, labels with too few pictures, and captions that are empty or all the same. `clean` writes the CSV without them.

mod clean;
mod duplicates;
mod findings;
mod journal;
mod overlap;
mod pair_report;
mod pairs;
mod picture_state;
mod report;
mod row_facts;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use rayon::ThreadPoolBuilder;

use crate::config::{DataConfig, Validation};
use crate::decode::Allowance;
pub use crate::decode::{MAX_BITS, MAX_COLOUR_DIFFERENCE};
use crate::error::DataError;
use crate::media::Media;
use crate::samples::{Captions, Known, LabelsOfTest, Source, TargetValues};
use crate::table::{Side, SplitColumn, not_downloaded};
use crate::words::thousands;
pub use clean::{CleanFile, Cleaned, Conflicts, Copies, Duplicates, Gone, Reason, clean};
use journal::Journal;
pub use overlap::{CompareBy, MOST_BYTES, MOST_DECODE_BYTES, Overlap, OverlapSearch};
pub use pair_report::{PairExample, PairFault, PairFinding, PairReport};
pub use pairs::{CleanPairs, PairCheck, check_pairs, clean_pairs};
pub use picture_state::PictureState;
pub use report::{
    CaptionFacts, Example, Fault, Finding, LabelFacts, OnClean, Report, RowKind, Severity,
};
use row_facts::{CaptionCounts, Facts, Survey};

/// Settings and thresholds of a check.
#[derive(Clone, Debug)]
pub struct CheckConfig {
    /// Columns, captions, labels and validation split, as in training.
    pub data: DataConfig,
    /// Whether rows name pictures or clips.
    pub media: Media,
    pub captions: Captions,
    /// The CSV; `data.train` is the path from the user, such as its folder.
    pub csv: PathBuf,
    /// Seed of the validation split.
    pub seed: u64,
    /// Smallest accepted side of a picture, in pixels.
    pub min_size: u32,
    /// Largest accepted ratio of the longer side to the shorter.
    pub max_aspect: u32,
    /// Smallest accepted number of frames of a clip.
    pub min_frames: usize,
    /// Smallest accepted number of pictures per label.
    pub min_per_label: usize,
    /// Rows listed for each finding.
    pub num_examples: usize,
    /// Decoding threads; `None` for one per core.
    pub num_workers: Option<usize>,
    /// Memory budget of decoding, for all threads together.
    pub allowance: Allowance,
}

/// Default of `min_size`: smaller pictures show nothing.
pub const MIN_SIZE: u32 = 16;
/// Default of `max_aspect`: a narrower picture is a line.
pub const MAX_ASPECT: u32 = 20;
/// Default of `min_per_label`: the picture of a label with one picture is either trained on or held out, never both.
pub const MIN_PER_LABEL: usize = 2;

/// Callbacks and stop flag of a check.
pub struct Watch<'a> {
    /// Set by the caller to stop the check.
    pub stop: &'a AtomicBool,
    /// Called with the number of rows.
    pub on_start: &'a mut dyn FnMut(usize),
    /// Called for each finished row, from several threads.
    pub on_progress: &'a (dyn Fn(usize) + Sync),
    /// Called with each note for the user.
    pub on_note: &'a mut dyn FnMut(&str),
}

#[derive(Debug)]
pub enum Outcome<T> {
    /// Every row was checked.
    Done(T),
    Stopped {
        /// Rows checked.
        num_done: usize,
        /// All rows.
        num_rows: usize,
        /// Whether the same command resumes from there.
        is_kept: bool,
    },
}

impl<T> Outcome<T> {
    /// Applies `follows` to a finished check.
    fn then<U>(
        self,
        follows: impl FnOnce(T) -> Result<U, DataError>,
    ) -> Result<Outcome<U>, DataError> {
        Ok(match self {
            Outcome::Done(done) => Outcome::Done(follows(done)?),
            Outcome::Stopped {
                num_done,
                num_rows,
                is_kept,
            } => Outcome::Stopped {
                num_done,
                num_rows,
                is_kept,
            },
        })
    }
}

pub fn check(config: &CheckConfig, watch: Watch<'_>) -> Result<Outcome<Report>, DataError> {
    facts(config, watch)?.then(|all| findings::report(config, &all))
}

/// Facts about all rows, of the CSV and of a separate validation file.
struct AllFacts {
    source: Source,
    rows: Vec<Facts>,
    /// Label index by row, -1 for none.
    label_of: Vec<i32>,
    /// Side by row; all are on the training side where validation is a separate file.
    sides: Vec<Side>,
    /// Whether the data marks validation rows; if so, none are drawn at random.
    has_marked_validation: bool,
    /// Rows, of either file, whose group is also on an earlier side.
    group_leaks: Vec<findings::At>,
    /// Name of the group column.
    group_column: String,
    /// Message about a column with the name of a split column whose values are not understood.
    split_not_understood: Option<String>,
    labels: Vec<String>,
    captions: CaptionCounts,
    /// The separate validation file and its rows.
    other: Option<(Source, Vec<Facts>)>,
}

/// The rows as training would read them, before any picture is decoded.
struct OpenedRows {
    source: Source,
    /// Label index by sample; bad rows do not count.
    label_of: Vec<i32>,
    sides: Vec<Side>,
    has_marked_validation: bool,
    /// Per file, by sample: whether its group is also on an earlier side.
    group_leaks: [Vec<bool>; 2],
    group_column: String,
    labels: Vec<String>,
    other: Option<Source>,
    /// Rows of both files.
    num_rows: usize,
}

impl OpenedRows {
    fn new(config: &CheckConfig, notes: &mut Vec<String>) -> Result<OpenedRows, DataError> {
        config.data.validate()?;
        let (data, kind) = (&config.data, (config.media, config.captions));
        let source = Source::open(data, kind, &config.csv, notes)?;
        let mut scan = source.scan(&data.validation, LabelsOfTest::Unread)?;
        notes.append(&mut scan.notes);
        let mut num_rows = scan.num_rows;
        let known = if scan.sides.is_empty() {
            Known::Heads(&[])
        } else {
            Known::FromRows
        };
        let split = source.split(scan, known, &data.validation, config.seed)?;
        let label = split.values.iter().zip(&split.targets);
        let (label_of, labels) = label
            .filter_map(|(values, target)| match values {
                TargetValues::Class(labels) => Some((labels.clone(), target.kind.names().to_vec())),
                _ => None,
            })
            .next()
            .unwrap_or_else(|| (vec![-1; split.sides.len()], Vec::new()));
        let mut group_leaks = [Vec::new(), Vec::new()];
        let mut group_column = String::new();
        if let Some(groups) = &split.groups {
            group_leaks[0] = groups.leaks(&split.sides);
            group_column.clone_from(&groups.column);
        }
        let mut other = None;
        let mut other_groups = None;
        if let Validation::File { path, .. } = &data.validation {
            let validation = Source::open(data, kind, path, &mut Vec::new())?;
            let unsplit = source.validation_of_other(data);
            let scan = validation.scan(&unsplit, LabelsOfTest::Unread)?;
            num_rows += scan.num_rows;
            if let (Some(train), Some(groups)) = (&split.groups, &scan.groups) {
                group_leaks[1] = groups.leaks_from(train);
            }
            other_groups = scan.groups;
            other = Some(validation);
        }
        if let Some(column) = split.column.as_ref().filter(|_| split.is_marked()) {
            let rows = |side| split.sides.iter().filter(|of| **of == side).count();
            notes.extend(column.note(Side::ALL.map(rows)));
        }
        if let Some(groups) = &split.groups {
            notes.extend(groups.note(&split.sides, other_groups.as_ref(), split.drawn_share));
        }
        Ok(OpenedRows {
            has_marked_validation: split.is_marked(),
            source,
            label_of,
            sides: split.sides,
            group_leaks,
            group_column,
            labels,
            other,
            num_rows,
        })
    }
}

fn facts(config: &CheckConfig, watch: Watch<'_>) -> Result<Outcome<AllFacts>, DataError> {
    let mut notes = Vec::new();
    let opened = OpenedRows::new(config, &mut notes)?;
    let (journal, note) = Journal::open(&config.csv);
    notes.extend(note);
    if journal.num_known() > 0 {
        let known = thousands(journal.num_known());
        notes.push(format!("Going on: {known} pictures were looked at before"));
    }
    notes.iter().for_each(|note| (watch.on_note)(note));
    (watch.on_start)(opened.num_rows);
    let mut survey = Survey {
        journal,
        stop: watch.stop,
        allowance: &config.allowance,
        on_progress: watch.on_progress,
        num_done: 0,
    };
    let mut captions = CaptionCounts::default();
    let threads = ThreadPoolBuilder::new().num_threads(config.num_workers.unwrap_or(0));
    let threads = threads.build().map_err(|cause| DataError::Io {
        path: config.csv.clone(),
        action: "start threads for it",
        cause: std::io::Error::other(cause),
    })?;
    let (rows, of_other) = threads.install(|| {
        let rows = survey.of(&opened.source, &mut captions)?;
        let of_other = match (&rows, &opened.other) {
            (Some(_), Some(other)) => survey.of(other, &mut CaptionCounts::default())?,
            _ => None,
        };
        Ok::<_, DataError>((rows, of_other))
    })?;
    let (Some(rows), true) = (rows, of_other.is_some() == opened.other.is_some()) else {
        return Ok(Outcome::Stopped {
            num_done: survey.num_done,
            num_rows: opened.num_rows,
            is_kept: survey.journal.is_kept(),
        });
    };
    if rows
        .iter()
        .any(|row| row.look.state == PictureState::Remote)
    {
        let Source { table, columns, .. } = &opened.source;
        (watch.on_note)(&format!("URLs: {}", not_downloaded(table, columns.image)));
    }
    let (label_of, sides) = by_row(&rows, &opened).ok_or_else(|| opened.source.table.changed())?;
    survey.journal.remove();
    let mut group_leaks = Vec::new();
    let of_files = [Some(&rows), of_other.as_ref()];
    for (file, (rows, leaks)) in of_files.iter().zip(&opened.group_leaks).enumerate() {
        let rows = rows.iter().flat_map(|rows| rows.iter().enumerate());
        let samples = rows.filter(|(_, facts)| facts.is_sample()).zip(leaks);
        let leaks = samples.filter(|(_, leak)| **leak);
        group_leaks.extend(leaks.map(|((row, _), _)| (file, row)));
    }
    let table = &opened.source.table;
    let split_not_understood = SplitColumn::not_understood(&config.data.validation, table)?;
    Ok(Outcome::Done(AllFacts {
        split_not_understood,
        source: opened.source,
        rows,
        label_of,
        sides,
        has_marked_validation: opened.has_marked_validation,
        group_leaks,
        group_column: opened.group_column,
        labels: opened.labels,
        captions,
        other: opened.other.zip(of_other),
    }))
}

/// Labels and sides by row, from those by sample; `None` if the file's samples have changed since.
fn by_row(rows: &[Facts], opened: &OpenedRows) -> Option<(Vec<i32>, Vec<Side>)> {
    let mut known = opened.label_of.iter().zip(&opened.sides);
    let mut of_row = |facts: &Facts| {
        if facts.is_sample() {
            known.next().map(|(label, side)| (*label, *side))
        } else {
            Some((-1, Side::Train))
        }
    };
    let all: Option<(Vec<i32>, Vec<Side>)> = rows.iter().map(&mut of_row).collect();
    all.filter(|_| known.next().is_none())
}
