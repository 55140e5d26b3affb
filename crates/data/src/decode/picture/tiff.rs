//! Value counts that a TIFF claims, checked before a decoder trusts them: the decoder reserves 32 bytes for each value of a
//! tag, up to 256 MiB, before any limits apply.
//!
//! A file is `II*\0 offset` (or `MM\0*`, big-endian), then a directory of tags. A tag has a type, a count, and its values or
//! their position.

use super::header::Bytes;

/// Tag of a page's kind: bits for a smaller copy, a page of several, a transparency mask.
const SUBFILE: u16 = 254;
pub(super) const WIDTH: u16 = 256;
pub(super) const HEIGHT: u16 = 257;
pub(super) const BITS: u16 = 258;
pub(super) const PHOTOMETRIC: u16 = 262;
pub(super) const ORIENTATION: u16 = 274;
pub(super) const SAMPLES: u16 = 277;
pub(super) const SAMPLE_FORMAT: u16 = 339;
/// Last tag that a decoder reads; later ones are profiles and notes.
const LAST_READ: u16 = 532;
const ASCII: u16 = 2;
const ENTRY_BYTES: usize = 12;
/// Limit of the directories that are followed; a file with more is refused for its several pages anyway.
const MOST_DIRECTORIES: usize = 4096;

/// The first directory of tags, as far as the file has it.
pub(super) struct TiffTags<'a, B: ?Sized> {
    bytes: &'a B,
    start: usize,
    num_tags: usize,
    is_little_endian: bool,
}

impl<'a, B: Bytes + ?Sized> TiffTags<'a, B> {
    pub(super) fn new(bytes: &'a B) -> Option<TiffTags<'a, B>> {
        let mut tags = TiffTags {
            bytes,
            start: 0,
            num_tags: 0,
            is_little_endian: bytes.at(0) == Some(*b"II"),
        };
        let directory = tags.word(4)? as usize;
        tags.num_tags = usize::from(tags.half(directory)?);
        tags.start = directory + 2;
        Some(tags)
    }

    /// First value of a tag whose values have 16 or 32 bits.
    pub(super) fn first(&self, tag: u16) -> Option<u32> {
        let at = self.entries().find(|at| self.half(*at) == Some(tag))?;
        match (self.half(at + 2)?, self.word(at + 4)?) {
            (3, 0..=2) => self.half(at + 8).map(u32::from),
            (3, _) => self.half(self.word(at + 8)? as usize).map(u32::from),
            (4, 0..=1) => self.word(at + 8),
            (4, _) => self.word(self.word(at + 8)? as usize),
            _ => None,
        }
    }

    /// Number of full pages, without smaller copies and transparency masks.
    pub(super) fn num_pages(&self) -> usize {
        const NO_PAGE: u32 = 0b101;
        let is_page = |tags: &TiffTags<'a, B>| {
            let kind = tags.first(SUBFILE).unwrap_or(0);
            kind & NO_PAGE == 0
        };
        let mut num_pages = usize::from(is_page(self));
        let mut seen = vec![self.start];
        let mut tags = self.next();
        while let Some(next) = tags.filter(|next| !seen.contains(&next.start)) {
            num_pages += usize::from(is_page(&next));
            seen.push(next.start);
            tags = if seen.len() < MOST_DIRECTORIES {
                next.next()
            } else {
                None
            };
        }
        num_pages
    }

    /// The directory after this one.
    fn next(&self) -> Option<TiffTags<'a, B>> {
        let directory = self.word(self.start + self.num_tags * ENTRY_BYTES)? as usize;
        let start = directory + 2;
        (directory > 0).then_some(TiffTags {
            bytes: self.bytes,
            start,
            num_tags: usize::from(self.half(directory)?),
            is_little_endian: self.is_little_endian,
        })
    }

    /// Largest value count among the tags that a decoder reads.
    pub(super) fn most_values(&self) -> u32 {
        let counts = self.entries().map(|at| match self.half(at) {
            Some(..=LAST_READ) if self.half(at + 2) != Some(ASCII) => self.word(at + 4),
            _ => None,
        });
        counts.flatten().max().unwrap_or(0)
    }

    fn entries(&self) -> impl Iterator<Item = usize> {
        let entries = (0..self.num_tags).map(|entry| self.start + entry * ENTRY_BYTES);
        entries.take_while(|at| self.bytes.at::<ENTRY_BYTES>(*at).is_some())
    }

    fn half(&self, at: usize) -> Option<u16> {
        let bytes = self.bytes.at(at)?;
        Some(if self.is_little_endian {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.bytes.at(at)?;
        Some(if self.is_little_endian {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    }
}
