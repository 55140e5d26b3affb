//! Text in the encodings that spreadsheets write, read as UTF-8.
//!
//! UTF-16 is recognised by its byte order mark, or by zeros in its first bytes. A file that is neither UTF-16 nor UTF-8 is taken for
//! Windows-1252, a superset of Latin-1, if its non-ASCII letters stand alone among ASCII, as in `café`. If they stand in sequence, as in
//! Cyrillic and Chinese encodings, or if the file has UTF-8 letters too, the user has to say what it is.

use std::io::{self, Read};

use encoding_rs_io::{DecodeReaderBytes, DecodeReaderBytesBuilder};

/// Character encoding of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Utf8,
    Utf16LittleEndian,
    Utf16BigEndian,
    Windows1252,
}

impl Encoding {
    /// Name in messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Encoding::Utf8 => "UTF-8",
            Encoding::Utf16LittleEndian | Encoding::Utf16BigEndian => "UTF-16",
            Encoding::Windows1252 => "Latin-1 (Windows-1252)",
        }
    }

    /// Detects the encoding from the reader's whole contents.
    pub(super) fn of(mut reader: impl Read) -> io::Result<Encoding> {
        let mut piece = vec![0; 1 << 16];
        let mut length = fill(&mut reader, &mut piece)?;
        match piece[..length] {
            [0xff, 0xfe, ..] => return Ok(Encoding::Utf16LittleEndian),
            [0xfe, 0xff, ..] => return Ok(Encoding::Utf16BigEndian),
            // A header starts with letters that have one byte in UTF-8.
            [1..=255, 0, 1..=255, 0, ..] => return Ok(Encoding::Utf16LittleEndian),
            [0, 1..=255, 0, 1..=255, ..] => return Ok(Encoding::Utf16BigEndian),
            _ => {}
        }
        let mut seen = Seen::default();
        let mut carried = 0;
        while length > carried {
            let kept = seen.look(&piece[..length]);
            // A letter that is cut by the end of the piece is checked with the next one.
            piece.copy_within(length - kept..length, 0);
            carried = kept;
            length = kept + fill(&mut reader, &mut piece[kept..])?;
        }
        seen.num_alone += carried;
        Ok(if seen.is_western() {
            Encoding::Windows1252
        } else {
            Encoding::Utf8
        })
    }
}

/// Statistics of bytes beyond ASCII.
#[derive(Default)]
struct Seen {
    /// Letters in valid UTF-8.
    num_letters: usize,
    /// Bytes outside UTF-8 letters, with ASCII on both sides.
    num_alone: usize,
    /// Bytes outside UTF-8 letters, beside another byte beyond ASCII.
    num_in_rows: usize,
}

impl Seen {
    fn is_western(&self) -> bool {
        self.num_letters == 0 && self.num_alone > self.num_in_rows
    }

    /// Counts bytes; returns how many at the end may be the start of a letter.
    fn look(&mut self, bytes: &[u8]) -> usize {
        let is_beyond = |at: Option<usize>| {
            let byte = at.and_then(|at| bytes.get(at));
            byte.is_some_and(|byte| !byte.is_ascii())
        };
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            let (valid, error) = match std::str::from_utf8(rest) {
                Ok(text) => (text.as_bytes(), None),
                Err(error) => (&rest[..error.valid_up_to()], Some(error)),
            };
            self.num_letters += valid.iter().filter(|byte| !byte.is_ascii()).count();
            let found = start + valid.len();
            match error.map(|error| error.error_len()) {
                None => return 0,
                Some(None) => return bytes.len() - found,
                Some(Some(length)) => {
                    for at in found..found + length {
                        if is_beyond(at.checked_sub(1)) || is_beyond(Some(at + 1)) {
                            self.num_in_rows += 1
                        } else {
                            self.num_alone += 1
                        }
                    }
                    start = found + length;
                }
            }
        }
    }
}

/// Reads until a buffer is full or the reader ends.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match reader.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(length)
}

