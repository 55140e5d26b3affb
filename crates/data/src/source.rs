//! From a config to samples: find the CSV, read it, say which columns mean what, split it, and check
//! that every image is there. What was decided on the way is said in notes.

mod labels;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::columns::{Columns, guess_label};
use crate::config::{DataConfig, Validation};
use crate::error::DataError;
use crate::find::find;
use crate::samples::{Samples, SamplesBuilder};
use crate::split::held_out;
use crate::table::Table;
use crate::words::{counted, percent, thousands};
use labels::Labels;

/// From here on, looking whether files exist is worth more than one thread.
const MANY_IMAGES: usize = 10_000;

/// What a config's `data` section leads to.
#[derive(Debug)]
pub struct DataSet {
    /// What is trained on.
    pub train: Samples,
    /// What is held out, if anything.
    pub validation: Option<Samples>,
    /// Names of the labels: those of the training rows, sorted, or those of the trained head.
    pub labels: Vec<String>,
    /// How captions are made; a column alone is `{column}`.
    pub caption_template: String,
    /// The column of labels.
    pub label_column: Option<String>,
    /// What was found and decided, for the log.
    pub notes: Vec<String>,
    /// The file read.
    pub csv: PathBuf,
}

/// Reads what the config names. The seed decides which rows are held out.
pub fn read(config: &DataConfig, seed: u64) -> Result<DataSet, DataError> {
    read_source(config, None, seed)
}

/// Reads what the config names, with the labels of a trained head, in its order. The seed is that
/// of the training run, so that the same rows are held out.
pub fn read_with_labels(
    config: &DataConfig,
    labels: &[String],
    seed: u64,
) -> Result<DataSet, DataError> {
    read_source(config, Some(labels), seed)
}

fn read_source(
    config: &DataConfig,
    head: Option<&[String]>,
    seed: u64,
) -> Result<DataSet, DataError> {
    config.validate()?;
    let found = find(config.train.as_deref())?;
    let mut notes = found.notes;
    let source = Source::open(config, &found.csv, &mut notes)?;
    let mut held = source.marked(&config.validation)?;
    let labels = match head {
        Some(names) => Labels::of_head(names),
        None => source.labels(&held)?,
    };
    let label_of = source.label_ids(&labels)?;
    if let Validation::Fraction(share) = config.validation {
        held = held_out(&label_of, share, seed);
    }
    let train = source.samples(&label_of, |row| !held[row])?;
    let mut validation = source.samples(&label_of, |row| held[row])?;
    check_images(&source, &[&train, &validation])?;
    notes.extend(source.note_on_unlabelled(&label_of));
    if let (None, Some(column)) = (&config.label, guess_label(&source.table)) {
        notes.push(format!(
            "Label head: none (`label: {column}` under `data:` would train one)"
        ));
    }
    if let Validation::File(path) = &config.validation {
        let other = Source::open(config, path, &mut Vec::new())?;
        validation = other.samples(&other.label_ids(&labels)?, |_| true)?;
        check_images(&other, &[&validation])?;
    }
    notes.push(note_on_validation(config, &train, &validation, seed));
    notes.extend(note_on_overlap(&train, &validation));
    notes.extend(note_on_texts(&train, ""));
    notes.extend(note_on_texts(&validation, " in validation"));
    Ok(DataSet {
        train,
        validation: Some(validation).filter(|samples| !samples.is_empty()),
        labels: labels.into_names(),
        caption_template: source.columns.caption.text().to_owned(),
        label_column: config.label_column().map(str::to_owned),
        notes,
        csv: found.csv,
    })
}

/// A table whose columns are known.
struct Source {
    table: Table,
    columns: Columns,
    root: PathBuf,
}

impl Source {
    fn open(config: &DataConfig, csv: &Path, notes: &mut Vec<String>) -> Result<Source, DataError> {
        let table = Table::open(csv)?;
        let columns = Columns::find(config, &table, notes)?;
        let beside = csv.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Source {
            table,
            columns,
            root: config.image_root.clone().unwrap_or(beside),
        })
    }

    fn path(&self) -> PathBuf {
        self.table.path().to_owned()
    }

    /// Which rows a split column holds out; none without one.
    fn marked(&self, validation: &Validation) -> Result<Vec<bool>, DataError> {
        let rows = 0..self.table.num_rows();
        let Validation::Column(name) = validation else {
            return Ok(vec![false; rows.len()]);
        };
        let column = self.table.column("validation", name)?;
        let marks = rows
            .map(|row| {
                let cell = self.table.cell(row, column).trim();
                match cell.to_ascii_lowercase().as_str() {
                    "train" | "training" => Ok(false),
                    "validation" | "val" | "valid" | "test" | "eval" => Ok(true),
                    _ => Err(DataError::SplitValue {
                        path: self.path(),
                        row: self.table.line(row),
                        column: name.clone(),
                        found: cell.to_owned(),
                    }),
                }
            })
            .collect::<Result<Vec<bool>, DataError>>()?;
        if marks.iter().all(|held| *held) {
            return Err(DataError::NothingToTrainOn {
                path: self.path(),
                column: name.clone(),
            });
        }
        Ok(marks)
    }

    fn samples(
        &self,
        label_of: &[i32],
        belongs: impl Fn(usize) -> bool,
    ) -> Result<Samples, DataError> {
        let mut builder = SamplesBuilder::new(self.root.clone());
        let (mut image, mut caption) = (String::new(), String::new());
        for row in (0..self.table.num_rows()).filter(|row| belongs(*row)) {
            image.clear();
            let cell = self.table.cell(row, self.columns.image).trim();
            image.extend(cell.chars().map(|c| if c == '\\' { '/' } else { c }));
            if image.is_empty() {
                return Err(self.empty_image(row));
            }
            self.columns
                .caption
                .render_into(&self.table, row, &mut caption);
            if caption.is_empty() {
                return Err(self.empty_caption(row));
            }
            builder.push(&image, &caption, label_of[row], self.table.line(row));
        }
        Ok(builder.finish())
    }

    fn empty_image(&self, row: usize) -> DataError {
        DataError::EmptyCell {
            path: self.path(),
            row: self.table.line(row),
            key: "image",
            expected: format!("a path in `{}`", self.table.columns()[self.columns.image]),
            hint: "fill the cell in, or remove the row",
        }
    }

    fn empty_caption(&self, row: usize) -> DataError {
        DataError::EmptyCell {
            path: self.path(),
            row: self.table.line(row),
            key: "caption",
            expected: format!("text from `{}`", self.columns.caption.text()),
            hint: "fill the cell in, remove the row, or write a template that always says something",
        }
    }
}

