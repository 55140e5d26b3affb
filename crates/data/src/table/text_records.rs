//! Rows of separated text: a CSV in any supported encoding, or a list in memory in the same format.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::ByteRecord;
use holdall_files::check_memory;

use super::encoding::{Encoding, utf8_reader};
use super::retaining_reader::RetainingReader;
use super::rows::{Records, Stamp};
use super::separator::{Separated, without_stand_ins};
use crate::config::Separator;
use crate::error::{DataError, at_row};
use crate::words::counted;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// UTF-8 text of a file or of a list in memory.
type Bytes = BufReader<Box<dyn Read + Send>>;

/// Bytes from the beginning in which the header is searched.
const HEADER_BYTES: u64 = 64 << 10;

/// Memory per column of an open table: its name, several times. Measured as 250 with names of ten letters.
const PER_COLUMN_BYTES: u64 = 300;

/// Encoding and separator of a CSV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextForm {
    pub(super) encoding: Encoding,
    pub(super) separator: Separator,
}

/// Detects a CSV's encoding from all of its bytes, and its separator from the header unless it is given.
pub(super) fn form(path: &Path, separator: Option<Separator>) -> Result<TextForm, DataError> {
    let encoding = Encoding::of(open_file(path)?.0).map_err(|cause| unreadable(path, cause))?;
    let separator = match separator {
        Some(separator) => separator,
        None => {
            let mut start = Vec::new();
            utf8_reader(open_file(path)?.0, encoding)
                .take(HEADER_BYTES)
                .read_to_end(&mut start)
                .map_err(|cause| unreadable(path, cause))?;
            Separator::of_header(start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&start))
        }
    };
    Ok(TextForm {
        encoding,
        separator,
    })
}

/// Opens a CSV of this form.
pub(super) fn open(path: &Path, form: TextForm) -> Result<(TextRecords, Stamp), DataError> {
    let (file, stamp) = open_file(path)?;
    let mut text = utf8_reader(file, form.encoding);
    let mut start = Vec::new();
    (&mut text)
        .take(BYTE_ORDER_MARK.len() as u64)
        .read_to_end(&mut start)
        .map_err(|cause| unreadable(path, cause))?;
    let has_mark = start == BYTE_ORDER_MARK;
    if has_mark {
        start.clear();
    }
    let bytes: Box<dyn Read + Send> = Box::new(Cursor::new(start).chain(text));
    let records = TextRecords::new(path, bytes, has_mark, form.separator);
    Ok((records, stamp))
}

pub(super) fn open_file(path: &Path) -> Result<(File, Stamp), DataError> {
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => DataError::NoFile {
            path: path.to_owned(),
        },
        _ => unreadable(path, cause),
    };
    let file = File::open(path).map_err(failed)?;
    let stamp = Stamp::of(&file.metadata().map_err(failed)?);
    Ok((file, stamp))
}

/// A list in memory of the files at this path. Its header does not count: the first row is row 1.
pub(super) fn open_listing(path: &Path, text: Arc<str>) -> TextRecords {
    let bytes = Cursor::new(ListingBytes(text));
    TextRecords {
        line: 0,
        ..TextRecords::new(path, Box::new(bytes), false, Separator::Comma)
    }
}

struct ListingBytes(Arc<str>);

impl AsRef<[u8]> for ListingBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Records with the line each starts in. The CSV reader's own line numbers are wrong after `\r\n` and blank lines, which it
/// skips only when it reads on; lines are counted from its byte offsets instead.
pub(crate) struct TextRecords {
    path: PathBuf,
    reader: csv::Reader<Separated<Bytes>>,
    separator: Separator,
    /// Byte range of the record read last.
    start: u64,
    end: u64,
    line: u32,
    /// Whether rows are numbered instead of lines.
    counts_rows: bool,
    /// Header with its byte order mark, once read.
    header: Vec<u8>,
    /// Line end of the first record, known once the second is read.
    line_end: Option<&'static [u8]>,
}

impl TextRecords {
    fn new(
        path: &Path,
        bytes: Box<dyn Read + Send>,
        has_mark: bool,
        separator: Separator,
    ) -> TextRecords {
        let bytes = BufReader::with_capacity(1 << 16, bytes);
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(separator.delimiter())
            .from_reader(Separated::new(RetainingReader::new(bytes), separator));
        let mark = if has_mark { BYTE_ORDER_MARK } else { &[] };
        TextRecords {
            path: path.to_owned(),
            reader,
            separator,
            start: 0,
            end: 0,
            line: 1,
            counts_rows: false,
            header: mark.to_vec(),
            line_end: None,
        }
    }

    /// A list in a file, of the contents of this path. Rows are numbered instead of lines: a row may span several.
    pub(crate) fn of_list(path: &Path, file: File) -> TextRecords {
        TextRecords {
            line: 0,
            counts_rows: true,
            ..TextRecords::new(path, Box::new(file), false, Separator::Comma)
        }
    }

    /// Column names in the first non-empty line.
    pub(crate) fn read_header(&mut self) -> Result<Vec<String>, DataError> {
        let mut record = ByteRecord::new();
        let Some(line) = self.read(&mut record)? else {
            return Err(DataError::invalid(
                self.path.display(),
                "a header row such as `image,caption`",
                "an empty file",
                "write the file again; the first line names the columns",
            ));
        };
        let raw = self.raw().to_vec();
        self.header.extend(raw);
        check_memory(record.len() as u64 * PER_COLUMN_BYTES).map_err(|over| {
            DataError::OverBudget {
                place: at_row(&self.path, line),
                what: format!("a header of {}", counted(record.len(), "column")),
                over,
                hint: "keep the columns that are used",
                is_all: true,
            }
        })?;
        let name = |cell: &[u8]| std::str::from_utf8(cell).map(|name| name.trim().to_owned());
        let names: Result<Vec<String>, _> = record.iter().map(name).collect();
        names.map_err(|_| DataError::not_utf8(&self.path, line))
    }
}

