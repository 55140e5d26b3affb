//! Turns facts about rows into findings for the user.

use std::collections::{HashMap, HashSet};

use super::duplicates::{CopyGroups, duplicates, with_two_labels};
use super::picture_state::{Look, PictureState};
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
/// A row: the file (0 for the CSV, 1 for the validation file), and the row's number from 0.
pub(super) type At = (usize, usize);

/// States of a picture that are faults, in the order of the report.
const FAULTY_STATES: [PictureState; 11] = [
    PictureState::Unnamed,
    PictureState::Missing,
    PictureState::Remote,
    PictureState::ZeroSize,
    PictureState::NotAnImage,
    PictureState::NotAClip,
    PictureState::OtherFormat,
    PictureState::CutShort,
    PictureState::Broken,
    PictureState::TooManyPixels,
    PictureState::Unreadable,
];

pub(super) fn report(config: &CheckConfig, all: &AllFacts) -> Result<Report, DataError> {
    let comparison = Comparison::new(config, all);
    let mut faulty = faulty_rows(&comparison);
    faulty.retain(|(_, rows)| !rows.is_empty());
    let images = images_of(all, &faulty, config.num_examples)?;
    let findings = faulty
        .into_iter()
        .map(|(fault, rows)| comparison.finding(fault, &rows, &images));
    let findings: Vec<Finding> = findings.collect();
    let (commonest, commonest_rows) = all.captions.commonest();
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
        validation_rows: all.num_rows() - all.rows.len(),
        usable_rows: all.rows_where(Facts::is_usable).len(),
        findings,
        captions: CaptionFacts {
            different: all.captions.num_different(),
            identical_share: all.captions.num_shared() as f64 / with_caption.max(1) as f64,
            commonest: commonest.to_owned(),
            commonest_rows,
        },
        labels: comparison.labels,
    })
}

/// All rows, with the groups that comparing them with each other finds.
struct Comparison<'a> {
    config: &'a CheckConfig,
    all: &'a AllFacts,
    equal: CopyGroups,
    near: CopyGroups,
    /// Pictures that are shown under several labels, by the hash of their contents.
    in_conflict: HashSet<u128>,
    /// Rows of those pictures.
    conflicts: HashMap<u128, Vec<At>>,
    labels: Option<LabelFacts>,
    /// Labels that are spellings of one another.
    spellings: Vec<Vec<usize>>,
}

/// Every kind of fault with its rows, in the order of the report.
fn faulty_rows(comparison: &Comparison<'_>) -> Vec<(Fault, Vec<At>)> {
    let Comparison {
        config,
        all,
        equal,
        near,
        in_conflict,
        ..
    } = comparison;
    let of_state = |state| {
        let rows = all.rows_where(|facts| facts.look.state == state);
        (Fault::Picture(state), rows)
    };
    let leaks = equal.leaks(all);
    let mut near_leaks = near.leaks(all);
    near_leaks.retain(|at| leaks.binary_search(at).is_err());
    // Conflicting rows are reported under their own finding, not as duplicates too.
    let mut duplicates = duplicates(all);
    duplicates.retain(|at| !is_in_conflict(all.at(*at), in_conflict));
    let rows = |is_meant: &dyn Fn(&Facts) -> bool| all.rows_where(is_meant);
    let of_kind = [
        (
            RowKind::EmptyCaption,
            rows(&|facts| !facts.has_caption && facts.has_fields),
        ),
        (RowKind::WrongFields, rows(&|facts| !facts.has_fields)),
        (RowKind::BadCell, rows(&|facts| !facts.has_values)),
        (RowKind::NullCaption, rows(&|facts| facts.has_null_caption)),
        (
            RowKind::NullLabel,
            rows(&|facts| facts.label == LabelCell::Null),
        ),
        (RowKind::Leak, leaks),
        (RowKind::NearLeak, near_leaks),
        (RowKind::GroupLeak, all.group_leaks.clone()),
        (
            RowKind::TwoLabels,
            rows(&|facts| is_in_conflict(facts, in_conflict)),
        ),
        (RowKind::Duplicate, duplicates),
        (RowKind::NearDuplicate, near.near_duplicates(all, equal)),
        (
            RowKind::TooSmall,
            rows(&|facts| is_small(&facts.look, config.min_size)),
        ),
        (
            RowKind::TooNarrow,
            rows(&|facts| is_narrow(&facts.look, config.max_aspect)),
        ),
        (
            RowKind::TooShort,
            rows(&|facts| is_short(&facts.look, config)),
        ),
        (RowKind::FewOfLabel, few_of_label(&comparison.labels, all)),
        (
            RowKind::EmptyLabel,
            rows(&|facts| facts.label == LabelCell::Empty),
        ),
        (
            RowKind::LabelSpelling,
            other_spellings(&comparison.spellings, all),
        ),
        (RowKind::SameCaption, rows_of_prevailing_caption(all)),
        (RowKind::SplitNotUnderstood, rows_of_split(all)),
    ];
    let of_kind = of_kind.map(|(kind, rows)| (Fault::Row(kind), rows));
    FAULTY_STATES
        .map(of_state)
        .into_iter()
        .chain(of_kind)
        .collect()
}