/// Every image that a row names must be there: a run should not find out hours later.
fn check_images(source: &Source, all: &[&Samples]) -> Result<(), DataError> {
    let mut num_missing = 0;
    let mut first: Option<(u32, PathBuf)> = None;
    for samples in all {
        let missing = missing_images(samples);
        num_missing += missing.len();
        if let Some(&sample) = missing.first() {
            let row = samples.row(sample);
            if first.as_ref().is_none_or(|(before, _)| row < *before) {
                first = Some((row, samples.image_path(sample)));
            }
        }
    }
    let Some((row, image)) = first else {
        return Ok(());
    };
    Err(DataError::MissingImages {
        path: source.path(),
        row,
        hint: hint_on_root(source, &image),
        image,
        num_missing,
        num_images: all.iter().map(|samples| samples.len()).sum(),
    })
}

fn missing_images(samples: &Samples) -> Vec<usize> {
    let is_missing = |path: &mut PathBuf, sample: usize| {
        samples.image_path_into(sample, path);
        !path.is_file()
    };
    let all = 0..samples.len();
    if samples.len() > MANY_IMAGES {
        all.into_par_iter()
            .map_init(PathBuf::new, |path, sample| {
                is_missing(path, sample).then_some(sample)
            })
            .flatten_iter()
            .collect()
    } else {
        let mut path = PathBuf::new();
        all.filter(|&sample| is_missing(&mut path, sample))
            .collect()
    }
}

/// Paths in a CSV often start at the folder that a script was run in, not at the CSV's.
fn hint_on_root(source: &Source, image: &Path) -> String {
    let relative = image.strip_prefix(&source.root).unwrap_or(image);
    let beside = source.table.path().parent().unwrap_or(Path::new(""));
    let above = beside.parent().unwrap_or(Path::new(""));
    let elsewhere = [beside, above, Path::new(".")];
    match elsewhere.iter().find(|root| root.join(relative).is_file()) {
        Some(root) if root.as_os_str().is_empty() => "`image_root: .` would find it".to_owned(),
        Some(root) => format!("`image_root: {}` would find it", root.display()),
        None => format!(
            "image paths start at {}; `image_root: FOLDER` says otherwise",
            if source.root.as_os_str().is_empty() {
                Path::new(".").display()
            } else {
                source.root.display()
            }
        ),
    }
}

fn note_on_validation(
    config: &DataConfig,
    train: &Samples,
    validation: &Samples,
    seed: u64,
) -> String {
    let held = thousands(validation.len());
    let all = counted(train.len() + validation.len(), "row");
    match &config.validation {
        Validation::None => "Validation: none, as asked".to_owned(),
        Validation::Fraction(share) if validation.is_empty() => {
            let why = match config.label_column() {
                Some(column) => format!("no `{column}` has rows to spare"),
                None => "that is less than a row".to_owned(),
            };
            format!("Validation: none of {all} ({}): {why}", percent(*share))
        }
        Validation::Fraction(share) => {
            let stratified = match config.label_column() {
                Some(column) => format!(" stratified by `{column}`,"),
                None => String::new(),
            };
            format!(
                "Validation: {held} of {all} ({}),{stratified} seed {seed}",
                percent(*share)
            )
        }
        Validation::File(path) => format!(
            "Validation: {} of {}",
            counted(validation.len(), "row"),
            path.display()
        ),
        Validation::Column(column) => {
            format!("Validation: {held} of {all}, those that `{column}` says")
        }
    }
}

/// An image on both sides of a split makes validation look better than it is.
fn note_on_overlap(train: &Samples, validation: &Samples) -> Option<String> {
    if validation.is_empty() || train.root() != validation.root() {
        return None;
    }
    let trained: HashSet<&str> = (0..train.len()).map(|sample| train.image(sample)).collect();
    let seen = (0..validation.len())
        .filter(|&sample| trained.contains(validation.image(sample)))
        .count();
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
