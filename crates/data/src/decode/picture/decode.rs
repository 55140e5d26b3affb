//! A file to RGB bytes, equal to Pillow's `convert("RGB")` after `exif_transpose`: alpha is dropped, palettes are expanded,
//! and 16-bit values keep their upper 8 bits.

use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::error::ImageError;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, RgbImage};

use super::header::{Cost, FileBytes, Header};
use super::jpeg::{self, HeightField};
use super::refused::{Refusal, refused};
use super::tiff::TiffTags;
use super::webp::{self, CutShort};
use super::{CHANNELS, Framing, Limits, Scratch};
use crate::error::DataError;
use crate::stored_file::StoredFile;

/// Decodes a picture into `scratch.rgb`, upright. Returns width and height. A `framing` sets how far a JPEG may be reduced and the memory
/// for resizing. Rows past `rows_needed(width, height)` may hold anything.
pub(super) fn decode(
    path: &Path,
    framing: Option<Framing>,
    rows_needed: impl Fn(u32, u32) -> u32,
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    let limits = scratch.limits;
    let decoded = read_file(path, framing, scratch).and_then(|()| {
        let mut file = std::mem::take(&mut scratch.file);
        let decoded = match decode_upper_rows(path, &mut file, rows_needed, scratch) {
            Some(size) => Ok(size),
            None => decode_bytes(path, &file, scratch),
        };
        scratch.file = file;
        decoded
    });
    scratch.limits = limits;
    decoded
}

/// Decodes a JPEG down to the last row that is needed. `None` where the file cannot be cut, where that would save little, or where decoding
/// fails: then decoding the whole file gives the error.
fn decode_upper_rows(
    path: &Path,
    file: &mut [u8],
    rows_needed: impl Fn(u32, u32) -> u32,
    scratch: &mut Scratch,
) -> Option<(u32, u32)> {
    if !jpeg::is_jpeg(file) || refused(file).is_some() {
        return None;
    }
    let field = HeightField::find(file)?;
    let (width, height) = field.size;
    if width == 0 || height == 0 || scratch.needed.divisor(width, height) != 1 {
        return None;
    }
    let rows = field.rows_to_decode(rows_needed(width, height))?;
    if !jpeg::is_upright(file) {
        return None;
    }
    check_size(path, width, height, scratch.limits).ok()?;
    let num_bytes = width as usize * height as usize * CHANNELS;
    // Sized for all rows at once, so that the missing rows need no second buffer.
    sized(&mut scratch.rgb, num_bytes);
    field.set(file, rows);
    let decoded = decode_bytes(path, file, scratch);
    field.set(file, height);
    if decoded.ok()? != (width, rows) {
        return None;
    }
    scratch.rgb.resize(num_bytes, 0);
    Some((width, height))
}

/// Decodes a picture's bytes into `scratch.rgb`, upright; `path` is for messages.
pub(super) fn decode_bytes(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(u32, u32), DataError> {
    let (width, height) = contained(path, || decode_or_panic(path, bytes, scratch))?;
    scratch.num_pixels += u64::from(width) * u64::from(height);
    Ok((width, height))
}

/// Turns a decoder's panic into an error: one hostile file of a million must not end a run. The next picture overwrites
/// whatever the decoder left in the scratch buffers.
pub(crate) fn contained<T>(
    path: &Path,
    attempt: impl FnOnce() -> Result<T, DataError>,
) -> Result<T, DataError> {
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(DataError::broken_picture(
            path,
            format!(
                "bytes that its decoder fails on ({})",
                said.unwrap_or("no reason given")
            ),
        ))
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
        scratch.orientation = Some(orientation);
        return Ok(turned(&mut scratch.rgb, width, height, orientation));
    }
    let failed = |cause: ImageError| broken(path, cause);
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|cause| failed(ImageError::IoError(cause)))?;
    // The bytes `P5` alone make no PNM.
    let is_picture =
        |format: &ImageFormat| *format != ImageFormat::Pnm || Header::of(bytes).is_some();
    let Some(format) = reader.format().filter(is_picture) else {
        return Err(not_a_picture(path, bytes));
    };
    check_claims(path, bytes, format, scratch.limits)?;
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(scratch.limits.decoder_bytes(bytes));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    check_size(path, width, height, scratch.limits)?;
    let orientation = decoder.orientation().map_err(failed)?;
    scratch.orientation = Some(orientation);
    let color = decoder.color_type();
    let num_pixels = width as usize * height as usize;
    let num_bytes = decoder.total_bytes() as usize;
    let rgb = &mut scratch.rgb;
    zeroed(rgb, num_bytes.max(num_pixels * CHANNELS));
    // Decoded at the end of the buffer, so that narrow pixels can be widened in place.
    let start = rgb.len() - num_bytes;
    decoder.read_image(&mut rgb[start..]).map_err(failed)?;
    if !to_rgb(rgb, start, color, num_pixels) {
        return Err(DataError::broken_picture(
            path,
            format!("colours of type {color:?}"),
        ));
    }
    Ok(turned(rgb, width, height, orientation))
}

