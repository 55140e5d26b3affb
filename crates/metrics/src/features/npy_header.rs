//! The header of a `.npy` file.
//!
//! ```text
//! \x93NUMPY | major, minor | length of header: u16, from version 2 on u32 | a Python dictionary | the array
//! {'descr': '<f4', 'fortran_order': False, 'shape': (117120, 512), }
//! ```
//!
//! An own parser, because only the header is needed, over a memory map, with sizes checked before they are trusted; the crates
//! for this format read arrays into memory, or depend on an array library.

use std::path::Path;

use crate::error::InputError;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum nesting of brackets: enough for records within records.
const MOST_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number format, such as `<f4`.
    pub(crate) format: String,
    /// `fortran_order`: columns one after another, instead of rows.
    pub(crate) columns_first: bool,
    /// Sizes, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Offset of the array in the file.
    pub(crate) data_start: usize,
}

/// NumPy itself refuses headers of more than 10,000 bytes by default.
const MOST_HEADER_BYTES: usize = 64 << 10;

impl Header {
    /// Parses the header. The array's size is not yet checked against the length of the file.
    pub(crate) fn read(path: &Path, file: &[u8]) -> Result<Header, InputError> {
        let Some(after_magic) = file.strip_prefix(MAGIC) else {
            let found = String::from_utf8_lossy(&file[..file.len().min(16)]);
            return Err(InputError::NotNpy {
                path: path.into(),
                found: found.escape_debug().to_string(),
            });
        };
        let cut = |expected_bytes: usize| InputError::Length {
            path: path.into(),
            expected_bytes: expected_bytes as u128,
            found_bytes: file.len() as u64,
        };
        let (start, length) = match *after_magic {
            [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
            [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
            [1, ..] | [] => return Err(cut(10)),
            [2 | 3, ..] => return Err(cut(12)),
            [found, ..] => {
                let path = path.into();
                return Err(InputError::NpyVersion { path, found });
            }
        };
        if length > MOST_HEADER_BYTES {
            let found = format!("{length} bytes");
            return Err(wrong(path, "at most 65,536 bytes", found));
        }
        let data_start = start + length;
        let Some(text) = file.get(start..data_start) else {
            return Err(cut(data_start));
        };
        let Ok(text) = std::str::from_utf8(text) else {
            return Err(wrong(path, "text", "bytes that are none".to_owned()));
        };
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0).and_then(|value| {
            reader.skip_spaces();
            (reader.at == text.len()).then_some(value)
        });
        let Some(HeaderValue::Dictionary(entries)) = value else {
            let rest: String = text[reader.at..].chars().take(24).collect();
            let found = format!("`{}` at byte {}", rest.escape_debug(), start + reader.at);
            return Err(wrong(path, "a Python dictionary", found));
        };
        header(path, entries, data_start)
    }

    /// Checks the length of the file, with `value_bytes` per value.
    pub(crate) fn check_length(
        &self,
        path: &Path,
        file: &[u8],
        value_bytes: usize,
    ) -> Result<(), InputError> {
        let values = self
            .shape
            .iter()
            .try_fold(1u128, |product, &size| product.checked_mul(size as u128));
        let bytes = values.and_then(|values| values.checked_mul(value_bytes as u128));
        let expected_bytes = bytes
            .and_then(|bytes| bytes.checked_add(self.data_start as u128))
            .unwrap_or(u128::MAX);
        if expected_bytes != file.len() as u128 {
            return Err(InputError::Length {
                path: path.into(),
                expected_bytes,
                found_bytes: file.len() as u64,
            });
        }
        Ok(())
    }
}

fn wrong(path: &Path, expected: &'static str, found: String) -> InputError {
    InputError::NpyHeader {
        path: path.into(),
        expected,
        found,
    }
}

fn header(
    path: &Path,
    entries: Vec<(String, HeaderValue)>,
    data_start: usize,
) -> Result<Header, InputError> {
    let (mut format, mut columns_first, mut shape) = (None, None, None);
    for (key, value) in entries {
        let is_twice = match (key.as_str(), value) {
            ("descr", HeaderValue::Text(text)) => format.replace(text).is_some(),
            // A list of fields, possibly with an object type among them.
            ("descr", HeaderValue::Sequence(_)) => format.replace("a record".to_owned()).is_some(),
            ("fortran_order", HeaderValue::Flag(flag)) => columns_first.replace(flag).is_some(),
            ("shape", HeaderValue::Sequence(sizes)) => {
                let sizes = sizes.into_iter().map(|size| match size {
                    HeaderValue::Whole(size) => usize::try_from(size).ok(),
                    _ => None,
                });
                let Some(sizes) = sizes.collect::<Option<Vec<usize>>>() else {
                    return Err(wrong(
                        path,
                        "a shape of whole numbers",
                        "another".to_owned(),
                    ));
                };
                shape.replace(sizes).is_some()
            }
            _ => true,
        };
        if is_twice {
            let found = format!("`{}` once more, or another", key.escape_debug());
            return Err(wrong(path, "descr, fortran_order and shape", found));
        }
    }
    match (format, columns_first, shape) {
        (Some(format), Some(columns_first), Some(shape)) => Ok(Header {
            format,
            columns_first,
            shape,
            data_start,
        }),
        _ => {
            let found = "not all of them".to_owned();
            Err(wrong(path, "descr, fortran_order and shape", found))
        }
    }
}

/// The Python literals that occur in headers.
#[derive(Debug)]
enum HeaderValue {
    Text(String),
    Whole(u64),
    Flag(bool),
    Sequence(Vec<HeaderValue>),
    Dictionary(Vec<(String, HeaderValue)>),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    fn take(&mut self, what: &str) -> Option<()> {
        self.skip_spaces();
        let is_there = self.text[self.at..].starts_with(what);
        self.at += if is_there { what.len() } else { 0 };
        is_there.then_some(())
    }

