//! Image files to square RGB pixels.
//!
//! Evaluation does what the CLIP image processor of `transformers` does: the shorter side becomes
//! `size` by a bicubic filter (Pillow's, a = -1/2, widened when it shrinks), then the middle is cut
//! out. Training cuts out a random part instead. Either way only what is kept is computed, so a
//! picture of 1 x 65535 costs no more than another.

mod decode;
mod geometry;
#[cfg(test)]
mod tests;

use std::path::Path;

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::config::Augment;
use crate::dice::{Dice, Purpose};
use crate::error::DataError;
use geometry::Window;

/// Red, green and blue.
pub const CHANNELS: usize = 3;

/// Buffers that one thread uses again for each picture.
#[derive(Debug, Default)]
pub struct Scratch {
    file: Vec<u8>,
    decoded: Vec<u8>,
    rgb: Vec<u8>,
    resizer: Resizer,
}

/// What the throws of a picture depend on, and nothing else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occasion {
    /// The run's.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The sample's number.
    pub sample: u64,
}

/// Writes a picture as evaluation sees it: `size` x `size` x 3 bytes, rows from the top.
///
/// # Panics
/// If `out` has another length.
pub fn evaluated_into(
    path: &Path,
    size: u32,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    let (width, height) = decode::decode(path, scratch)?;
    let window = geometry::middle(width, height, size);
    resize(path, scratch, (width, height), window, size, out)
}

/// Writes a picture as training sees it on this occasion: a random part, perhaps mirrored.
///
/// # Panics
/// If `out` is not `size` x `size` x 3 long.
pub fn augmented_into(
    path: &Path,
    size: u32,
    augment: Augment,
    occasion: Occasion,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    let (width, height) = decode::decode(path, scratch)?;
    let words = [occasion.seed, occasion.epoch, occasion.sample];
    let mut dice = Dice::new(Purpose::Augment, &words);
    let is_mirrored = dice.unit() < 0.5 && augment.flip;
    let window = geometry::random_part(width, height, augment.crop, &mut dice);
    resize(path, scratch, (width, height), window, size, out)?;
    if is_mirrored {
        mirror(out, size);
    }
    Ok(())
}

fn resize(
    path: &Path,
    scratch: &mut Scratch,
    (width, height): (u32, u32),
    window: Window,
    size: u32,
    out: &mut [u8],
) -> Result<(), DataError> {
    assert_eq!(
        out.len(),
        size as usize * size as usize * CHANNELS,
        "pixels of a picture"
    );
    let failed = |cause: &dyn std::fmt::Display| DataError::PictureBroken {
        path: path.to_owned(),
        cause: cause.to_string(),
    };
    let source = ImageRef::new(width, height, &scratch.rgb, PixelType::U8x3)
        .map_err(|cause| failed(&cause))?;
    let mut target =
        Image::from_slice_u8(size, size, out, PixelType::U8x3).map_err(|cause| failed(&cause))?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
        .crop(window.left, window.top, window.width, window.height)
        .use_alpha(false);
    scratch
        .resizer
        .resize(&source, &mut target, &options)
        .map_err(|cause| failed(&cause))
}

fn mirror(pixels: &mut [u8], width: u32) {
    for row in pixels.chunks_exact_mut(width as usize * CHANNELS) {
        let (pixels, _) = row.as_chunks_mut::<CHANNELS>();
        pixels.reverse();
    }
}
