//! Iteration over the rows of a table: a file of millions takes the memory of one row.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use holdall_files::check_memory;

use crate::error::{DataError, at_row};
use crate::words::{counted, thousands};

/// Rows between two checks of the process's memory; a check takes about 20 microseconds.
const ROWS_BETWEEN_CHECKS: usize = 2048;

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    line: u32,
    cells: &'a ByteRecord,
    raw: &'a [u8],
}

impl<'a> Row<'a> {
    /// Line that the row starts in, from 1; the row's number where rows are no lines.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Cell of a column, counted from 0.
    pub fn cell(&self, column: usize) -> &'a str {
        // Every row read is valid UTF-8 and has as many cells as the header.
        let cell = self.cells.get(column).unwrap_or_default();
        std::str::from_utf8(cell).unwrap_or_default()
    }

    pub fn cells(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let Row { cells, .. } = *self;
        (cells.iter()).map(|cell| std::str::from_utf8(cell).unwrap_or_default())
    }

    /// Number of cells: the table's number of columns, unless the row was read by [`Rows::read_any`].
    pub fn num_fields(&self) -> usize {
        self.cells.len()
    }

    /// Text of the row in the file, in UTF-8, without its line end.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// Size and time of a file, to detect changes.
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

/// Reader of a file format's records, from the first row on.
pub(crate) trait Records: Send {
    /// Reads the next record into `record` and returns its line; `None` after the last. The caller checks that it is valid
    /// UTF-8.
    fn read(&mut self, record: &mut ByteRecord) -> Result<Option<u32>, DataError>;

    /// Text of the record read last, without its line end.
    fn raw(&self) -> &[u8];

    /// Text before the first row, with a byte order mark and without the line end; empty where rows have no header.
    fn header(&self) -> &[u8];

    /// Line end of the file, known from the first row on: `\n`, `\r\n` or `\r`.
    fn line_end(&self) -> &'static [u8] {
        b"\n"
    }
}

/// Iterator over the rows of a table.
pub struct Rows {
    records: Box<dyn Records>,
    record: ByteRecord,
    path: PathBuf,
    columns: Vec<String>,
    /// The file and its stamp when it was opened; `None` for a list in memory.
    stamp: Option<(PathBuf, Stamp)>,
    num_read: usize,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, {} rows read", self.path.display(), self.num_read)
    }
}

impl Rows {
    /// Rows of a table at this path with these columns.
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

    /// Header in the file, with its byte order mark and without the line end; empty where rows have no header.
    pub fn header(&self) -> &[u8] {
        self.records.header()
    }

    /// Line end of the header, known from the first row on: `\n`, `\r\n` or `\r`.
    pub fn line_end(&self) -> &'static [u8] {
        self.records.line_end()
    }

    /// The next row; `None` after the last. A row with more or fewer fields than the header is an error.
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

    /// The next row, with any number of fields; `None` after the last.
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

    /// Checks memory: whatever the caller keeps of each row grows with the rows.
    fn check_memory(&self, line: u32) -> Result<(), DataError> {
        // Up to this many rows like this one follow before the next check.
        let next_bytes = (ROWS_BETWEEN_CHECKS * 2 * self.record.as_slice().len()) as u64;
        check_memory(next_bytes).map_err(|over| DataError::OverBudget {
            place: at_row(&self.path, line),
            what: format!("the first {} rows", thousands(self.num_read)),
            over,
            hint: "fewer rows, or shorter texts",
            is_all: false,
        })
    }

    /// Detects a file that was modified while it was read, and so gave mixed rows.
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
