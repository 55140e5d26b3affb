//! Turns facts about rows into findings for the user.

use std::collections::{HashMap, HashSet};

use super::duplicates::{Groups, duplicates, with_two_labels};
use super::picture_state::{Look, State};
use super::report::{CaptionFacts, Example, Fault, Finding, LabelFacts, Report, RowKind};
use super::row_facts::{Facts, LabelCell};
use super::{AllFacts, CheckConfig};
use crate::decode;
use crate::error::DataError;
use crate::media::Media;
use crate::samples::Source;
use crate::table::Side;
use crate::words::{counted, listed};

/// Above this share of rows with one caption, the caption does not tell pictures apart.
const MOST_OF_ONE_CAPTION: f64 = 0.5;
/// Groups of rows that show the same picture.
struct Copies {
    equal: Groups,
    near: Groups,
    /// Rows that show one picture under several labels, by the picture's contents.
    conflicts: HashMap<u128, Vec<At>>,
}

/// A row: the file (0 for the CSV, 1 for the validation file), and the row's number from 0.
pub(super) type At = (usize, usize);

pub(super) fn report(config: &CheckConfig, all: &AllFacts) -> Result<Report, DataError> {
    let sheets = all.sheets();
    let num_rows: usize = sheets.iter().map(|(_, rows)| rows.len()).sum();
    let mut found: Vec<(Fault, Vec<At>)> = Vec::new();
    for state in [
        State::Unnamed,
        State::Missing,
        State::Remote,
        State::ZeroSize,
        State::NotAnImage,
        State::NotAClip,
        State::OtherFormat,
        State::CutShort,
        State::Broken,
        State::TooManyPixels,
        State::Unreadable,
    ] {
        let rows = all.rows_where(|facts| facts.look.state == state);
        found.push((Fault::Picture(state), rows));
    }
    let empty = all.rows_where(|facts| !facts.has_caption && facts.has_fields);
    let other_fields = all.rows_where(|facts| !facts.has_fields);
    let bad_cells = all.rows_where(|facts| !facts.has_values);
    let null_captions = all.rows_where(|facts| facts.has_null_caption);
    let null_labels = all.rows_where(|facts| facts.label == LabelCell::Null);
    let empty_labels = all.rows_where(|facts| facts.label == LabelCell::Empty);
    let spellings = spellings(all);
    let mut groups = Copies {
        equal: Groups::equal(all),
        near: Groups::near(all),
        conflicts: HashMap::new(),
    };
    let leaks = groups.equal.leaks(all);
    let mut near_leaks = groups.near.leaks(all);
    near_leaks.retain(|at| leaks.binary_search(at).is_err());
    let conflicts = with_two_labels(all);
    let in_conflict = all.rows_where(|facts| is_in_conflict(facts, &conflicts));
    for at in &in_conflict {
        let rows = groups.conflicts.entry(all.at(*at).look.contents);
        rows.or_default().push(*at);
    }
    // Conflicting rows are reported under their own finding, not as duplicates too.
    let mut duplicates = duplicates(all);
    duplicates.retain(|at| !is_in_conflict(all.at(*at), &conflicts));
    let small = all.rows_where(|facts| is_small(&facts.look, config.min_size));
    let narrow = all.rows_where(|facts| is_narrow(&facts.look, config.max_aspect));
    let short = all.rows_where(|facts| is_short(&facts.look, config));
    let labels = label_facts(config, all);
    let few = few_of_label(&labels, all);
    let (commonest, commonest_rows) = all.captions.commonest();
    let is_same = commonest_rows as f64 > MOST_OF_ONE_CAPTION * all.rows.len() as f64;
    let same = if is_same && commonest_rows > 1 {
        rows_with_caption(all, commonest)
    } else {
        Vec::new()
    };
    found.extend([
        (Fault::Row(RowKind::EmptyCaption), empty),
        (Fault::Row(RowKind::WrongFields), other_fields),
        (Fault::Row(RowKind::BadCell), bad_cells),
        (Fault::Row(RowKind::NullCaption), null_captions),
        (Fault::Row(RowKind::NullLabel), null_labels),
        (Fault::Row(RowKind::Leak), leaks),
        (Fault::Row(RowKind::NearLeak), near_leaks),
        (Fault::Row(RowKind::GroupLeak), all.group_leaks.clone()),
        (Fault::Row(RowKind::TwoLabels), in_conflict),
        (Fault::Row(RowKind::Duplicate), duplicates),
        (
            Fault::Row(RowKind::NearDuplicate),
            groups.near.near_duplicates(all, &groups.equal),
        ),
        (Fault::Row(RowKind::TooSmall), small),
        (Fault::Row(RowKind::TooNarrow), narrow),
        (Fault::Row(RowKind::TooShort), short),
        (Fault::Row(RowKind::FewOfLabel), few),
        (Fault::Row(RowKind::EmptyLabel), empty_labels),
        (
            Fault::Row(RowKind::LabelSpelling),
            other_spellings(&spellings, all),
        ),
        (Fault::Row(RowKind::SameCaption), same),
        (Fault::Row(RowKind::SplitNotUnderstood), rows_of_split(all)),
    ]);
    found.retain(|(_, rows)| !rows.is_empty());
    let images = images_of(all, &found, config.num_examples)?;
    let findings = found.into_iter().map(|(kind, rows)| {
        let lines = |sheet: usize| -> Vec<u32> {
            let of_sheet = rows.iter().filter(|at| at.0 == sheet);
            of_sheet.map(|at| sheets[sheet].1[at.1].line).collect()
        };
        // The finding is about the column: one row is example enough.
        let num_examples = match kind {
            Fault::Row(RowKind::SplitNotUnderstood) => config.num_examples.min(1),
            _ => config.num_examples,
        };
        let examples = rows.iter().take(num_examples);
        let examples = examples.map(|at| Example {
            csv: sheets[at.0].0.path(),
            row: sheets[at.0].1[at.1].line,
            image: images.get(at).cloned().unwrap_or_default(),
            detail: match kind {
                Fault::Picture(State::OtherFormat) => {
                    let image = images.get(at).map_or("", String::as_str);
                    let found = decode::refused_kind(&sheets[at.0].0.root.join(image));
                    let name = |found: String| {
                        let name = found.strip_prefix("an ").or(found.strip_prefix("a "));
                        name.unwrap_or(&found).to_owned()
                    };
                    found.map(name)
                }
                _ => detail(kind, *at, all, &groups, (&labels, &spellings)),
            },
        });
        Finding {
            kind,
            severity: kind.severity(),
            on_clean: kind.on_clean(),
            count: rows.len(),
            share: rows.len() as f64 / num_rows as f64,
            examples: examples.collect(),
            rows: lines(0),
            validation_rows: match sheets.len() {
                1 => Vec::new(),
                _ => lines(1),
            },
        }
    });
    let with_caption = all.rows.iter().filter(|facts| facts.has_caption).count();
    Ok(Report {
        csv: config.csv.clone(),
        has_lines: all.source.table.has_lines(),
        rows: all.rows.len(),
        has_marked_sides: all.has_marked_validation || all.sides.contains(&Side::Test),
        sides: Side::ALL.map(|side| {
            let rows = all.rows_where(|_| true);
            rows.iter().filter(|at| all.side(**at) == side).count()
        }),
        validation_rows: num_rows - all.rows.len(),
        usable_rows: all.rows_where(Facts::is_usable).len(),
        findings: findings.collect(),
        captions: CaptionFacts {
            different: all.captions.num_different(),
            identical_share: all.captions.num_shared() as f64 / with_caption.max(1) as f64,
            commonest: commonest.to_owned(),
            commonest_rows,
        },
        labels,
    })
}

