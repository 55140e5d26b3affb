//! The rows of a CSV, one after the other: a file of millions takes the memory of one row.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::ByteRecord;

use super::retaining_reader::RetainingReader;
use super::separator::{Separated, without_stand_ins};
use crate::config::Separator;
use crate::error::{DataError, at_row};
use crate::words::counted;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A CSV's bytes, after a byte order mark: of a file, or of a list in memory.
type Bytes = BufReader<Box<dyn Read + Send>>;

/// A row of a CSV.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(super) line: u32,
    pub(super) cells: &'a ByteRecord,
    pub(super) raw: &'a [u8],
}

impl<'a> Row<'a> {
    /// The line, counted from 1, that it starts in.
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

    /// Its bytes as the file has them, without the end of its line.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }
}

/// What tells whether a file is still the one that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    num_bytes: u64,
    modified: Option<std::time::SystemTime>,
}

impl Stamp {
    fn of(file: &Metadata) -> Stamp {
        Stamp {
            num_bytes: file.len(),
            modified: file.modified().ok(),
        }
    }
}

/// Bytes from the beginning that its header is looked for in.
const HEADER_BYTES: u64 = 64 << 10;

/// Opens a CSV whose columns are separated by this, or by what its header says.
pub(super) fn open(
    path: &Path,
    separator: Option<Separator>,
) -> Result<(Records, Stamp), DataError> {
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => DataError::NoFile {
            path: path.to_owned(),
        },
        _ => unreadable(path, cause),
    };
    let file = File::open(path).map_err(failed)?;
    let stamp = Stamp::of(&file.metadata().map_err(failed)?);
    let mut start = Vec::new();
    (&file)
        .take(HEADER_BYTES)
        .read_to_end(&mut start)
        .map_err(failed)?;
    let has_mark = start.starts_with(BYTE_ORDER_MARK);
    if has_mark {
        start.drain(..BYTE_ORDER_MARK.len());
    }
    let separator = separator.unwrap_or_else(|| Separator::of_header(&start));
    let bytes: Box<dyn Read + Send> = Box::new(Cursor::new(start).chain(file));
    Ok((Records::new(path, bytes, has_mark, separator), stamp))
}

/// A list in memory, of what is at this path. Its header counts as no line: the first row is row 1.
pub(super) fn open_listing(path: &Path, text: Arc<str>) -> Records {
    let bytes = Cursor::new(ListingBytes(text));
    Records {
        line: 0,
        ..Records::new(path, Box::new(bytes), false, Separator::Comma)
    }
}

struct ListingBytes(Arc<str>);

impl AsRef<[u8]> for ListingBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The rows after a header that was read before.
#[derive(Debug)]
pub struct Rows {
    records: Records,
    columns: Vec<String>,
    /// How the file was when its header was read; none for a list in memory.
    stamp: Option<Stamp>,
    num_read: usize,
    header: Vec<u8>,
}

impl Rows {
    /// `records` have given their header, which has these columns.
    pub(super) fn new(records: Records, columns: &[String], stamp: Option<Stamp>) -> Rows {
        let mark = match records.has_mark {
            true => BYTE_ORDER_MARK,
            false => &[],
        };
        let header = [mark, records.raw()].concat();
        Rows {
            records,
            columns: columns.to_vec(),
            stamp,
            num_read: 0,
            header,
        }
    }

    /// The header as the file has it, with its byte order mark and without the end of its line.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// What ends the header's line, known from the first row on: `\n`, `\r\n` or `\r`.
    pub fn line_end(&self) -> &'static [u8] {
        self.records.line_end.unwrap_or(b"\n")
    }

    /// The next row; none after the last. One with more or fewer fields than the header is an error.
    pub fn read(&mut self) -> Result<Option<Row<'_>>, DataError> {
        let (path, expected) = (self.records.path.clone(), self.columns.len());
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
        let Some(line) = self.records.read()? else {
            self.check_end()?;
            return Ok(None);
        };
        self.num_read += 1;
        self.records.row(line).map(Some)
    }

    /// A file that is written to while it is read gives rows that nobody wrote.
    fn check_end(&self) -> Result<(), DataError> {
        let path = &self.records.path;
        let now = || path.metadata().map(|file| Stamp::of(&file));
        if self.stamp.is_some() && now().ok() != self.stamp {
            return Err(DataError::Changed { path: path.clone() });
        }
        if self.num_read == 0 {
            return Err(DataError::invalid(
                path.display(),
                format_args!("rows after the header `{}`", self.columns.join(",")),
                "none",
                "check whether the step that writes this file filtered every row out",
            ));
        }
        Ok(())
    }
}

