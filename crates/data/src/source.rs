//! From a config to samples: find the CSV, read it, say which columns mean what, split it, and check
//! that every image is there. What was decided on the way is said in notes.

mod bad_rows;
mod clips;
mod evidence;
mod missing;
pub(crate) mod targets;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

pub use crate::columns::{Captions, Media};
use serde::{Deserialize, Serialize};

use crate::columns::{Columns, guess_label};
use crate::config::{DataConfig, Validation};
use crate::error::{DataError, at_row};
use crate::find::find;
use crate::samples::{Samples, SamplesBuilder};
use crate::split::{held_out, held_out_groups};
use crate::table::{Row, Table};
use crate::target::{LABEL, Target, TargetConfig, TargetKind, TargetValues};
use crate::unique_texts::UniqueTexts;
use crate::words::{counted, percent, thousands};
use bad_rows::check_rows;
pub use bad_rows::{BadRow, RowFault};
pub use clips::{read_clips, read_clips_with_targets};
pub use evidence::{Evidence, EvidenceKind, evidence};
use missing::check_images;
use targets::{Known, ScannedTarget, standardize};

/// What a config's `data` section leads to.
#[derive(Debug, Serialize, Deserialize)]
pub struct DataSet {
    /// What is trained on.
    pub train: Samples,
    /// What is held out, if anything.
    pub validation: Option<Samples>,
    /// What is to be learnt of each picture, in the order of [`Samples::targets`].
    pub targets: Vec<Target>,
    /// Names of the labels of the first target with one label per picture: those of the training rows, sorted, or those
    /// of the trained head.
    pub labels: Vec<String>,
    /// How captions are made; a column alone is `{column}`. Empty without captions.
    pub caption_template: String,
    /// The column of the first target with one label per picture.
    pub label_column: Option<String>,
    /// What was found and decided, for the log.
    pub notes: Vec<String>,
    /// The file read, or the folder of class folders.
    pub csv: PathBuf,
    /// Rows that were left out, of this file and of a validation file.
    pub bad_rows: Vec<BadRow>,
}

/// Reads what the config names. The seed decides which rows are held out.
pub fn read(config: &DataConfig, captions: Captions, seed: u64) -> Result<DataSet, DataError> {
    read_source(config, (Media::Pictures, captions), None, seed)
}

/// Reads what the config names, with the targets of a trained model: its labels, in its order. A target that the config
/// does not name has no values. The seed is that of the training run, so that the same rows are held out.
pub fn read_with_targets(
    config: &DataConfig,
    captions: Captions,
    targets: &[Target],
    seed: u64,
) -> Result<DataSet, DataError> {
    read_source(config, (Media::Pictures, captions), Some(targets), seed)
}

/// Reads what the config names, with captions and the labels of a trained head, in its order.
pub fn read_with_labels(
    config: &DataConfig,
    labels: &[String],
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
    read_with_targets(config, Captions::Required, &[head], seed)
}