impl AllFacts {
    pub(super) fn sheets(&self) -> Vec<(&Source, &[Facts])> {
        let other = self.other.as_ref();
        let other = other.map(|(source, rows)| (source, rows.as_slice()));
        [(&self.source, self.rows.as_slice())]
            .into_iter()
            .chain(other)
            .collect()
    }

    pub(super) fn rows_where(&self, is_meant: impl Fn(&Facts) -> bool) -> Vec<At> {
        let mut meant = Vec::new();
        for (sheet, (_, rows)) in self.sheets().into_iter().enumerate() {
            let rows = rows.iter().enumerate().filter(|(_, facts)| is_meant(facts));
            meant.extend(rows.map(|(row, _)| (sheet, row)));
        }
        meant
    }

    /// Side of a row; all rows of a validation file are on one side.
    pub(super) fn side(&self, (sheet, row): At) -> Side {
        match sheet {
            0 => self.sides[row],
            _ => Side::Validation,
        }
    }

    pub(super) fn at(&self, (sheet, row): At) -> &Facts {
        match &self.other {
            Some((_, rows)) if sheet == 1 => &rows[row],
            _ => &self.rows[row],
        }
    }
}

/// Whether another row shows the same picture under another label.
pub(super) fn is_in_conflict(facts: &Facts, conflicts: &HashSet<u128>) -> bool {
    facts.label_text != 0 && conflicts.contains(&facts.look.contents)
}

