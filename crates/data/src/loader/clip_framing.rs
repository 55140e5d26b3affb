//! Writes a sample's clips to a row of the loader: frames one after another, all with the same crop and colours.

use crate::config::{Augment, ClipStart, DataConfig, Decode, ShortClips, Stride};
use crate::decode::{
    CHANNELS, ClipFile, FrameChoice, FrameView, Framing, Occasion, PictureCost, Scratch,
    chosen_videos,
};
use crate::error::DataError;
use crate::samples::Samples;

/// Settings that turn a sample into a row.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipFraming {
    /// Crop and resize of a frame to a square.
    pub framing: Framing,
    /// Frames per clip.
    pub frames: usize,
    /// Distance between sampled frames.
    pub stride: Stride,
    /// First sampled frame in training.
    pub start: ClipStart,
    /// Clips per sample.
    pub num_videos: usize,
    /// Whether missing frames and clips are masked or repeated.
    pub padding: ShortClips,
    /// Random changes in training, the same for all frames of a sample.
    pub augment: Augment,
    /// Whether training decodes frames at full size.
    pub decode: Decode,
}

impl ClipFraming {
    /// Frames per clip where neither the config nor the model sets a number.
    pub const DEFAULT_FRAMES: usize = 8;

    /// Settings of a config; `frames` is the default number of frames.
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

    pub fn frame_bytes(&self) -> usize {
        let size = self.framing.size as usize;
        size * size * CHANNELS
    }

    pub fn row_bytes(&self) -> usize {
        self.num_frames() * self.frame_bytes()
    }

    /// Peak memory of reading a sample, estimated from headers alone, and the size of its largest frames.
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

    /// Writes a row of a sample: for evaluation without an occasion, for training with one. Returns how many frames the model may attend
    /// to; the row behind them repeats the last frame, or the clips of a sample with too few.
    ///
    /// In a row of several clips a short one repeats its last frame, except the last clip: masked frames are only at the end of a row.
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

/// Fills `bytes` behind the first `end` by repeating the last `period` bytes before them.
fn repeat_last(bytes: &mut [u8], end: usize, period: usize) {
    let mut at = end;
    while at < bytes.len() {
        let length = period.min(bytes.len() - at);
        bytes.copy_within(at - period..at - period + length, at);
        at += length;
    }
}