impl Records for TextRecords {
    fn read(&mut self, record: &mut ByteRecord) -> Result<Option<u32>, DataError> {
        let TextRecords { path, reader, .. } = self;
        match reader.read_byte_record(record) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(cause) => {
                // The lines of the previous record are not counted yet.
                let bytes = reader.get_ref().inner.since(self.start);
                let before = count_lines(bytes, (self.end - self.start) as usize);
                let line = self.line.saturating_add(before as u32);
                return Err(not_read(path, line, cause));
            }
        }
        if self.separator == Separator::Alpha {
            *record = without_stand_ins(record);
        }
        // Counts the lines from the start of the previous record.
        let bytes = reader.get_ref().inner.since(self.start);
        let mut skipped = (self.end - self.start) as usize;
        while matches!(bytes.get(skipped), Some(b'\r' | b'\n')) {
            skipped += 1;
        }
        if self.end > 0 && self.line_end.is_none() {
            self.line_end = Some(line_end_after(&bytes[..skipped]));
        }
        let num_lines = if self.counts_rows {
            usize::from(self.end > 0)
        } else {
            count_lines(bytes, skipped)
        };
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
            && ends_in_quotes(source.since(self.start), self.separator)
            && source
                .is_at_end()
                .map_err(|cause| unreadable(path, cause))?
        {
            if has_lines(source.since(self.start)) {
                return Err(DataError::invalid(
                    at_row(path, self.line),
                    "a closing quote",
                    "the end of the file",
                    "close the `\"` that opens in this row; a quote within quotes is written `\"\"`",
                ));
            }
            without_last_line_end(record);
        }
        Ok(Some(self.line))
    }

    /// Raw text of the record read last, without its line end.
    fn raw(&self) -> &[u8] {
        let since = self.reader.get_ref().inner.since(self.start);
        let length = (self.end - self.start) as usize;
        without_line_ends(&since[..length.min(since.len())])
    }

    fn header(&self) -> &[u8] {
        &self.header
    }

    fn line_end(&self) -> &'static [u8] {
        self.line_end.unwrap_or(b"\n")
    }
}

/// Error for a record that was not read, because of the file or the memory budget.
fn not_read(path: &Path, line: u32, cause: csv::Error) -> DataError {
    let over = match cause.kind() {
        csv::ErrorKind::Io(error) => error.get_ref().and_then(|cause| cause.downcast_ref()),
        _ => None,
    };
    match over.copied() {
        Some(over) => DataError::OverBudget {
            place: at_row(path, line),
            what: "the first bytes of this row".to_owned(),
            over,
            hint: "check for an open quote or lines that do not end",
            is_all: false,
        },
        None => unreadable(path, io::Error::other(cause)),
    }
}

fn without_line_ends(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b'\r' | b'\n'] = bytes {
        bytes = rest;
    }
    bytes
}

/// First line end after the text in these bytes.
fn line_end_after(bytes: &[u8]) -> &'static [u8] {
    let ends = &bytes[without_line_ends(bytes).len()..];
    match ends {
        [b'\r', b'\n', ..] => b"\r\n",
        [b'\r', ..] => b"\r",
        _ => b"\n",
    }
}

/// Number of line ends in the first `length` bytes: `\n`, `\r\n`, or `\r` alone.
fn count_lines(bytes: &[u8], length: usize) -> usize {
    let counted = &bytes[..length.min(bytes.len())];
    let ends_line = |at: usize| match counted[at] {
        b'\n' => true,
        b'\r' => bytes.get(at + 1) != Some(&b'\n'),
        _ => false,
    };
    (0..counted.len()).filter(|&at| ends_line(at)).count()
}

/// Whether the last cell of a record opens a quote that is never closed. A quote within a cell, as in `5" wheels`, is literal.
fn ends_in_quotes(record: &[u8], separator: Separator) -> bool {
    enum At {
        Start,
        Plain,
        Quoted,
        /// After a quote within quotes, which ends them unless another quote follows.
        Quote,
    }
    let is_separator = |at: usize| match separator {
        Separator::Alpha => record[..=at].ends_with("α".as_bytes()),
        _ => record[at] == separator.delimiter(),
    };
    let mut state = At::Start;
    for (at, &byte) in record.iter().enumerate() {
        let ends_cell = matches!(byte, b'\r' | b'\n') || is_separator(at);
        state = match (state, byte) {
            (At::Start | At::Quote, b'"') => At::Quoted,
            (At::Quoted, b'"') => At::Quote,
            (At::Quoted, _) => At::Quoted,
            _ if ends_cell => At::Start,
            _ => At::Plain,
        };
    }
    matches!(state, At::Quoted)
}

/// Whether a record spans several lines: with an unclosed quote it has swallowed the rows that follow.
fn has_lines(record: &[u8]) -> bool {
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    record.trim_ascii_end().iter().any(is_end)
}

/// Removes the line end that an unclosed quote in a file's last line takes into its cell.
fn without_last_line_end(record: &mut ByteRecord) {
    let Some(last) = record.len().checked_sub(1) else {
        return;
    };
    let cell = without_line_ends(&record[last]).to_vec();
    record.truncate(last);
    record.push_field(&cell);
}

pub(super) fn unreadable(path: &Path, cause: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        action: "read it",
        cause,
    }
}
