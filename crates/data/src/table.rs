//! A CSV as rows of text. Excel's and pandas' habits are read as they were meant: a byte order mark,
//! `\r\n`, quoted line breaks, blank lines, spaces around column names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use csv::ByteRecord;

use crate::error::DataError;
use crate::strings::Strings;
use crate::words::nearest;

/// A CSV in memory, as text.
#[derive(Debug)]
pub struct Table {
    path: PathBuf,
    columns: Vec<String>,
    cells: Strings,
    lines: Vec<u32>,
}

impl Table {
    /// Reads a CSV that has a header and at least one row.
    pub fn open(path: &Path) -> Result<Table, DataError> {
        let bytes = fs::read(path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => DataError::NoFile {
                path: path.to_owned(),
            },
            _ => DataError::Io {
                path: path.to_owned(),
                action: "read it",
                cause,
            },
        })?;
        Table::parse(path, &bytes)
    }

    /// Reads a CSV from its bytes; `path` is for messages.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Table, DataError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let mut records = Records::new(path, bytes);
        let mut record = ByteRecord::new();
        let Some(header_line) = records.read(&mut record)? else {
            return Err(DataError::EmptyFile {
                path: path.to_owned(),
            });
        };
        let columns = header(path, header_line, &record)?;
        let mut table = Table {
            path: path.to_owned(),
            columns,
            cells: Strings::default(),
            lines: Vec::new(),
        };
        while let Some(line) = records.read(&mut record)? {
            table.push(line, &record)?;
        }
        if table.lines.is_empty() {
            return Err(DataError::NoRows {
                path: table.path,
                columns: table.columns,
            });
        }
        Ok(table)
    }

    fn push(&mut self, line: u32, record: &ByteRecord) -> Result<(), DataError> {
        if record.len() != self.columns.len() {
            return Err(DataError::Ragged {
                path: self.path.clone(),
                row: line,
                expected: self.columns.len(),
                found: record.len(),
            });
        }
        for field in record {
            self.cells.push(text(&self.path, line, field)?);
        }
        self.lines.push(line);
        Ok(())
    }

    /// The file read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Rows after the header; never none.
    pub fn num_rows(&self) -> usize {
        self.lines.len()
    }

    /// What a row says in a column, both counted from 0.
    pub fn cell(&self, row: usize, column: usize) -> &str {
        self.cells.get(row * self.columns.len() + column)
    }

    /// The line, counted from 1, that a row starts in.
    pub fn line(&self, row: usize) -> u32 {
        self.lines[row]
    }

    /// The column of this name, which the config's `key` asks for.
    pub fn column(&self, key: &'static str, name: &str) -> Result<usize, DataError> {
        match self.position(name)? {
            Some(at) => Ok(at),
            None => Err(DataError::NoColumn {
                path: self.path.clone(),
                key,
                column: name.to_owned(),
                columns: self.columns.clone(),
                nearest: self.nearest(name),
            }),
        }
    }

    /// The column of this name, if there is one; an error if there are several.
    pub(crate) fn position(&self, name: &str) -> Result<Option<usize>, DataError> {
        let mut found = self.columns.iter().enumerate().filter(|(_, c)| *c == name);
        let first = found.next().map(|(at, _)| at);
        match found.count() {
            0 => Ok(first),
            others => Err(DataError::TwinColumn {
                path: self.path.clone(),
                column: name.to_owned(),
                found: others + 1,
            }),
        }
    }

    pub(crate) fn nearest(&self, name: &str) -> Option<String> {
        nearest(name, self.columns.iter().map(String::as_str))
    }
}

fn header(path: &Path, line: u32, record: &ByteRecord) -> Result<Vec<String>, DataError> {
    let columns = record
        .iter()
        .map(|field| text(path, line, field).map(|name| name.trim().to_owned()))
        .collect::<Result<Vec<String>, DataError>>()?;
    if let [only] = columns.as_slice() {
        let found = match only {
            only if only.contains(';') => "semicolons",
            only if only.contains('\t') => "tabs",
            _ => return Ok(columns),
        };
        return Err(DataError::Separator {
            path: path.to_owned(),
            row: line,
            found,
        });
    }
    Ok(columns)
}

fn text<'a>(path: &Path, line: u32, field: &'a [u8]) -> Result<&'a str, DataError> {
    std::str::from_utf8(field).map_err(|_| DataError::NotUtf8 {
        path: path.to_owned(),
        row: line,
    })
}

/// Records with the line each starts in. The reader's own line numbers are off after `\r\n` and
/// blank lines, which it skips only when it reads on; byte offsets tell the truth.
struct Records<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    reader: csv::Reader<&'a [u8]>,
    counted_bytes: usize,
    line: u32,
}