fn read_source(
    config: &DataConfig,
    (media, captions): (Media, Captions),
    heads: Option<&[Target]>,
    seed: u64,
) -> Result<DataSet, DataError> {
    config.validate()?;
    let found = find(config.train.as_deref())?;
    let mut notes = found.notes;
    let source = Source::open(config, (media, captions), &found.csv, &mut notes)?;
    let mut scan = source.scan(&config.validation)?;
    let mut bad_rows = std::mem::take(&mut scan.bad);
    notes.extend(check_rows(config, &found.csv, &bad_rows, scan.num_rows)?);
    let known = heads.map_or(Known::FromRows, Known::Heads);
    let split = source.split(scan, known, &config.validation, seed)?;
    let Split {
        targets,
        values,
        held,
        groups,
        clip_groups,
    } = split;
    let [mut train, mut validation] = source.samples(&held, &values)?;
    notes.extend(check_images(
        config,
        &source,
        &[&train, &validation],
        bad_rows.len(),
    )?);
    notes.extend(source.notes_on_unlabelled(&values));
    if let (true, Some(column)) = (
        source.columns.targets.is_empty() && config.label.is_none(),
        guess_label(&source.table),
    ) {
        notes.push(format!(
            "Label head: none (`label: {column}` under `data:` would train one)"
        ));
    }
    let (mut other_groups, mut other_clip_groups) = (None, None);
    if let Validation::File { path, .. } = &config.validation {
        let other = Source::open(config, (media, captions), path, &mut Vec::new())?;
        let mut scan = other.scan(&source.validation_of_other(config))?;
        notes.extend(check_rows(config, path, &scan.bad, scan.num_rows)?);
        let num_bad = scan.bad.len();
        bad_rows.extend(scan.bad.drain(..).map(|bad| BadRow {
            is_held: true,
            ..bad
        }));
        let known = match heads {
            Some(heads) => Known::Heads(heads),
            None => Known::Training(&targets),
        };
        let num_samples = scan.held.len();
        let (_, values) = other.resolve(scan.targets, known, num_samples)?;
        [validation, _] = other.samples(&vec![false; num_samples], &values)?;
        notes.extend(check_images(config, &other, &[&validation], num_bad)?);
        other_groups = scan.groups;
        other_clip_groups = scan.clip_groups;
    }
    notes.push(note_on_validation(
        config,
        &source,
        &train,
        &validation,
        seed,
    ));
    if let Some(groups) = &groups {
        notes.push(groups.note(&held, other_groups.as_ref()));
    }
    notes.extend(note_on_overlap(&train, &validation));
    if let Some(groups) = &clip_groups {
        train = train.grouped(&groups.of_side(&held, false));
        validation = match &other_clip_groups {
            Some(other) => validation.grouped(&other.group_of),
            None => validation.grouped(&groups.of_side(&held, true)),
        };
        notes.push(clips::note_on_groups(config, &train, &validation));
    }
    if captions == Captions::Required {
        notes.extend(note_on_texts(&train, ""));
        notes.extend(note_on_texts(&validation, " in validation"));
    }
    let label = targets.iter().find_map(|target| match &target.kind {
        TargetKind::Class { names } => Some(names.clone()),
        _ => None,
    });
    Ok(DataSet {
        train,
        validation: Some(validation).filter(|samples| !samples.is_empty()),
        labels: label.unwrap_or_default(),
        targets,
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

/// A table whose columns are known.
pub(crate) struct Source {
    pub(crate) table: Table,
    pub(crate) columns: Columns,
    pub(crate) root: PathBuf,
    pub(crate) media: Media,
    /// The column whose rows of equal value are one sample.
    clip_group: Option<String>,
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
            clip_group: match media {
                Media::Pictures => None,
                Media::Clips => config.group.clone(),
            },
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.table.path().to_owned()
    }

    /// The column of the first target with one label per picture.
    pub(crate) fn label_column(&self) -> Option<&str> {
        let column = self.columns.label()?;
        Some(&self.table.columns()[column])
    }

    /// The column that says which rows are held out: the config's, or that of class folders in `train` and `val`.
    fn split_column<'a>(
        &self,
        validation: &'a Validation,
    ) -> Result<Option<(usize, &'a str)>, DataError> {
        match validation {
            Validation::Column { column, .. } => {
                Ok(Some((self.table.column("validation", column)?, column)))
            }
            Validation::Share { .. } => match self.table.split_column() {
                Some(name) => Ok(Some((self.table.column("validation", name)?, name))),
                None => Ok(None),
            },
            _ => Ok(None),
        }
    }

    /// Whether class folders are in folders `train` and `val` or `test`, or shards are called so.
    fn is_split(&self) -> bool {
        self.table.split_column().is_some()
    }

    /// What is held out of a validation file: nothing; groups are read anyway.
    pub(crate) fn validation_of_other(&self, config: &DataConfig) -> Validation {
        match config.validation.group() {
            Some(group) => Validation::File {
                path: PathBuf::new(),
                group: Some(group.to_owned()),
            },
            None => Validation::None,
        }
    }

    /// Reads every row once: which are no samples, and of the others what a split column holds out and what columns of
    /// labels, numbers and groups say.
    pub(crate) fn scan(&self, validation: &Validation) -> Result<Scan, DataError> {
        let split = self.split_column(validation)?;
        let clip_group = match &self.clip_group {
            Some(name) => Some((self.table.column("group", name)?, name.as_str())),
            None => None,
        };
        // Clips of one sample are on one side of the split.
        let group = match validation.group() {
            Some(name) => Some((self.table.column("validation", name)?, name)),
            None => clip_group,
        };
        let mut scan = Scan {
            targets: self.scan_targets(),
            groups: group.map(|(_, name)| Groups::new(name)),
            clip_groups: clip_group.map(|(_, name)| Groups::new(name)),
            ..Scan::default()
        };
        let (mut image, mut caption) = (String::new(), String::new());
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            scan.num_rows += 1;
            if let Some(fault) = self.read_row(row, &mut image, &mut caption) {
                let is_held = split.is_some_and(|(column, name)| {
                    self.is_held(row, column, name).ok() == Some(true)
                });
                scan.bad.push(BadRow {
                    row: row.line(),
                    is_held,
                    image: image.clone(),
                    fault,
                });
                continue;
            }
            let is_held = match split {
                Some((column, name)) => self.is_held(row, column, name)?,
                None => false,
            };
            for (target, scanned) in self.columns.targets.iter().zip(&mut scan.targets) {
                scanned.push(&target.columns, row, is_held);
            }
            if let (Some((column, _)), Some(groups)) = (group, &mut scan.groups) {
                groups.push(row.cell(column).trim());
            }
            if let (Some((column, _)), Some(groups)) = (clip_group, &mut scan.clip_groups) {
                groups.push(row.cell(column).trim());
            }
            scan.held.push(is_held);
        }
        match split {
            Some((_, name)) if !scan.held.is_empty() && scan.held.iter().all(|held| *held) => {
                Err(DataError::invalid(
                    format_args!("{}: column `{name}`", self.table.path().display()),
                    "rows that say train",
                    "none",
                    "mark training rows with `train`, or use `validation: 10%`",
                ))
            }
            _ => Ok(scan),
        }
    }

    /// The targets, and which rows are held out.
    pub(crate) fn split(
        &self,
        scan: Scan,
        known: Known<'_>,
        validation: &Validation,
        seed: u64,
    ) -> Result<Split, DataError> {
        let num_samples = scan.held.len();
        let (mut targets, values) = self.resolve(scan.targets, known, num_samples)?;
        let mut held = scan.held;
        if let (Validation::Share { share, .. }, false) = (validation, self.is_split()) {
            let labels = values.iter().find_map(|values| match values {
                TargetValues::Class(labels) => Some(labels.as_slice()),
                _ => None,
            });
            let unlabelled = vec![-1; if labels.is_some() { 0 } else { num_samples }];
            let labels = labels.unwrap_or(&unlabelled);
            held = match &scan.groups {
                Some(groups) => held_out_groups(labels, &groups.group_of, *share, seed),
                None => held_out(labels, *share, seed),
            };
        }
        if !matches!(known, Known::Heads(_)) {
            standardize(&mut targets, &values, &held);
        }
        Ok(Split {
            targets,
            values,
            held,
            groups: scan.groups,
            clip_groups: scan.clip_groups,
        })
    }

    /// What a split column says of a row.
    fn is_held(&self, row: Row<'_>, column: usize, name: &str) -> Result<bool, DataError> {
        let cell = row.cell(column).trim();
        match cell.to_ascii_lowercase().as_str() {
            "train" | "training" => Ok(false),
            "validation" | "val" | "valid" | "test" | "eval" => Ok(true),
            _ => Err(DataError::invalid(
                format_args!("{}: column `{name}`", at_row(self.table.path(), row.line())),
                "train, or validation, val, valid, test or eval",
                format_args!("`{cell}`"),
                "correct the row, or use `validation: 10%`",
            )),
        }
    }

    /// Reads the rows again, now that it is known what each is for: what is trained on, and what is held out.
    fn samples(&self, held: &[bool], values: &[TargetValues]) -> Result<[Samples; 2], DataError> {
        let mut builders = [(); 2].map(|()| SamplesBuilder::new(self.root.clone()));
        let (mut image, mut caption) = (String::new(), String::new());
        let mut sides = held.iter();
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            if self.read_row(row, &mut image, &mut caption).is_some() {
                continue;
            }
            let &is_held = sides.next().ok_or_else(|| self.table.changed())?;
            let caption = self.columns.caption.as_ref().map(|_| caption.as_str());
            builders[usize::from(is_held)].push(&image, caption, row.line());
        }
        if sides.next().is_some() {
            return Err(self.table.changed());
        }
        let mut targets = [Vec::new(), Vec::new()];
        for values in values {
            for (targets, values) in targets.iter_mut().zip(values.split(held)) {
                targets.push(values);
            }
        }
        let [train, held] = builders;
        let [of_train, of_held] = targets;
        Ok([train.finish(of_train), held.finish(of_held)])
    }
}

