//! Rows of text from any storage: a CSV, JSON lines, the files of folders, Parquet, shards of pictures.
//!
//! | file | reader |
//! |---|---|
//! | `.csv`, `.tsv`, any other text | `text_records`: the conventions of Excel and pandas are understood |
//! | `.jsonl`, `.ndjson` | `json_lines` |
//! | a folder of pictures | a list in memory: `class_folders`, `picture_folder` |
//! | `.tar`, `.parquet`, folders and patterns of them | a list that is built once and kept on disk: `shards` |
//!
//! A new file format is a module that names columns and implements `rows::Records`, and an arm of [`Table::open_separated`].

mod class_folders;
mod columns;
mod encoding;
mod find;
mod folder;
mod json_lines;
pub(crate) mod nnunet;
pub(crate) mod pair_layout;
mod parquet;
mod partners;
mod picture_folder;
mod retaining_reader;
mod rows;
mod separator;
mod shards;
mod sides;
mod template;
#[cfg(test)]
pub(crate) mod tests;
mod text_records;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Separator;
use crate::error::{DataError, suggestion};
use crate::words::{listed, nearest};
use encoding::Encoding;
use rows::Stamp;
use text_records::{TextForm, TextRecords};

pub(crate) use class_folders::is_layout as is_class_folders;
pub use columns::{Captions, guess_label, mask_by_name};
pub(crate) use columns::{
    Columns, TargetColumns, caption_by_name, caption_column, clip_by_name, field_of_view_by_name,
    group_by_name, image_column, not_downloaded, video_column,
};
pub(crate) use find::cleaned_names;
pub use find::{find, is_data, is_list, source_of};
pub(crate) use folder::folders;
pub(crate) use parquet::Limits as ParquetLimits;
pub(crate) use partners::{PairFiles, stem};
pub use rows::{Row, Rows};
pub(crate) use shards::{SPLIT, are_meant as are_shards, list_file, tar};
pub use sides::Side;
pub(crate) use sides::{Origin, SplitColumn};

/// A table whose columns are known. Its rows stay on disk and are read as often as needed. Class folders read like a CSV
/// with the columns `image`, `label` and, if split, `split`.
#[derive(Clone, Debug)]
pub struct Table {
    path: PathBuf,
    columns: Vec<String>,
    rows: RowsFrom,
    /// Notes for the log.
    notes: Vec<String>,
}

#[derive(Clone, Debug)]
enum RowsFrom {
    /// A CSV: its stamp when it was opened, and its encoding and separator.
    Text(Stamp, TextForm),
    /// JSON lines.
    JsonLines(Stamp),
    /// List of the files in folders.
    Listing(Arc<str>),
    /// List of the contents of shards.
    Index(shards::Index),
}

impl Table {
    /// Reads the header of a table that has at least one row, or lists the contents of a folder or of shards. The separator is detected
    /// from the header line.
    pub fn open(path: &Path) -> Result<Table, DataError> {
        Table::open_separated(path, None)
    }

    /// Like [`Table::open`], with this separator, if given.
    pub fn open_separated(path: &Path, separator: Option<Separator>) -> Result<Table, DataError> {
        let table = |columns, rows, notes| Table {
            path: path.to_owned(),
            columns,
            rows,
            notes,
        };
        let has_classes = path.is_dir() && class_folders::is_layout(path)?;
        if !has_classes && shards::are_meant(path) {
            let (index, notes) = shards::Index::open(path)?;
            let columns = index.records(path)?.read_header()?;
            return Ok(table(columns, RowsFrom::Index(index), notes));
        }
        if path.is_dir() {
            let listing = if has_classes {
                class_folders::list(path)?
            } else {
                picture_folder::list(path)?
            };
            let text: Arc<str> = Arc::from(listing.csv);
            let columns = text_records::open_listing(path, Arc::clone(&text)).read_header()?;
            return Ok(table(columns, RowsFrom::Listing(text), listing.notes));
        }
        if json_lines::is_json_lines(path) {
            let columns = json_lines::columns(path)?;
            let (_, stamp) = json_lines::open(path, &columns)?;
            return Ok(table(columns, RowsFrom::JsonLines(stamp), Vec::new()));
        }
        if path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
        {
            return Err(json_lines::refuse_json(path));
        }
        let form = text_records::form(path, separator)?;
        let mut notes = Vec::new();
        if form.separator != Separator::Comma && separator.is_none() {
            notes.push(format!(
                "Columns of {} are separated by {} (told from its header line; `separator:` under `data:` says otherwise)",
                path.display(),
                form.separator.words()
            ));
        }
        if form.encoding != Encoding::Utf8 {
            notes.push(format!(
                "{} is {}, not UTF-8: its letters are converted (if names look wrong, save it as UTF-8)",
                path.display(),
                form.encoding.words()
            ));
        }
        let (mut records, stamp) = text_records::open(path, form)?;
        let columns = records.read_header()?;
        let table = table(columns, RowsFrom::Text(stamp, form), notes);
        table.rows()?.read_any()?;
        Ok(table)
    }

