//! 64-bit checksums (XXH3) of files, taken when a file is written. They detect faults of disks, memory and copies; they do not protect
//! against deliberate tampering.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::open::open_regular;

/// XXH3 checksum; 16 hexadecimal digits as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(u64);

impl Checksum {
    /// Digits of a checksum as text.
    pub const DIGITS: usize = 16;

    pub fn of(bytes: &[u8]) -> Checksum {
        Checksum(xxh3_64(bytes))
    }

    /// Little-endian bytes, as stored in files.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Checksum and length of a file, which is read piece by piece.
    pub fn of_file(path: &Path) -> io::Result<(Checksum, u64)> {
        let (mut file, _) = open_regular(path)?;
        let mut sum = RunningChecksum::default();
        let mut piece = vec![0; 1 << 16];
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok((sum.value(), sum.num_bytes())),
                Ok(bytes) => sum.add(&piece[..bytes]),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Error: text that is not a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAChecksum;

impl fmt::Display for NotAChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} hexadecimal digits", Checksum::DIGITS)
    }
}

impl std::error::Error for NotAChecksum {}

impl FromStr for Checksum {
    type Err = NotAChecksum;

    fn from_str(text: &str) -> Result<Checksum, NotAChecksum> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != Checksum::DIGITS || !text.bytes().all(is_digit) {
            return Err(NotAChecksum);
        }
        let value = u64::from_str_radix(text, 16).map_err(|_| NotAChecksum)?;
        Ok(Checksum(value))
    }
}

/// A checksum of bytes that arrive piece by piece.
#[derive(Clone, Default)]
pub struct RunningChecksum {
    state: Xxh3,
    num_bytes: u64,
}

impl RunningChecksum {
    pub fn add(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.num_bytes += bytes.len() as u64;
    }

    /// Checksum of all pieces so far.
    pub fn value(&self) -> Checksum {
        Checksum(self.state.digest())
    }

    /// Length of all pieces so far.
    pub fn num_bytes(&self) -> u64 {
        self.num_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_checksum_of_the_whole_and_text_reads_back() {
        let bytes: Vec<u8> = (0..200_000u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8)
            .collect();
        let whole = Checksum::of(&bytes);
        let mut running = RunningChecksum::default();
        for piece in bytes.chunks(777) {
            running.add(piece);
        }
        assert_eq!(running.value(), whole);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(Checksum::of_file(&path).unwrap(), (whole, 200_000));
        assert_eq!(whole.to_string().parse(), Ok(whole));
        assert_eq!("123".parse::<Checksum>(), Err(NotAChecksum));
        assert_eq!("+23456789abcdef0".parse::<Checksum>(), Err(NotAChecksum));
    }
}
