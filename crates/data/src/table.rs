//! A CSV as rows of text. Excel's and pandas' habits are read as they were meant: a byte order mark,
//! `\r\n`, quoted line breaks, blank lines, spaces around column names.

mod retaining_reader;
mod rows;
mod separator;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::class_folders;
use crate::config::Separator;
use crate::error::{DataError, suggestion};
use crate::words::{listed, nearest};
use rows::{Records, Stamp};
pub use rows::{Row, Rows};

/// A CSV whose columns are known. Its rows stay in the file, and are read as often as they are needed. A folder of class
/// folders is read like a CSV with the columns `image`, `label` and, where it is split, `split`.
#[derive(Clone, Debug)]
pub struct Table {
    path: PathBuf,
    columns: Vec<String>,
    rows: RowsFrom,
    /// What there is to say of it.
    notes: Vec<String>,
}

#[derive(Clone, Debug)]
enum RowsFrom {
    /// How the file was when it was opened, and what stands between its columns.
    File(Stamp, Separator),
    /// The files of class folders.
    Listing(Arc<str>),
}

impl Table {
    /// Reads the header of a CSV that has at least one row, or lists class folders. What stands between columns is told from the header line.
    pub fn open(path: &Path) -> Result<Table, DataError> {
        Table::open_separated(path, None)
    }

    /// The same, where this stands between columns, if it is said.
    pub fn open_separated(path: &Path, separator: Option<Separator>) -> Result<Table, DataError> {
        if path.is_dir() {
            let listing = class_folders::list(path)?;
            let text = Arc::from(listing.csv);
            let columns = header(path, &mut rows::open_listing(path, Arc::clone(&text)))?;
            return Ok(Table {
                path: path.to_owned(),
                columns,
                rows: RowsFrom::Listing(text),
                notes: listing.notes,
            });
        }
        let (mut records, stamp) = rows::open(path, separator)?;
        let found = records.separator;
        let mut notes = Vec::new();
        if found != Separator::Comma && separator.is_none() {
            notes.push(format!(
                "Columns of {} are separated by {} (told from its header line; `separator:` under `data:` says otherwise)",
                path.display(),
                found.words()
            ));
        }
        let columns = header(path, &mut records)?;
        Rows::new(records, &columns, Some(stamp)).read_any()?;
        Ok(Table {
            path: path.to_owned(),
            columns,
            rows: RowsFrom::File(stamp, found),
            notes,
        })
    }

    /// The rows, from the first. An error if the file is no longer the one that was opened.
    pub fn rows(&self) -> Result<Rows, DataError> {
        let (mut records, opened, stamp) = match &self.rows {
            RowsFrom::Listing(text) => {
                (rows::open_listing(&self.path, Arc::clone(text)), None, None)
            }
            RowsFrom::File(opened, separator) => {
                let (records, stamp) = rows::open(&self.path, Some(*separator))?;
                (records, Some(*opened), Some(stamp))
            }
        };
        if opened != stamp || header(&self.path, &mut records)? != self.columns {
            return Err(self.changed());
        }
        Ok(Rows::new(records, &self.columns, stamp))
    }

    /// Whether it lists class folders.
    pub fn is_listing(&self) -> bool {
        matches!(self.rows, RowsFrom::Listing(_))
    }

    /// What there is to say of class folders, and of separators.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Where relative paths of images start: beside a CSV, in class folders.
    pub(crate) fn folder(&self) -> &Path {
        match &self.rows {
            RowsFrom::Listing(_) => &self.path,
            RowsFrom::File(..) => self.path.parent().unwrap_or(Path::new("")),
        }
    }

    /// What to say when rows are not what they were a moment ago.
    pub(crate) fn changed(&self) -> DataError {
        DataError::Changed {
            path: self.path.clone(),
        }
    }

    /// The file read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The column of this name, which the config's `key` asks for.
    pub fn column(&self, key: &'static str, name: &str) -> Result<usize, DataError> {
        match self.position(name)? {
            Some(at) => Ok(at),
            None => Err(DataError::invalid(
                self.path.display(),
                format_args!("a column `{name}` for `{key}`"),
                listed(&self.columns),
                suggestion(self.nearest(name), "name one of the columns found"),
            )),
        }
    }

    /// The column of this name, if there is one; an error if there are several.
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

/// The names in the first line that says something.
fn header(path: &Path, records: &mut Records) -> Result<Vec<String>, DataError> {
    let Some(line) = records.read()? else {
        return Err(DataError::invalid(
            path.display(),
            "a header row such as `image,caption`",
            "an empty file",
            "write the file again; the first line names the columns",
        ));
    };
    let columns = records.row(line)?.cells();
    let columns: Vec<String> = columns.map(|name| name.trim().to_owned()).collect();
    Ok(columns)
}
