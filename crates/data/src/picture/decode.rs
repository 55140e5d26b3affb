//! A file to RGB bytes, as Pillow's `convert("RGB")` gives them after `exif_transpose`: alpha is
//! dropped, palettes are looked up, of 16 bits the upper 8 are kept.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::error::ImageError;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageReader, RgbImage};

use super::jpeg;
use super::refused::{Refusal, refused};
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
///
/// A decoder that panics is contained: one hostile file of a million must not end a run. What it leaves in the scratch
/// is overwritten by the next picture.
pub(super) fn decode_bytes(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    let attempt = AssertUnwindSafe(|| decode_or_panic(path, bytes, scratch));
    catch_unwind(attempt).unwrap_or_else(|panic| {
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
    if reader.format().is_none() {
        return Err(DataError::NotAPicture {
            path: path.to_owned(),
            found: beginning(bytes),
        });
    };
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
