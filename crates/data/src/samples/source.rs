//! From a config to samples: finds the CSV, reads it, assigns columns, splits the rows, and checks that every image
//! exists. Decisions on the way are recorded as notes.

mod bad_rows;
mod clips;
mod evidence;
mod missing;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::media::Media;
use crate::table::Captions;
use holdall_files::{check_memory, show_bytes};
use serde::{Deserialize, Serialize};

use crate::config::{DataConfig, LABEL, TargetConfig, UnseenLabels, Validation};
use crate::error::{DataError, at_row};
use crate::samples::split::{held_out, held_out_groups};
use crate::samples::target::{Target, TargetKind, TargetValues};
use crate::samples::unique_texts::UniqueTexts;
use crate::samples::{Samples, SamplesBuilder};
use crate::table::{Columns, Origin, Side, SplitColumn, Table, find, group_by_name, guess_label};
use crate::words::{counted, percent, thousands};
use bad_rows::check_rows;
pub use bad_rows::{BadRow, RowFault};
pub use clips::{read_clips, read_clips_with_targets};
pub use evidence::{Evidence, EvidenceKind, evidence};
use missing::check_images;
pub(crate) use targets::Known;
use targets::{ScannedTarget, standardize};

/// The data set that a config's `data` section describes.
#[derive(Debug, Serialize, Deserialize)]
pub struct DataSet {
    /// Training samples.
    pub train: Samples,
    /// Validation samples.
    pub validation: Option<Samples>,
    /// Test samples, where rows are marked for the test.
    pub test: Option<Samples>,
    /// Prediction targets, in the order of [`Samples::targets`].
    pub targets: Vec<Target>,
    /// Label names of the first target with one label per picture: those of the training rows, sorted, or those of the
    /// trained head.
    pub labels: Vec<String>,
    /// Template of the captions; a single column is `{column}`. Empty without captions.
    pub caption_template: String,
    /// Column of the first target with one label per picture.
    pub label_column: Option<String>,
    /// Findings and decisions, for the log.
    pub notes: Vec<String>,
    /// The table file, or the folder of class folders.
    pub csv: PathBuf,
    /// Skipped rows, of this file and of a validation file.
    pub bad_rows: Vec<BadRow>,
}

/// Reads the config's data. The seed decides which rows are held out.
pub fn read(config: &DataConfig, captions: Captions, seed: u64) -> Result<DataSet, DataError> {
    read_source(config, (Media::Pictures, captions), None, seed)
}

/// Targets of a trained model, and the side of the split to evaluate.
#[derive(Clone, Copy, Debug)]
pub struct TrainedTargets<'a> {
    /// Labels in the model's order, and numeric targets. A target that the config does not name has no values.
    pub targets: &'a [Target],
    /// Labels of test rows are read only where this is [`Side::Test`]: they may be unknown to the model.
    pub side: Side,
}

/// Reads the config's data with the targets of a trained model. The seed is that of the training run, so that the same
/// rows are held out.
pub fn read_with_targets(
    config: &DataConfig,
    captions: Captions,
    trained: TrainedTargets<'_>,
    seed: u64,
) -> Result<DataSet, DataError> {
    read_source(config, (Media::Pictures, captions), Some(trained), seed)
}

/// Reads the config's data with captions and the labels of a trained head, in its order.
pub fn read_with_labels(
    config: &DataConfig,
    labels: &[String],
    side: Side,
    seed: u64,
) -> Result<DataSet, DataError> {
    let targets = config.targets();
    let mut targets = targets.iter();
    let label = targets.find(|(_, target)| matches!(target, TargetConfig::Class(_)));
    let head = Target {
        name: label.map_or(LABEL, |(name, _)| name).to_owned(),
        kind: TargetKind::Class {
            names: labels.to_vec(),
        },
    };
    let targets = &[head];
    let trained = TrainedTargets { targets, side };
    read_with_targets(config, Captions::Required, trained, seed)
}

