//! Location of a picture's bytes: a file, or a part of one.
//!
//! ```text
//! images/17.jpg                               a file
//! cars-000.tar#000017.jpg@51200+20480         20,480 bytes of cars-000.tar, from byte 51,200: its member 000017.jpg
//! ```
//!
//! Samples, lists and messages treat both as paths, so a list of pictures may mix files and parts of files, and an error
//! names the shard and its member. The member's name is for messages only: the two numbers decide what is read. An existing
//! file with such a name is read as that file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePart<'a> {
    file: &'a str,
    offset: u64,
    num_bytes: u64,
}

impl<'a> FilePart<'a> {
    /// Parses the path of a part; `None` for any other path.
    pub(crate) fn of(path: &'a Path) -> Option<FilePart<'a>> {
        let (rest, numbers) = path.to_str()?.rsplit_once('@')?;
        let (offset, num_bytes) = numbers.split_once('+')?;
        let (file, _) = rest.rsplit_once('#')?;
        let number = |text: &str| {
            if text.bytes().all(|byte| byte.is_ascii_digit()) {
                text.parse::<u64>().ok()
            } else {
                None
            }
        };
        Some(FilePart {
            file,
            offset: number(offset)?,
            num_bytes: number(num_bytes)?,
        })
    }

    /// Path of the enclosing file.
    pub(crate) fn path(&self) -> &'a Path {
        Path::new(self.file)
    }

    /// Byte range in the enclosing file.
    pub(crate) fn bytes(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.num_bytes)
    }

    /// Whether a file of this length contains the range.
    fn is_within(&self, file_bytes: u64) -> bool {
        let end = self.offset.checked_add(self.num_bytes);
        end.is_some_and(|end| end <= file_bytes)
    }
}

/// The path of a part: `cars-000.tar#000017.jpg@51200+20480`.
pub(crate) fn part_path(file: &str, member: &str, offset: u64, num_bytes: u64) -> String {
    // Characters that would end the member's name or the line it is written in.
    let plain = |c: char| match c {
        '#' | '\\' => '_',
        c if c.is_control() => '_',
        c => c,
    };
    let member: String = member.chars().map(plain).collect();
    format!("{file}#{member}@{offset}+{num_bytes}")
}

/// File extension in lower case; for a part of a file, the extension of its member.
pub(crate) fn extension(name: &str) -> String {
    let member = FilePart::of(Path::new(name)).and_then(|_| name.rsplit_once('@'));
    let name = member.map_or(name, |(name, _)| name);
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.unwrap_or_default().to_ascii_lowercase()
}

/// An open file or part of one, which reads like a file of its own.
#[derive(Debug)]
pub(crate) struct StoredFile {
    file: File,
    start: u64,
    num_bytes: u64,
    at: u64,
}

impl StoredFile {
    /// Opens a regular file or a part of one. A part that exceeds its file is [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn open(path: &Path) -> io::Result<StoredFile> {
        let whole = match holdall_files::open_regular(path) {
            Ok((file, metadata)) => {
                return Ok(StoredFile {
                    file,
                    start: 0,
                    num_bytes: metadata.len(),
                    at: 0,
                });
            }
            Err(cause) => cause,
        };
        let Some(part) = FilePart::of(path) else {
            return Err(whole);
        };
        let (mut file, metadata) = holdall_files::open_regular(part.path())?;
        if !part.is_within(metadata.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.seek(SeekFrom::Start(part.offset))?;
        Ok(StoredFile {
            file,
            start: part.offset,
            num_bytes: part.num_bytes,
            at: 0,
        })
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }
}

impl Read for StoredFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.num_bytes.saturating_sub(self.at);
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = self.file.read(&mut buffer[..most])?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for StoredFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.num_bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let in_file = at.and_then(|at| self.start.checked_add(at));
        let (Some(at), Some(in_file)) = (at, in_file) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        self.file.seek(SeekFrom::Start(in_file))?;
        self.at = at;
        Ok(at)
    }
}

