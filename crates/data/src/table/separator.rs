//! Column separators: detection from the header line, and replacement of the two-byte `α` for a parser of one-byte separators.

use std::io::{self, Read};

use super::retaining_reader::RetainingReader;
use crate::config::Separator;

/// Replacement of `α`: ASCII's unit separator after a filler byte. Both have two bytes, so that offsets in the file stay valid.
const STAND_IN: [u8; 2] = [0, 0x1f];
const ALPHA: [u8; 2] = [0xce, 0xb1];

impl Separator {
    /// Byte that the parser splits at.
    pub(super) fn delimiter(self) -> u8 {
        match self {
            Separator::Alpha => STAND_IN[1],
            _ => self.text().as_bytes()[0],
        }
    }

    /// The most frequent separator in the first non-empty line; a comma where it has none.
    pub(super) fn of_header(start: &[u8]) -> Separator {
        let text = String::from_utf8_lossy(start);
        let line = text
            .split(['\n', '\r'])
            .find(|line| !line.trim().is_empty());
        // Quotes surround names that contain a separator.
        let unquoted: String = line.unwrap_or_default().split('"').step_by(2).collect();
        let count = |separator: &Separator| unquoted.matches(separator.text()).count();
        // `max_by_key` takes the last of equal counts: the first of `ALL`.
        let all = Separator::ALL.into_iter().rev();
        all.max_by_key(count).unwrap_or(Separator::Comma)
    }
}

/// Reader that replaces two-byte separators.
#[derive(Debug)]
pub(super) struct Separated<R> {
    pub(super) inner: RetainingReader<R>,
    separator: Separator,
    /// First byte of a possible separator at the end of a buffer.
    pending: Option<u8>,
    place: QuoteState,
}

/// Quoting state of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuoteState {
    FieldStart,
    Unquoted,
    Quoted,
    AfterQuote,
}

impl<R> Separated<R> {
    pub(super) fn new(inner: RetainingReader<R>, separator: Separator) -> Separated<R> {
        Separated {
            inner,
            separator,
            pending: None,
            place: QuoteState::FieldStart,
        }
    }

    fn replace(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let is_separator = bytes[at..].starts_with(&ALPHA) && self.place != QuoteState::Quoted;
            self.place = match (self.place, bytes[at]) {
                _ if is_separator => {
                    bytes[at..at + 2].copy_from_slice(&STAND_IN);
                    at += 1;
                    QuoteState::FieldStart
                }
                (QuoteState::FieldStart | QuoteState::AfterQuote, b'"') => QuoteState::Quoted,
                (QuoteState::Quoted, b'"') => QuoteState::AfterQuote,
                (QuoteState::Quoted, _) => QuoteState::Quoted,
                (_, b'\n' | b'\r') => QuoteState::FieldStart,
                _ => QuoteState::Unquoted,
            };
            at += 1;
        }
    }
}

impl<R: io::BufRead> Read for Separated<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.separator != Separator::Alpha || buffer.len() < 2 {
            return self.inner.read(buffer);
        }
        loop {
            let mut length = 0;
            if let Some(byte) = self.pending.take() {
                buffer[0] = byte;
                length = 1;
            }
            let more = self.inner.read(&mut buffer[length..])?;
            length += more;
            if more > 0 && buffer[length - 1] == ALPHA[0] {
                length -= 1;
                self.pending = Some(ALPHA[0]);
                if length == 0 {
                    continue;
                }
            }
            self.replace(&mut buffer[..length]);
            return Ok(length);
        }
    }
}

/// The record without the filler bytes of its separators.
pub(super) fn without_stand_ins(record: &csv::ByteRecord) -> csv::ByteRecord {
    let last = record.len().saturating_sub(1);
    let fields = record.iter().enumerate();
    fields
        .map(|(at, field)| match field {
            [rest @ .., 0] if at < last => rest,
            field => field,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_tell_their_separator() {
        let of = |header: &str| Separator::of_header(header.as_bytes());
        assert_eq!(of("image,caption\n1;2;3;4"), Separator::Comma);
        assert_eq!(
            of("\r\nvideo;caption, long;split\r\n"),
            Separator::Semicolon
        );
        assert_eq!(of("video\tcaption"), Separator::Tab);
        assert_eq!(of("FileNameαReportαSplit"), Separator::Alpha);
        assert_eq!(of("a|b"), Separator::Bar);
        assert_eq!(of("a|b,c"), Separator::Comma);
        assert_eq!(of("\"a;b;c\",d"), Separator::Comma);
        assert_eq!(of("only"), Separator::Comma);
        assert_eq!(of(""), Separator::Comma);
    }

    /// Reads one byte at a time, so that every separator is cut in two.
    #[test]
    fn alphas_are_replaced_outside_of_quotes_wherever_a_buffer_ends() {
        struct Slowly<'a>(&'a [u8]);
        impl Read for Slowly<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = self.0.len().min(buffer.len()).min(1);
                buffer[..length].copy_from_slice(&self.0[..length]);
                self.0 = &self.0[length..];
                Ok(length)
            }
        }
        let text = "aαb\n\"xαy\"\"α\"αc\"αd\nλα\u{3c0}\u{ce}";
        let expected = "a\0\u{1f}b\n\"xαy\"\"α\"\0\u{1f}c\"\0\u{1f}d\nλ\0\u{1f}\u{3c0}\u{ce}";
        let bytes = io::BufReader::new(Slowly(text.as_bytes()));
        let mut reader = Separated::new(RetainingReader::new(bytes), Separator::Alpha);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(String::from_utf8(read).unwrap(), expected);
    }
}
