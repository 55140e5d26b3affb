//! Reads a sample's files at their own size, as pixels and classes: the input of evaluation and prediction, and of the rows for training.
//!
//! Pictures are turned upright as their EXIF says. A mask seldom has EXIF of its own: it is turned with its picture if it has the size of
//! the picture's file. A mask that only has the size of the upright picture was drawn on that and stays. Predictions are turned back
//! (`in_file`), so that their files align with the picture's file, like those of annotators.

use std::path::Path;

use image::metadata::Orientation;

use super::coding::MaskCoding;
use super::row::IGNORED;
use crate::decode::PixelDepth;
use crate::decode::{Native, ReadAs, Scratch, WholePicture, read_native, turned};
use crate::error::DataError;
use crate::samples::Samples;

/// Reads a sample with the channels and bits of a model. The mask is `None` without a `coding` or a mask file.
pub fn read_whole(
    samples: &Samples,
    sample: usize,
    channels: usize,
    depth: PixelDepth,
    coding: Option<&MaskCoding>,
    scratch: &mut Scratch,
) -> Result<WholePicture, DataError> {
    let mut whole = WholePicture {
        channels,
        depth,
        ..WholePicture::default()
    };
    let mut buffer = Vec::new();
    read_into(samples, sample, coding, scratch, &mut buffer, &mut whole)?;
    Ok(whole)
}

/// Like [`read_whole`], into `whole`, which sets the channels and bits.
pub(super) fn read_into(
    samples: &Samples,
    sample: usize,
    coding: Option<&MaskCoding>,
    scratch: &mut Scratch,
    buffer: &mut Vec<u8>,
    whole: &mut WholePicture,
) -> Result<(), DataError> {
    let image = samples.image_path(sample);
    let num_files = 1 + samples.further_image_paths(sample).count();
    let per_file = match whole.channels / num_files {
        channels @ (1 | 3) if channels * num_files == whole.channels => channels,
        _ => {
            return Err(DataError::invalid(
                image.display(),
                format_args!("{} channels in all, 1 or 3 from each file", whole.channels),
                format_args!("{num_files} files"),
                "give as many channel files as the model has channels",
            ));
        }
    };
    let native = read_native(&image, ReadAs::Picture, scratch, buffer)?;
    (whole.width, whole.height) = (native.width as usize, native.height as usize);
    whole.turn = Some(native.orientation).filter(|turn| *turn != Orientation::NoTransforms);
    if num_files == 1 && (native.channels, native.depth) == (per_file, whole.depth) {
        std::mem::swap(&mut whole.pixels, buffer);
    } else {
        let num_bytes = whole.num_pixels() * whole.channels * whole.depth.bytes();
        whole.pixels.clear();
        whole.pixels.resize(num_bytes, 0);
        interleave(buffer, native, per_file, 0, whole);
        for (at, path) in samples.further_image_paths(sample).enumerate() {
            let further = read_native(&path, ReadAs::Picture, scratch, buffer)?;
            check_size(&path, further, &image, native)?;
            interleave(buffer, further, per_file, (at + 1) * per_file, whole);
        }
    }
    let (Some(coding), Some(path)) = (coding, samples.mask_path(sample)) else {
        whole.mask = None;
        return Ok(());
    };
    let mask = read_native(&path, coding.read_as(), scratch, buffer)?;
    let turn = native.turn_of(&mask);
    if turn == Orientation::NoTransforms {
        check_size(&path, mask, &image, native)?;
    }
    let mut classes = whole.mask.take().unwrap_or_default();
    classes.resize(mask.num_pixels(), 0);
    coding.encode(&path, buffer, mask, &mut classes)?;
    turned(&mut classes, mask.of_bytes(), turn);
    if let Some(path) = samples.field_of_view_path(sample) {
        let field = read_native(&path, ReadAs::Mask, scratch, buffer)?;
        let field = turned(buffer, field, native.turn_of(&field));
        check_size(&path, field, &image, native)?;
        leave_out_outside(buffer, field, &mut classes);
    }
    whole.mask = Some(classes);
    Ok(())
}

fn check_size(path: &Path, found: Native, image: &Path, expected: Native) -> Result<(), DataError> {
    let size = |native: Native| (native.width, native.height);
    if size(found) == size(expected) {
        return Ok(());
    }
    Err(DataError::invalid(
        path.display(),
        format_args!(
            "the {} x {} pixels of its image {}",
            expected.width,
            expected.height,
            image.display()
        ),
        format_args!("{} x {}", found.width, found.height),
        "export it at the size of its image, without scaling",
    ))
}

/// Writes the channels of a file into those of its picture, from `first` on. Grey is repeated, colours become grey with Pillow's weights; 8
/// bits become 16 by a factor of 257, and 16 become 8 rounded.
fn interleave(
    pixels: &[u8],
    native: Native,
    per_file: usize,
    first: usize,
    whole: &mut WholePicture,
) {
    let bytes = native.depth.bytes();
    let wide = |pixel: &[u8], channel: usize| match native.depth {
        PixelDepth::Eight => u16::from(pixel[channel]) * 257,
        PixelDepth::Sixteen => u16::from_le_bytes([pixel[2 * channel], pixel[2 * channel + 1]]),
    };
    let value = |pixel: &[u8], channel: usize| match (native.channels, per_file) {
        (1, _) => wide(pixel, 0),
        (_, 1) => {
            let [r, g, b] = [0, 1, 2].map(|channel| u32::from(wide(pixel, channel)));
            ((r * 19595 + g * 38470 + b * 7471 + (1 << 15)) >> 16) as u16
        }
        _ => wide(pixel, channel),
    };
    let (depth, channels) = (whole.depth, whole.channels);
    let out_bytes = depth.bytes();
    let sources = pixels.chunks_exact(native.channels * bytes);
    let targets = whole.pixels.chunks_exact_mut(channels * out_bytes);
    for (source, target) in sources.zip(targets) {
        for channel in 0..per_file {
            let value = value(source, channel);
            let at = (first + channel) * out_bytes;
            match depth {
                PixelDepth::Eight => target[at] = ((u32::from(value) + 128) / 257) as u8,
                PixelDepth::Sixteen => target[at..at + 2].copy_from_slice(&value.to_le_bytes()),
            }
        }
    }
}

/// Ignores the classes of pixels where the field of view has less than half of its brightest value.
fn leave_out_outside(pixels: &[u8], native: Native, classes: &mut [u8]) {
    let bytes = native.depth.bytes();
    let value = |pixel: &[u8]| match native.depth {
        PixelDepth::Eight => u32::from(pixel[0]),
        PixelDepth::Sixteen => u32::from(u16::from_le_bytes([pixel[0], pixel[1]])),
    };
    let pixels = || pixels.chunks_exact(native.channels * bytes).map(value);
    let brightest = pixels().max().unwrap_or(0);
    for (value, class) in pixels().zip(classes) {
        if 2 * value < brightest || value == 0 {
            *class = IGNORED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_turned_upright_and_back_is_the_file() {
        let file: Vec<u8> = (0..24).collect();
        for number in 1..=8 {
            let turn = Orientation::from_exif(number).unwrap();
            let mut pixels = file.clone();
            let native = Native::upright(4, 3, 2, PixelDepth::Eight);
            let upright = turned(&mut pixels, native, turn);
            let picture = WholePicture {
                width: upright.width as usize,
                height: upright.height as usize,
                turn: Some(turn),
                ..WholePicture::default()
            };
            let (found, size) = picture.in_file(&pixels, 2);
            assert_eq!((&*found, size), (&file[..], [3, 4]), "orientation {number}");
        }
    }
}
