//! PNG to its native pixels with the `png` crate: `image` expands every palette, and a mask's classes are the palette indices.

use std::io::Cursor;
use std::path::Path;

use image::metadata::Orientation;
use png::{BitDepth, ColorType, Decoder, DecodingError, Transformations};

use super::Limits;
use super::decode::{check_size, zeroed};
use super::native::{Native, PixelDepth, ReadAs, drop_alpha, turned};
use crate::error::DataError;

/// Decodes the picture, or the first frame of an animation, into `pixels`.
pub(super) fn decode(
    path: &Path,
    bytes: &[u8],
    read_as: ReadAs,
    limits: Limits,
    pixels: &mut Vec<u8>,
) -> Result<Native, DataError> {
    let failed = |cause: DecodingError| broken(path, cause);
    let most_bytes = limits.decoder_bytes(bytes).max(64 << 10) as usize;
    let mut decoder =
        Decoder::new_with_limits(Cursor::new(bytes), png::Limits { bytes: most_bytes });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(failed)?;
    let (width, height) = (header.width, header.height);
    let is_indexed = header.color_type == ColorType::Indexed;
    check_size(path, width, height, limits)?;
    if !is_indexed {
        decoder.set_transformations(Transformations::EXPAND);
    }
    let mut reader = decoder.read_info().map_err(failed)?;
    let num_bytes = reader.output_buffer_size().filter(|bytes| {
        // The largest pixel has four channels of 16 bits.
        *bytes as u64 <= u64::from(width) * u64::from(height) * 8
    });
    let num_bytes = num_bytes.ok_or_else(|| failed(DecodingError::LimitsExceeded))?;
    zeroed(pixels, num_bytes);
    let frame = reader.next_frame(pixels).map_err(failed)?;
    if (frame.width, frame.height) != (width, height) {
        let found = "an animation whose first frame is not the whole picture";
        return Err(DataError::broken_picture(path, found));
    }
    let info = reader.info();
    let orientation = (info.exif_metadata.as_ref())
        .and_then(|exif| Orientation::from_exif_chunk(exif))
        .unwrap_or(Orientation::NoTransforms);
    let depth = match frame.bit_depth {
        BitDepth::Sixteen => PixelDepth::Sixteen,
        _ => PixelDepth::Eight,
    };
    if depth == PixelDepth::Sixteen {
        for pair in pixels.as_chunks_mut::<2>().0 {
            pair.swap(0, 1);
        }
    }
    let channels = match frame.color_type {
        ColorType::Rgb | ColorType::Rgba => 3,
        _ => 1,
    };
    let native = Native::upright(width, height, channels, depth);
    let native = if is_indexed {
        unpack(pixels, frame.line_size, frame.bit_depth, native);
        let palette = info.palette.as_deref().unwrap_or(&[]);
        look_up(path, pixels, palette, read_as, native)?
    } else {
        drop_alpha(pixels, frame.color_type.samples(), native);
        native
    };
    Ok(turned(pixels, native, orientation))
}

fn broken(path: &Path, cause: DecodingError) -> DataError {
    match cause {
        DecodingError::IoError(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
            DataError::PictureTruncated {
                path: path.to_owned(),
            }
        }
        cause => DataError::broken_picture(path, cause),
    }
}

/// Expands indices of 1, 2 or 4 bits to one byte each.
fn unpack(pixels: &mut Vec<u8>, line_bytes: usize, depth: BitDepth, native: Native) {
    let bits = depth as usize;
    if bits == 8 {
        return;
    }
    let packed = std::mem::take(pixels);
    let width = native.width as usize;
    pixels.reserve_exact(native.num_pixels());
    for line in packed.chunks_exact(line_bytes).take(native.height as usize) {
        pixels.extend((0..width).map(|x| {
            let at = x * bits;
            line[at / 8] >> (8 - bits - at % 8) & ((1 << bits) - 1) as u8
        }));
    }
}

/// Replaces palette indices by their colours.
fn look_up(
    path: &Path,
    pixels: &mut Vec<u8>,
    palette: &[u8],
    read_as: ReadAs,
    native: Native,
) -> Result<Native, DataError> {
    let (colours, _) = palette.as_chunks::<3>();
    let most = pixels.iter().copied().max().unwrap_or(0);
    if usize::from(most) >= colours.len() {
        let found = format!("colour {most} of a palette of {}", colours.len());
        return Err(DataError::broken_picture(path, found));
    }
    let is_grey = colours.iter().all(|[r, g, b]| r == g && g == b);
    match read_as {
        ReadAs::Mask if !is_grey => {
            return Ok(Native {
                is_indexed: true,
                ..native
            });
        }
        ReadAs::Mask => {
            for pixel in pixels.iter_mut() {
                *pixel = colours[usize::from(*pixel)][0];
            }
            return Ok(native);
        }
        ReadAs::Picture | ReadAs::ColourMask => {}
    }
    let mut rgb = Vec::with_capacity(3 * pixels.len());
    for index in pixels.iter() {
        rgb.extend_from_slice(&colours[usize::from(*index)]);
    }
    *pixels = rgb;
    Ok(Native {
        channels: 3,
        ..native
    })
}
