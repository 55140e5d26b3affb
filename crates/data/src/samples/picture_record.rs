//! Record of the picture files of a run, so that a resumed run notices a picture that was replaced under the same name.
//!
//! ```text
//! "HOLDPIC1", kind of check (0 size and time, 1 contents too), pictures               8 bytes each
//! size, time of change in ns [, hash of the contents]                                 8 bytes each, per picture
//! hash of all that                                                                    8 bytes
//! ```
//!
//! Little-endian. A million pictures are 16 MB on disk and a few hundred kilobytes in memory: they are checked and compared piece by
//! piece. A missing picture is recorded too, as `NOT_THERE`. A picture with a mask, and a folder of frames, has one entry for all its
//! files: sizes and times are added up.

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use crate::config::PictureCheck;
use crate::samples::Samples;
use crate::stored_file::{self, StoredFile};
use crate::words::thousands;

const MAGIC: [u8; 8] = *b"HOLDPIC1";
const HEADER_BYTES: usize = 24;
/// Pictures checked per piece.
const PIECE: usize = 4096;
/// Number of pictures from which on their files are checked by several threads.
const MANY: usize = 10_000;
/// Pictures that a message names; the others are counted.
const NUM_NAMED: usize = 5;
/// Recorded size of a missing picture.
const NOT_THERE: u64 = u64::MAX;

/// Size and modification time of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    num_bytes: u64,
    modified_ns: i64,
    /// Hash of the contents, where requested.
    contents: Option<u64>,
}

impl Stamp {
    fn of(path: &Path, check: PictureCheck) -> Stamp {
        match fs::metadata(path) {
            Ok(folder) if folder.is_dir() => Stamp::of_folder(path, check),
            _ => Stamp::of_file(path, check),
        }
    }

    /// Stamp of all files in a folder of frames.
    fn of_folder(path: &Path, check: PictureCheck) -> Stamp {
        let mut files: Vec<PathBuf> = match fs::read_dir(path) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(_) => Vec::new(),
        };
        files.sort_unstable();
        let stamps = files.iter().map(|file| Stamp::of_file(file, check));
        // An empty folder has the stamp of a missing file.
        let all = stamps.reduce(Stamp::and);
        all.unwrap_or_else(|| Stamp::of_file(path, check))
    }

    fn of_file(path: &Path, check: PictureCheck) -> Stamp {
        let contents = match check {
            PictureCheck::Time => None,
            PictureCheck::Hash => Some(hash(path)),
        };
        match stored_file::stamp(path) {
            Some(stored) => Stamp {
                num_bytes: stored.num_bytes,
                modified_ns: stored.modified.map_or(0, |time| {
                    match time.duration_since(UNIX_EPOCH) {
                        Ok(after) => after.as_nanos() as i64,
                        Err(before) => -(before.duration().as_nanos() as i64),
                    }
                }),
                contents,
            },
            None => Stamp {
                num_bytes: NOT_THERE,
                modified_ns: 0,
                contents,
            },
        }
    }

    /// Stamp of a sample: its picture and the companion files.
    fn of_sample(
        samples: &Samples,
        sample: usize,
        path: &mut PathBuf,
        check: PictureCheck,
    ) -> Stamp {
        samples.image_path_into(sample, path);
        let picture = Stamp::of(path, check);
        let companions = samples.companion_paths(sample);
        companions.fold(picture, |all, path| all.and(Stamp::of(&path, check)))
    }

    /// Combines the stamps of two files; it changes when either does.
    fn and(self, other: Stamp) -> Stamp {
        let is_there = self.num_bytes != NOT_THERE && other.num_bytes != NOT_THERE;
        let contents = self.contents.zip(other.contents);
        Stamp {
            num_bytes: if is_there {
                self.num_bytes + other.num_bytes
            } else {
                NOT_THERE
            },
            modified_ns: self
                .modified_ns
                .wrapping_mul(3)
                .wrapping_add(other.modified_ns),
            contents: contents.map(|(all, next)| all.rotate_left(1) ^ next),
        }
    }

    /// Whether size, time and, where both are known, contents are equal.
    fn looks_like(&self, before: &Stamp) -> bool {
        let contents = self.contents.zip(before.contents);
        self.num_bytes == before.num_bytes
            && self.modified_ns == before.modified_ns
            && contents.is_none_or(|(now, before)| now == before)
    }

    fn words(&self) -> [u64; 3] {
        [
            self.num_bytes,
            self.modified_ns as u64,
            self.contents.unwrap_or(0),
        ]
    }
}

