//! A sample's clips to a row: frames one behind the other, all cut out and coloured alike.

use super::file::ClipFile;
use super::sampling::{FrameChoice, chosen_videos};
use crate::config::{Augment, ClipStart, DataConfig, Decode, ShortClips, Stride};
use crate::error::DataError;
use crate::picture::{CHANNELS, FrameView, Framing, Occasion, PictureCost, Scratch};
use crate::samples::Samples;

/// How a sample becomes a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipFraming {
    /// How a frame becomes a square.
    pub framing: Framing,
    /// Frames that are seen of a clip.
    pub frames: usize,
    /// How far apart they are.
    pub stride: Stride,
    /// Where training begins.
    pub start: ClipStart,
    /// Clips of a sample.
    pub num_videos: usize,
    /// What stands for frames and clips that are not there.
    pub padding: ShortClips,
    /// What training does to all frames of a sample alike.
    pub augment: Augment,
    /// How much of a frame training decodes.
    pub decode: Decode,
}

impl ClipFraming {
    /// Frames that a clip is seen by where neither the config nor the model says.
    pub const DEFAULT_FRAMES: usize = 8;

    /// As the config says; `frames` where it does not say how many.
    pub fn new(config: &DataConfig, framing: Framing, frames: usize) -> ClipFraming {
        ClipFraming {
            framing,
            frames: config.frames.map_or(frames, |frames| frames as usize),
            stride: config.stride,
            start: config.start,
            num_videos: config.num_videos(),
            padding: config.short_clips,
            augment: config.augment,
            decode: config.decode,
        }
    }

    /// Frames of a row.
    pub fn num_frames(&self) -> usize {
        self.frames * self.num_videos
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> usize {
        let size = self.framing.size as usize;
        size * size * CHANNELS
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.num_frames() * self.frame_bytes()
    }

    /// What reading a sample takes at its peak, from headers alone, and the size of its largest frames.
    pub fn cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        let mut largest: Option<PictureCost> = None;
        for path in samples.clip_paths(sample) {
            let cost = ClipFile::open(&path)?.cost(self.framing)?;
            if largest.is_none_or(|largest| largest.bytes < cost.bytes) {
                largest = Some(cost);
            }
        }
        Ok(largest.unwrap_or(PictureCost {
            width: 0,
            height: 0,
            bytes: 0,
        }))
    }

    /// Writes a row of a sample: as evaluation sees it, or as training does on an occasion. Returns how many of its frames are there; the others
    /// show the last one again.
    ///
    /// Of several clips a short one shows its last frame again, unless it is the last clip: frames that are not there are at the end of a row.
    ///
    /// # Panics
    /// If `row` has another length.
    pub fn write_row(
        &self,
        samples: &Samples,
        sample: usize,
        occasion: Option<Occasion>,
        scratch: &mut Scratch,
        row: &mut [u8],
    ) -> Result<u32, DataError> {
        assert_eq!(row.len(), self.row_bytes(), "bytes of a row");
        let view = FrameView {
            framing: self.framing,
            drawn: occasion.map(|occasion| (self.augment, self.decode, occasion)),
        };
        let choice = FrameChoice {
            frames: self.frames,
            stride: self.stride,
            start: self.start,
            padding: self.padding,
        };
        let paths: Vec<_> = samples.clip_paths(sample).collect();
        let videos = chosen_videos(paths.len(), self.num_videos, occasion);
        let (frame_bytes, video_bytes) = (self.frame_bytes(), self.frames * self.frame_bytes());
        let mut num_there = 0;
        for (at, &video) in videos.iter().enumerate() {
            let mut clip = ClipFile::open_within(&paths[video], scratch.limits())?;
            let numbers = choice.of(clip.num_frames(), occasion, video);
            let part = &mut row[at * video_bytes..][..video_bytes];
            let seen_bytes = numbers.len() * frame_bytes;
            clip.read(&numbers, &view, scratch, &mut part[..seen_bytes])?;
            repeat_last(part, seen_bytes, frame_bytes);
            num_there = at * self.frames + numbers.len();
        }
        repeat_last(row, videos.len() * video_bytes, videos.len() * video_bytes);
        Ok(match self.padding {
            ShortClips::Repeat => self.num_frames() as u32,
            ShortClips::Mask => num_there as u32,
        })
    }
}

/// Fills what is behind the first `end` bytes with the last `period` of them, again and again.
fn repeat_last(bytes: &mut [u8], end: usize, period: usize) {
    let mut at = end;
    while at < bytes.len() {
        let length = period.min(bytes.len() - at);
        bytes.copy_within(at - period..at - period + length, at);
        at += length;
    }
}