fn read_source(
    config: &DataConfig,
    (media, captions): (Media, Captions),
    trained: Option<TrainedTargets<'_>>,
    seed: u64,
) -> Result<DataSet, DataError> {
    config.validate()?;
    let found = find(config.train.as_deref())?;
    let mut notes = found.notes;
    let source = Source::open(config, (media, captions), &found.csv, &mut notes)?;
    let heads = trained.map(|trained| trained.targets);
    let known = heads.map_or(Known::FromRows, Known::Heads);
    let mut scan = source.scan_for(config, trained.map(|trained| trained.side))?;
    notes.append(&mut scan.notes);
    let mut bad_rows = std::mem::take(&mut scan.bad);
    notes.extend(check_rows(config, &found.csv, &bad_rows, scan.num_rows)?);
    notes.extend(source.notes_on_unseen(&scan.targets, known));
    let unlabelled = source.notes_on_unlabelled(&scan.targets, &scan.sides);
    let split = source.split(scan, known, &config.validation, seed)?;
    let [mut train, mut validation, mut test] = source.samples(&split.sides, &split.values)?;
    notes.extend(check_images(
        config,
        &source,
        &[&train, &validation, &test],
        bad_rows.len(),
    )?);
    notes.extend(unlabelled);
    // Suggests a label column only to training runs; other callers bring a model's targets or need none.
    let is_to_train = captions == Captions::Required && trained.is_none();
    if let (true, Some(column)) = (
        is_to_train && source.columns.targets.is_empty() && config.label.is_none(),
        guess_label(&source.table),
    ) {
        notes.push(format!(
            "Label head: none (`label: {column}` under `data:` would train one)"
        ));
    }
    let mut validation_file = None;
    if let Validation::File { path, .. } = &config.validation {
        let known = match heads {
            Some(heads) => Known::Heads(heads),
            None => Known::Training(&split.targets),
        };
        let groups = source.validation_of_other(config);
        let mut other =
            ValidationFile::read(config, (media, captions), path, groups, known, &mut notes)?;
        validation = std::mem::take(&mut other.samples);
        bad_rows.append(&mut other.bad_rows);
        validation_file = Some(other);
    }
    if config.validation == Validation::None {
        validation = Samples::default();
    }
    notes.extend(source.notes_on_split(config, &split, &validation, seed));
    let is_split = !matches!(config.validation, Validation::Unsplit { .. });
    let other = validation_file.as_ref();
    if let Some(groups) = split.groups.as_ref().filter(|_| is_split) {
        let others = other.and_then(|other| other.groups.as_ref());
        notes.extend(groups.note(&split.sides, others, split.drawn_share));
    }
    notes.extend(note_on_overlap(&train, &[&validation, &test]));
    if let Some(groups) = &split.clip_groups {
        let others = other.and_then(|other| other.clip_groups.as_ref());
        let sides = [train, validation, test];
        [train, validation, test] = groups.clips_of_samples(sides, &split.sides, others);
        notes.push(clips::note_on_groups(config, &train, &validation));
    }
    if captions == Captions::Required {
        notes.extend(note_on_texts(&train, ""));
        notes.extend(note_on_texts(&validation, " in validation"));
    }
    let label = split.targets.iter().find_map(|target| match &target.kind {
        TargetKind::Class { names } => Some(names.clone()),
        _ => None,
    });
    let unless_empty = |samples: Samples| Some(samples).filter(|samples| !samples.is_empty());
    Ok(DataSet {
        train,
        validation: unless_empty(validation),
        test: unless_empty(test),
        labels: label.unwrap_or_default(),
        targets: split.targets,
        caption_template: match &source.columns.caption {
            Some(template) => template.text().to_owned(),
            None => String::new(),
        },
        label_column: source.label_column().map(str::to_owned),
        notes,
        csv: found.csv,
        bad_rows,
    })
}

