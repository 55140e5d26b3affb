//! A clip as a smaller file: the frames that are seen, resized once.
//!
//! Which frames are kept is what [`FrameChoice`] would see of the clip in an evaluation, each once. Of frames that are spread over the clip, training on
//! the smaller file sees the same ones: of `f` kept frames, `floor(i (f - 1) / (f - 1)) = i`; a clip that has fewer keeps all of them.

use std::path::Path;

use super::file::{ClipFile, broken_clip};
use super::frame_files::{avi, npy};
use super::sampling::FrameChoice;
use crate::config::{ClipStart, DataConfig};
use crate::error::DataError;
use crate::picture::{FrameCoding, Scratch, SmallerFrame, SmallerFrames};

/// A clip is held until it is written.
const MOST_BYTES: usize = 256 << 20;

/// How clips are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClipPacking {
    /// How frames are chosen; nothing keeps all of them.
    choice: Option<FrameChoice>,
    frames: SmallerFrames,
}

impl ClipPacking {
    /// Frames as the config says.
    pub(crate) fn new(data: &DataConfig, frames: SmallerFrames) -> ClipPacking {
        let choice = data.frames.map(|frames| FrameChoice {
            frames: frames as usize,
            stride: data.stride,
            start: ClipStart::Centred,
            padding: data.short_clips,
        });
        ClipPacking { choice, frames }
    }

    /// The ending and the bytes of a clip's smaller file.
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
        // Piece by piece, so that a film is refused before all of it is in memory.
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

/// Frames that are decoded before their bytes are counted. Formats whose frames build on each other begin anew with each piece.
const PIECE: usize = 256;
