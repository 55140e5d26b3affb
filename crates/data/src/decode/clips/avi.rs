//! AVI with Motion JPEG: one JPEG per frame, so that any frame can be decoded alone.
//!
//! ```text
//! RIFF size "AVI "
//!   LIST "hdrl"   LIST "strl": strh (kind of the stream), strf (size and codec)    one per stream
//!   LIST "movi"   00dc size JPEG, 01wb size sound, ...; perhaps in LIST "rec "
//! RIFF size "AVIX"  LIST "movi" ...                                                data past the first GiB
//! ```
//!
//! Chunks are found by walking from one to the next: an index may be missing, and its offsets are counted in two ways.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::MOST_FRAMES;
use super::file::{FrameRows, broken_clip, cut_short, unread};
use super::mjpeg::{TABLE_BYTES, add_huffman_tables};
use crate::decode::picture::{
    Cost, Framing, Limits, Scratch, check_frame_size, encoded_frame_cost, header_size,
};
use crate::error::DataError;
use crate::stored_file::StoredFile;

/// A file of Motion JPEG.
#[derive(Debug)]
pub(super) struct Avi {
    file: StoredFile,
    /// Offset and length of each frame.
    frames: Vec<(u64, u32)>,
    /// Size in the container's header.
    size: (u32, u32),
}

/// Codec of an AVI.
pub(super) enum AviContent {
    MotionJpeg(Avi),
    OtherCodec,
}

/// The first video stream.
#[derive(Clone, Copy, Debug)]
struct VideoStream {
    number: u32,
    size: (u32, u32),
    is_jpeg: bool,
}

/// Bytes at the start of a frame that contain its JPEG header.
const HEADER_BYTES: u32 = 64 << 10;
/// Limit on the chunks of a file: a clip at the frame limit may have 8 chunks per frame.
const MOST_CHUNKS: usize = 8 * MOST_FRAMES;

impl Avi {
    pub(super) fn open(path: &Path, mut file: StoredFile) -> Result<AviContent, DataError> {
        let num_bytes = file.num_bytes();
        let mut walk = Walk {
            path,
            reader: BufReader::with_capacity(4 << 10, &mut file),
            num_bytes,
            num_streams: 0,
            num_chunks: 0,
            stream: None,
            frames: Vec::new(),
        };
        walk.lists(0, num_bytes)?;
        let Walk { stream, frames, .. } = walk;
        let Some(stream) = stream else {
            return Err(broken_clip(path, "an AVI without a stream of pictures"));
        };
        if !stream.is_jpeg {
            return Ok(AviContent::OtherCodec);
        }
        Ok(AviContent::MotionJpeg(Avi {
            file,
            frames,
            size: stream.size,
        }))
    }

    pub(super) fn num_frames(&self) -> usize {
        self.frames.len()
    }

    /// Size of the first frame, and the decoding cost of a frame with as many bytes as the largest.
    pub(super) fn cost(
        &mut self,
        path: &Path,
        framing: Framing,
    ) -> Result<((u32, u32), Cost), DataError> {
        let most_bytes = self.frames.iter().map(|(_, length)| *length).max();
        let most_bytes = u64::from(most_bytes.unwrap_or(0)) + TABLE_BYTES as u64;
        let (start, length) = self.frames.first().copied().unwrap_or_default();
        let mut first = vec![0; length.min(HEADER_BYTES) as usize];
        read_at(&mut self.file, start, &mut first).map_err(|cause| unread(path, cause))?;
        // The JPEG's own size counts, whatever the container declares.
        let size = header_size(&first).unwrap_or(self.size);
        Ok((size, encoded_frame_cost(&first, most_bytes, framing)))
    }

    pub(super) fn read(
        &mut self,
        path: &Path,
        limits: Limits,
        rows: &mut FrameRows<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        while let Some(frame) = rows.wanted() {
            let (start, length) = self.frames[frame];
            if u64::from(length) > limits.most_file_bytes {
                return Err(DataError::PictureFileTooLarge {
                    path: path.to_owned(),
                    most_bytes: limits.most_file_bytes,
                });
            }
            let mut header = vec![0; length.min(HEADER_BYTES) as usize];
            let failed = |cause| unread(path, cause);
            read_at(&mut self.file, start, &mut header).map_err(failed)?;
            let Some(size) = header_size(&header) else {
                return Err(broken_clip(
                    path,
                    format_args!("no JPEG in frame {}", frame + 1),
                ));
            };
            check_frame_size(path, size, limits)?;
            self.check_fields(path, size)?;
            let most_bytes = length as usize + TABLE_BYTES;
            let cost = encoded_frame_cost(&header, most_bytes as u64, rows.framing());
            scratch.claim_frame(path, size, cost)?;
            let jpeg = scratch.file_buffer(most_bytes);
            jpeg.truncate(length as usize);
            read_at(&mut self.file, start, jpeg).map_err(failed)?;
            add_huffman_tables(jpeg);
            rows.write_loaded(path, scratch)?;
        }
        Ok(())
    }

    /// Some capture cards store the odd rows of a picture as one JPEG and the even rows as another.
    fn check_fields(&self, path: &Path, (_, height): (u32, u32)) -> Result<(), DataError> {
        if height > 0 && self.size.1 == 2 * height {
            Err(DataError::invalid(
                path.display(),
                "a JPEG for each frame",
                "one for each field (interlaced)",
                "`ffmpeg -i FILE -vf yadif -c:v mjpeg -q:v 3 OUT.avi` writes it frame by frame",
            ))
        } else {
            Ok(())
        }
    }
}