/// Contents of the file that the config names for validation.
struct ValidationFile {
    samples: Samples,
    groups: Option<RowGroups>,
    clip_groups: Option<RowGroups>,
    bad_rows: Vec<BadRow>,
}

impl ValidationFile {
    /// Reads all rows of the file; nothing is held out of it, and `groups` says which column groups them.
    fn read(
        config: &DataConfig,
        kind: (Media, Captions),
        path: &Path,
        groups: Validation,
        known: Known<'_>,
        notes: &mut Vec<String>,
    ) -> Result<ValidationFile, DataError> {
        let source = Source::open(config, kind, path, &mut Vec::new())?;
        let scan = source.scan(&groups, LabelsOfTest::Read)?;
        notes.extend(check_rows(config, path, &scan.bad, scan.num_rows)?);
        notes.extend(source.notes_on_unseen(&scan.targets, known));
        let num_samples = scan.sides.len();
        let (_, values) = source.resolve(scan.targets, known, num_samples)?;
        let [samples, _, _] = source.samples(&vec![Side::Train; num_samples], &values)?;
        notes.extend(check_images(config, &source, &[&samples], scan.bad.len())?);
        let bad_rows = scan.bad.into_iter().map(|bad| BadRow {
            side: Side::Validation,
            ..bad
        });
        Ok(ValidationFile {
            samples,
            groups: scan.groups,
            clip_groups: scan.clip_groups,
            bad_rows: bad_rows.collect(),
        })
    }
}

/// Calls `visit` with the file of every training row. The seed is that of the run.
pub fn visit_trained_files(
    config: &DataConfig,
    kind: (Media, Captions),
    seed: u64,
    visit: &mut dyn FnMut(&Path),
) -> Result<(), DataError> {
    let found = find(config.train.as_deref())?;
    let source = Source::open(config, kind, &found.csv, &mut Vec::new())?;
    let scan = source.scan(&config.validation, LabelsOfTest::Unread)?;
    let split = source.split(scan, Known::FromRows, &config.validation, seed)?;
    let (mut image, mut caption) = (String::new(), String::new());
    let mut sides = split.sides.iter();
    let mut path = PathBuf::new();
    let mut rows = source.table.rows()?;
    while let Some(row) = rows.read_any()? {
        if source.read_row(row, &mut image, &mut caption).is_some() {
            continue;
        }
        if *sides.next().ok_or_else(|| source.table.changed())? == Side::Train {
            path.clear();
            path.push(&source.root);
            path.push(&image);
            visit(&path);
        }
    }
    Ok(())
}

/// Captions up to this length are tokenized without a memory check.
const SHORT_CAPTION_BYTES: usize = 64 << 10;
/// Peak memory of tokenizing, per byte of text: measured as 125 to 147.
const TOKENIZED_PER_BYTE: u64 = 160;

/// Refuses a text that needs more memory to tokenize than the budget leaves; `place` is its position, for the message.
///
/// # Errors
/// [`DataError::OverBudget`].
pub fn check_text(text: &str, place: impl FnOnce() -> String) -> Result<(), DataError> {
    if text.len() <= SHORT_CAPTION_BYTES {
        return Ok(());
    }
    check_memory(text.len() as u64 * TOKENIZED_PER_BYTE).map_err(|over| DataError::OverBudget {
        place: place(),
        what: format!("a text of {}", show_bytes(text.len() as u64)),
        over,
        hint: "shorten it",
        is_all: true,
    })
}

/// A table whose columns are assigned.
pub(crate) struct Source {
    pub(crate) table: Table,
    pub(crate) columns: Columns,
    pub(crate) root: PathBuf,
    pub(crate) media: Media,
    /// Column whose rows of equal value form one sample.
    clip_group: Option<String>,
    unseen_labels: UnseenLabels,
}

