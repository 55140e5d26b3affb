//! Resizes pictures to the size of a model, and the model's probabilities back to the size of the picture.
//!
//! Pixels and probabilities use Pillow's and torchvision's bilinear filter, widened where a picture shrinks, so that thin vessels fade
//! instead of breaking up; masks use the nearest pixel.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{F32, U8, U8x3, U16};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::row::RowShape;
use crate::decode::PixelDepth;
use crate::decode::WholePicture;

type Size = (usize, usize);

/// Resizes the pixels of a picture to those of a row.
///
/// # Panics
/// If channels or bits differ, or the length of `out` is not that of [`RowShape::pixels`].
pub fn resize_pixels(
    picture: &WholePicture,
    shape: RowShape,
    resizer: &mut Resizer,
    out: &mut [u8],
) {
    check_kind(picture, shape, out);
    let from = (picture.width, picture.height);
    let to = (shape.width, shape.height);
    if from == to {
        out.copy_from_slice(&picture.pixels);
        return;
    }
    match (shape.depth, shape.channels) {
        (PixelDepth::Eight, 1) => resize_bytes::<U8>(resizer, &picture.pixels, from, out, to),
        (PixelDepth::Eight, 3) => resize_bytes::<U8x3>(resizer, &picture.pixels, from, out, to),
        (depth, channels) => {
            for channel in 0..channels {
                resize_channel(
                    resizer,
                    &picture.pixels,
                    from,
                    (depth, channels, channel),
                    out,
                    to,
                );
            }
        }
    }
}

/// Resizes a mask: each pixel gets the class under its middle.
///
/// # Panics
/// If lengths are not those of the sizes.
pub fn resize_mask(
    mask: &[u8],
    (width, height): Size,
    (to_width, to_height): Size,
    out: &mut [u8],
) {
    assert_eq!(
        (mask.len(), out.len()),
        (width * height, to_width * to_height),
        "classes of a mask"
    );
    // In integers: (2 x + 1) * width / (2 * to_width), exact on every machine.
    let place = |at: usize, side: usize, to: usize| ((2 * at + 1) * side) / (2 * to);
    let columns: Vec<usize> = (0..to_width).map(|x| place(x, width, to_width)).collect();
    for (y, line) in out.chunks_exact_mut(to_width).enumerate() {
        let start = place(y, height, to_height) * width;
        let source = &mask[start..start + width];
        for (class, column) in line.iter_mut().zip(&columns) {
            *class = source[*column];
        }
    }
}

/// Resizes probabilities `[height, width, outputs]` from a model's size to a picture's size, bilinear.
///
/// # Panics
/// If `probabilities` has another length.
pub fn probabilities_to_native(
    probabilities: &[f32],
    num_outputs: usize,
    from: Size,
    to: Size,
    resizer: &mut Resizer,
) -> Vec<f32> {
    assert_eq!(
        probabilities.len(),
        from.0 * from.1 * num_outputs,
        "probabilities"
    );
    if from == to {
        return probabilities.to_vec();
    }
    let mut out = vec![0.0; to.0 * to.1 * num_outputs];
    let mut target = vec![F32::new(0.0); to.0 * to.1];
    for output in 0..num_outputs {
        let values = probabilities.iter().skip(output).step_by(num_outputs);
        let source: Vec<F32> = values.map(|value| F32::new(*value)).collect();
        resize_typed(resizer, &source, from, &mut target, to);
        for (value, out) in target
            .iter()
            .zip(out.iter_mut().skip(output).step_by(num_outputs))
        {
            *out = value.0;
        }
    }
    out
}

fn check_kind(picture: &WholePicture, shape: RowShape, out: &[u8]) {
    assert_eq!(
        (picture.channels, picture.depth),
        (shape.channels, shape.depth),
        "kind of pixels"
    );
    assert_eq!(out.len(), shape.pixels().len(), "bytes of a row's pixels");
}

/// Resizes one channel of several, or one of 16 bits.
fn resize_channel(
    resizer: &mut Resizer,
    pixels: &[u8],
    from: Size,
    (depth, channels, channel): (PixelDepth, usize, usize),
    out: &mut [u8],
    to: Size,
) {
    match depth {
        PixelDepth::Eight => {
            let values = pixels.iter().skip(channel).step_by(channels);
            let source: Vec<U8> = values.map(|value| U8::new(*value)).collect();
            let mut target = vec![U8::new(0); to.0 * to.1];
            resize_typed(resizer, &source, from, &mut target, to);
            let out = out.iter_mut().skip(channel).step_by(channels);
            for (out, value) in out.zip(&target) {
                *out = value.0;
            }
        }
        PixelDepth::Sixteen => {
            let (pixels, _) = pixels.as_chunks::<2>();
            let values = pixels.iter().skip(channel).step_by(channels);
            let source: Vec<U16> = values
                .map(|value| U16::new(u16::from_le_bytes(*value)))
                .collect();
            let mut target = vec![U16::new(0); to.0 * to.1];
            resize_typed(resizer, &source, from, &mut target, to);
            let (out, _) = out.as_chunks_mut::<2>();
            let out = out.iter_mut().skip(channel).step_by(channels);
            for (out, value) in out.zip(&target) {
                *out = value.0.to_le_bytes();
            }
        }
    }
}

/// Resizes pixels stored as bytes: any buffer is aligned.
fn resize_bytes<P: PixelTrait>(
    resizer: &mut Resizer,
    source: &[u8],
    from: Size,
    target: &mut [u8],
    to: Size,
) {
    let source = TypedImageRef::<P>::from_buffer(from.0 as u32, from.1 as u32, source);
    let target = TypedImage::<P>::from_buffer(to.0 as u32, to.1 as u32, target);
    let (Ok(source), Ok(mut target)) = (source, target) else {
        unreachable!("lengths are those of the sizes, and bytes are aligned");
    };
    run(resizer, &source, &mut target);
}

fn resize_typed<P: PixelTrait>(
    resizer: &mut Resizer,
    source: &[P],
    from: Size,
    target: &mut [P],
    to: Size,
) {
    let source = TypedImageRef::new(from.0 as u32, from.1 as u32, source);
    let target = TypedImage::from_pixels_slice(to.0 as u32, to.1 as u32, target);
    let (Ok(source), Ok(mut target)) = (source, target) else {
        unreachable!("lengths are those of the sizes");
    };
    run(resizer, &source, &mut target);
}

fn run<P: PixelTrait>(
    resizer: &mut Resizer,
    source: &TypedImageRef<'_, P>,
    target: &mut TypedImage<'_, P>,
) {
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .use_alpha(false);
    let resized = resizer.resize_typed(source, target, &options);
    resized.expect("no crop is asked for, so none is outside");
}

#[cfg(test)]
mod tests;