/// Size and modification time of stored bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredStamp {
    pub(crate) num_bytes: u64,
    /// Modification time of the enclosing file.
    pub(crate) modified: Option<SystemTime>,
}

/// Current stamp of a path; `None` where it does not exist or is no file.
pub(crate) fn stamp(path: &Path) -> Option<StoredStamp> {
    match fs::metadata(path) {
        Ok(file) if file.is_file() => Some(StoredStamp {
            num_bytes: file.len(),
            modified: file.modified().ok(),
        }),
        Ok(_) => None,
        Err(_) => {
            let part = FilePart::of(path)?;
            let file = fs::metadata(part.path()).ok()?;
            let is_there = file.is_file() && part.is_within(file.len());
            is_there.then(|| StoredStamp {
                num_bytes: part.num_bytes,
                modified: file.modified().ok(),
            })
        }
    }
}

/// Whether a path is a URL: nothing is downloaded.
pub fn is_url(image: &str) -> bool {
    const SCHEMES: [&str; 6] = ["http", "https", "s3", "gs", "hf", "ftp"];
    let scheme = image.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| SCHEMES.iter().any(|s| s.eq_ignore_ascii_case(scheme)))
}

/// Path of a hidden companion file beside `path`: `.NAME` and an ending.
pub(crate) fn hidden_beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(ending);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_if_it_were_a_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a#b.tar"), b"0123456789").unwrap();
        let path = folder.path().join(part_path("a#b.tar", "x/7#\n.jpg", 3, 4));
        assert!(path.ends_with("a#b.tar#x/7__.jpg@3+4"), "{path:?}");
        let mut part = StoredFile::open(&path).unwrap();
        assert_eq!(part.num_bytes(), 4);
        let mut text = String::new();
        part.read_to_string(&mut text).unwrap();
        assert_eq!(text, "3456");
        assert_eq!(part.seek(SeekFrom::End(-1)).unwrap(), 3);
        text.clear();
        part.read_to_string(&mut text).unwrap();
        assert_eq!(text, "6");
        assert!(part.seek(SeekFrom::Current(-9)).is_err());
        assert_eq!(stamp(&path).unwrap().num_bytes, 4);
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.tar"), b"0123456789").unwrap();
        let kind = |name: &str| {
            StoredFile::open(&folder.path().join(name))
                .unwrap_err()
                .kind()
        };
        assert_eq!(kind("a.tar#x@8+3"), io::ErrorKind::UnexpectedEof);
        assert_eq!(
            kind("a.tar#x@18446744073709551615+9"),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(kind("b.tar#x@0+1"), io::ErrorKind::NotFound);
        assert_eq!(kind("a.tar#x@-1+1"), io::ErrorKind::NotFound);
        assert_eq!(kind("a.tar#x@1"), io::ErrorKind::NotFound);
        assert!(stamp(&folder.path().join("a.tar#x@8+3")).is_none());
        // An existing file with such a name takes precedence.
        fs::write(folder.path().join("a.tar#x@8+3"), b"itself").unwrap();
        let file = StoredFile::open(&folder.path().join("a.tar#x@8+3")).unwrap();
        assert_eq!(file.num_bytes(), 6);
    }

    #[test]
    fn a_part_ends_as_its_member_does() {
        assert_eq!(extension("a.tar#7.AVI@512+9"), "avi");
        assert_eq!(extension("clips/7.Mp4"), "mp4");
        assert_eq!(extension("mail@home+9.jpg"), "jpg");
        assert_eq!(extension("none"), "");
    }

    #[test]
    fn urls_are_told_from_files() {
        assert!(is_url("https://example.org/1.jpg") && is_url("S3://bucket/1.jpg"));
        assert!(!is_url("images/1.jpg") && !is_url("c://x") && !is_url("http:1.jpg"));
    }
}
