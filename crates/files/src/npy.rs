//! The header of a `.npy` file.
//!
//! ```text
//! \x93NUMPY | major, minor | length of header: u16, from version 2 on u32 | a Python dictionary | the array
//! {'descr': '<f4', 'fortran_order': False, 'shape': (117120, 512), }
//! ```
//!
//! An own parser, because only the header is needed, with sizes checked before they are trusted; the crates for this format read
//! arrays into memory, or depend on an array library.

const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum nesting of brackets: enough for records within records.
const MOST_DEPTH: usize = 16;

/// Limit on the length of the dictionary. NumPy itself refuses more than 10,000 bytes by default.
const MOST_DICTIONARY_BYTES: usize = 64 << 10;

/// Format and shape of an array. Its size is not yet checked against the length of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpyHeader {
    /// The number format, such as `<f4`; `a record` for a list of fields.
    pub format: String,
    /// `fortran_order`: columns one after another, instead of rows.
    pub columns_first: bool,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Offset of the array in the file.
    pub data_start: usize,
}

/// Why a header cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NpyError {
    /// The file does not begin as such files do.
    NotNpy,
    /// An unknown major version of the format.
    Version(u8),
    /// The file ends before this many bytes.
    Cut(usize),
    /// A header that `np.save` does not write.
    Header {
        expected: &'static str,
        found: String,
    },
}

impl NpyHeader {
    /// Bytes from the beginning of a file that [`NpyHeader::data_start`] needs.
    pub const PREFIX_BYTES: usize = 12;

    /// Length of the header, from at least [`NpyHeader::PREFIX_BYTES`] of the file, or all of it.
    pub fn data_start(file: &[u8]) -> Result<usize, NpyError> {
        let (start, length) = dictionary_at(file)?;
        Ok(start + length)
    }

    /// Parses the header at the beginning of a file.
    pub fn read(file: &[u8]) -> Result<NpyHeader, NpyError> {
        let (start, length) = dictionary_at(file)?;
        let data_start = start + length;
        let Some(text) = file.get(start..data_start) else {
            return Err(NpyError::Cut(data_start));
        };
        let Ok(text) = std::str::from_utf8(text) else {
            return Err(wrong("text", "bytes that are none".to_owned()));
        };
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0).and_then(|value| {
            reader.skip_spaces();
            (reader.at == text.len()).then_some(value)
        });
        let Some(Literal::Dictionary(entries)) = value else {
            let rest: String = text[reader.at..].chars().take(24).collect();
            let found = format!("`{}` at byte {}", rest.escape_debug(), start + reader.at);
            return Err(wrong("a Python dictionary", found));
        };
        header(entries, data_start)
    }
}

/// Start and length of the dictionary.
fn dictionary_at(file: &[u8]) -> Result<(usize, usize), NpyError> {
    let after_magic = file.strip_prefix(MAGIC).ok_or(NpyError::NotNpy)?;
    let (start, length) = match *after_magic {
        [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([a, b]))),
        [2 | 3, _, a, b, c, d, ..] => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        [1, ..] | [] => return Err(NpyError::Cut(10)),
        [2 | 3, ..] => return Err(NpyError::Cut(12)),
        [found, ..] => return Err(NpyError::Version(found)),
    };
    if length > MOST_DICTIONARY_BYTES {
        return Err(wrong("at most 65,536 bytes", format!("{length} bytes")));
    }
    Ok((start, length))
}

fn wrong(expected: &'static str, found: String) -> NpyError {
    NpyError::Header { expected, found }
}