impl Source {
    pub(crate) fn open(
        config: &DataConfig,
        (media, captions): (Media, Captions),
        csv: &Path,
        notes: &mut Vec<String>,
    ) -> Result<Source, DataError> {
        let table = Table::open_separated(csv, config.separator)?;
        notes.extend_from_slice(table.notes());
        let columns = Columns::find(config, (media, captions), &table, notes)?;
        let root = match &config.image_root {
            Some(root) if !table.has_own_root() => root.clone(),
            _ => table.folder().to_owned(),
        };
        Ok(Source {
            table,
            columns,
            root,
            media,
            unseen_labels: config.unseen_labels,
            clip_group: match media {
                Media::Pictures => None,
                Media::Clips => config.group.clone(),
            },
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.table.path().to_owned()
    }

    /// Column of the first target with one label per picture, in the config's order.
    pub(crate) fn label_column(&self) -> Option<&str> {
        let column = self.columns.label()?;
        Some(&self.table.columns()[column])
    }

    /// Validation setting for reading a validation file: nothing is held out of it, but groups are read.
    pub(crate) fn validation_of_other(&self, config: &DataConfig) -> Validation {
        Validation::Unsplit {
            group: config.validation.group().map(str::to_owned),
        }
    }

    /// Scans for training, or for the evaluation of one side.
    fn scan_for(&self, config: &DataConfig, evaluated: Option<Side>) -> Result<Scan, DataError> {
        let labels_of_test = match evaluated {
            Some(Side::Test) => LabelsOfTest::Read,
            _ => LabelsOfTest::Unread,
        };
        let mut scan = self.scan(&config.validation, labels_of_test)?;
        // Where validation rows are drawn later, any row may become one.
        let has_marked = scan.sides.contains(&Side::Validation);
        let is_drawn = config.validation.drawn_share(has_marked).is_some();
        let is_marked =
            |side: &Side| scan.sides.contains(side) && (*side == Side::Test || !is_drawn);
        if let Some(side) = evaluated.filter(is_marked) {
            let targets = scan.targets.iter_mut();
            targets.for_each(|target| target.evaluate(side));
        }
        Ok(scan)
    }

    /// Reads every row once: finds bad rows, and reads sides, labels, numbers and groups of the others.
    pub(crate) fn scan(
        &self,
        validation: &Validation,
        labels_of_test: LabelsOfTest,
    ) -> Result<Scan, DataError> {
        let mut notes = Vec::new();
        let split = SplitColumn::find(validation, &self.table, &mut notes)?;
        let clip_group = match &self.clip_group {
            Some(name) => Some(self.table.column("group", name)?),
            None => None,
        };
        // All clips of a sample are on one side of the split.
        let (group, is_asked) = match validation.group() {
            Some(name) => (Some(self.table.column("validation", name)?), true),
            None if clip_group.is_some() => (clip_group, true),
            None => (group_by_name(&self.table), false),
        };
        let groups = |column: usize, is_asked: bool| {
            let name = self.table.columns()[column].clone();
            RowGroups::new(name, is_asked)
        };
        let mut scan = Scan {
            targets: self.scan_targets(),
            groups: group.map(|column| groups(column, is_asked)),
            clip_groups: clip_group.map(|column| groups(column, true)),
            notes,
            ..Scan::default()
        };
        let (mut image, mut caption) = (String::new(), String::new());
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            scan.num_rows += 1;
            let side = match &split {
                Some(split) => split.side(&self.table, row),
                None => Ok(Side::Train),
            };
            if let Some(fault) = self.read_row(row, &mut image, &mut caption) {
                scan.bad.push(BadRow {
                    row: row.line(),
                    side: side.unwrap_or(Side::Train),
                    image: image.clone(),
                    fault,
                });
                continue;
            }
            self.check_caption(row.line(), &caption)?;
            let side = side?;
            for (target, scanned) in self.columns.targets.iter().zip(&mut scan.targets) {
                match (side, labels_of_test) {
                    (Side::Test, LabelsOfTest::Unread) => scanned.push_unknown(),
                    _ => scanned.push(&target.columns, row, side),
                }
            }
            if let (Some(column), Some(groups)) = (group, &mut scan.groups) {
                groups.push(row.cell(column).trim());
            }
            if let (Some(column), Some(groups)) = (clip_group, &mut scan.clip_groups) {
                groups.push(row.cell(column).trim());
            }
            scan.sides.push(side);
        }
        if let Some(split) = &split
            && !scan.sides.is_empty()
            && !scan.sides.contains(&Side::Train)
        {
            return Err(DataError::invalid(
                format_args!("{}: column `{}`", self.table.path().display(), split.name),
                "rows that say train",
                "none",
                "mark training rows with `train`, or use `validation: 10%`",
            ));
        }
        scan.split = split;
        Ok(scan)
    }

    /// Checks that a caption fits in memory, since it is tokenized as a whole.
    fn check_caption(&self, row: u32, caption: &str) -> Result<(), DataError> {
        let place = || {
            let template = self.columns.caption.as_ref();
            let template = template.map_or("", |template| template.text());
            format!("{}, caption `{template}`", at_row(self.table.path(), row))
        };
        check_text(caption, place)
    }

    /// Resolves the targets and the side of each row: marked sides, and a share of the training rows drawn for validation where none are
    /// marked or the config says so.
    pub(crate) fn split(
        &self,
        scan: Scan,
        known: Known<'_>,
        validation: &Validation,
        seed: u64,
    ) -> Result<RowSplit, DataError> {
        let num_samples = scan.sides.len();
        let (mut targets, values) = self.resolve(scan.targets, known, num_samples)?;
        let mut sides = scan.sides;
        let has_marked = sides.contains(&Side::Validation);
        let drawn_share = validation.drawn_share(has_marked);
        if let Some(share) = drawn_share {
            let mut labels =
                targets
                    .iter()
                    .zip(&values)
                    .filter_map(|(target, values)| match values {
                        TargetValues::Class(labels) => Some((&target.name, labels.as_slice())),
                        _ => None,
                    });
            let leading = labels
                .clone()
                .find(|(name, _)| self.columns.is_leading(name));
            let labels = leading.or_else(|| labels.next()).map(|(_, labels)| labels);
            let groups = scan.groups.as_ref().filter(|groups| groups.is_asked);
            draw_validation(&mut sides, labels, groups, share, seed);
        }
        if !matches!(known, Known::Heads(_)) {
            standardize(&mut targets, &values, &sides);
        }
        Ok(RowSplit {
            targets,
            values,
            sides,
            column: scan.split,
            drawn_share,
            groups: scan.groups,
            clip_groups: scan.clip_groups,
        })
    }

    /// Reads the rows again, now that their sides are known; returns samples in the order of [`Side::ALL`].
    fn samples(&self, sides: &[Side], values: &[TargetValues]) -> Result<[Samples; 3], DataError> {
        let mut builders = Side::ALL.map(|_| SamplesBuilder::new(self.root.clone()));
        let (mut image, mut caption) = (String::new(), String::new());
        let mut side_of_next = sides.iter();
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            if self.read_row(row, &mut image, &mut caption).is_some() {
                continue;
            }
            let side = side_of_next.next().ok_or_else(|| self.table.changed())?;
            let caption = self.columns.caption.as_ref().map(|_| caption.as_str());
            builders[side.index()].push(&image, caption, row.line());
        }
        if side_of_next.next().is_some() {
            return Err(self.table.changed());
        }
        let mut of_side = Side::ALL.into_iter();
        Ok(builders.map(|builder| {
            let side = of_side.next();
            let samples: Vec<usize> = (0..sides.len())
                .filter(|sample| Some(sides[*sample]) == side)
                .collect();
            let targets = values.iter().map(|values| values.of(&samples));
            builder.finish(targets.collect())
        }))
    }
}

