//! A JSON object per line, like `metadata.jsonl` of Hugging Face image folders: keys are columns.
//!
//! Nested objects are flattened (`image.path`), a list is joined by `|`, null is an empty cell.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use csv::ByteRecord;
use holdall_files::{check_memory, show_bytes};
use serde_json::{Map, Value};

use super::rows::{Records, Stamp};
use super::text_records::{open_file, unreadable};
use crate::error::{DataError, at_row};

/// Lines whose keys become columns. A key that first appears later is ignored.
const HEADER_LINES: usize = 1000;
/// Length limit of a line.
const MOST_LINE_BYTES: u64 = 16 << 20;
/// Lines up to this length are parsed without a memory check.
const SHORT_LINE_BYTES: usize = 64 << 10;
/// Peak memory of parsing, per byte of a line: lists of single digits take the most.
const PARSED_PER_BYTE: u64 = 40;
/// Limit of the number of columns.
const MOST_COLUMNS: usize = 4096;
/// Separator between the values of a list.
const LIST_SEPARATOR: &str = "|";

/// Whether a file name is one of JSON lines.
pub(super) fn is_json_lines(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| {
        ["jsonl", "ndjson"]
            .iter()
            .any(|name| name.eq_ignore_ascii_case(extension))
    })
}

/// Error for a JSON file that is a single value, with a command that converts it to lines.
pub(super) fn refuse_json(path: &Path) -> DataError {
    let name = path.display();
    DataError::invalid(
        &name,
        "a CSV, JSON lines or Parquet",
        "a JSON file",
        format_args!(
            "`jq -c '.[]' {name} > {}` writes a line per row",
            path.with_extension("jsonl").display()
        ),
    )
}

/// Columns: keys of the first rows, in order of appearance.
pub(super) fn columns(path: &Path) -> Result<Vec<String>, DataError> {
    let mut lines = NumberedLines::open(path)?.0;
    let mut columns: Vec<String> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    let mut num_rows = 0;
    while num_rows < HEADER_LINES
        && let Some(object) = lines.next_object()?
    {
        num_rows += 1;
        each_cell(&object, "", &mut |key, _| {
            if columns.len() < MOST_COLUMNS && known.insert(key.to_owned()) {
                columns.push(key.to_owned());
            }
        });
    }
    if columns.is_empty() {
        return Err(DataError::invalid(
            path.display(),
            "a JSON object per line, such as {\"file_name\": \"1.jpg\", \"text\": \"a red car\"}",
            "none",
            "check whether the step that writes this file filtered every row out",
        ));
    }
    Ok(columns)
}

/// Opens the rows, as cells of these columns.
pub(super) fn open(path: &Path, columns: &[String]) -> Result<(JsonRecords, Stamp), DataError> {
    let (lines, stamp) = NumberedLines::open(path)?;
    let places = columns.iter().cloned().zip(0..);
    let records = JsonRecords {
        lines,
        place_of: places.collect(),
        cells: vec![String::new(); columns.len()],
    };
    Ok((records, stamp))
}

/// Records of a JSON lines file.
pub(super) struct JsonRecords {
    lines: NumberedLines,
    place_of: HashMap<String, usize>,
    cells: Vec<String>,
}

impl Records for JsonRecords {
    fn read(&mut self, record: &mut ByteRecord) -> Result<Option<u32>, DataError> {
        let Some(object) = self.lines.next_object()? else {
            return Ok(None);
        };
        self.cells.iter_mut().for_each(String::clear);
        let (place_of, cells) = (&self.place_of, &mut self.cells);
        each_cell(&object, "", &mut |key, value| {
            if let Some(at) = place_of.get(key) {
                cells[*at] = value;
            }
        });
        record.clear();
        cells
            .iter()
            .for_each(|cell| record.push_field(cell.as_bytes()));
        Ok(Some(self.lines.line))
    }

    fn raw(&self) -> &[u8] {
        self.lines.text.trim_ascii()
    }

    fn header(&self) -> &[u8] {
        &[]
    }
}

