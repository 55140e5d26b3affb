//! Reader that keeps the bytes it returned until it may forget them: a CSV parser reports where a record ends, but not its
//! raw text.

use std::io::{self, BufRead, Read};

use holdall_files::check_memory;

/// Memory of a row that was read, per byte: its cells, and copies of them. Measured as 13.
const PER_ROW_BYTE: u64 = 14;
/// Rows up to this length are read without a memory check.
const SHORT_ROW_BYTES: usize = 256 << 10;

/// Passes bytes through, and keeps those from a given offset on.
#[derive(Debug)]
pub(super) struct RetainingReader<R> {
    inner: R,
    kept: Vec<u8>,
    /// File offset of the first byte kept.
    kept_from: u64,
    /// Bytes before this offset may be dropped.
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

    /// Allows bytes before this offset to be dropped.
    pub(super) fn forget_before(&mut self, offset: u64) {
        self.needed_from = self.needed_from.max(offset);
    }

    /// Returned bytes from this offset on, without those that may be dropped.
    pub(super) fn since(&self, offset: u64) -> &[u8] {
        let start = offset.max(self.needed_from) - self.kept_from;
        self.kept.get(start as usize..).unwrap_or(&[])
    }

    /// Whether the reader is at its end.
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
        // Dropped once per buffer, not per record, because the kept bytes have to move.
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