/// Draws a share of the rows outside the test side for validation; the rest of them is for training.
fn draw_validation(
    sides: &mut [Side],
    labels: Option<&[i32]>,
    groups: Option<&RowGroups>,
    share: f64,
    seed: u64,
) {
    let pool: Vec<usize> = (0..sides.len())
        .filter(|sample| sides[*sample] != Side::Test)
        .collect();
    let labels: Vec<i32> = match labels {
        Some(labels) => pool.iter().map(|sample| labels[*sample]).collect(),
        None => vec![-1; pool.len()],
    };
    let held = match groups {
        Some(groups) => {
            let group_of: Vec<u32> = pool.iter().map(|sample| groups.group_of[*sample]).collect();
            held_out_groups(&labels, &group_of, share, seed)
        }
        None => held_out(&labels, share, seed),
    };
    for (sample, is_held) in pool.into_iter().zip(held) {
        sides[sample] = if is_held {
            Side::Validation
        } else {
            Side::Train
        };
    }
}

/// Whether labels of test rows are read: training does not use them, and they may be labels that it does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LabelsOfTest {
    Read,
    Unread,
}

/// Result of reading all rows once.
#[derive(Default)]
pub(crate) struct Scan {
    /// In the order of the columns.
    pub(crate) targets: Vec<ScannedTarget>,
    /// Marked side of each sample, bad rows excluded.
    pub(crate) sides: Vec<Side>,
    /// Column that marks the sides.
    split: Option<SplitColumn>,
    pub(crate) groups: Option<RowGroups>,
    /// Rows that form one sample.
    pub(crate) clip_groups: Option<RowGroups>,
    pub(crate) bad: Vec<BadRow>,
    /// Number of rows, bad ones included.
    pub(crate) num_rows: usize,
    pub(crate) notes: Vec<String>,
}