/// Hash of a file's contents; 0 where it cannot be read.
fn hash(path: &Path) -> u64 {
    let read = || -> io::Result<u64> {
        let mut file = StoredFile::open(path)?;
        let mut hasher = Xxh3::new();
        let mut piece = vec![0; 1 << 16];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.digest()),
                length => hasher.update(&piece[..length]),
            }
        }
    };
    read().unwrap_or(0)
}

/// Changed pictures: their number, and a few by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    pub count: usize,
    /// Up to five of them: `images/7.jpg (12,345 bytes, was 9,876)`.
    pub first: Vec<String>,
}

impl Changed {
    fn add(&mut self, picture: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < NUM_NAMED {
            self.first.push(picture());
        }
    }

    /// Text that names the first few and counts the rest.
    pub fn named(&self) -> String {
        let more = self.count - self.first.len();
        match more {
            0 => self.first.join(", "),
            _ => format!("{} and {} more", self.first.join(", "), thousands(more)),
        }
    }
}

/// Result of comparing the pictures with the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    NoRecord,
    /// The record's checksum is wrong, or it is of another number of pictures.
    Damaged,
    /// Both are readable.
    With {
        /// Whether the record has sizes and times only, or hashes too.
        recorded: PictureCheck,
        /// Pictures that changed: other size, other contents, deleted, or no longer missing.
        replaced: Changed,
        /// Pictures of the same size with another modification time, whose contents were not recorded.
        touched: Changed,
    },
}

/// Writes the record of the pictures.
pub fn record(path: &Path, parts: &[&Samples], check: PictureCheck) -> io::Result<()> {
    holdall_files::write_whole_by(path, |file| {
        let mut hasher = Xxh3::new();
        let mut write = |bytes: &[u8]| {
            hasher.update(bytes);
            file.write_all(bytes)
        };
        write(&header(parts, check))?;
        for piece in pieces(parts) {
            for stamp in piece.stamps(check) {
                for word in &stamp.words()[..num_words(check)] {
                    write(&word.to_le_bytes())?;
                }
            }
        }
        file.write_all(&hasher.digest().to_le_bytes())
    })
}

/// Compares the pictures with the record. With [`PictureCheck::Hash`] every picture is read; otherwise only pictures whose modification
/// time changed and whose contents were recorded. `is_left_out` names pictures to ignore, by part and sample.
pub fn compare(
    path: &Path,
    parts: &[&Samples],
    check: PictureCheck,
    is_left_out: impl Fn(usize, u32) -> bool,
) -> io::Result<Compared> {
    match compare_or_fail(path, parts, check, &is_left_out) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Compared::NoRecord),
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(Compared::Damaged),
        compared => compared,
    }
}

