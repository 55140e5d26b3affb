//! Image files to square RGB pixels.
//!
//! Evaluation does to RGB pixels what the CLIP image processor of `transformers` does: the shorter
//! side becomes `size` by a bicubic filter (Pillow's, a = -1/2, widened when it shrinks), then the
//! middle is cut out. Alpha is dropped, as OpenAI's CLIP does; `transformers` 5.22 lays it over
//! white. Training cuts out a random part instead. Either way only what is kept is computed, so a
//! picture of 1 x 65535 takes no more to resize than another.

mod decode;
mod geometry;
#[cfg(test)]
mod tests;

use std::path::Path;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

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
    rows: Vec<u8>,
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
    check_length(out, size);
    let (width, height) = decode::decode(path, scratch)?;
    let window = geometry::middle(width, height, size);
    resize_as_pillow(path, scratch, (width, height), window, size, out)
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
    check_length(out, size);
    let (width, height) = decode::decode(path, scratch)?;
    let words = [occasion.seed, occasion.epoch, occasion.sample];
    let mut dice = Dice::new(Purpose::Augment, &words);
    let is_mirrored = dice.unit() < 0.5 && augment.flip;
    let window = geometry::random_part(width, height, augment.crop, &mut dice);
    let Scratch { rgb, resizer, .. } = scratch;
    resize(
        path,
        resizer,
        (rgb, width, height),
        window,
        (out, size, size),
    )?;
    if is_mirrored {
        mirror(out, size);
    }
    Ok(())
}

/// Decodes a picture and keeps none of it but its width and height: whether it can be read at all.
pub fn probe(path: &Path, scratch: &mut Scratch) -> Result<(u32, u32), DataError> {
    decode::decode(path, scratch)
}

impl Scratch {
    /// The bytes of the file last read.
    pub fn file(&self) -> &[u8] {
        &self.file
    }
}

/// Across, then down, as Pillow does: what the filter overshoots is cut off in between, so the order
/// shows at hard edges (by up to 6 of 255). One call would go down first, which is faster.
fn resize_as_pillow(
    path: &Path,
    scratch: &mut Scratch,
    (width, height): (u32, u32),
    window: Window,
    size: u32,
    out: &mut [u8],
) -> Result<(), DataError> {
    let (first, last) = window.rows_in_reach(height, size);
    let num_rows = last - first;
    let across = Window {
        top: f64::from(first),
        height: f64::from(num_rows),
        ..window
    };
    let down = Window {
        left: 0.0,
        top: window.top - f64::from(first),
        width: f64::from(size),
        height: window.height,
    };
    let Scratch {
        rgb, rows, resizer, ..
    } = scratch;
    rows.resize(size as usize * num_rows as usize * CHANNELS, 0);
    resize(
        path,
        resizer,
        (rgb, width, height),
        across,
        (rows, size, num_rows),
    )?;
    resize(
        path,
        resizer,
        (rows, size, num_rows),
        down,
        (out, size, size),
    )
}

fn resize(
    path: &Path,
    resizer: &mut Resizer,
    (source, source_width, source_height): (&[u8], u32, u32),
    window: Window,
    (target, target_width, target_height): (&mut [u8], u32, u32),
) -> Result<(), DataError> {
    let failed = |cause: &dyn std::fmt::Display| DataError::PictureBroken {
        path: path.to_owned(),
        cause: cause.to_string(),
    };
    // Typed: the untyped call would compile every kernel for every kind of pixel.
    let source = TypedImageRef::<U8x3>::from_buffer(source_width, source_height, source)
        .map_err(|cause| failed(&cause))?;
    let mut target = TypedImage::<U8x3>::from_buffer(target_width, target_height, target)
        .map_err(|cause| failed(&cause))?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom))
        .crop(window.left, window.top, window.width, window.height)
        .use_alpha(false);
    resizer
        .resize_typed(&source, &mut target, &options)
        .map_err(|cause| failed(&cause))
}

fn check_length(out: &[u8], size: u32) {
    let expected = size as usize * size as usize * CHANNELS;
    assert_eq!(out.len(), expected, "bytes of a picture of {size} x {size}");
}

fn mirror(pixels: &mut [u8], width: u32) {
    for row in pixels.chunks_exact_mut(width as usize * CHANNELS) {
        let (pixels, _) = row.as_chunks_mut::<CHANNELS>();
        pixels.reverse();
    }
}