    /// Reads the rows from the first. An error if the file has changed since it was opened.
    pub fn rows(&self) -> Result<Rows, DataError> {
        let rows = |records, stamp| Rows::new(records, &self.path, &self.columns, stamp);
        let is_same = |columns: &[String], opened: Stamp, stamp: Stamp| {
            if columns == self.columns && opened == stamp {
                Ok(Some((self.path.clone(), stamp)))
            } else {
                Err(self.changed())
            }
        };
        match &self.rows {
            RowsFrom::Listing(text) => {
                let mut records = text_records::open_listing(&self.path, Arc::clone(text));
                records.read_header()?;
                Ok(rows(Box::new(records), None))
            }
            RowsFrom::Text(opened, form) => {
                let (mut records, stamp) = text_records::open(&self.path, *form)?;
                let columns = records.read_header()?;
                let stamp = is_same(&columns, *opened, stamp)?;
                Ok(rows(Box::new(records), stamp))
            }
            RowsFrom::JsonLines(opened) => {
                let (records, stamp) = json_lines::open(&self.path, &self.columns)?;
                let stamp = is_same(&self.columns, *opened, stamp)?;
                Ok(rows(Box::new(records), stamp))
            }
            RowsFrom::Index(index) => {
                let mut records = index.records(&self.path)?;
                if records.read_header()? == self.columns {
                    Ok(rows(Box::new(records), None))
                } else {
                    Err(self.changed())
                }
            }
        }
    }

    /// Whether the table lists class folders.
    pub fn is_listing(&self) -> bool {
        matches!(self.rows, RowsFrom::Listing(_))
            && self.columns.iter().any(|name| name == class_folders::LABEL)
    }

    /// The split column that a listing itself provides: for class folders in `train` and `val`, and for shards with such names.
    pub(crate) fn split_column(&self) -> Option<&'static str> {
        let name = match &self.rows {
            RowsFrom::Text(..) | RowsFrom::JsonLines(_) => return None,
            RowsFrom::Listing(_) => class_folders::SPLIT,
            RowsFrom::Index(_) => shards::SPLIT,
        };
        let has_it = self.columns.iter().any(|column| column == name);
        has_it.then_some(name)
    }

    /// Whether rows are lines of a file, so that some can be copied into another file.
    pub fn has_lines(&self) -> bool {
        matches!(self.rows, RowsFrom::Text(..) | RowsFrom::JsonLines(_))
    }

    /// Whether the table itself determines where its pictures are, so that no other folder can be named for them.
    pub(crate) fn has_own_root(&self) -> bool {
        match &self.rows {
            RowsFrom::Text(..) | RowsFrom::JsonLines(_) => false,
            RowsFrom::Listing(_) => true,
            RowsFrom::Index(index) => index.has_pictures(),
        }
    }

    /// Notes on class folders and separators.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Folder that relative image paths start from: the table's own, or the listed one.
    pub(crate) fn folder(&self) -> &Path {
        match &self.rows {
            RowsFrom::Listing(_) => &self.path,
            RowsFrom::Text(..) | RowsFrom::JsonLines(_) => {
                self.path.parent().unwrap_or(Path::new(""))
            }
            RowsFrom::Index(index) => index.folder(),
        }
    }

    /// Error for rows that changed between two reads.
    pub(crate) fn changed(&self) -> DataError {
        DataError::Changed {
            path: self.path.clone(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Position of a column; an error that names the config's `key` where it is missing.
    pub fn column(&self, key: &'static str, name: &str) -> Result<usize, DataError> {
        match self.position(name)? {
            Some(at) => Ok(at),
            None => Err(DataError::invalid(
                self.path.display(),
                format_args!("a column `{name}` for `{key}`"),
                listed(&self.columns),
                suggestion(
                    self.nearest(name),
                    match key {
                        "targets" => {
                            "`targets: {NAME: COLUMN}`: the name is yours, the column one of those found"
                        }
                        _ => "name one of the columns found",
                    },
                ),
            )),
        }
    }

    /// Position of a column, if it exists; an error if several have this name.
    pub(crate) fn position(&self, name: &str) -> Result<Option<usize>, DataError> {
        let mut found = self.columns.iter().enumerate().filter(|(_, c)| *c == name);
        let first = found.next().map(|(at, _)| at);
        match found.count() {
            0 => Ok(first),
            others => Err(DataError::invalid(
                self.path.display(),
                format_args!("one column `{name}`"),
                others + 1,
                "rename all but one in the first line of the file",
            )),
        }
    }

    pub(crate) fn nearest(&self, name: &str) -> Option<String> {
        nearest(name, self.columns.iter().map(String::as_str))
    }
}