/// What was read of the rows.
#[derive(Default)]
pub(crate) struct Scan {
    /// In the order of the columns.
    pub(crate) targets: Vec<ScannedTarget>,
    /// By sample: bad rows do not count.
    pub(crate) held: Vec<bool>,
    pub(crate) groups: Option<Groups>,
    /// Rows that are one sample.
    pub(crate) clip_groups: Option<Groups>,
    pub(crate) bad: Vec<BadRow>,
    /// Bad ones included.
    pub(crate) num_rows: usize,
}

/// What is learnt of each row, and which are held out.
pub(crate) struct Split {
    pub(crate) targets: Vec<Target>,
    pub(crate) values: Vec<TargetValues>,
    pub(crate) held: Vec<bool>,
    pub(crate) groups: Option<Groups>,
    clip_groups: Option<Groups>,
}

/// Rows that belong together, such as those of a patient.
pub(crate) struct Groups {
    column: String,
    names: UniqueTexts,
    /// By sample. A row whose cell is empty is a group of its own.
    pub(crate) group_of: Vec<u32>,
}

impl Groups {
    fn new(column: &str) -> Groups {
        Groups {
            column: column.to_owned(),
            names: UniqueTexts::default(),
            group_of: Vec::new(),
        }
    }

    fn push(&mut self, cell: &str) {
        let group = match cell {
            // No cell reads like this: cells are trimmed.
            "" => self.names.number(&format!(" {}", self.group_of.len())),
            _ => self.names.number(cell),
        };
        self.group_of.push(group);
    }