fn read_at(file: &mut StoredFile, start: u64, out: &mut [u8]) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(out)
}

/// A walk over the chunks of a file.
struct Walk<'a> {
    path: &'a Path,
    reader: BufReader<&'a mut StoredFile>,
    num_bytes: u64,
    num_streams: u32,
    num_chunks: usize,
    stream: Option<VideoStream>,
    frames: Vec<(u64, u32)>,
}

impl Walk<'_> {
    /// Walks the chunks between two offsets, descending into lists.
    fn lists(&mut self, mut at: u64, end: u64) -> Result<(), DataError> {
        let mut ends = vec![end];
        while let Some(&end) = ends.last() {
            if at + 8 > end {
                ends.pop();
                // Lists are padded to even sizes, like chunks.
                at = end + end % 2;
                continue;
            }
            self.num_chunks += 1;
            if self.num_chunks > MOST_CHUNKS {
                return Err(broken_clip(self.path, "more chunks than any clip has"));
            }
            let header = self.bytes::<8>(at)?;
            let [a, b, c, d, e, f, g, h] = header;
            let size = u32::from_le_bytes([e, f, g, h]);
            let (start, name) = (at + 8, [a, b, c, d]);
            let next = start + u64::from(size) + u64::from(size % 2);
            match &name {
                b"RIFF" | b"LIST" if start + 4 <= end && ends.len() < 8 => {
                    let kind = self.bytes::<4>(start)?;
                    // An interrupted recording leaves the size 0: the chunks of the list are then read as those of the outer list.
                    let list_end = (start + u64::from(size.max(4))).min(end);
                    if &kind == b"strl" {
                        self.stream_at(start + 4, list_end)?;
                    }
                    match &kind {
                        b"AVI " | b"AVIX" | b"hdrl" | b"movi" | b"rec " => {
                            ends.push(list_end);
                            at = start + 4;
                        }
                        _ => at = next,
                    }
                }
                // Bytes behind the end of all lists may be anything.
                _ if ends.len() > 1 && start + u64::from(size) > self.num_bytes => {
                    return Err(cut_short(self.path));
                }
                _ => {
                    self.frame(name, start, size);
                    at = next;
                }
            }
        }
        Ok(())
    }

    /// Adds a chunk to the frames if it belongs to the stream.
    fn frame(&mut self, name: [u8; 4], start: u64, size: u32) {
        let (Some(stream), [tens, ones, b'd', b'b' | b'c']) = (self.stream, name) else {
            return;
        };
        let digit = |byte: u8| char::from(byte).to_digit(10);
        let number = digit(tens).zip(digit(ones)).map(|(a, b)| a * 10 + b);
        if number != Some(stream.number) || self.frames.len() > MOST_FRAMES {
            return;
        }
        // An empty chunk repeats the previous frame.
        let place = match size {
            0 => self.frames.last().copied(),
            _ => Some((start, size)),
        };
        self.frames.extend(place);
    }

    /// Reads the header of a stream.
    fn stream_at(&mut self, mut at: u64, end: u64) -> Result<(), DataError> {
        let number = self.num_streams;
        self.num_streams += 1;
        let (mut is_video, mut handler) = (false, [0; 4]);
        let mut format: Option<[u8; 20]> = None;
        for _ in 0..16 {
            if at + 8 > end {
                break;
            }
            let [a, b, c, d, e, f, g, h] = self.bytes::<8>(at)?;
            let size = u32::from_le_bytes([e, f, g, h]);
            match &[a, b, c, d] {
                b"strh" if size >= 8 => {
                    let [kind @ .., p, q, r, s] = self.bytes::<8>(at + 8)?;
                    is_video = &kind == b"vids";
                    handler = [p, q, r, s];
                }
                b"strf" if size >= 20 => format = Some(self.bytes::<20>(at + 8)?),
                _ => {}
            }
            at += 8 + u64::from(size) + u64::from(size % 2);
        }
        let (true, Some(format), None) = (is_video, format, self.stream) else {
            return Ok(());
        };
        let side = |at: usize| {
            let bytes = [format[at], format[at + 1], format[at + 2], format[at + 3]];
            // A negative height means that rows start at the top.
            i32::from_le_bytes(bytes).unsigned_abs()
        };
        let codec = [format[16], format[17], format[18], format[19]];
        let is_jpeg = [codec, handler].iter().any(|name| {
            [b"MJPG", b"JPEG"]
                .iter()
                .any(|jpeg| name.eq_ignore_ascii_case(*jpeg))
        });
        self.stream = Some(VideoStream {
            number,
            size: (side(4), side(8)),
            is_jpeg,
        });
        Ok(())
    }

    fn bytes<const N: usize>(&mut self, at: u64) -> Result<[u8; N], DataError> {
        let mut bytes = [0; N];
        let here = self.reader.stream_position();
        let read = here.and_then(|here| {
            // Most headers of sound and text chunks are in the read buffer already.
            match i64::try_from(at.abs_diff(here)) {
                Ok(distance) if at >= here => self.reader.seek_relative(distance)?,
                _ => {
                    self.reader.seek(SeekFrom::Start(at))?;
                }
            }
            self.reader.read_exact(&mut bytes)
        });
        read.map_err(|cause| unread(self.path, cause))?;
        Ok(bytes)
    }
}