/// Records with the line each starts in. The reader's own line numbers are off after `\r\n` and
/// blank lines, which it skips only when it reads on; byte offsets tell the truth.
pub(super) struct Records {
    path: PathBuf,
    reader: csv::Reader<Separated<Bytes>>,
    pub(super) separator: Separator,
    record: ByteRecord,
    /// Where the record last read lies in the file.
    start: u64,
    end: u64,
    line: u32,
    has_mark: bool,
    /// What ends the first record's line, once a second was read.
    line_end: Option<&'static [u8]>,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, line {}", self.path.display(), self.line)
    }
}

impl Records {
    fn new(
        path: &Path,
        bytes: Box<dyn Read + Send>,
        has_mark: bool,
        separator: Separator,
    ) -> Records {
        let bytes = BufReader::with_capacity(1 << 16, bytes);
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator.delimiter())
            .from_reader(Separated::new(RetainingReader::new(bytes), separator));
        Records {
            path: path.to_owned(),
            reader,
            separator,
            record: ByteRecord::new(),
            start: 0,
            end: 0,
            line: 1,
            has_mark,
            line_end: None,
        }
    }

    /// The next record's line; none after the last.
    pub(super) fn read(&mut self) -> Result<Option<u32>, DataError> {
        let Records {
            path,
            reader,
            record,
            ..
        } = self;
        let failed = |cause: csv::Error| unreadable(path, io::Error::other(cause));
        if !reader.read_byte_record(record).map_err(failed)? {
            return Ok(None);
        }
        if self.separator == Separator::Alpha {
            *record = without_stand_ins(record);
        }
        // Since the start of the record before: its lines are counted now.
        let bytes = reader.get_ref().inner.since(self.start);
        let mut skipped = (self.end - self.start) as usize;
        while matches!(bytes.get(skipped), Some(b'\r' | b'\n')) {
            skipped += 1;
        }
        if self.end > 0 && self.line_end.is_none() {
            self.line_end = Some(line_end_after(&bytes[..skipped]));
        }
        let num_lines = count_lines(bytes, skipped);
        self.line = u32::try_from(num_lines)
            .ok()
            .and_then(|lines| self.line.checked_add(lines))
            .ok_or_else(|| DataError::too_many_rows(path))?;
        self.start += skipped as u64;
        self.end = reader.position().byte().max(self.start);
        let given = reader.get_ref().inner.since(self.start).len() as u64;
        let source = &mut reader.get_mut().inner;
        source.forget_before(self.start);
        let may_be_last = self.end - self.start >= given;
        if may_be_last
            && has_open_quote(source.since(self.start))
            && source
                .is_at_end()
                .map_err(|cause| unreadable(path, cause))?
        {
            return Err(DataError::invalid(
                at_row(path, self.line),
                "a closing quote",
                "the end of the file",
                "close the `\"` that opens in this row; a quote within quotes is written `\"\"`",
            ));
        }
        Ok(Some(self.line))
    }

    /// The record last read, if it is text.
    pub(super) fn row(&self, line: u32) -> Result<Row<'_>, DataError> {
        if self
            .record
            .iter()
            .any(|cell| std::str::from_utf8(cell).is_err())
        {
            return Err(DataError::not_utf8(&self.path, line));
        }
        Ok(Row {
            line,
            cells: &self.record,
            raw: self.raw(),
        })
    }

    /// The record last read, as the file has it, without the end of its line.
    fn raw(&self) -> &[u8] {
        let since = self.reader.get_ref().inner.since(self.start);
        let length = (self.end - self.start) as usize;
        without_line_ends(&since[..length.min(since.len())])
    }
}

fn without_line_ends(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r' | b'\n'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The first end of a line after what these bytes say.
fn line_end_after(bytes: &[u8]) -> &'static [u8] {
    let ends = &bytes[without_line_ends(bytes).len()..];
    match ends {
        [b'\r', b'\n', ..] => b"\r\n",
        [b'\r', ..] => b"\r",
        _ => b"\n",
    }
}

/// Ends of lines among the first `length` bytes: `\n`, `\r\n`, or `\r` alone.
fn count_lines(bytes: &[u8], length: usize) -> usize {
    let counted = &bytes[..length.min(bytes.len())];
    let ends_line = |at: usize| match counted[at] {
        b'\n' => true,
        b'\r' => bytes.get(at + 1) != Some(&b'\n'),
        _ => false,
    };
    (0..counted.len()).filter(|&at| ends_line(at)).count()
}

/// Whether the last record took in lines that were meant as rows: an odd number of quotes, over more than one line. A
/// lone quote within a line, as in `5" wheels`, is read as it stands.
fn has_open_quote(record: &[u8]) -> bool {
    let quotes = record.iter().filter(|&&byte| byte == b'"').count();
    let lines = record.trim_ascii_end().contains(&b'\n');
    lines && !quotes.is_multiple_of(2)
}

fn unreadable(path: &Path, cause: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        action: "read it",
        cause,
    }
}