impl<'a> Records<'a> {
    fn new(path: &'a Path, bytes: &'a [u8]) -> Records<'a> {
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .from_reader(bytes);
        Records {
            path,
            bytes,
            reader,
            counted_bytes: 0,
            line: 1,
        }
    }

    /// The next record's line; none after the last.
    fn read(&mut self, record: &mut ByteRecord) -> Result<Option<u32>, DataError> {
        let mut start = self.reader.position().byte() as usize;
        let more = self
            .reader
            .read_byte_record(record)
            .map_err(|error| DataError::Io {
                path: self.path.to_owned(),
                action: "read it",
                cause: io::Error::other(error),
            })?;
        if !more {
            return Ok(None);
        }
        while matches!(self.bytes.get(start), Some(b'\r' | b'\n')) {
            start += 1;
        }
        let start = start.min(self.bytes.len());
        for at in self.counted_bytes..start {
            let next = self.bytes.get(at + 1);
            let ends_line = match self.bytes[at] {
                b'\n' => true,
                b'\r' => next != Some(&b'\n'),
                _ => false,
            };
            if ends_line {
                self.line = self.line.checked_add(1).ok_or(DataError::TooManyRows {
                    path: self.path.to_owned(),
                })?;
            }
        }
        self.counted_bytes = start;
        let end = (self.reader.position().byte() as usize).min(self.bytes.len());
        if end == self.bytes.len() && has_open_quote(&self.bytes[start..end]) {
            return Err(DataError::OpenQuote {
                path: self.path.to_owned(),
                row: self.line,
            });
        }
        Ok(Some(self.line))
    }
}

/// Whether the last record took in lines that were meant as rows: an odd number of quotes, over more than one line. A
/// lone quote within a line, as in `5" wheels`, is read as it stands.
fn has_open_quote(record: &[u8]) -> bool {
    let quotes = record.iter().filter(|&&byte| byte == b'"').count();
    let lines = record.trim_ascii_end().contains(&b'\n');
    lines && !quotes.is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<Table, DataError> {
        Table::parse(Path::new("cars.csv"), bytes)
    }

    #[test]
    fn reads_what_excel_and_pandas_write() {
        let table = parse(
            b"\xef\xbb\xbfimage, caption\r\n1.jpg,\"red, \"\"fast\"\"\"\r\n\r\n2.jpg,\"two\r\nlines\"\r\n3.jpg,\xc3\xa4\r\n",
        )
        .unwrap();
        assert_eq!(table.columns(), ["image", "caption"]);
        assert_eq!(table.num_rows(), 3);
        assert_eq!(table.cell(0, 1), "red, \"fast\"");
        assert_eq!(table.cell(1, 1), "two\r\nlines");
        assert_eq!(table.cell(2, 1), "ä");
        let lines: Vec<u32> = (0..3).map(|row| table.line(row)).collect();
        assert_eq!(lines, [2, 4, 6]);
    }

    #[test]
    fn lines_are_those_of_an_editor_whatever_ends_them() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("{end}a,b{end}1,2{end}{end}{end}3,\"x{end}y\"{end}4,5");
            let table = parse(text.as_bytes()).unwrap();
            let lines: Vec<u32> = (0..3).map(|row| table.line(row)).collect();
            assert_eq!(lines, [3, 6, 8], "{end:?}");
        }
    }

    #[test]
    fn says_which_row_is_wrong() {
        let error = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(error(b"").contains("an empty file"));
        assert!(error(b"\xef\xbb\xbf\r\n\r\n").contains("an empty file"));
        assert!(error(b"image,caption\n").contains("found none"));
        assert!(
            error(b"a,b\r\n1,2\r\n1,2,3\r\n")
                .contains("row 3: expected 2 fields as in the header, found 3")
        );
        assert!(error(b"a,b\n1,2\n1,\xff\n").contains("row 3: expected UTF-8"));
        assert!(error(b"a;b\n1;2\n").contains("semicolons"));
        assert!(error(b"a\tb\n1\t2\n").contains("tabs"));
        let missing = Table::open(Path::new("/nowhere/cars.csv")).unwrap_err();
        assert!(matches!(missing, DataError::NoFile { .. }));
    }

    #[test]
    fn columns_are_found_by_name() {
        let table = parse(b"image,make,x,x\n1.jpg,Ford,1,2\n").unwrap();
        assert_eq!(table.column("label", "make").unwrap(), 1);
        let error = table.column("label", "maker").unwrap_err().to_string();
        assert!(error.contains("did you mean `make`?"), "{error}");
        let error = table.column("label", "x").unwrap_err().to_string();
        assert!(error.contains("found 2"), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn never_panics_on_csv_like_bytes(
            bytes in proptest::collection::vec(proptest::sample::select(b"a\",;\r\n\\ \xef\xbb\xbf".to_vec()), 0..60)
        ) {
            if let Ok(table) = parse(&bytes) {
                for row in 0..table.num_rows() {
                    for column in 0..table.columns().len() {
                        table.cell(row, column);
                    }
                }
            }
        }

        #[test]
        fn reads_back_what_was_written(
            rows in proptest::collection::vec(proptest::collection::vec("[a-zä,\"\n\r ]{0,6}", 3), 1..8)
        ) {
            let mut writer = csv::WriterBuilder::new()
                .quote_style(csv::QuoteStyle::Always)
                .from_writer(Vec::new());
            writer.write_record(["a", "b", "c"]).unwrap();
            for row in &rows {
                writer.write_record(row).unwrap();
            }
            let bytes = writer.into_inner().unwrap();
            let table = parse(&bytes).unwrap();
            prop_assert_eq!(table.num_rows(), rows.len());
            for (at, row) in rows.iter().enumerate() {
                for (column, cell) in row.iter().enumerate() {
                    prop_assert_eq!(table.cell(at, column), cell);
                }
            }
        }
    }
}