/// Non-empty lines and their numbers.
struct NumberedLines {
    path: PathBuf,
    reader: BufReader<File>,
    text: Vec<u8>,
    line: u32,
}

impl NumberedLines {
    fn open(path: &Path) -> Result<(NumberedLines, Stamp), DataError> {
        let (file, stamp) = open_file(path)?;
        let lines = NumberedLines {
            path: path.to_owned(),
            reader: BufReader::with_capacity(1 << 16, file),
            text: Vec::new(),
            line: 0,
        };
        Ok((lines, stamp))
    }

    fn next_object(&mut self) -> Result<Option<Map<String, Value>>, DataError> {
        loop {
            self.text.clear();
            let mut limited = (&mut self.reader).take(MOST_LINE_BYTES + 1);
            let length = limited
                .read_until(b'\n', &mut self.text)
                .map_err(|cause: io::Error| unreadable(&self.path, cause))?;
            if length == 0 {
                return Ok(None);
            }
            self.line = self
                .line
                .checked_add(1)
                .ok_or_else(|| DataError::too_many_rows(&self.path))?;
            if length as u64 > MOST_LINE_BYTES {
                return Err(self.wrong("a line of at most 16 MiB", "a longer one"));
            }
            if length > SHORT_LINE_BYTES {
                check_memory(length as u64 * PARSED_PER_BYTE).map_err(|over| {
                    DataError::OverBudget {
                        place: at_row(&self.path, self.line),
                        what: format!("a line of {}", show_bytes(length as u64)),
                        over,
                        hint: "shorten it",
                        is_all: true,
                    }
                })?;
            }
            let text = self
                .text
                .strip_prefix(b"\xef\xbb\xbf")
                .unwrap_or(&self.text);
            if text.trim_ascii().is_empty() {
                continue;
            }
            return match serde_json::from_slice::<Value>(text) {
                Ok(Value::Object(object)) => Ok(Some(object)),
                Ok(other) => Err(self.wrong("a JSON object", kind(&other))),
                // Position in the line, not in the file.
                Err(cause) => Err(self.wrong(
                    "a JSON object",
                    format!("column {}: {}", cause.column(), reason(&cause)),
                )),
            };
        }
    }

    fn wrong(&self, expected: &str, found: impl std::fmt::Display) -> DataError {
        DataError::invalid(
            at_row(&self.path, self.line),
            expected,
            found,
            "each line is a row: {\"file_name\": \"1.jpg\", \"text\": \"a red car\"}",
        )
    }
}

/// Message of a parser error without its position.
fn reason(cause: &serde_json::Error) -> String {
    let text = cause.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "a list",
        Value::String(_) => "text",
        Value::Number(_) => "a number",
        Value::Bool(_) => "true or false",
        Value::Null => "null",
        Value::Object(_) => "an object",
    }
}

/// Calls `hand_on` with each value as a cell; keys of nested objects are joined by dots.
pub(crate) fn each_cell(
    object: &Map<String, Value>,
    prefix: &str,
    hand_on: &mut impl FnMut(&str, String),
) {
    for (key, value) in object {
        let key = match prefix {
            "" => key.trim().to_owned(),
            _ => format!("{prefix}.{}", key.trim()),
        };
        match value {
            Value::Object(inner) => each_cell_dyn(inner, &key, hand_on),
            value => hand_on(&key, cell(value)),
        }
    }
}

/// Dynamic dispatch: nested generic closures would be an infinite type.
fn each_cell_dyn(
    object: &Map<String, Value>,
    prefix: &str,
    mut hand_on: &mut dyn FnMut(&str, String),
) {
    each_cell(object, prefix, &mut hand_on);
}

/// Text of a value.
fn cell(value: &Value) -> String {
    match value {
        Value::Null | Value::Object(_) => String::new(),
        Value::Bool(is_true) => is_true.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            let cells: Vec<String> = values.iter().map(cell).collect();
            cells.join(LIST_SEPARATOR)
        }
    }
}