/// Resizes a buffer to exactly `num_bytes` zeros: a decoder may leave pixels out.
pub(super) fn zeroed(buffer: &mut Vec<u8>, num_bytes: usize) {
    buffer.clear();
    sized(buffer, num_bytes);
}

/// Resizes a buffer to exactly `num_bytes` for a caller that writes all of it. Growing it would hold the old buffer beside the new one, and
/// round up.
pub(super) fn sized(buffer: &mut Vec<u8>, num_bytes: usize) {
    if buffer.capacity() < num_bytes {
        *buffer = Vec::new();
        *buffer = vec![0; num_bytes];
    } else {
        buffer.resize(num_bytes, 0);
    }
}

/// Opened file, its length and its header; no header where it is no supported picture.
pub(super) fn header_of(
    path: &Path,
    limits: Limits,
) -> Result<(StoredFile, u64, Option<Header>), DataError> {
    let mut file = StoredFile::open(path).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => DataError::PictureMissing {
            path: path.to_owned(),
        },
        io::ErrorKind::InvalidInput => DataError::PictureNotAFile {
            path: path.to_owned(),
            cause: cause.to_string(),
        },
        io::ErrorKind::UnexpectedEof => DataError::PictureTruncated {
            path: path.to_owned(),
        },
        _ => unread(path, cause),
    })?;
    let file_bytes = file.num_bytes();
    if file_bytes > limits.most_file_bytes {
        return Err(DataError::PictureFileTooLarge {
            path: path.to_owned(),
            most_bytes: limits.most_file_bytes,
        });
    }
    let header = Header::of(&FileBytes::new(&mut file));
    Ok((file, file_bytes, header))
}

/// Claims the memory for a picture and reads its file into `scratch.file`. Until it is decoded, the limits are those of its header.
pub(super) fn read_file(
    path: &Path,
    framing: Option<Framing>,
    scratch: &mut Scratch,
) -> Result<(), DataError> {
    let (mut file, file_bytes, header) = header_of(path, scratch.limits)?;
    let header_size = header.map_or((0, 0), |header| (header.width, header.height));
    let cost = match header {
        Some(header) => {
            check_size(path, header.width, header.height, scratch.limits)?;
            header.cost(file_bytes, framing, scratch.needed)
        }
        None => Cost::of_no_picture(file_bytes),
    };
    scratch
        .make_room(cost)
        .map_err(|refused| DataError::PictureOverBudget {
            path: path.to_owned(),
            width: header_size.0,
            height: header_size.1,
            needed_bytes: cost.total(),
            allowed_bytes: refused.allowed_bytes,
        })?;
    scratch.limits.most_pixels = match header {
        Some(header) => header.num_pixels(),
        None => scratch.limits.most_pixels.min(Cost::UNKNOWN_PIXELS),
    };
    sized(&mut scratch.file, cost.file as usize);
    let mut num_read = 0;
    let failed = |cause| unread(path, cause);
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    while num_read < scratch.file.len() {
        match file.read(&mut scratch.file[num_read..]) {
            // The file has shrunk since: the decoder will report that it is cut short.
            Ok(0) => break,
            Ok(more) => num_read += more,
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(failed(cause)),
        }
    }
    scratch.file.truncate(num_read);
    Ok(())
}

