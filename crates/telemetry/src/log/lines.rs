//! Reads lines of arbitrary bytes, with a limit on their length: a gigabyte without a line end costs 64 KiB of memory.

use std::io::{self, BufRead, BufReader, Read};

/// Limit of a line's length; longer lines are not samples.
pub(super) const LONGEST_LINE: usize = 1 << 16;

pub(super) struct LogLines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    number: u64,
}

/// A line without its line end.
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub number: u64,
    pub bytes: &'a [u8],
    pub is_ended: bool,
    pub is_too_long: bool,
}

impl<R: Read> LogLines<R> {
    pub fn new(reader: R) -> LogLines<R> {
        LogLines {
            reader: BufReader::with_capacity(1 << 17, reader),
            line: Vec::new(),
            number: 0,
        }
    }

    pub fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.line.clear();
        let bound = LONGEST_LINE as u64 + 1;
        let read = (&mut self.reader)
            .take(bound)
            .read_until(b'\n', &mut self.line)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let is_ended = self.line.last() == Some(&b'\n');
        let is_too_long = !is_ended && self.line.len() > LONGEST_LINE;
        if is_too_long {
            self.reader.skip_until(b'\n')?;
        }
        Ok(Some(Line {
            number: self.number,
            bytes: self.line.trim_ascii(),
            is_ended,
            is_too_long,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_passed_over_in_bounded_memory() {
        let mut text = b"first\r\n".to_vec();
        text.resize(text.len() + 10 * LONGEST_LINE, b'x');
        text.extend(b"\n\nlast");
        let mut lines = LogLines::new(text.as_slice());
        let mut seen = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            seen.push((
                line.number,
                line.bytes.len(),
                line.is_ended,
                line.is_too_long,
            ));
        }
        assert_eq!(
            seen,
            [
                (1, 5, true, false),
                (2, LONGEST_LINE + 1, false, true),
                (3, 0, true, false),
                (4, 4, false, false)
            ]
        );
        assert!(lines.line.capacity() <= 4 * LONGEST_LINE);
    }
}