/// Targets and side of each sample.
pub(crate) struct RowSplit {
    pub(crate) targets: Vec<Target>,
    pub(crate) values: Vec<TargetValues>,
    pub(crate) sides: Vec<Side>,
    /// Column that marks the sides.
    pub(crate) column: Option<SplitColumn>,
    /// Share that was drawn for validation.
    pub(crate) drawn_share: Option<f64>,
    pub(crate) groups: Option<RowGroups>,
    clip_groups: Option<RowGroups>,
}

impl RowSplit {
    /// Whether the data marks the validation rows, so that none are drawn.
    pub(crate) fn is_marked(&self) -> bool {
        self.column.is_some() && self.drawn_share.is_none()
    }
}

/// Rows that belong together, such as those of a patient.
pub(crate) struct RowGroups {
    pub(crate) column: String,
    /// Whether the config names the column; a column found by its name does not affect the split.
    pub(crate) is_asked: bool,
    names: UniqueTexts,
    /// Group of each sample. A row whose cell is empty is a group of its own.
    pub(crate) group_of: Vec<u32>,
}

impl RowGroups {
    /// Joins the clips of a group to one sample, on every side. `others` are the groups of a validation file.
    fn clips_of_samples(
        &self,
        [train, validation, test]: [Samples; 3],
        sides: &[Side],
        others: Option<&RowGroups>,
    ) -> [Samples; 3] {
        let of_side = |side: Side| self.of_side(sides, side);
        let validation = match others {
            _ if validation.is_empty() => validation,
            Some(others) => validation.grouped(&others.group_of),
            None => validation.grouped(&of_side(Side::Validation)),
        };
        [
            train.grouped(&of_side(Side::Train)),
            validation,
            test.grouped(&of_side(Side::Test)),
        ]
    }

    fn new(column: String, is_asked: bool) -> RowGroups {
        RowGroups {
            column,
            is_asked,
            names: UniqueTexts::default(),
            group_of: Vec::new(),
        }
    }

    fn push(&mut self, cell: &str) {
        let group = match cell {
            // Unique: cells are trimmed, so none begins with a space.
            "" => self.names.number(&format!(" {}", self.group_of.len())),
            _ => self.names.number(cell),
        };
        self.group_of.push(group);
    }

