//! A file to RGB bytes, as Pillow's `convert("RGB")` gives them after `exif_transpose`: alpha is
//! dropped, palettes are looked up, of 16 bits the upper 8 are kept.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::error::ImageError;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, RgbImage};

use super::jpeg;
use super::refused::{Refusal, refused};
use super::tiff::TiffTags;
use super::webp::{self, CutShort};
use super::{CHANNELS, Limits, Scratch};
use crate::error::DataError;

/// Reads a picture into `scratch.rgb`, upright. Returns width and height.
pub(super) fn decode(path: &Path, scratch: &mut Scratch) -> Result<(u32, u32), DataError> {
    let mut file = std::mem::take(&mut scratch.file);
    let size = read_file(path, scratch.limits, &mut file)
        .and_then(|()| decode_bytes(path, &file, scratch));
    scratch.file = file;
    size
}

/// Reads a picture's bytes into `scratch.rgb`, upright; `path` is for messages.
pub(super) fn decode_bytes(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    contained(path, || {
        decode_or_panic(path, bytes, Depth::Upper8, scratch)
    })
}

/// As [`decode_bytes`], of a mask: what the upper 8 of 16 bits do not say is an error.
pub(super) fn decode_mask_bytes(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    contained(path, || decode_or_panic(path, bytes, Depth::Exact, scratch))
}

/// What becomes of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// The upper 8 are kept.
    Upper8,
    /// They must be 8 bits, widened.
    Exact,
}

/// A decoder that panics gives an error: one hostile file of a million must not end a run. What it leaves in the scratch
/// is overwritten by the next picture, so nothing half done is seen.
pub(super) fn contained<T>(
    path: &Path,
    attempt: impl FnOnce() -> Result<T, DataError>,
) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(DataError::PictureBroken {
            path: path.to_owned(),
            cause: format!(
                "bytes that its decoder fails on ({})",
                said.unwrap_or("no reason given")
            ),
        })
    })
}

fn decode_or_panic(
    path: &Path,
    bytes: &[u8],
    depth: Depth,
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    if let Some(Refusal { found, hint }) = refused(bytes) {
        return Err(DataError::PictureRefused {
            path: path.to_owned(),
            found,
            hint,
        });
    }
    if jpeg::is_jpeg(bytes) {
        let (width, height, orientation) = jpeg::decode(path, bytes, scratch)?;
        return Ok(turned(&mut scratch.rgb, width, height, orientation));
    }
    let failed = |cause: ImageError| broken(path, cause);
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|cause| failed(ImageError::IoError(cause)))?;
    let Some(format) = reader.format() else {
        return Err(DataError::NotAPicture {
            path: path.to_owned(),
            found: beginning(bytes),
        });
    };
    check_claims(path, bytes, format, scratch.limits)?;
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(scratch.limits.decoder_bytes(bytes.len()));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    check_size(path, width, height, scratch.limits)?;
    let orientation = decoder.orientation().map_err(failed)?;
    let color = decoder.color_type();
    let num_bytes = decoder.total_bytes() as usize;
    let straight = color == ColorType::Rgb8;
    let target = if straight {
        &mut scratch.rgb
    } else {
        &mut scratch.decoded
    };
    target.resize(num_bytes, 0);
    decoder.read_image(target).map_err(failed)?;
    if depth == Depth::Exact {
        check_depth(path, &scratch.decoded, color, width)?;
    }
    if !straight && !to_rgb(&scratch.decoded, color, &mut scratch.rgb) {
        return Err(DataError::PictureBroken {
            path: path.to_owned(),
            cause: format!("colours of type {color:?}"),
        });
    }
    Ok(turned(&mut scratch.rgb, width, height, orientation))
}

/// Reads a file whole, up to what is allowed.
pub(super) fn read_file(path: &Path, limits: Limits, bytes: &mut Vec<u8>) -> Result<(), DataError> {
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => DataError::PictureMissing {
            path: path.to_owned(),
        },
        _ => DataError::Io {
            path: path.to_owned(),
            action: "read the picture",
            cause,
        },
    };
    bytes.clear();
    let file = File::open(path).map_err(failed)?;
    file.take(limits.most_file_bytes.saturating_add(1))
        .read_to_end(bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limits.most_file_bytes {
        return Err(DataError::PictureFileTooLarge {
            path: path.to_owned(),
            most_bytes: limits.most_file_bytes,
        });
    }
    Ok(())
}

/// Checks what decoders believe before they are told any limits.
fn check_claims(
    path: &Path,
    bytes: &[u8],
    format: ImageFormat,
    limits: Limits,
) -> Result<(), DataError> {
    let path_of = || path.to_owned();
    match format {
        ImageFormat::WebP => match webp::largest_frame(bytes) {
            Ok((0, _) | (_, 0)) => Ok(()),
            Ok((width, height)) => check_size(path, width, height, limits),
            Err(CutShort) => Err(DataError::PictureTruncated { path: path_of() }),
        },
        ImageFormat::Tiff => {
            let num_values = TiffTags::new(bytes).map_or(0, |tags| tags.most_values());
            // A strip or a tile each: of one row, or of more than a few pixels.
            let most_values = limits.most_pixels / 256 + u64::from(u16::MAX);
            if u64::from(num_values) <= most_values {
                return Ok(());
            }
            Err(DataError::PictureBroken {
                path: path_of(),
                cause: format!("a tag of {num_values} values"),
            })
        }
        _ => Ok(()),
    }
}

