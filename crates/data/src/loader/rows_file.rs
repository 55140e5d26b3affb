//! A file of feature rows: the frame features of each sample, computed once.
//!
//! ```text
//! header    4,096 bytes: description of the rows, and checksums of everything they were computed from
//! record    a row, its number of valid frames (4 bytes), checksum of both and of the row's number (8 bytes)
//! ...       one for each sample, in the order of the list
//! ```
//!
//! A file is written under a temporary name and renamed when complete. A file that an interrupted process left is resumed behind its last
//! intact record. A sample that could not be read has a record that says so.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use holdall_files::{RunningChecksum, open_regular, partial, sync_folder};
use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Bytes before the first record.
const HEADER_BYTES: usize = 4096;
const MAGIC: &str = "holdall rows 1\n";
/// Frame count of a sample that cannot be read.
const UNREADABLE: u32 = u32::MAX;
/// Bytes of a record behind its row.
const TRAILER_BYTES: usize = 12;

/// Description of the rows, and the inputs they were computed from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsHeader {
    /// Human-readable description of a row.
    pub rows: String,
    pub row_bytes: u64,
    pub num_rows: u64,
    /// Name and checksum of each input.
    pub made_of: Vec<(String, String)>,
}

impl RowsHeader {
    /// Size of the complete file.
    pub fn file_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.num_rows * (self.row_bytes + TRAILER_BYTES as u64)
    }

    fn text(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("numbers and text");
        let mut text = format!("{MAGIC}{json}\n").into_bytes();
        assert!(text.len() <= HEADER_BYTES, "a header of a few checksums");
        text.resize(HEADER_BYTES, b' ');
        text
    }

    fn read(file: &mut impl Read) -> io::Result<Option<RowsHeader>> {
        let mut text = vec![0; HEADER_BYTES];
        match file.read_exact(&mut text) {
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let json = std::str::from_utf8(&text).ok();
        let json = json.and_then(|text| text.strip_prefix(MAGIC));
        Ok(json.and_then(|json| serde_json::from_str(json).ok()))
    }

    /// Why rows with the header `found` cannot be used for this one; `None` if they can.
    fn difference(&self, found: &RowsHeader) -> Option<String> {
        if found == self {
            return None;
        }
        let of = |header: &RowsHeader, name: &str| {
            let mut parts = header.made_of.iter();
            parts
                .find(|(known, _)| known == name)
                .map(|(_, sum)| sum.clone())
        };
        let names = self.made_of.iter().map(|(name, _)| name.as_str());
        let changed: Vec<&str> = names
            .filter(|name| of(self, name) != of(found, name))
            .collect();
        Some(if changed.is_empty() {
            "rows of other sizes".to_owned()
        } else {
            format!("computed from other {}", changed.join(", other "))
        })
    }
}

/// A complete file of rows.
#[derive(Debug)]
pub struct RowsFile {
    file: File,
    path: PathBuf,
    row_bytes: usize,
    /// Number of valid frames of each row.
    counts: Vec<u32>,
}

/// State of the file at a path.
#[derive(Debug)]
pub enum FoundRows {
    /// All rows, intact.
    Whole(RowsFile),
    /// No file.
    Nothing,
    /// Rows of other inputs, or damaged rows; the reason.
    Unusable(String),
}

pub(crate) fn failed(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> DataError {
    let path = path.to_owned();
    move |cause| DataError::Io {
        path,
        action,
        cause,
    }
}

/// Frame counts of the records up to the first damaged one.
fn sound_records(file: &mut impl Read, header: &RowsHeader) -> io::Result<Vec<u32>> {
    let mut counts = Vec::new();
    let mut record = vec![0; header.row_bytes as usize + TRAILER_BYTES];
    while (counts.len() as u64) < header.num_rows {
        match file.read_exact(&mut record) {
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => break,
            read => read?,
        }
        let (content, sum) = record.split_at(record.len() - 8);
        if checksum(counts.len(), content) != *sum {
            break;
        }
        let count = content.last_chunk().expect("a row and its four bytes");
        counts.push(u32::from_le_bytes(*count));
    }
    Ok(counts)
}

/// Checksum of a row and of its number, so that swapped rows are found too.
fn checksum(number: usize, content: &[u8]) -> [u8; 8] {
    let mut sum = RunningChecksum::default();
    sum.add(&(number as u64).to_le_bytes());
    sum.add(content);
    sum.value().to_bytes()
}

impl RowsFile {
    /// Opens the file at a path and reads all of it: a damaged row is never trained on.
    pub fn find(path: &Path, expected: &RowsHeader) -> Result<FoundRows, DataError> {
        let file = match open_regular(path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(FoundRows::Nothing),
            opened => opened.map_err(failed(path, "open"))?.0,
        };
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let Some(found) = RowsHeader::read(&mut reader).map_err(failed(path, "read"))? else {
            return Ok(FoundRows::Unusable("its header is damaged".to_owned()));
        };
        if let Some(difference) = expected.difference(&found) {
            return Ok(FoundRows::Unusable(difference));
        }
        let counts = sound_records(&mut reader, &found).map_err(failed(path, "read"))?;
        if counts.len() as u64 != found.num_rows {
            let number = counts.len() + 1;
            return Ok(FoundRows::Unusable(format!(
                "damaged: row {number} of {} is not as it was written",
                found.num_rows
            )));
        }
        Ok(FoundRows::Whole(RowsFile {
            file: reader.into_inner(),
            path: path.to_owned(),
            row_bytes: found.row_bytes as usize,
            counts,
        }))
    }

    /// Number of rows, readable or not.
    pub fn num_rows(&self) -> usize {
        self.counts.len()
    }

    /// Reads a row and returns its frame count; `None` if its sample could not be read.
    pub(crate) fn read(&self, number: usize, row: &mut [u8]) -> Result<Option<u32>, DataError> {
        let count = self.counts[number];
        if count == UNREADABLE {
            return Ok(None);
        }
        let record = (self.row_bytes + TRAILER_BYTES) as u64;
        let start = HEADER_BYTES as u64 + number as u64 * record;
        read_at(&self.file, row, start).map_err(failed(&self.path, "read"))?;
        Ok(Some(count))
    }
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], start: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, to, start)
}

