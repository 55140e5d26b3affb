//! Packs a clip as a smaller file: the sampled frames, resized once.
//!
//! The packed frames are those that [`FrameChoice`] samples in evaluation, each once. With `stride: spread`, training on the packed file
//! sees the same frames: of `f` packed frames, `floor(i (f - 1) / (f - 1)) = i`; a clip with fewer frames keeps all of them.

use std::path::Path;

use super::file::{ClipFile, broken_clip};
use super::frame_files::{avi, npy};
use super::sampling::FrameChoice;
use crate::config::{ClipStart, DataConfig};
use crate::decode::picture::{FrameCoding, Scratch, SmallerFrame, SmallerFrames};
use crate::error::DataError;

/// Limit on a packed clip, which is held in memory until it is written.
const MOST_BYTES: usize = 256 << 20;

/// Settings of packing clips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClipPacking {
    /// Choice of frames; `None` keeps all frames.
    choice: Option<FrameChoice>,
    frames: SmallerFrames,
}

impl ClipPacking {
    /// Settings of a config.
    pub(crate) fn new(data: &DataConfig, frames: SmallerFrames) -> ClipPacking {
        let choice = data.frames.map(|frames| FrameChoice {
            frames: frames as usize,
            stride: data.stride,
            start: ClipStart::Centred,
            padding: data.short_clips,
        });
        ClipPacking { choice, frames }
    }

    /// Extension and bytes of the packed file of a clip.
    pub(crate) fn smaller_clip(
        &self,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<(&'static str, Vec<u8>), DataError> {
        let mut clip = ClipFile::open_within(path, scratch.limits())?;
        let mut numbers = match self.choice {
            Some(choice) => choice.of(clip.num_frames(), None, 0),
            None => (0..clip.num_frames()).collect(),
        };
        numbers.dedup();
        let mut frames: Vec<SmallerFrame> = Vec::new();
        let mut num_bytes = 0;
        // In pieces, so that a film is refused before all of it is in memory.
        for piece in numbers.chunks(PIECE) {
            let part = clip.smaller_frames(piece, self.frames, scratch)?;
            num_bytes += part.iter().map(|frame| frame.bytes.len()).sum::<usize>();
            if num_bytes > MOST_BYTES {
                return Err(broken_clip(path, "more than 256 MiB of frames"));
            }
            frames.extend(part);
        }
        let size = frames.first().map_or((0, 0), |frame| frame.size);
        if let Some(other) = frames.iter().find(|frame| frame.size != size) {
            let (width, height) = other.size;
            return Err(broken_clip(
                path,
                format_args!(
                    "frames of {} x {} and of {width} x {height}",
                    size.0, size.1
                ),
            ));
        }
        let frames: Vec<Vec<u8>> = frames.into_iter().map(|frame| frame.bytes).collect();
        Ok(match self.frames.coding {
            FrameCoding::Jpeg => ("avi", avi(&frames, size)),
            FrameCoding::Pixels => ("npy", npy(&frames, size)),
        })
    }
}

/// Frames decoded before their bytes are counted. GIF, WebP and videos are decoded from the start again for each piece.
const PIECE: usize = 256;