    fn value(&mut self, depth: usize) -> Option<HeaderValue> {
        if depth > MOST_DEPTH {
            return None;
        }
        self.skip_spaces();
        match self.peek()? {
            b'\'' | b'"' => self.string().map(HeaderValue::Text),
            b'0'..=b'9' => self.whole().map(HeaderValue::Whole),
            b'T' => self.take("True").map(|()| HeaderValue::Flag(true)),
            b'F' => self.take("False").map(|()| HeaderValue::Flag(false)),
            b'(' => self.sequence(("(", ")"), depth).map(HeaderValue::Sequence),
            b'[' => self.sequence(("[", "]"), depth).map(HeaderValue::Sequence),
            b'{' => self.dictionary(depth).map(HeaderValue::Dictionary),
            _ => None,
        }
    }

    /// A string without escapes: `np.save` writes escapes only in field names, and records are not supported.
    fn string(&mut self) -> Option<String> {
        let quote = char::from(self.peek()?);
        let rest = &self.text[self.at + 1..];
        let length = rest
            .find([quote, '\\'])
            .filter(|&at| rest[at..].starts_with(quote))?;
        self.at += length + 2;
        Some(rest[..length].to_owned())
    }

    fn whole(&mut self) -> Option<u64> {
        let rest = &self.text[self.at..];
        let length = rest.bytes().take_while(u8::is_ascii_digit).count();
        self.at += length;
        let number = rest[..length].parse().ok();
        // Python 2 marked long integers by an L.
        if self.peek() == Some(b'L') {
            self.at += 1;
        }
        number
    }

    fn sequence(&mut self, (open, close): (&str, &str), depth: usize) -> Option<Vec<HeaderValue>> {
        self.take(open)?;
        let mut values = Vec::new();
        while self.take(close).is_none() {
            values.push(self.value(depth + 1)?);
            if self.take(",").is_none() {
                self.take(close)?;
                break;
            }
        }
        Some(values)
    }