pub(super) fn is_small(look: &Look, min_size: u32) -> bool {
    look.state == State::Good && look.width.min(look.height) < min_size
}

pub(super) fn is_narrow(look: &Look, max_aspect: u32) -> bool {
    let [short, long] = [look.width.min(look.height), look.width.max(look.height)];
    look.state == State::Good && u64::from(long) > u64::from(short) * u64::from(max_aspect)
}

/// Whether a clip has fewer frames than training uses of each clip.
pub(super) fn is_short(look: &Look, config: &CheckConfig) -> bool {
    let is_clip = config.media == Media::Clips && look.state == State::Good;
    is_clip && (look.num_frames as usize) < config.min_frames
}

fn label_facts(config: &CheckConfig, all: &AllFacts) -> Option<LabelFacts> {
    let column = all.source.label_column()?.to_owned();
    let mut counts = vec![0; all.labels.len()];
    for (facts, &label) in all.rows.iter().zip(&all.label_of) {
        if let (true, Ok(label)) = (facts.is_usable(), usize::try_from(label)) {
            counts[label] += 1;
        }
    }
    let few = all.labels.iter().zip(counts);
    let few = few.filter(|(_, count)| *count < config.min_per_label);
    Some(LabelFacts {
        column,
        count: all.labels.len(),
        few: few.map(|(name, count)| (name.clone(), count)).collect(),
    })
}

fn few_of_label(labels: &Option<LabelFacts>, all: &AllFacts) -> Vec<At> {
    let few = labels.iter().flat_map(|labels| &labels.few);
    let few: HashSet<&str> = few.map(|(name, _)| name.as_str()).collect();
    let is_few = |label: i32| {
        let label = usize::try_from(label).ok();
        label.is_some_and(|label| few.contains(all.labels[label].as_str()))
    };
    let rows = all.label_of.iter().enumerate();
    let rows = rows.filter(|(_, label)| is_few(**label));
    rows.map(|(row, _)| (0, row)).collect()
}

/// Groups of labels that differ only in case, blanks, underscores or hyphens; the commonest spelling of each group first.
fn spellings(all: &AllFacts) -> Vec<Vec<usize>> {
    let mut by_letters: HashMap<String, Vec<usize>> = HashMap::new();
    for (label, name) in all.labels.iter().enumerate() {
        let words: Vec<&str> = name.split([' ', '_', '-', '\t', '\u{a0}']).collect();
        let letters = words.concat().to_lowercase();
        by_letters.entry(letters).or_default().push(label);
    }
    let mut counts = vec![0_usize; all.labels.len()];
    for label in all
        .label_of
        .iter()
        .filter_map(|label| usize::try_from(*label).ok())
    {
        counts[label] += 1;
    }
    let mut several: Vec<Vec<usize>> = by_letters
        .into_values()
        .filter(|all| all.len() > 1)
        .collect();
    for labels in &mut several {
        labels.sort_by_key(|label| (std::cmp::Reverse(counts[*label]), *label));
    }
    several.sort();
    several
}

/// Rows whose label is a rarer spelling of another label.
fn other_spellings(spellings: &[Vec<usize>], all: &AllFacts) -> Vec<At> {
    let rarer: HashSet<usize> = spellings
        .iter()
        .flat_map(|labels| &labels[1..])
        .copied()
        .collect();
    let rows = all.label_of.iter().enumerate();
    let rows = rows
        .filter(|(_, label)| usize::try_from(**label).is_ok_and(|label| rarer.contains(&label)));
    rows.map(|(row, _)| (0, row)).collect()
}

/// All rows if a column has the name of a split column but its values are not understood, else none.
fn rows_of_split(all: &AllFacts) -> Vec<At> {
    let is_there = all.split_not_understood.is_some();
    let rows = (0..all.rows.len()).filter(|_| is_there);
    rows.map(|row| (0, row)).collect()
}

fn rows_with_caption(all: &AllFacts, caption: &str) -> Vec<At> {
    let hash = xxhash_rust::xxh3::xxh3_64(caption.as_bytes());
    let mut rows = all.rows_where(|facts| facts.has_caption && facts.caption == hash);
    rows.retain(|at| at.0 == 0);
    rows
}