pub(super) fn not_a_picture(path: &Path, bytes: &[u8]) -> DataError {
    DataError::NotAPicture {
        path: path.to_owned(),
        found: beginning(bytes),
    }
}

pub(super) fn unread(path: &Path, cause: io::Error) -> DataError {
    DataError::Io {
        path: path.to_owned(),
        action: "read the picture",
        cause,
    }
}

/// Checks the sizes in a file that decoders trust before their limits apply.
pub(super) fn check_claims(
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
            // One value per strip or tile: each has a row or at least some pixels.
            let most_values = limits.most_pixels / 256 + u64::from(u16::MAX);
            if u64::from(num_values) <= most_values {
                return Ok(());
            }
            Err(DataError::broken_picture(
                path,
                format!("a tag of {num_values} values"),
            ))
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

pub(crate) fn broken(path: &Path, cause: ImageError) -> DataError {
    let path = path.to_owned();
    match cause {
        ImageError::IoError(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
            DataError::PictureTruncated { path }
        }
        cause => DataError::broken_picture(&path, cause),
    }
}

/// Printable beginning of a file that is no picture.
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

/// Converts the pixels from `start` of the buffer on to RGB8, in place; false for an unsupported colour type.
///
/// Wide pixels begin at 0 and are compacted forwards; narrow pixels end at the buffer's end and expand forwards from the front. Either way
/// each position is read before it is overwritten, and no second buffer is needed.
fn to_rgb(rgb: &mut Vec<u8>, start: usize, color: ColorType, num_pixels: usize) -> bool {
    let upper = |pair: [u8; 2]| (u16::from_ne_bytes(pair) >> 8) as u8;
    match color {
        ColorType::Rgb8 => {}
        ColorType::L8 => convert(rgb, start, |[grey]: [u8; 1]| [grey; CHANNELS]),
        ColorType::La8 => convert(rgb, start, |[grey, _]: [u8; 2]| [grey; CHANNELS]),
        ColorType::Rgba8 => convert(rgb, start, |[r, g, b, _]: [u8; 4]| [r, g, b]),
        ColorType::L16 => convert(rgb, start, |grey: [u8; 2]| [upper(grey); CHANNELS]),
        ColorType::La16 => convert(rgb, start, |[a, b, ..]: [u8; 4]| [upper([a, b]); CHANNELS]),
        ColorType::Rgb16 => convert(rgb, start, |p: [u8; 6]| {
            [
                upper([p[0], p[1]]),
                upper([p[2], p[3]]),
                upper([p[4], p[5]]),
            ]
        }),
        ColorType::Rgba16 => convert(rgb, start, |p: [u8; 8]| {
            [
                upper([p[0], p[1]]),
                upper([p[2], p[3]]),
                upper([p[4], p[5]]),
            ]
        }),
        _ => return false,
    }
    rgb.truncate(num_pixels * CHANNELS);
    true
}

pub(super) fn convert<const N: usize>(
    pixels: &mut [u8],
    start: usize,
    convert: impl Fn([u8; N]) -> [u8; CHANNELS],
) {
    let num_pixels = (pixels.len() - start) / N;
    for pixel in 0..num_pixels {
        let from = start + pixel * N;
        let mut found = [0; N];
        found.copy_from_slice(&pixels[from..from + N]);
        pixels[pixel * CHANNELS..][..CHANNELS].copy_from_slice(&convert(found));
    }
}

/// Turns pixels upright; most pictures need no turning.
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