fn header(entries: Vec<(String, Literal)>, data_start: usize) -> Result<NpyHeader, NpyError> {
    let (mut format, mut columns_first, mut shape) = (None, None, None);
    for (key, value) in entries {
        let is_twice = match (key.as_str(), value) {
            ("descr", Literal::Text(text)) => format.replace(text).is_some(),
            // A list of fields, possibly with an object type among them.
            ("descr", Literal::Sequence(_)) => format.replace("a record".to_owned()).is_some(),
            ("fortran_order", Literal::Flag(flag)) => columns_first.replace(flag).is_some(),
            ("shape", Literal::Sequence(sizes)) => {
                let sizes = sizes.into_iter().map(|size| match size {
                    Literal::Whole(size) => usize::try_from(size).ok(),
                    _ => None,
                });
                let Some(sizes) = sizes.collect::<Option<Vec<usize>>>() else {
                    return Err(wrong("a shape of whole numbers", "another".to_owned()));
                };
                shape.replace(sizes).is_some()
            }
            _ => true,
        };
        if is_twice {
            let found = format!("`{}` once more, or another", key.escape_debug());
            return Err(wrong("descr, fortran_order and shape", found));
        }
    }
    match (format, columns_first, shape) {
        (Some(format), Some(columns_first), Some(shape)) => Ok(NpyHeader {
            format,
            columns_first,
            shape,
            data_start,
        }),
        _ => {
            let found = "not all of them".to_owned();
            Err(wrong("descr, fortran_order and shape", found))
        }
    }
}

/// The Python literals that occur in headers.
#[derive(Debug)]
enum Literal {
    Text(String),
    Whole(u64),
    Flag(bool),
    Sequence(Vec<Literal>),
    Dictionary(Vec<(String, Literal)>),
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

    fn value(&mut self, depth: usize) -> Option<Literal> {
        if depth > MOST_DEPTH {
            return None;
        }
        self.skip_spaces();
        match self.peek()? {
            b'\'' | b'"' => self.string().map(Literal::Text),
            b'0'..=b'9' => self.whole().map(Literal::Whole),
            b'T' => self.take("True").map(|()| Literal::Flag(true)),
            b'F' => self.take("False").map(|()| Literal::Flag(false)),
            b'(' => self.sequence(("(", ")"), depth).map(Literal::Sequence),
            b'[' => self.sequence(("[", "]"), depth).map(Literal::Sequence),
            b'{' => self.dictionary(depth).map(Literal::Dictionary),
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

    fn sequence(&mut self, (open, close): (&str, &str), depth: usize) -> Option<Vec<Literal>> {
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

    fn dictionary(&mut self, depth: usize) -> Option<Vec<(String, Literal)>> {
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
mod tests {
    use super::*;

    /// A file without an array.
    fn file(major: u8, dictionary: &str) -> Vec<u8> {
        let length = dictionary.len() as u32;
        let length = match major {
            1 => (length as u16).to_le_bytes().to_vec(),
            _ => length.to_le_bytes().to_vec(),
        };
        [MAGIC, &[major, 0], &length, dictionary.as_bytes()].concat()
    }

    #[test]
    fn a_header_is_read_in_every_version() {
        let dictionary = "{'descr': '|u1', 'fortran_order': False, 'shape': (8, 4, 4, 3), }";
        for major in 1..=3 {
            let file = file(major, dictionary);
            assert_eq!(NpyHeader::data_start(&file[..12]), Ok(file.len()));
            let header = NpyHeader::read(&file).unwrap();
            assert_eq!(header.format, "|u1");
            assert_eq!(header.shape, [8, 4, 4, 3]);
            assert_eq!(
                (header.columns_first, header.data_start),
                (false, file.len())
            );
            let cut = NpyHeader::read(&file[..file.len() - 1]);
            assert_eq!(cut, Err(NpyError::Cut(file.len())));
        }
    }

    #[test]
    fn what_is_no_header_is_refused_before_it_is_read() {
        assert_eq!(NpyHeader::read(b"GIF89a"), Err(NpyError::NotNpy));
        assert_eq!(NpyHeader::read(&file(9, "{}")), Err(NpyError::Version(9)));
        let long = [MAGIC, &[2, 0], &u32::MAX.to_le_bytes()].concat();
        let refused = NpyHeader::data_start(&long).unwrap_err();
        assert_eq!(
            refused,
            wrong("at most 65,536 bytes", format!("{} bytes", u32::MAX))
        );
    }
}