fn detail(
    kind: Fault,
    at: At,
    all: &AllFacts,
    groups: &Copies,
    (labels, spellings): (&Option<LabelFacts>, &[Vec<usize>]),
) -> Option<String> {
    let look = all.at(at).look;
    let as_row = |other: At| {
        let place = if other.0 == at.0 {
            String::new()
        } else {
            format!(" of {}", all.sheets()[other.0].0.path().display())
        };
        format!("as row {}{place}", all.at(other).line)
    };
    let same_as = |groups: &Groups, side: Side| {
        let first = groups.first(all, at, side).filter(|first| *first != at)?;
        Some(as_row(first))
    };
    // Near copies are not certainly the same picture, so another label is a remark and no conflict.
    let near_as = |side: Side| {
        let first = groups
            .near
            .first(all, at, side)
            .filter(|first| *first != at)?;
        let has_other_label = all.at(first).label_text != all.at(at).label_text;
        let label = if has_other_label {
            ", under another label"
        } else {
            ""
        };
        Some(as_row(first) + label)
    };
    match kind {
        Fault::Picture(State::TooManyPixels)
        | Fault::Row(RowKind::TooSmall | RowKind::TooNarrow) => {
            Some(format!("{} x {}", look.width, look.height))
        }
        Fault::Row(RowKind::TooShort) => Some(counted(look.num_frames, "frame")),
        Fault::Row(RowKind::Leak) => same_as(&groups.equal, groups.equal.earlier_side(all, at)?),
        Fault::Row(RowKind::NearLeak) => near_as(groups.near.earlier_side(all, at)?),
        Fault::Row(RowKind::NearDuplicate) => near_as(all.side(at)),
        Fault::Row(RowKind::TwoLabels) => {
            let label_of = |at: At| {
                let label = (at.0 == 0).then(|| all.label_of[at.1]);
                let label = label.and_then(|label| usize::try_from(label).ok());
                label.map(|label| format!("`{}`", all.labels[label]))
            };
            let text = all.at(at).label_text;
            let mut rows = groups.conflicts.get(&look.contents)?.iter().copied();
            let other = rows.find(|other| all.at(*other).label_text != text)?;
            let words = [label_of(at), Some(as_row(other)), label_of(other)];
            let words: Vec<String> = words.into_iter().flatten().collect();
            Some(words.join(" "))
        }
        Fault::Row(RowKind::GroupLeak) => Some(format!("by `{}`", all.group_column)),
        Fault::Row(RowKind::Duplicate) => same_as(&groups.equal, all.side(at)),
        Fault::Row(RowKind::FewOfLabel) => {
            let few = &labels.as_ref()?.few;
            let names: Vec<String> = few.iter().map(|(name, _)| name.clone()).collect();
            let count = counted(names.len(), "label");
            Some(format!("{count}: {}", listed(&names)))
        }
        Fault::Row(RowKind::LabelSpelling) => {
            let text = |labels: &Vec<usize>| {
                let names: Vec<String> = labels
                    .iter()
                    .map(|at| format!("`{}`", all.labels[*at]))
                    .collect();
                names.join(" = ")
            };
            let first: Vec<String> = spellings.iter().take(3).map(text).collect();
            Some(first.join(", "))
        }
        Fault::Row(RowKind::SplitNotUnderstood) => all.split_not_understood.clone(),
        Fault::Row(RowKind::SameCaption) => Some(format!("\"{}\"", all.captions.commonest().0)),
        _ => None,
    }
}

/// Image paths of the examples, read again from the CSV: facts about rows hold no text.
fn images_of(
    all: &AllFacts,
    found: &[(Fault, Vec<At>)],
    num_examples: usize,
) -> Result<HashMap<At, String>, DataError> {
    let shown = found
        .iter()
        .flat_map(|(_, rows)| rows.iter().take(num_examples));
    let wanted: HashSet<At> = shown.copied().collect();
    let mut images = HashMap::new();
    for (sheet, (source, _)) in all.sheets().into_iter().enumerate() {
        let last = wanted
            .iter()
            .filter(|at| at.0 == sheet)
            .map(|at| at.1)
            .max();
        let Some(last) = last else {
            continue;
        };
        let mut rows = source.table.rows()?;
        for row in 0..=last {
            let text = rows.read_any()?.ok_or_else(|| source.table.changed())?;
            if wanted.contains(&(sheet, row)) {
                let mut image = String::new();
                source.columns.image_into(text, &mut image);
                images.insert((sheet, row), image);
            }
        }
    }
    Ok(images)
}
