//! Frames of a clip, framed like pictures. All frames of a clip are augmented alike: the random choices depend on the occasion and on the
//! size of a frame alone.

use std::path::Path;

use image::ImageFormat;

use super::augment::Draw;
use super::decode::{self, check_size};
use super::header::{self, Cost, Header};
use super::{
    CHANNELS, Framing, Limits, Needed, Occasion, Scratch, augmented_into, draw_into, evaluate,
    evaluated_into,
};
use crate::config::{Augment, Decode};
use crate::error::DataError;

/// How frames are framed and augmented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FrameView {
    pub framing: Framing,
    /// Augmentation for training; `None` in evaluation.
    pub drawn: Option<(Augment, Decode, Occasion)>,
}

impl FrameView {
    pub(crate) fn evaluated(framing: Framing) -> FrameView {
        FrameView {
            framing,
            drawn: None,
        }
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        let size = self.framing.size as usize;
        size * size * CHANNELS
    }

    /// Writes a frame that is a file of its own.
    pub(crate) fn file_into(
        &self,
        path: &Path,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        match self.drawn {
            None => evaluated_into(path, self.framing, scratch, out),
            Some((augment, decode, occasion)) => augmented_into(
                path,
                self.framing,
                (augment, decode),
                occasion,
                scratch,
                out,
            ),
        }
    }

    /// Writes the frame in `scratch.file`, whose memory is claimed; `path` is for messages.
    pub(crate) fn loaded_into(
        &self,
        path: &Path,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        scratch.needed = self.needed();
        let file = std::mem::take(&mut scratch.file);
        let decoded = decode::decode_bytes(path, &file, scratch);
        scratch.file = file;
        scratch.needed = Needed::All;
        self.pixels_into(path, decoded?, scratch, out)
    }

    /// Writes the frame whose pixels are in `scratch.rgb`.
    pub(crate) fn pixels_into(
        &self,
        path: &Path,
        size: (u32, u32),
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<(), DataError> {
        match self.drawn {
            None => evaluate(path, size, self.framing, scratch, out),
            Some((augment, _, occasion)) => {
                let draw = Draw::new(size, augment, occasion);
                draw_into(path, size, draw, self.framing, scratch, out)
            }
        }
    }

    fn needed(&self) -> Needed {
        match self.drawn {
            Some((augment, Decode::Fast, _)) => Needed::Part {
                least: augment.crop,
                size: self.framing.size,
            },
            _ => Needed::All,
        }
    }
}

/// Memory for a frame of this size: `file_bytes` of its container and `decoder_bytes` of its decoder are held at the same time.
pub(crate) fn frame_cost(
    (width, height): (u32, u32),
    file_bytes: u64,
    decoder_bytes: u64,
    framing: Framing,
) -> Cost {
    let (width, height) = (u64::from(width), u64::from(height));
    Cost {
        file: file_bytes,
        pixels: width * height * CHANNELS as u64,
        beside: decoder_bytes
            + header::resize_bytes((width, height), framing)
            + header::SMALL_BYTES,
    }
}

/// Memory for an encoded frame, from its header; a frame without a header takes little.
pub(crate) fn encoded_frame_cost(bytes: &[u8], file_bytes: u64, framing: Framing) -> Cost {
    match Header::of(bytes) {
        Some(header) => header.cost(file_bytes, Some(framing), Needed::All),
        None => Cost::of_no_picture(file_bytes),
    }
}

pub(crate) fn header_size(bytes: &[u8]) -> Option<(u32, u32)> {
    Header::of(bytes).map(|header| (header.width, header.height))
}

/// Memory of the animated-WebP decoder beside the file: the frame and the canvas.
pub(crate) fn animated_webp_bytes(bytes: &[u8]) -> Option<u64> {
    let header = Header::of(bytes)?;
    let file_bytes = bytes.len() as u64;
    // The decoded frame itself is held twice: as decoded, and as RGBA.
    Some(header.cost(file_bytes, None, Needed::All).beside + header.num_pixels() * 8)
}

/// Checks that the sizes a WebP claims are within limits: its decoder trusts them.
pub(crate) fn check_webp(path: &Path, bytes: &[u8], limits: Limits) -> Result<(), DataError> {
    decode::check_claims(path, bytes, ImageFormat::WebP, limits)
}

/// Checks that a frame has pixels, and not too many.
pub(crate) fn check_frame_size(
    path: &Path,
    (width, height): (u32, u32),
    limits: Limits,
) -> Result<(), DataError> {
    check_size(path, width, height, limits)
}

impl Scratch {
    /// Claims the memory for a frame of this size.
    pub(crate) fn claim_frame(
        &mut self,
        path: &Path,
        (width, height): (u32, u32),
        cost: Cost,
    ) -> Result<(), DataError> {
        self.make_room(cost)
            .map_err(|refused| DataError::PictureOverBudget {
                path: path.to_owned(),
                width,
                height,
                needed_bytes: cost.total(),
                allowed_bytes: refused.allowed_bytes,
            })
    }

    /// The file buffer, resized to exactly this length; the caller writes all of it.
    pub(crate) fn file_buffer(&mut self, num_bytes: usize) -> &mut Vec<u8> {
        decode::sized(&mut self.file, num_bytes);
        &mut self.file
    }

    /// The pixel buffer, resized likewise.
    pub(crate) fn pixel_buffer(&mut self, num_bytes: usize) -> &mut [u8] {
        decode::sized(&mut self.rgb, num_bytes);
        &mut self.rgb
    }

    /// Takes the file buffer out, so that pixels can be written while it is borrowed.
    pub(crate) fn take_file(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.file)
    }

    /// Puts the file buffer back.
    pub(crate) fn put_file(&mut self, file: Vec<u8>) {
        self.file = file;
    }
}
