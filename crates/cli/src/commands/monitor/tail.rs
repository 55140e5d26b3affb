//! Lines that were appended to a file since it was last read.
//!
//! The writer may be in the middle of a line, may have been killed there, and after a resume may cut the file back: half a line is
//! kept until the rest comes, and a file that became shorter is read from its start again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use holdall_telemetry::run_files;

/// A longer line was not written by Holdall.
const MAX_LINE_BYTES: usize = run_files::MAX_LINE_BYTES as usize;

/// A file that grows.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
    /// The start of a line whose end has not been written yet.
    partial: Vec<u8>,
    /// Within a line whose start was not read, or is too long to be kept.
    is_skipping: bool,
    /// Of a file that is there already, only so many bytes are of interest.
    at_most: u64,
}

/// What reading again brings.
#[derive(Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// The file was cut: what was read before is no longer valid.
    Restart,
    /// A whole line, without its end.
    Line(&'a [u8]),
}

impl Tail {
    /// Every line, from the first.
    pub fn whole(path: PathBuf) -> Tail {
        Tail::last(path, u64::MAX)
    }

    /// Only the lines in the last bytes, and what comes after them.
    pub fn last(path: PathBuf, at_most: u64) -> Tail {
        Tail {
            path,
            offset: 0,
            partial: Vec::new(),
            is_skipping: false,
            at_most,
        }
    }

    /// Tells what is new. A file that is not there, or cannot be read, has nothing new.
    pub fn read(&mut self, mut tell: impl FnMut(News)) {
        let Ok(mut file) = File::open(&self.path) else {
            return;
        };
        let length = file.metadata().map_or(0, |file| file.len());
        if length < self.offset {
            self.offset = 0;
            self.partial.clear();
            self.is_skipping = false;
            tell(News::Restart);
        }
        if self.offset == 0 && length > self.at_most {
            self.offset = length - self.at_most;
            self.is_skipping = true;
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut block = vec![0; 1 << 16];
        while let Ok(count @ 1..) = file.read(&mut block) {
            self.offset += count as u64;
            self.take(&block[..count], &mut tell);
        }
    }

    fn take(&mut self, mut bytes: &[u8], tell: &mut impl FnMut(News)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if !self.is_skipping && !self.partial.is_empty() {
                tell(News::Line(&self.partial));
            }
            self.is_skipping = false;
            self.partial.clear();
        }
        if self.is_skipping || self.partial.len() + bytes.len() > MAX_LINE_BYTES {
            self.is_skipping = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn news(tail: &mut Tail) -> Vec<String> {
        let mut all = Vec::new();
        tail.read(|news| {
            all.push(match news {
                News::Restart => "<restart>".to_owned(),
                News::Line(line) => String::from_utf8_lossy(line).into_owned(),
            });
        });
        all
    }

    /// Written in pieces that end anywhere: every line comes once, whole.
    #[test]
    fn lines_come_once_whatever_the_pieces() {
        let text = "first\nsecond line\n\nthird\n";
        for size in 1..=text.len() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("lines");
            let mut tail = Tail::whole(path.clone());
            assert_eq!(news(&mut tail), [""; 0], "not there yet");
            let mut file = File::create(&path).unwrap();
            let mut seen = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                file.write_all(piece).unwrap();
                seen.extend(news(&mut tail));
            }
            assert_eq!(seen, ["first", "second line", "third"], "pieces of {size}");
        }
    }

    #[test]
    fn a_file_that_was_cut_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        std::fs::write(&path, "1\n2\n3\n{\"hal").unwrap();
        let mut tail = Tail::whole(path.clone());
        assert_eq!(news(&mut tail), ["1", "2", "3"]);
        std::fs::write(&path, "1\n").unwrap();
        assert_eq!(news(&mut tail), ["<restart>", "1"]);
    }

    #[test]
    fn of_a_long_file_the_end_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        std::fs::write(&path, "aaaa\nbbbb\ncccc\n").unwrap();
        assert_eq!(news(&mut Tail::last(path.clone(), 7)), ["cccc"]);
        assert_eq!(news(&mut Tail::last(path, 100)), ["aaaa", "bbbb", "cccc"]);
    }

    #[test]
    fn a_line_without_an_end_is_not_kept_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        std::fs::write(&path, "x".repeat(3 * MAX_LINE_BYTES)).unwrap();
        let mut tail = Tail::whole(path.clone());
        assert_eq!(news(&mut tail), [""; 0]);
        assert!(tail.partial.len() <= MAX_LINE_BYTES);
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .unwrap();
        file.write_all(b"x\nnext\n").unwrap();
        assert_eq!(news(&mut tail), ["next"]);
    }
}