#[cfg(windows)]
fn read_at(file: &File, mut to: &mut [u8], mut start: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !to.is_empty() {
        match file.seek_read(to, start)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => {
                to = &mut to[bytes..];
                start += bytes as u64;
            }
        }
    }
    Ok(())
}

/// Writes a file of rows under a temporary name.
pub struct RowsWriter {
    path: PathBuf,
    header: RowsHeader,
    file: BufWriter<File>,
    /// Frame counts of the rows written.
    counts: Vec<u32>,
    record: Vec<u8>,
}

impl RowsWriter {
    /// Resumes an earlier process's unfinished file of the same rows, or begins a new one.
    pub fn open(path: &Path, header: &RowsHeader) -> Result<RowsWriter, DataError> {
        let beside = partial(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&beside).map_err(failed(&beside, "write"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let cause =
                    io::Error::other("another run is writing it: wait for that run's first step");
                return Err(failed(&beside, "write")(cause));
            }
            // The file system has no locks: two concurrent runs would write the same bytes.
            Err(TryLockError::Error(_)) => {}
        }
        let counts = {
            let mut reader = BufReader::with_capacity(1 << 20, &file);
            match RowsHeader::read(&mut reader).map_err(failed(&beside, "read"))? {
                Some(found) if found == *header => {
                    sound_records(&mut reader, header).map_err(failed(&beside, "read"))?
                }
                _ => Vec::new(),
            }
        };
        let record = header.row_bytes + TRAILER_BYTES as u64;
        let sound_bytes = HEADER_BYTES as u64 + counts.len() as u64 * record;
        let mut cut = || {
            file.set_len(sound_bytes)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header.text())?;
            file.seek(SeekFrom::End(0))
        };
        cut().map_err(failed(&beside, "write"))?;
        Ok(RowsWriter {
            path: path.to_owned(),
            header: header.clone(),
            file: BufWriter::with_capacity(1 << 20, file),
            counts,
            record: Vec::new(),
        })
    }

    /// Number of rows written.
    pub fn done(&self) -> usize {
        self.counts.len()
    }

    /// Writes the next row and its number of valid frames.
    ///
    /// # Panics
    /// If the row has another length.
    pub fn add(&mut self, row: &[u8], num_frames: u32) -> Result<(), DataError> {
        assert_eq!(row.len() as u64, self.header.row_bytes, "bytes of a row");
        self.record.clear();
        self.record.extend_from_slice(row);
        self.write_record(num_frames)
    }

    /// Records that the next sample cannot be read.
    pub fn add_unreadable(&mut self) -> Result<(), DataError> {
        self.record.clear();
        self.record.resize(self.header.row_bytes as usize, 0);
        self.write_record(UNREADABLE)
    }

    fn write_record(&mut self, count: u32) -> Result<(), DataError> {
        self.record.extend_from_slice(&count.to_le_bytes());
        let sum = checksum(self.counts.len(), &self.record);
        self.record.extend_from_slice(&sum);
        let written = self.file.write_all(&self.record);
        written.map_err(failed(&partial(&self.path), "write"))?;
        self.counts.push(count);
        Ok(())
    }

    /// Completes the file and renames it.
    ///
    /// # Panics
    /// If rows are missing.
    pub fn finish(self) -> Result<RowsFile, DataError> {
        let RowsWriter {
            path,
            header,
            file,
            counts,
            ..
        } = self;
        assert_eq!(counts.len() as u64, header.num_rows, "all rows");
        let beside = partial(&path);
        let file = file.into_inner().map_err(io::IntoInnerError::into_error);
        let whole = file.and_then(|file| {
            file.sync_all()?;
            holdall_files::rename(&beside, &path)?;
            sync_folder(path.parent().unwrap_or(Path::new(".")))?;
            // From here on another run may write other rows under this name; this open file keeps its content.
            let _ = file.unlock();
            Ok(file)
        });
        Ok(RowsFile {
            file: whole.map_err(failed(&beside, "write"))?,
            path,
            row_bytes: header.row_bytes as usize,
            counts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(num_rows: u64) -> RowsHeader {
        RowsHeader {
            rows: "numbers".to_owned(),
            row_bytes: 6,
            num_rows,
            made_of: vec![
                ("weights".to_owned(), "0123".to_owned()),
                ("frames".to_owned(), "4567".to_owned()),
            ],
        }
    }

    fn row(number: u8) -> [u8; 6] {
        [number, 1, 2, 3, 4, number]
    }

    fn write(path: &Path, from: usize, to: usize) -> RowsWriter {
        let mut writer = RowsWriter::open(path, &header(5)).unwrap();
        assert_eq!(writer.done(), from);
        for number in from..to {
            match number {
                2 => writer.add_unreadable().unwrap(),
                number => writer.add(&row(number as u8), 7).unwrap(),
            }
        }
        writer
    }

    fn why(path: &Path, expected: &RowsHeader) -> String {
        match RowsFile::find(path, expected).unwrap() {
            FoundRows::Unusable(why) => why,
            found => panic!("{found:?}"),
        }
    }

    #[test]
    fn rows_come_back_and_a_writer_that_was_ended_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.rows");
        drop(write(&path, 0, 3));
        // Half a record more, as an interrupted process leaves it.
        let mut file = OpenOptions::new()
            .append(true)
            .open(partial(&path))
            .unwrap();
        file.write_all(&[9; 11]).unwrap();
        drop(file);
        assert!(matches!(
            RowsFile::find(&path, &header(5)),
            Ok(FoundRows::Nothing)
        ));
        let rows = write(&path, 3, 5).finish().unwrap();
        assert!(!partial(&path).exists());
        assert_eq!(
            std::fs::metadata(&path).unwrap().len(),
            header(5).file_bytes()
        );
        let mut found = [0; 6];
        assert_eq!(rows.read(4, &mut found).unwrap(), Some(7));
        assert_eq!(found, row(4));
        assert_eq!(rows.read(2, &mut found).unwrap(), None);
    }

    #[test]
    fn other_rows_are_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.rows");
        drop(write(&path, 0, 3));
        let mut other = header(5);
        other.made_of[0].1 = "89ab".to_owned();
        let writer = RowsWriter::open(&path, &other).unwrap();
        assert_eq!(writer.done(), 0);
        assert!(RowsWriter::open(&path, &other).is_err(), "two at once");
    }

    #[test]
    fn what_is_stale_or_damaged_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.rows");
        write(&path, 0, 5).finish().unwrap();
        let mut other = header(5);
        other.made_of[0].1 = "89ab".to_owned();
        assert_eq!(why(&path, &other), "computed from other weights");
        other.made_of[1].1 = "89ab".to_owned();
        assert_eq!(
            why(&path, &other),
            "computed from other weights, other frames"
        );
        assert_eq!(why(&path, &header(4)), "rows of other sizes");
        let whole = std::fs::read(&path).unwrap();
        for place in [HEADER_BYTES, HEADER_BYTES + 18 + 6, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                why(&path, &header(5)).starts_with("damaged: row "),
                "{place}"
            );
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(why(&path, &header(5)).starts_with("damaged: row 5"));
        std::fs::write(&path, &whole[..100]).unwrap();
        assert_eq!(why(&path, &header(5)), "its header is damaged");
    }

    /// Whichever byte is changed, or the end cut off: a file taken for complete has the bytes that were written.
    #[test]
    fn what_is_found_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.rows");
        write(&path, 0, 5).finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let check = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let Ok(FoundRows::Whole(rows)) = RowsFile::find(&path, &header(5)) else {
                return false;
            };
            for number in 0..5 {
                let mut found = [0; 6];
                let read = rows.read(number, &mut found).unwrap();
                assert_eq!(read, (number != 2).then_some(7));
                assert!(number == 2 || found == row(number as u8));
            }
            true
        };
        assert!(check(&whole));
        for place in 0..whole.len() {
            for flipped in [1, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[place] ^= flipped;
                check(&bytes);
            }
        }
        for end in 0..whole.len() {
            assert!(!check(&whole[..end]), "{end}");
        }
        check(&[&whole[..], &[0; 24]].concat());
    }
}