pub(super) fn check_size(
    path: &Path,
    width: u32,
    height: u32,
    limits: Limits,
) -> Result<(), DataError> {
    let path = path.to_owned();
    if width == 0 || height == 0 {
        return Err(DataError::PictureEmpty {
            path,
            width,
            height,
        });
    }
    if u64::from(width) * u64::from(height) > limits.most_pixels {
        return Err(DataError::PictureTooLarge {
            path,
            width,
            height,
            most_pixels: limits.most_pixels,
        });
    }
    Ok(())
}

/// Of 16 bits the upper 8 say it all where both are equal, as in 0 and 65535.
fn check_depth(path: &Path, decoded: &[u8], color: ColorType, width: u32) -> Result<(), DataError> {
    let num_channels = match color {
        ColorType::L16 | ColorType::Rgb16 | ColorType::La16 | ColorType::Rgba16 => {
            usize::from(color.channel_count())
        }
        _ => return Ok(()),
    };
    let num_colours = num_channels - usize::from(color.has_alpha());
    let (samples, _) = decoded.as_chunks::<2>();
    let is_lost =
        |(at, [high, low]): &(usize, &[u8; 2])| at % num_channels < num_colours && high != low;
    match samples.iter().enumerate().find(is_lost) {
        None => Ok(()),
        Some((at, sample)) => {
            let pixel = (at / num_channels) as u32;
            Err(DataError::MaskValue {
                path: path.to_owned(),
                value: u16::from_ne_bytes(*sample),
                white: u16::MAX,
                x: pixel % width,
                y: pixel / width,
            })
        }
    }
}

fn broken(path: &Path, cause: ImageError) -> DataError {
    let path = path.to_owned();
    match cause {
        ImageError::IoError(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
            DataError::PictureTruncated { path }
        }
        cause => DataError::PictureBroken {
            path,
            cause: cause.to_string(),
        },
    }
}

/// What a file that is no picture begins with, as far as it can be shown.
fn beginning(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "an empty file".to_owned();
    }
    let shown = bytes.iter().take(16).copied();
    let shown: String = shown
        .flat_map(std::ascii::escape_default)
        .map(char::from)
        .collect();
    format!("a file that begins with `{shown}`")
}

/// Converts to RGB8; false for colours that no decoder here gives.
fn to_rgb(decoded: &[u8], color: ColorType, rgb: &mut Vec<u8>) -> bool {
    rgb.clear();
    let upper = |pair: [u8; 2]| (u16::from_ne_bytes(pair) >> 8) as u8;
    match color {
        ColorType::L8 => rgb.extend(decoded.iter().flat_map(|&grey| [grey; CHANNELS])),
        ColorType::La8 => extend(rgb, decoded, |[grey, _]: [u8; 2]| [grey; CHANNELS]),
        ColorType::Rgba8 => extend(rgb, decoded, |[r, g, b, _]: [u8; 4]| [r, g, b]),
        ColorType::L16 => extend(rgb, decoded, |grey: [u8; 2]| [upper(grey); CHANNELS]),
        ColorType::La16 => extend(rgb, decoded, |[a, b, ..]: [u8; 4]| {
            [upper([a, b]); CHANNELS]
        }),
        ColorType::Rgb16 => extend(rgb, decoded, |p: [u8; 6]| {
            [
                upper([p[0], p[1]]),
                upper([p[2], p[3]]),
                upper([p[4], p[5]]),
            ]
        }),
        ColorType::Rgba16 => extend(rgb, decoded, |p: [u8; 8]| {
            [
                upper([p[0], p[1]]),
                upper([p[2], p[3]]),
                upper([p[4], p[5]]),
            ]
        }),
        _ => return false,
    }
    true
}

pub(super) fn extend<const N: usize>(
    rgb: &mut Vec<u8>,
    decoded: &[u8],
    convert: impl Fn([u8; N]) -> [u8; CHANNELS],
) {
    let (pixels, _) = decoded.as_chunks::<N>();
    rgb.extend(pixels.iter().flat_map(|pixel| convert(*pixel)));
}

/// Turns pixels upright. Most are: those stay where they are.
fn turned(rgb: &mut Vec<u8>, width: u32, height: u32, orientation: Orientation) -> (u32, u32) {
    if orientation == Orientation::NoTransforms {
        return (width, height);
    }
    let Some(image) = RgbImage::from_raw(width, height, std::mem::take(rgb)) else {
        return (width, height);
    };
    let mut image = DynamicImage::from(image);
    image.apply_orientation(orientation);
    let size = (image.width(), image.height());
    *rgb = image.into_bytes();
    size
}
