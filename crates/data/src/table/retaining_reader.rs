//! A reader that remembers what it gave away until it is told to forget: a CSV parser says where a record ends, not what
//! stood there.

use std::io::{self, BufRead, Read};

use holdall_files::check_memory;

/// What a row takes once it is read, for each of its bytes: its cells, and copies of them. Measured as 13.
const PER_ROW_BYTE: u64 = 14;
/// Rows up to this are read without asking.
const SHORT_ROW_BYTES: usize = 256 << 10;

/// Hands bytes on, and keeps those from a given offset.
#[derive(Debug)]
pub(super) struct RetainingReader<R> {
    inner: R,
    kept: Vec<u8>,
    /// Offset in the file of the first byte kept.
    kept_from: u64,
    /// Bytes before this offset may go.
    needed_from: u64,
}

impl<R: BufRead> RetainingReader<R> {
    pub(super) fn new(inner: R) -> RetainingReader<R> {
        RetainingReader {
            inner,
            kept: Vec::new(),
            kept_from: 0,
            needed_from: 0,
        }
    }

    /// Bytes before this offset will not be asked for again.
    pub(super) fn forget_before(&mut self, offset: u64) {
        self.needed_from = self.needed_from.max(offset);
    }

    /// What was given away from this offset on; nothing of what may have been forgotten.
    pub(super) fn since(&self, offset: u64) -> &[u8] {
        let start = offset.max(self.needed_from) - self.kept_from;
        self.kept.get(start as usize..).unwrap_or(&[])
    }

    /// Whether nothing is left to give.
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        loop {
            match self.inner.fill_buf() {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                bytes => return bytes.map(<[u8]>::is_empty),
            }
        }
    }
}

impl<R: BufRead> Read for RetainingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Only here, once per buffer and not once per record: what is kept has to move.
        let gone = (self.needed_from - self.kept_from).min(self.kept.len() as u64);
        self.kept.drain(..gone as usize);
        self.kept_from += gone;
        if self.kept.len() > SHORT_ROW_BYTES {
            check_memory(self.kept.len() as u64 * PER_ROW_BYTE).map_err(io::Error::other)?;
        }
        let read = self.inner.read(buffer)?;
        self.kept.extend_from_slice(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_needed_and_no_more() {
        let mut reader = RetainingReader::new(&b"0123456789"[..]);
        let mut four = [0; 4];
        assert_eq!(reader.read(&mut four).unwrap(), 4);
        assert_eq!(reader.since(1), b"123");
        reader.forget_before(3);
        assert_eq!(reader.since(0), b"3");
        assert_eq!(reader.read(&mut four).unwrap(), 4);
        assert_eq!(reader.since(3), b"34567");
        assert_eq!(reader.kept.len(), 5);
        assert!(!reader.is_at_end().unwrap());
        reader.forget_before(8);
        assert_eq!(reader.since(8), b"");
        assert_eq!(reader.read(&mut four).unwrap(), 2);
        assert_eq!(reader.since(8), b"89");
        assert!(reader.is_at_end().unwrap());
    }
}