fn compare_or_fail(
    path: &Path,
    parts: &[&Samples],
    check: PictureCheck,
    is_left_out: &dyn Fn(usize, u32) -> bool,
) -> io::Result<Compared> {
    let (file, metadata) = holdall_files::open_regular(path)?;
    let mut file = Hashed {
        file: BufReader::new(file),
        hasher: Xxh3::new(),
    };
    let mut head = [0; HEADER_BYTES];
    file.read_exact(&mut head)?;
    let Some(recorded) = [PictureCheck::Time, PictureCheck::Hash]
        .into_iter()
        .find(|recorded| head == header(parts, *recorded))
    else {
        return Ok(Compared::Damaged);
    };
    let num_bytes = HEADER_BYTES + num_pictures(parts) * num_words(recorded) * 8 + 8;
    if metadata.len() != num_bytes as u64 {
        return Ok(Compared::Damaged);
    }
    let (mut replaced, mut touched) = (Changed::default(), Changed::default());
    for piece in pieces(parts) {
        for (stamp, sample) in piece.stamps(check).into_iter().zip(piece.start..) {
            let before = file.stamp(recorded)?;
            if stamp.looks_like(&before) || is_left_out(piece.part, sample as u32) {
                continue;
            }
            let image = piece.samples.image(sample);
            let contents = || match (before.contents, stamp.contents) {
                (Some(before), Some(now)) => Some(before == now),
                (Some(before), None) => {
                    let mut path = PathBuf::new();
                    let now = PictureCheck::Hash;
                    let now = Stamp::of_sample(piece.samples, sample, &mut path, now);
                    Some(Some(before) == now.contents)
                }
                (None, _) => None,
            };
            if stamp.num_bytes != before.num_bytes {
                replaced.add(|| format!("{image} ({})", sizes(stamp.num_bytes, before.num_bytes)));
            } else {
                match contents() {
                    Some(true) => {}
                    Some(false) => replaced.add(|| format!("{image} (other contents)")),
                    None => touched.add(|| image.to_owned()),
                }
            }
        }
    }
    let digest = file.hasher.digest();
    if file.word()? != digest {
        return Ok(Compared::Damaged);
    }
    Ok(Compared::With {
        recorded,
        replaced,
        touched,
    })
}

fn sizes(now: u64, before: u64) -> String {
    match (now, before) {
        (NOT_THERE, _) => "gone".to_owned(),
        (_, NOT_THERE) => "was missing".to_owned(),
        _ => format!("{now} bytes, was {before}"),
    }
}

/// Reader that hashes the bytes it reads.
struct Hashed {
    file: BufReader<File>,
    hasher: Xxh3,
}

impl Hashed {
    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    fn word(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn stamp(&mut self, recorded: PictureCheck) -> io::Result<Stamp> {
        Ok(Stamp {
            num_bytes: self.word()?,
            modified_ns: self.word()? as i64,
            contents: match recorded {
                PictureCheck::Time => None,
                PictureCheck::Hash => Some(self.word()?),
            },
        })
    }
}

fn num_words(check: PictureCheck) -> usize {
    match check {
        PictureCheck::Time => 2,
        PictureCheck::Hash => 3,
    }
}

fn num_pictures(parts: &[&Samples]) -> usize {
    parts.iter().map(|samples| samples.len()).sum()
}

fn header(parts: &[&Samples], check: PictureCheck) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let check: u64 = match check {
        PictureCheck::Time => 0,
        PictureCheck::Hash => 1,
    };
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&check.to_le_bytes());
    header[16..].copy_from_slice(&(num_pictures(parts) as u64).to_le_bytes());
    header
}

/// A range of the samples of one part.
struct Piece<'a> {
    part: usize,
    samples: &'a Samples,
    start: usize,
    end: usize,
    is_one_of_many: bool,
}

fn pieces<'a>(parts: &[&'a Samples]) -> impl Iterator<Item = Piece<'a>> {
    let is_one_of_many = num_pictures(parts) > MANY;
    let parts = parts.iter().enumerate();
    parts.flat_map(move |(part, &samples)| {
        let starts = (0..samples.len()).step_by(PIECE);
        starts.map(move |start| Piece {
            part,
            samples,
            start,
            end: (start + PIECE).min(samples.len()),
            is_one_of_many,
        })
    })
}

impl Piece<'_> {
    fn stamps(&self, check: PictureCheck) -> Vec<Stamp> {
        let look =
            |path: &mut PathBuf, sample: usize| Stamp::of_sample(self.samples, sample, path, check);
        let all = self.start..self.end;
        if self.is_one_of_many || check == PictureCheck::Hash {
            all.into_par_iter().map_init(PathBuf::new, look).collect()
        } else {
            let mut path = PathBuf::new();
            all.map(|sample| look(&mut path, sample)).collect()
        }
    }
}