    /// Groups of the samples on one side of a split, in their order.
    fn of_side(&self, held: &[bool], side: bool) -> Vec<u32> {
        let samples = self.group_of.iter().zip(held);
        let samples = samples.filter(|(_, is_held)| **is_held == side);
        samples.map(|(group, _)| *group).collect()
    }

    /// By sample, whether it is held out while others of its group are trained on.
    pub(crate) fn leaks(&self, held: &[bool]) -> Vec<bool> {
        let mut is_trained = vec![false; self.names.len()];
        for (&group, is_held) in self.group_of.iter().zip(held) {
            is_trained[group as usize] |= !is_held;
        }
        let samples = self.group_of.iter().zip(held);
        let leaks = samples.map(|(group, held)| *held && is_trained[*group as usize]);
        leaks.collect()
    }

    /// By sample of a validation file, whether others of its group are trained on.
    pub(crate) fn leaks_from(&self, train: &Groups) -> Vec<bool> {
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

    /// Groups and rows on each side, and groups that are on both.
    fn note(&self, held: &[bool], of_validation: Option<&Groups>) -> String {
        let sides = |groups: &Groups, is_wanted: &dyn Fn(usize) -> bool| {
            let samples = (0..groups.group_of.len()).filter(|sample| is_wanted(*sample));
            let groups: Vec<u32> = samples.map(|sample| groups.group_of[sample]).collect();
            let unique: HashSet<u32> = groups.iter().copied().collect();
            (unique.len(), groups.len())
        };
        let train = sides(self, &|sample| !held[sample]);
        let (validation, both) = match of_validation {
            Some(other) => {
                let leaks = other.leaks_from(self);
                (
                    sides(other, &|_| true),
                    sides(other, &|sample| leaks[sample]),
                )
            }
            None => {
                let leaks = self.leaks(held);
                (
                    sides(self, &|sample| held[sample]),
                    sides(self, &|sample| leaks[sample]),
                )
            }
        };
        let text = |(groups, rows)| format!("{} in {}", thousands(groups), counted(rows, "row"));
        let column = &self.column;
        let note = format!(
            "Groups by `{column}`: {} for training, {} for validation",
            text(train),
            text(validation)
        );
        match both {
            (0, _) => note,
            (groups, _) => format!(
                "Careful: {} of `{column}` on both sides of the split. {note}",
                counted(groups, "group")
            ),
        }
    }
}

fn note_on_validation(
    config: &DataConfig,
    source: &Source,
    train: &Samples,
    validation: &Samples,
    seed: u64,
) -> String {
    let held = thousands(validation.len());
    let all = counted(train.len() + validation.len(), "row");
    match &config.validation {
        Validation::None => "Validation: none, as asked".to_owned(),
        Validation::Share { .. } if source.is_split() && validation.is_empty() => {
            format!(
                "Validation: none, {} has no `val` or `test`",
                source.path().display()
            )
        }
        Validation::Share { .. } if source.is_split() => {
            let folder = validation.image(0).split(['/', '#']).next();
            let folder = folder.unwrap_or_default();
            format!("Validation: {held} of {all}, those in `{folder}`")
        }
        Validation::Share { share, .. } if validation.is_empty() => {
            let why = match (config.validation.group(), source.label_column()) {
                (Some(group), _) => format!("no group of `{group}` can be spared"),
                (None, Some(column)) => format!("no `{column}` has rows to spare"),
                (None, None) => "that is less than a row".to_owned(),
            };
            format!("Validation: none of {all} ({}): {why}", percent(*share))
        }
        Validation::Share { share, group } => {
            let stratified = match source.label_column() {
                Some(column) => format!(" stratified by `{column}`,"),
                None => String::new(),
            };
            let grouped = match group {
                Some(group) => format!(" grouped by `{group}`,"),
                None => String::new(),
            };
            format!(
                "Validation: {held} of {all} ({}),{stratified}{grouped} seed {seed}",
                percent(*share)
            )
        }
        Validation::File { path, .. } => format!(
            "Validation: {} of {}",
            counted(validation.len(), "row"),
            path.display()
        ),
        Validation::Column { column, .. } => {
            format!("Validation: {held} of {all}, those that `{column}` says")
        }
    }
}

/// An image on both sides of a split makes validation look better than it is.
fn note_on_overlap(train: &Samples, validation: &Samples) -> Option<String> {
    if validation.is_empty() || train.root() != validation.root() {
        return None;
    }
    // Of the side that is usually smaller.
    let mut held: HashMap<&str, usize> = HashMap::new();
    for sample in 0..validation.len() {
        *held.entry(validation.image(sample)).or_default() += 1;
    }
    let seen: usize = (0..train.len())
        .filter_map(|sample| held.remove(train.image(sample)))
        .sum();
    (seen > 0).then(|| {
        format!(
            "Careful: {} of {} validation rows show an image that is also trained on",
            thousands(seen),
            thousands(validation.len())
        )
    })
}

fn note_on_texts(samples: &Samples, place: &str) -> Option<String> {
    let (unique, all) = (samples.captions().len(), samples.len());
    (unique < all).then(|| {
        let (unique, all) = (thousands(unique), thousands(all));
        format!("{unique} unique texts out of {all}{place}")
    })
}