    fn dictionary(&mut self, depth: usize) -> Option<Vec<(String, HeaderValue)>> {
        self.take("{")?;
        let mut entries = Vec::new();
        while self.take("}").is_none() {
            self.skip_spaces();
            let key = match self.peek()? {
                b'\'' | b'"' => self.string()?,
                _ => return None,
            };
            self.take(":")?;
            entries.push((key, self.value(depth + 1)?));
            if self.take(",").is_none() {
                self.take("}")?;
                break;
            }
        }
        Some(entries)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A `.npy` file of format `major` with this dictionary and data.
    pub(crate) fn npy(major: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
        let mut file = [MAGIC, &[major, 0]].concat();
        let length = dictionary.len() as u32;
        match major {
            1 => file.extend((length as u16).to_le_bytes()),
            _ => file.extend(length.to_le_bytes()),
        }
        [&file, dictionary.as_bytes(), data].concat()
    }

    pub(crate) fn dictionary(format: &str, shape: &str) -> String {
        format!("{{'descr': {format}, 'fortran_order': False, 'shape': {shape}, }}      \n")
    }

    fn read(file: &[u8]) -> Result<Header, String> {
        let path = Path::new("a.npy");
        Header::read(path, file).map_err(|error| error.to_string())
    }

    #[test]
    fn every_version_and_every_habit() {
        for major in 1..=3 {
            let file = npy(major, &dictionary("'<f4'", "(3, 512)"), &[]);
            let header = read(&file).unwrap();
            assert_eq!(header.format, "<f4");
            assert_eq!(header.shape, [3, 512]);
            assert_eq!(header.data_start, file.len());
            assert!(!header.columns_first);
        }
        for (text, shape) in [
            (
                "{\"shape\":(7L,),\"fortran_order\":True,\"descr\":\"<f8\"}",
                vec![7],
            ),
            (
                "{ 'descr' : '<f8' , 'fortran_order' : True , 'shape' : ( ) }",
                vec![],
            ),
            (
                "{'descr': [('a', '<f4', (2, 3)), ('b', '|O')], 'fortran_order': True, 'shape': (1,2)}",
                vec![1, 2],
            ),
        ] {
            let header = read(&npy(1, text, &[])).unwrap();
            assert_eq!(header.shape, shape, "{text}");
            assert!(header.columns_first);
        }
    }

    #[test]
    fn what_np_save_does_not_write_is_refused() {
        for (text, part) in [
            ("", "a Python dictionary"),
            ("{'descr': '<f4'", "a Python dictionary"),
            ("{'descr': '<f4'} x", "`x` at byte 29"),
            ("['descr']", "a Python dictionary"),
            ("{'descr': '\\x3cf4'}", "a Python dictionary"),
            ("{'descr': '<f4'}", "not all of them"),
            ("{'descr': '<f4', 'descr': '<f4'}", "`descr` once more"),
            ("{'other': 1}", "`other`"),
            ("{'shape': (-1, 2)}", "a Python dictionary"),
            ("{'shape': ('a',)}", "a shape of whole numbers"),
            ("{'shape': (99999999999999999999,)}", "a Python dictionary"),
            (
                "{'descr': 4, 'fortran_order': False, 'shape': ()}",
                "`descr`",
            ),
            (&"[".repeat(2000), "a Python dictionary"),
            (&" ".repeat(70_000), "at most 65,536 bytes"),
        ] {
            let error = read(&npy(2, text, &[])).unwrap_err();
            assert!(
                error.starts_with("a.npy: ") && error.contains(part),
                "{text}: {error}"
            );
            assert!(error.contains("\nhint: "), "{error}");
        }
        let not_text = npy(1, "", &[]);
        let not_text = [&not_text[..8], &[1, 0, 0xff]].concat();
        assert!(read(&not_text).unwrap_err().contains("bytes that are none"));
        assert!(
            read(b"PK\x03\x04")
                .unwrap_err()
                .contains("`PK\\u{3}\\u{4}`")
        );
        assert!(
            read(b"\x93NUMPY\x09\0")
                .unwrap_err()
                .contains("format 1, 2 or 3, found 9")
        );
    }

    #[test]
    fn a_file_that_ends_within_its_header_is_cut() {
        let file = npy(3, &dictionary("'<f4'", "(1, 1)"), &[]);
        for length in MAGIC.len()..file.len() {
            let error = read(&file[..length]).unwrap_err();
            assert!(error.contains(&format!("found {length}\n")), "{error}");
        }
    }
}