    /// Groups of the samples on one side of the split, in order.
    fn of_side(&self, sides: &[Side], side: Side) -> Vec<u32> {
        let samples = self.group_of.iter().zip(sides);
        let samples = samples.filter(|(_, of_sample)| **of_sample == side);
        samples.map(|(group, _)| *group).collect()
    }

    /// For each sample, whether its group is on an earlier side too, in the order training, validation, test.
    pub(crate) fn leaks(&self, sides: &[Side]) -> Vec<bool> {
        let mut first_side = vec![Side::Test; self.names.len()];
        for (&group, &side) in self.group_of.iter().zip(sides) {
            let first = &mut first_side[group as usize];
            *first = side.min(*first);
        }
        let samples = self.group_of.iter().zip(sides);
        let leaks = samples.map(|(group, side)| *side > first_side[*group as usize]);
        leaks.collect()
    }

    /// For each sample of a validation file, whether its group is trained on.
    pub(crate) fn leaks_from(&self, train: &RowGroups) -> Vec<bool> {
        let mut is_trained = vec![false; self.names.len()];
        for (name, group) in self.names.iter() {
            is_trained[group as usize] = !name.starts_with(' ') && train.names.contains(name);
        }
        let leaks = self
            .group_of
            .iter()
            .map(|group| is_trained[*group as usize]);
        leaks.collect()
    }

    /// Note on the groups and rows of each side and on groups on several sides. For a column that the config does not name, only the
    /// latter.
    pub(crate) fn note(
        &self,
        sides: &[Side],
        of_validation: Option<&RowGroups>,
        drawn_share: Option<f64>,
    ) -> Option<String> {
        let count = |groups: &RowGroups, is_meant: &dyn Fn(usize) -> bool| {
            let samples = (0..groups.group_of.len()).filter(|sample| is_meant(*sample));
            let groups: Vec<u32> = samples.map(|sample| groups.group_of[sample]).collect();
            let unique: HashSet<u32> = groups.iter().copied().collect();
            (unique.len(), groups.len())
        };
        let of_side = |side: Side| count(self, &|sample| sides[sample] == side);
        let leaks = self.leaks(sides);
        let (held, (both, _)) = match of_validation {
            Some(other) => {
                let leaks = other.leaks_from(self);
                (
                    count(other, &|_| true),
                    count(other, &|sample| leaks[sample]),
                )
            }
            None => (
                of_side(Side::Validation),
                count(self, &|sample| leaks[sample]),
            ),
        };
        let column = &self.column;
        let text = |(groups, rows)| format!("{} in {}", thousands(groups), counted(rows, "row"));
        let test = match of_side(Side::Test) {
            (0, _) => String::new(),
            test => format!(", {} for the test", text(test)),
        };
        let counts = format!(
            "Groups by `{column}`: {} for training, {} for validation{test}",
            text(of_side(Side::Train)),
            text(held)
        );
        if both == 0 {
            return self.is_asked.then_some(counts);
        }
        let careful = format!(
            "Careful: {} of `{column}` on both sides of the split",
            counted(both, "group")
        );
        Some(match (self.is_asked, drawn_share) {
            (true, _) => format!("{careful}. {counts}"),
            (false, Some(share)) => format!(
                "{careful}; `--set 'data.validation={{share: {}, group: {column}}}'` keeps each on one",
                percent(share)
            ),
            (false, None) => careful,
        })
    }
}

