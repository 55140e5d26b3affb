//! Reads lines appended to a file since the last read.
//!
//! The writer may be in the middle of a line, may have been killed there, or may truncate the file on a resume: an incomplete line is
//! kept until its rest arrives, and a file that became shorter is read from the start again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use holdall_telemetry::run_files;

/// Holdall writes no longer lines.
const MAX_LINE_BYTES: usize = run_files::MAX_LINE_BYTES as usize;

#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    offset: u64,
    /// The start of a line whose end has not been written yet.
    partial: Vec<u8>,
    /// Inside a line whose start was not read, or that is too long.
    is_skipping: bool,
    /// Number of bytes at the end of an existing file to read at first.
    at_most: u64,
}

/// Event from reading the file.
#[derive(Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// The file was truncated: earlier lines are no longer valid.
    Restart,
    /// A complete line, without its line end.
    Line(&'a [u8]),
}

impl Tail {
    /// Reads every line from the start.
    pub fn whole(path: PathBuf) -> Tail {
        Tail::last(path, u64::MAX)
    }

    /// Reads only the lines in the last `at_most` bytes, and later ones.
    pub fn last(path: PathBuf, at_most: u64) -> Tail {
        Tail {
            path,
            offset: 0,
            partial: Vec::new(),
            is_skipping: false,
            at_most,
        }
    }

    /// Reports new lines. A missing or unreadable file has none.
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

    /// Whatever pieces a file is written in, every line arrives once and complete.
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
