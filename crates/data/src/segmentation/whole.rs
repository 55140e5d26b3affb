//! A sample's files to pixels and classes at their own size: what evaluation and prediction look at, and what rows are made of.
//!
//! Pictures are turned upright as their EXIF says, and their masks with them: a mask seldom has EXIF of its own, and where it has the size of
//! the turned picture alone, it was drawn on that and stays as it is. What is predicted goes the way back (`in_file`), so that its files lie on
//! the picture's file as those of annotators do.

use std::borrow::Cow;
use std::path::Path;

use image::metadata::Orientation;

use super::coding::MaskCoding;
use super::row::{IGNORED, PixelDepth};
use crate::error::DataError;
use crate::picture::{Native, ReadAs, Scratch, is_on_its_side, place_in_file, read_native, turned};
use crate::samples::Samples;

/// A picture at its own size, and the classes of its pixels where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholePicture {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Bits of a channel.
    pub depth: PixelDepth,
    /// Rows from the top, channels side by side; 16 bits with the lower byte first.
    pub pixels: Vec<u8>,
    /// A class for each pixel, 255 where none counts.
    pub mask: Option<Vec<u8>>,
    /// How the file was turned to be upright, if it was.
    pub turn: Option<Orientation>,
}

impl WholePicture {
    /// Red, green and blue of a pixel in 8 bits; of one channel, that one three times.
    pub(crate) fn rgb(&self, column: usize, row: usize) -> [u8; 3] {
        let bytes = self.depth.bytes();
        let pixel = (row * self.width + column) * self.channels * bytes;
        [0, 1, 2].map(|channel| {
            let channel = if self.channels < 3 { 0 } else { channel };
            // The upper byte comes last.
            self.pixels[pixel + channel * bytes + bytes - 1]
        })
    }

    /// Values of the pixels, so many for each, as they lie in the file, with its height and width.
    pub fn in_file<'a, T: Copy>(
        &self,
        values: &'a [T],
        per_pixel: usize,
    ) -> (Cow<'a, [T]>, [usize; 2]) {
        let Some(turn) = self.turn else {
            return (Cow::Borrowed(values), [self.height, self.width]);
        };
        let [height, width] = if is_on_its_side(turn) {
            [self.width, self.height]
        } else {
            [self.height, self.width]
        };
        let place = place_in_file(turn);
        let mut lying = values.to_vec();
        for (at, pixel) in values.chunks_exact(per_pixel).enumerate() {
            let (column, row) = place(at % self.width, at / self.width, width, height);
            lying[(row * width + column) * per_pixel..][..per_pixel].copy_from_slice(pixel);
        }
        (Cow::Owned(lying), [height, width])
    }

    /// Width times height.
    pub fn num_pixels(&self) -> usize {
        self.width * self.height
    }
}

/// Reads a sample with the channels and bits that a model has. Without a `coding`, or without a mask, there is no mask.
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

/// As [`read_whole`], over what `whole` held, with its channels and bits.
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

/// Writes the channels of a file among those of its picture, from `first` on. Grey is repeated, colours become grey as Pillow weighs them; 8
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

/// Pixels of less than half of the brightest are outside.
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