impl Source {
    /// Notes on what is held out and why, and what is left for the test.
    fn notes_on_split(
        &self,
        config: &DataConfig,
        split: &RowSplit,
        validation: &Samples,
        seed: u64,
    ) -> Vec<String> {
        let count = |side: Side| split.sides.iter().filter(|of| **of == side).count();
        let (held, num_test) = (thousands(validation.len()), count(Side::Test));
        let all = counted(split.sides.len(), "row");
        let note = match (&config.validation, split.drawn_share) {
            (Validation::Unsplit { .. }, _) => return Vec::new(),
            (Validation::None, _) => format!(
                "Validation: none, as asked{}",
                unused(count(Side::Validation))
            ),
            (Validation::File { path, .. }, _) => format!(
                "Validation: {} of {}{}",
                counted(validation.len(), "row"),
                path.display(),
                unused(count(Side::Validation))
            ),
            (_, None) => {
                let which = match &split.column {
                    Some(column) if column.origin == Origin::Files => {
                        let folder = validation.image(0).split(['/', '#']).next();
                        format!("those in `{}`", folder.unwrap_or_default())
                    }
                    Some(column) => column.describe(),
                    None => String::new(),
                };
                format!("Validation: {held} of {all}, {which}")
            }
            (_, Some(share)) if validation.is_empty() => {
                let why = match (config.validation.group(), self.label_column()) {
                    (Some(group), _) => format!("no group of `{group}` can be spared"),
                    (None, Some(column)) => format!("no `{column}` has rows to spare"),
                    (None, None) => "that is less than a row".to_owned(),
                };
                format!("Validation: none of {all} ({}): {why}", percent(share))
            }
            (_, Some(share)) => {
                let stratified = match self.label_column() {
                    Some(column) => format!(" stratified by `{column}`,"),
                    None => String::new(),
                };
                let grouped = match config.validation.group() {
                    Some(group) => format!(" grouped by `{group}`,"),
                    None => String::new(),
                };
                let of_what = match num_test {
                    0 => all,
                    _ => format!(
                        "{} that are not for the test",
                        counted(split.sides.len() - num_test, "row")
                    ),
                };
                format!(
                    "Validation: {held} of {of_what} ({}),{stratified}{grouped} seed {seed}",
                    percent(share)
                )
            }
        };
        let Some(column) = split.column.as_ref().filter(|_| num_test > 0) else {
            return vec![note];
        };
        let marked = match column.origin {
            Origin::Files => "by their folder or file".to_owned(),
            Origin::Config => format!("by `{}`", column.name),
            Origin::Name => format!("by `{}`, a column found by its name", column.name),
            Origin::Values => format!("by `{}`, a column found by its values", column.name),
        };
        let test = format!(
            "Test: {} set apart {marked}; only `holdall eval RUN --part test` reads them",
            counted(num_test, "row")
        );
        vec![note, test]
    }
}

/// Text about rows that are marked for validation where another validation set is used.
fn unused(num_rows: usize) -> String {
    match num_rows {
        0 => String::new(),
        _ => format!(
            "; {} marked for validation not used",
            counted(num_rows, "row")
        ),
    }
}

/// Warns about images on two sides of a split: they make scores look better than they are.
fn note_on_overlap(train: &Samples, held: &[&Samples; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    for (held, what) in held.iter().zip(["validation", "test"]) {
        if held.is_empty() || train.root() != held.root() {
            continue;
        }
        // Keyed by the held-out side, which is usually smaller.
        let mut rows_of: HashMap<&str, usize> = HashMap::new();
        for sample in 0..held.len() {
            *rows_of.entry(held.image(sample)).or_default() += 1;
        }
        let seen: usize = (0..train.len())
            .filter_map(|sample| rows_of.remove(train.image(sample)))
            .sum();
        if seen > 0 {
            notes.push(format!(
                "Careful: {} of {} {what} rows {} an image that is also trained on",
                thousands(seen),
                thousands(held.len()),
                if seen == 1 { "shows" } else { "show" }
            ));
        }
    }
    notes
}

fn note_on_texts(samples: &Samples, place: &str) -> Option<String> {
    let (unique, all) = (samples.captions().len(), samples.len());
    (unique < all).then(|| {
        let (unique, all) = (counted(unique, "unique text"), thousands(all));
        format!("{unique} out of {all}{place}")
    })
}