impl<'a> Comparison<'a> {
    fn new(config: &'a CheckConfig, all: &'a AllFacts) -> Comparison<'a> {
        let in_conflict = with_two_labels(all);
        let mut conflicts: HashMap<u128, Vec<At>> = HashMap::new();
        for at in all.rows_where(|facts| is_in_conflict(facts, &in_conflict)) {
            let rows = conflicts.entry(all.at(at).look.contents);
            rows.or_default().push(at);
        }
        Comparison {
            config,
            all,
            equal: CopyGroups::equal(all),
            near: CopyGroups::near(all),
            in_conflict,
            conflicts,
            labels: label_facts(config, all),
            spellings: spellings(all),
        }
    }

    fn finding(&self, fault: Fault, rows: &[At], images: &HashMap<At, String>) -> Finding {
        let sheets = self.all.sheets();
        let lines = |sheet: usize| -> Vec<u32> {
            let of_sheet = rows.iter().filter(|at| at.0 == sheet);
            of_sheet.map(|at| sheets[sheet].1[at.1].line).collect()
        };
        // The finding is about the column: one row is example enough.
        let num_examples = match fault {
            Fault::Row(RowKind::SplitNotUnderstood) => self.config.num_examples.min(1),
            _ => self.config.num_examples,
        };
        let examples = rows.iter().take(num_examples);
        let examples = examples.map(|&at| self.example(fault, at, images.get(&at)));
        Finding {
            kind: fault,
            severity: fault.severity(),
            on_clean: fault.on_clean(),
            count: rows.len(),
            share: rows.len() as f64 / self.all.num_rows() as f64,
            examples: examples.collect(),
            rows: lines(0),
            validation_rows: match sheets.len() {
                1 => Vec::new(),
                _ => lines(1),
            },
        }
    }

    fn example(&self, fault: Fault, at: At, image: Option<&String>) -> Example {
        let (source, rows) = self.all.sheets()[at.0];
        let image = image.cloned().unwrap_or_default();
        let detail = match fault {
            Fault::Picture(PictureState::OtherFormat) => {
                let found = decode::refused_kind(&source.root.join(&image));
                found.map(|found| {
                    let name = found.strip_prefix("an ").or(found.strip_prefix("a "));
                    name.unwrap_or(&found).to_owned()
                })
            }
            _ => self.detail(fault, at),
        };
        Example {
            csv: source.path(),
            row: rows[at.1].line,
            image,
            detail,
        }
    }

    /// Detail of a faulty row, beside its picture: the size, or the row that it repeats.
    fn detail(&self, fault: Fault, at: At) -> Option<String> {
        let all = self.all;
        let look = all.at(at).look;
        let as_row = |other: At| {
            let place = if other.0 == at.0 {
                String::new()
            } else {
                format!(" of {}", all.sheets()[other.0].0.path().display())
            };
            format!("as row {}{place}", all.at(other).line)
        };
        let same_as = |groups: &CopyGroups, side: Side| {
            let first = groups.first(all, at, side).filter(|first| *first != at)?;
            Some(as_row(first))
        };
        // Near copies are not certainly the same picture, so another label is a remark and no conflict.
        let near_as = |side: Side| {
            let first = self
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
        match fault {
            Fault::Picture(PictureState::TooManyPixels)
            | Fault::Row(RowKind::TooSmall | RowKind::TooNarrow) => {
                Some(format!("{} x {}", look.width, look.height))
            }
            Fault::Row(RowKind::TooShort) => Some(counted(look.num_frames, "frame")),
            Fault::Row(RowKind::Leak) => same_as(&self.equal, self.equal.earlier_side(all, at)?),
            Fault::Row(RowKind::NearLeak) => near_as(self.near.earlier_side(all, at)?),
            Fault::Row(RowKind::NearDuplicate) => near_as(all.side(at)),
            Fault::Row(RowKind::TwoLabels) => {
                let label_of = |at: At| {
                    let label = (at.0 == 0).then(|| all.label_of[at.1]);
                    let label = label.and_then(|label| usize::try_from(label).ok());
                    label.map(|label| format!("`{}`", all.labels[label]))
                };
                let text = all.at(at).label_text;
                let mut rows = self.conflicts.get(&look.contents)?.iter().copied();
                let other = rows.find(|other| all.at(*other).label_text != text)?;
                let words = [label_of(at), Some(as_row(other)), label_of(other)];
                let words: Vec<String> = words.into_iter().flatten().collect();
                Some(words.join(" "))
            }
            Fault::Row(RowKind::GroupLeak) => Some(format!("by `{}`", all.group_column)),
            Fault::Row(RowKind::Duplicate) => same_as(&self.equal, all.side(at)),
            Fault::Row(RowKind::FewOfLabel) => {
                let few = &self.labels.as_ref()?.few;
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
                let first: Vec<String> = self.spellings.iter().take(3).map(text).collect();
                Some(first.join(", "))
            }
            Fault::Row(RowKind::SplitNotUnderstood) => all.split_not_understood.clone(),
            Fault::Row(RowKind::SameCaption) => Some(format!("\"{}\"", all.captions.commonest().0)),
            _ => None,
        }
    }
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

    fn num_rows(&self) -> usize {
        self.sheets().iter().map(|(_, rows)| rows.len()).sum()
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
    look.state == PictureState::Good && look.width.min(look.height) < min_size
}

pub(super) fn is_narrow(look: &Look, max_aspect: u32) -> bool {
    let [short, long] = [look.width.min(look.height), look.width.max(look.height)];
    look.state == PictureState::Good && u64::from(long) > u64::from(short) * u64::from(max_aspect)
}

/// Whether a clip has fewer frames than training uses of each clip.
pub(super) fn is_short(look: &Look, config: &CheckConfig) -> bool {
    let is_clip = config.media == Media::Clips && look.state == PictureState::Good;
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

/// Rows of the CSV with the commonest caption, if most rows have it.
fn rows_of_prevailing_caption(all: &AllFacts) -> Vec<At> {
    let (caption, num_rows) = all.captions.commonest();
    if num_rows <= 1 || num_rows as f64 <= MOST_OF_ONE_CAPTION * all.rows.len() as f64 {
        return Vec::new();
    }
    let hash = xxhash_rust::xxh3::xxh3_64(caption.as_bytes());
    let mut rows = all.rows_where(|facts| facts.has_caption && facts.caption == hash);
    rows.retain(|at| at.0 == 0);
    rows
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
