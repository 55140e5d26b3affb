//! Number and size of the frames in the first video stream of an MP4 or MOV. Reading boxes takes a few reads, `ffprobe` takes a process:
//! data sets have tens of thousands of clips, and all are opened before the first step.
//!
//! ```text
//! moov > trak > mdia > hdlr                kind of the stream
//!                    > minf > stbl > stsd  codec and size
//!                                  > stsz  number of samples
//! ```
//!
//! A box is its size, its name and its contents; a size of 1 is followed by 64 bits behind the name, a size of 0 extends to the end. For an
//! unusual file (fragmented, or with boxes in odd places) the result is `None`, and the caller uses `ffprobe`.

use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// Limit on the boxes that are read; a file with more is unusual.
const MOST_BOXES: usize = 10_000;

/// Number of frames, width and height.
pub(super) fn first_video<R: Read + Seek>(
    file: &mut R,
    num_bytes: u64,
) -> Option<(usize, (u32, u32))> {
    let mut walk = Walk { file, num_boxes: 0 };
    let movie = walk.find(0..num_bytes, b"moov")?;
    let mut at = movie.start;
    while at < movie.end {
        let (name, contents) = walk.header(at..movie.end)?;
        at = contents.end;
        if &name != b"trak" {
            continue;
        }
        let media = walk.find(contents, b"mdia")?;
        let handler = walk.find(media.clone(), b"hdlr")?;
        // The contents of `hdlr`: version and flags, four bytes without a meaning, then the kind of the stream.
        if &walk.bytes::<4>(handler.start + 8)? != b"vide" {
            continue;
        }
        let information = walk.find(media, b"minf")?;
        let tables = walk.find(information, b"stbl")?;
        return walk.sample_tables(tables);
    }
    None
}

struct Walk<'a, R> {
    file: &'a mut R,
    num_boxes: usize,
}

impl<R: Read + Seek> Walk<'_, R> {
    fn sample_tables(&mut self, tables: Range<u64>) -> Option<(usize, (u32, u32))> {
        let sizes = self.find(tables.clone(), b"stsz")?;
        let count = u32::from_be_bytes(self.bytes::<4>(sizes.start + 8)?);
        let description = self.find(tables, b"stsd")?;
        // Version, flags and a count; then the first entry: its size and name, and 24 bytes before its width and height.
        let [w0, w1, h0, h1] = self.bytes::<4>(description.start + 8 + 8 + 24)?;
        let side = |high, low| u32::from(u16::from_be_bytes([high, low]));
        let size = (side(w0, w1), side(h0, h1));
        (count > 0 && size.0 > 0 && size.1 > 0).then_some((count as usize, size))
    }

    /// Contents of the first box with a name.
    fn find(&mut self, within: Range<u64>, name: &[u8; 4]) -> Option<Range<u64>> {
        let mut at = within.start;
        while at < within.end {
            let (found, contents) = self.header(at..within.end)?;
            if &found == name {
                return Some(contents);
            }
            at = contents.end;
        }
        None
    }

    /// Name and contents of the box at the start of a range; `None` where it is longer than the range.
    fn header(&mut self, within: Range<u64>) -> Option<([u8; 4], Range<u64>)> {
        self.num_boxes += 1;
        if self.num_boxes > MOST_BOXES {
            return None;
        }
        let [s0, s1, s2, s3, name @ ..] = self.bytes::<8>(within.start)?;
        let mut start = within.start + 8;
        let end = match u32::from_be_bytes([s0, s1, s2, s3]) {
            0 => within.end,
            1 => {
                start += 8;
                let size = u64::from_be_bytes(self.bytes::<8>(within.start + 8)?);
                within.start.checked_add(size)?
            }
            size => within.start + u64::from(size),
        };
        (start <= end && end <= within.end).then_some((name, start..end))
    }

    fn bytes<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.seek(SeekFrom::Start(at)).ok()?;
        self.file.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn look(bytes: &[u8]) -> Option<(usize, (u32, u32))> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        first_video(&mut file, bytes.len() as u64)
    }

    fn fixture() -> Vec<u8> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/clips");
        std::fs::read(folder.join("video.mp4")).unwrap()
    }

    #[test]
    fn frames_and_size_are_those_that_ffprobe_says() {
        assert_eq!(look(&fixture()), Some((7, (40, 24))));
        assert_eq!(look(b"\0\0\0\x18ftypmp42 and nothing else"), None);
        assert_eq!(look(b""), None);
    }

    proptest! {
        #[test]
        fn mutated_files_end(at in 0usize..2000, value: u8, length in 0usize..2300) {
            let mut bytes = fixture();
            let at = at.min(bytes.len() - 1);
            bytes[at] = value;
            bytes.truncate(length);
            look(&bytes);
        }
    }
}
