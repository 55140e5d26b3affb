//! Deduplicated texts: 117,120 captions may be 23,592 distinct texts, and each is encoded and scored once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use holdall_files::check_memory;

use crate::error::{DataError, at_row};
use crate::table::{Table, caption_column};
use crate::words::counted;

/// Length limit of a caption line.
const MOST_LINE_BYTES: u64 = 1 << 20;

/// Captions between two looks at the memory limit.
const CAPTIONS_PER_CHECK: usize = 4096;

/// Memory per distinct text while the table of texts grows to twice its size: an entry and its place, three times over.
const GROWTH_PER_TEXT_BYTES: u64 = 3 * 40;

/// Distinct texts, numbered in order of appearance.
#[derive(Clone, Debug, Default)]
pub struct UniqueTexts {
    numbers: HashMap<String, u32>,
}

impl UniqueTexts {
    /// Number of a text; a new text gets the next number.
    pub fn number(&mut self, text: &str) -> u32 {
        // There are no more texts than rows, and rows are numbered in 32 bits.
        let next = self.numbers.len() as u32;
        match self.numbers.get(text) {
            Some(&number) => number,
            None => *self.numbers.entry(text.to_owned()).or_insert(next),
        }
    }

    pub(crate) fn contains(&self, text: &str) -> bool {
        self.numbers.contains_key(text)
    }

    /// Texts and their numbers, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        (self.numbers.iter()).map(|(text, number)| (text.as_str(), *number))
    }

    /// Number of distinct texts.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Texts in the order of their numbers.
    pub fn into_list(self) -> Vec<String> {
        let mut texts = vec![String::new(); self.numbers.len()];
        for (text, number) in self.numbers {
            texts[number as usize] = text;
        }
        texts
    }
}

/// Captions of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptionList {
    /// Text number of each caption.
    pub text_of: Vec<u32>,
    /// Number of distinct texts.
    pub num_texts: usize,
    /// Findings and decisions, for the log.
    pub notes: Vec<String>,
}

impl CaptionList {
    fn push(&mut self, path: &Path, texts: &mut UniqueTexts, text: &str) -> Result<(), DataError> {
        if self.text_of.len().is_multiple_of(CAPTIONS_PER_CHECK) {
            let growth = texts.len() as u64 * GROWTH_PER_TEXT_BYTES;
            check_memory(growth).map_err(|over| DataError::OverBudget {
                place: path.display().to_string(),
                what: format!("the first {}", counted(self.text_of.len(), "caption")),
                over,
                hint: "check that the file is the list of these queries",
                is_all: false,
            })?;
        }
        self.text_of.push(texts.number(text));
        Ok(())
    }
}

/// Reads captions: a column of a CSV, named or found by its usual names, or a text file with one caption per line.
pub fn read_captions(path: &Path, column: Option<&str>) -> Result<CaptionList, DataError> {
    let is_csv = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let mut texts = UniqueTexts::default();
    let mut list = CaptionList::default();
    if is_csv {
        let table = Table::open(path)?;
        let column = match column {
            Some(name) => table.column("caption", name)?,
            None => caption_column(&table, &mut list.notes)?,
        };
        let mut rows = table.rows()?;
        while let Some(row) = rows.read()? {
            list.push(path, &mut texts, row.cell(column))?;
        }
    } else {
        each_line(path, |line| list.push(path, &mut texts, line))?;
    }
    list.num_texts = texts.len();
    Ok(list)
}

fn each_line(
    path: &Path,
    mut each: impl FnMut(&str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let failed = |cause: io::Error| DataError::Io {
        path: path.to_owned(),
        action: "read it",
        cause,
    };
    let mut reader = BufReader::new(File::open(path).map_err(failed)?);
    let mut bytes = Vec::new();
    for row in 1.. {
        bytes.clear();
        let mut limited = (&mut reader).take(MOST_LINE_BYTES + 1);
        let length = limited.read_until(b'\n', &mut bytes).map_err(failed)?;
        if length as u64 > MOST_LINE_BYTES {
            return Err(DataError::invalid(
                at_row(path, row),
                "a caption of at most 1 MiB",
                "a longer line",
                "a caption per line; a table needs its column: captions.csv",
            ));
        }
        if length == 0 {
            return match row {
                1 => Err(DataError::invalid(
                    path.display(),
                    "a caption per line",
                    "none",
                    "check whether the program that writes this file came to its end",
                )),
                _ => Ok(()),
            };
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = std::str::from_utf8(line).map_err(|_| DataError::not_utf8(path, row))?;
        each(
            line.strip_prefix('\u{feff}')
                .filter(|_| row == 1)
                .unwrap_or(line),
        )?;
    }
    Err(DataError::too_many_rows(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &[u8], column: Option<&str>) -> Result<CaptionList, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        read_captions(&path, column).map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_is_numbered_where_it_first_appears() {
        let mut texts = UniqueTexts::default();
        let numbers = ["red", "blue", "red", "", "blue"].map(|text| texts.number(text));
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
        assert_eq!(texts.len(), 3);
        assert_eq!(texts.into_list(), ["red", "blue", ""]);
    }

    #[test]
    fn captions_of_a_column_or_a_line_each() {
        for (name, text, column) in [
            ("a.txt", "\u{feff}red\r\nblue\r\nred\r\n", None),
            ("a", "red\nblue\nred", None),
            (
                "a.csv",
                "image,caption\n1.jpg,red\n2.jpg,blue\n3.jpg,red\n",
                None,
            ),
            ("a.csv", "caption,words\n,red\n,blue\n,red\n", Some("words")),
        ] {
            let list = read(name, text.as_bytes(), column).unwrap();
            assert_eq!((list.text_of, list.num_texts), (vec![0, 1, 0], 2), "{text}");
        }
        // An empty line is a caption too: otherwise rows would shift.
        assert_eq!(
            read("a.txt", b"red\n\nred\n", None).unwrap().text_of,
            [0, 1, 0]
        );
    }

    #[test]
    fn what_is_no_list_of_captions_is_said() {
        for (name, text, parts) in [
            ("a.txt", b"".as_slice(), ["a.txt", "found none"]),
            ("a.txt", b"red\n\xff\n", ["a.txt", "row 2"]),
            ("a.csv", b"image,make\n1,2\n", ["a.csv", "caption"]),
            ("a.csv", b"", ["a.csv", "empty"]),
        ] {
            let error = read(name, text, None).unwrap_err();
            assert!(error.contains("\nhint: "), "{error}");
            for part in parts {
                assert!(error.contains(part), "lacks `{part}`: {error}");
            }
        }
    }
}
