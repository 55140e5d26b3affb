//! From a config to samples: find the CSV, read it, say which columns mean what, split it, and check
//! that every image is there. What was decided on the way is said in notes.

mod bad_rows;
pub(crate) mod labels;
mod missing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::columns::{Columns, guess_label};
use crate::config::{DataConfig, Validation};
use crate::error::DataError;
use crate::find::find;
use crate::samples::{Samples, SamplesBuilder};
use crate::split::held_out;
use crate::table::{Row, Table};
use crate::words::{counted, percent, thousands};
use bad_rows::check_rows;
pub use bad_rows::{BadRow, RowFault};
use labels::{Appeared, Labels};
use missing::check_images;

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
    /// Rows that were left out, of this file and of a validation file.
    pub bad_rows: Vec<BadRow>,
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
    let mut rows = source.look_through(&config.validation)?;
    let mut bad_rows = std::mem::take(&mut rows.bad);
    notes.extend(check_rows(config, &found.csv, &bad_rows, rows.num_rows)?);
    let labels = match head {
        Some(names) => Labels::of_head(names),
        None => source.labels(&rows.labels)?,
    };
    let label_of = source.label_ids(rows.labels, &labels)?;
    if let Validation::Fraction(share) = config.validation {
        rows.held = held_out(&label_of, share, seed);
    }
    let [train, mut validation] = source.samples(&label_of, &rows.held)?;
    notes.extend(check_images(
        config,
        &source,
        &[&train, &validation],
        bad_rows.len(),
    )?);
    notes.extend(source.note_on_unlabelled(&label_of));
    if let (None, Some(column)) = (&config.label, guess_label(&source.table)) {
        notes.push(format!(
            "Label head: none (`label: {column}` under `data:` would train one)"
        ));
    }
    if let Validation::File(path) = &config.validation {
        let other = Source::open(config, path, &mut Vec::new())?;
        let mut rows = other.look_through(&Validation::None)?;
        notes.extend(check_rows(config, path, &rows.bad, rows.num_rows)?);
        let num_bad = rows.bad.len();
        bad_rows.extend(rows.bad.drain(..).map(|bad| BadRow {
            is_held: true,
            ..bad
        }));
        let label_of = other.label_ids(rows.labels, &labels)?;
        [validation, _] = other.samples(&label_of, &rows.held)?;
        notes.extend(check_images(config, &other, &[&validation], num_bad)?);
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
        bad_rows,
    })
}

/// A table whose columns are known.
pub(crate) struct Source {
    pub(crate) table: Table,
    pub(crate) columns: Columns,
    pub(crate) root: PathBuf,
}

impl Source {
    pub(crate) fn open(
        config: &DataConfig,
        csv: &Path,
        notes: &mut Vec<String>,
    ) -> Result<Source, DataError> {
        let table = Table::open(csv)?;
        let columns = Columns::find(config, &table, notes)?;
        let beside = csv.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Source {
            table,
            columns,
            root: config.image_root.clone().unwrap_or(beside),
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.table.path().to_owned()
    }

    /// A first look at every row: which are no samples, and of the others what a split column holds out and the labels there
    /// are.
    pub(crate) fn look_through(&self, validation: &Validation) -> Result<Looked, DataError> {
        let split = match validation {
            Validation::Column(name) => Some((self.table.column("validation", name)?, name)),
            _ => None,
        };
        let mut looked = Looked::default();
        let (mut image, mut caption) = (String::new(), String::new());
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            looked.num_rows += 1;
            if let Some(fault) = self.read_row(row, &mut image, &mut caption) {
                let is_held = split.is_some_and(|(column, name)| {
                    self.is_held(row, column, name).ok() == Some(true)
                });
                looked.bad.push(BadRow {
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
            let label = self.columns.label.map_or("", |column| row.cell(column));
            looked.labels.push(label.trim(), row.line(), is_held);
            looked.held.push(is_held);
        }
        match split {
            Some((_, name)) if !looked.held.is_empty() && looked.held.iter().all(|held| *held) => {
                Err(DataError::NothingToTrainOn {
                    path: self.path(),
                    column: name.clone(),
                })
            }
            _ => Ok(looked),
        }
    }

    /// What a split column says of a row.
    fn is_held(&self, row: Row<'_>, column: usize, name: &str) -> Result<bool, DataError> {
        let cell = row.cell(column).trim();
        match cell.to_ascii_lowercase().as_str() {
            "train" | "training" => Ok(false),
            "validation" | "val" | "valid" | "test" | "eval" => Ok(true),
            _ => Err(DataError::SplitValue {
                path: self.path(),
                row: row.line(),
                column: name.to_owned(),
                found: cell.to_owned(),
            }),
        }
    }

    /// A second look, now that it is known what each row is for: what is trained on, and what is held out.
    fn samples(&self, label_of: &[i32], held: &[bool]) -> Result<[Samples; 2], DataError> {
        let mut builders = [(); 2].map(|()| SamplesBuilder::new(self.root.clone()));
        let (mut image, mut caption) = (String::new(), String::new());
        let mut known = label_of.iter().zip(held);
        let mut rows = self.table.rows()?;
        while let Some(row) = rows.read_any()? {
            if self.read_row(row, &mut image, &mut caption).is_some() {
                continue;
            }
            let (&label, &is_held) = known.next().ok_or_else(|| self.table.changed())?;
            builders[usize::from(is_held)].push(&image, &caption, label, row.line());
        }
        if known.next().is_some() {
            return Err(self.table.changed());
        }
        Ok(builders.map(SamplesBuilder::finish))
    }
}

/// What the first look at the rows found.
#[derive(Default)]
pub(crate) struct Looked {
    pub(crate) labels: Appeared,
    /// By sample: rows that are none do not count.
    pub(crate) held: Vec<bool>,
    pub(crate) bad: Vec<BadRow>,
    /// Bad ones included.
    pub(crate) num_rows: usize,
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