/// Converts a file to UTF-8, without the byte order mark of UTF-16. UTF-8 passes unchecked and unchanged.
pub(super) fn utf8_reader<R: Read>(file: R, encoding: Encoding) -> DecodeReaderBytes<R, Vec<u8>> {
    let converted_from = match encoding {
        Encoding::Utf8 => None,
        Encoding::Utf16LittleEndian => Some(encoding_rs::UTF_16LE),
        Encoding::Utf16BigEndian => Some(encoding_rs::UTF_16BE),
        Encoding::Windows1252 => Some(encoding_rs::WINDOWS_1252),
    };
    DecodeReaderBytesBuilder::new()
        .encoding(converted_from)
        .bom_sniffing(false)
        .build(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reader that returns a fixed number of bytes at a time.
    struct Slowly<'a>(&'a [u8], usize);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = self.0.len().min(buffer.len()).min(self.1);
            buffer[..length].copy_from_slice(&self.0[..length]);
            self.0 = &self.0[length..];
            Ok(length)
        }
    }

    fn read(bytes: &[u8]) -> (Encoding, String) {
        let encoding = Encoding::of(bytes).unwrap();
        let mut text = String::new();
        let mut reader = utf8_reader(Slowly(bytes, 3), encoding);
        reader.read_to_string(&mut text).unwrap();
        (encoding, text)
    }

    #[test]
    fn what_spreadsheets_write_reads_the_same() {
        let text = "image,caption\nä.jpg,\"10 €, schön 🚗\"\n".repeat(2_000);
        let units: Vec<u16> = text.encode_utf16().collect();
        for mark in ["", "\u{feff}"] {
            let units: Vec<u16> = mark.encode_utf16().chain(units.iter().copied()).collect();
            let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
            assert_eq!(read(&little), (Encoding::Utf16LittleEndian, text.clone()));
            assert_eq!(read(&big), (Encoding::Utf16BigEndian, text.clone()));
        }
        assert_eq!(read(text.as_bytes()), (Encoding::Utf8, text));
        let latin = b"image,caption\n\xe4.jpg,10 \x80 \x93caf\xe9\x94\n";
        let expected = "image,caption\nä.jpg,10 € “café”\n".to_owned();
        assert_eq!(read(latin), (Encoding::Windows1252, expected));
    }

    /// A file with letters in both encodings: neither reading is right, so the row is reported as invalid UTF-8.
    #[test]
    fn a_file_of_two_encodings_is_taken_for_utf_8() {
        let mut bytes = "a,b\nä,1\n".as_bytes().to_vec();
        bytes.extend(b"\xe4,2\n");
        assert_eq!(Encoding::of(&*bytes).unwrap(), Encoding::Utf8);
    }

    /// Cyrillic and Chinese in legacy encodings must not be read as Latin-1: a run would not reveal the error.
    #[test]
    fn letters_in_rows_are_not_western() {
        let cyrillic = b"image,caption\n1.jpg,\xea\xf0\xe0\xf1\xed\xfb\xe9\n";
        assert_eq!(Encoding::of(&cyrillic[..]).unwrap(), Encoding::Utf8);
        let chinese = b"image,caption\n1.jpg,\xba\xec\xc9\xab\xb5\xc4\n";
        assert_eq!(Encoding::of(&chinese[..]).unwrap(), Encoding::Utf8);
    }

    #[test]
    fn a_letter_between_two_pieces_is_one_letter() {
        for before in (1 << 16) - 3..(1 << 16) + 1 {
            let text = "x".repeat(before) + "🚗" + &"y".repeat(10);
            assert_eq!(Encoding::of(text.as_bytes()).unwrap(), Encoding::Utf8);
        }
    }

    #[test]
    fn half_a_letter_at_the_end_is_replaced() {
        let (encoding, text) = read(b"\xff\xfea\0b\0c");
        assert_eq!(encoding, Encoding::Utf16LittleEndian);
        assert_eq!(text, "ab\u{fffd}");
        let (_, text) = read(b"\xff\xfea\0\x3d\xd8");
        assert_eq!(text, "a\u{fffd}");
    }
}
