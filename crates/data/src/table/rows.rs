//! The rows of a table, one after the other: a file of millions takes the memory of one row.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use holdall_files::check_memory;

use crate::error::{DataError, at_row};
use crate::words::{counted, thousands};

/// Rows that are read between two looks at the memory of the process, which take about 20 microseconds.
const ROWS_BETWEEN_CHECKS: usize = 2048;

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    line: u32,
    cells: &'a ByteRecord,
    raw: &'a [u8],
}

impl<'a> Row<'a> {
    /// The line, counted from 1, that it starts in; where rows are no lines, its number.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// What it says in a column, counted from 0.
    pub fn cell(&self, column: usize) -> &'a str {
        // Every cell of a row that was read is text, and rows have as many as the header.
        let cell = self.cells.get(column).unwrap_or_default();
        std::str::from_utf8(cell).unwrap_or_default()
    }

    /// All that it says.
    pub fn cells(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let Row { cells, .. } = *self;
        (cells.iter()).map(|cell| std::str::from_utf8(cell).unwrap_or_default())
    }

    /// How many cells it has: a table's number of columns, unless it was read by [`Rows::read_any`].
    pub fn num_fields(&self) -> usize {
        self.cells.len()
    }

    /// Its text as the file has it, in UTF-8, without the end of its line.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// What tells whether a file is still the one that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    num_bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl Stamp {
    pub(crate) fn of(file: &Metadata) -> Stamp {
        Stamp {
            num_bytes: file.len(),
            modified: file.modified().ok(),
        }
    }
}

/// What a kind of file gives: records, from the first row on.
pub(crate) trait Records: Send {
    /// Writes the next record over what `record` held; its line, or nothing after the last. Whoever calls checks whether it is
    /// text.
    fn read(&mut self, record: &mut ByteRecord) -> Result<Option<u32>, DataError>;

    /// The text of the record last read, without the end of its line.
    fn raw(&self) -> &[u8];

    /// What stands before the rows, with a byte order mark and without the end of its line; nothing where rows have no header.
    fn header(&self) -> &[u8];

    /// What ends lines, known from the first row on: `\n`, `\r\n` or `\r`.
    fn line_end(&self) -> &'static [u8] {
        b"\n"
    }
}

/// The rows of a table.
pub struct Rows {
    records: Box<dyn Records>,
    record: ByteRecord,
    path: PathBuf,
    columns: Vec<String>,
    /// The file that is read, as it was when it was opened; none for a list in memory.
    stamp: Option<(PathBuf, Stamp)>,
    num_read: usize,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, {} rows read", self.path.display(), self.num_read)
    }
}

impl Rows {
    /// Of a table at this path with these columns.
    pub(super) fn new(
        records: Box<dyn Records>,
        path: &Path,
        columns: &[String],
        stamp: Option<(PathBuf, Stamp)>,
    ) -> Rows {
        Rows {
            records,
            record: ByteRecord::new(),
            path: path.to_owned(),
            columns: columns.to_vec(),
            stamp,
            num_read: 0,
        }
    }

    /// The header as the file has it, with its byte order mark and without the end of its line; empty where rows have none.
    pub fn header(&self) -> &[u8] {
        self.records.header()
    }

    /// What ends the header's line, known from the first row on: `\n`, `\r\n` or `\r`.
    pub fn line_end(&self) -> &'static [u8] {
        self.records.line_end()
    }

    /// The next row; none after the last. One with more or fewer fields than the header is an error.
    pub fn read(&mut self) -> Result<Option<Row<'_>>, DataError> {
        let (path, expected) = (self.path.clone(), self.columns.len());
        match self.read_any()? {
            Some(row) if row.num_fields() != expected => Err(DataError::invalid(
                at_row(&path, row.line()),
                format_args!("{} as in the header", counted(expected, "field")),
                row.num_fields(),
                "a field with a comma or a line break needs quotes around it: \"red, four doors\"",
            )),
            row => Ok(row),
        }
    }

    /// The next row, however many fields it has; none after the last.
    pub fn read_any(&mut self) -> Result<Option<Row<'_>>, DataError> {
        let Some(line) = self.records.read(&mut self.record)? else {
            self.check_end()?;
            return Ok(None);
        };
        self.num_read += 1;
        if self.num_read.is_multiple_of(ROWS_BETWEEN_CHECKS) {
            self.check_memory(line)?;
        }
        let is_text = |cell: &[u8]| std::str::from_utf8(cell).is_ok();
        if self.record.iter().all(is_text) {
            Ok(Some(Row {
                line,
                cells: &self.record,
                raw: self.records.raw(),
            }))
        } else {
            Err(DataError::not_utf8(&self.path, line))
        }
    }

    /// What is kept of rows grows with them, whatever it is.
    fn check_memory(&self, line: u32) -> Result<(), DataError> {
        // As many rows like this one come before it is asked again.
        let next_bytes = (ROWS_BETWEEN_CHECKS * 2 * self.record.as_slice().len()) as u64;
        check_memory(next_bytes).map_err(|over| DataError::OverBudget {
            place: at_row(&self.path, line),
            what: format!("the first {} rows", thousands(self.num_read)),
            over,
            hint: "fewer rows, or shorter texts",
            is_all: false,
        })
    }

    /// A file that is written to while it is read gives rows that nobody wrote.
    fn check_end(&self) -> Result<(), DataError> {
        if let Some((file, before)) = &self.stamp
            && file.metadata().ok().map(|file| Stamp::of(&file)) != Some(*before)
        {
            let path = self.path.clone();
            return Err(DataError::Changed { path });
        }
        if self.num_read == 0 {
            return Err(DataError::invalid(
                self.path.display(),
                format_args!("rows after the header `{}`", self.columns.join(",")),
                "none",
                "check whether the step that writes this file filtered every row out",
            ));
        }
        Ok(())
    }
}
