//! Pixels of a file in their native form: grey or RGB, 8 or 16 bits, at the file's own size. Segmentation reads pictures and masks this
//! way, including gzipped PNM (`im0001.ppm.gz`), which published sets of retinal vessels use.
//!
//! Alpha is dropped. In a picture, a palette is expanded. In a mask, a value is the palette index, unless all colours of the palette are
//! greys (then the value is the grey), as Pillow and numpy users know it from VOC and from DRIVE.

use std::borrow::Cow;
use std::io::{Cursor, Read};
use std::path::Path;

use image::error::ImageError;
use image::metadata::Orientation;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader};
use serde::{Deserialize, Serialize};

use super::decode::{check_claims, check_size, contained, not_a_picture, sized, unread, zeroed};
use super::header::{Cost, FileBytes, Header};
use super::refused::{Refusal, refused};
use super::{Limits, Scratch, jpeg};
use crate::error::DataError;
use crate::stored_file::StoredFile;

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum PixelDepth {
    /// One byte.
    #[default]
    Eight,
    /// Two bytes, little-endian.
    Sixteen,
}

impl PixelDepth {
    pub fn bytes(self) -> usize {
        match self {
            PixelDepth::Eight => 1,
            PixelDepth::Sixteen => 2,
        }
    }

    /// Value of white.
    pub fn maximum(self) -> u16 {
        match self {
            PixelDepth::Eight => 255,
            PixelDepth::Sixteen => u16::MAX,
        }
    }
}

/// Size and pixel format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    /// Width in pixels, upright.
    pub width: u32,
    /// Height in pixels, upright.
    pub height: u32,
    /// 1, 3, or the channels of a TIFF with more.
    pub channels: usize,
    pub depth: PixelDepth,
    /// EXIF orientation that was applied to make the picture upright.
    pub orientation: Orientation,
    /// Whether values are indices of a palette of colours.
    pub is_indexed: bool,
}

impl Native {
    /// A picture of plain values that needs no turning.
    pub const fn upright(width: u32, height: u32, channels: usize, depth: PixelDepth) -> Native {
        Native {
            width,
            height,
            channels,
            depth,
            orientation: Orientation::NoTransforms,
            is_indexed: false,
        }
    }

    /// Orientation to apply to a mask of this image: that of the image, if the mask has no EXIF orientation of its own and has the size
    /// of the image in its file.
    pub(crate) fn turn_of(&self, mask: &Native) -> Orientation {
        let is_on_its_side = super::header::is_on_its_side(self.orientation);
        let in_file = if is_on_its_side {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        };
        let is_alike = mask.orientation == Orientation::NoTransforms;
        if is_alike && (mask.width, mask.height) == in_file {
            self.orientation
        } else {
            Orientation::NoTransforms
        }
    }
    /// The same size with one byte per pixel.
    pub(crate) fn of_bytes(self) -> Native {
        Native {
            channels: 1,
            depth: PixelDepth::Eight,
            ..self
        }
    }

    pub fn num_bytes(&self) -> usize {
        self.num_pixels() * self.channels * self.depth.bytes()
    }

    pub fn num_pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }
}

/// Purpose of reading a file; it decides how palettes are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAs {
    Picture,
    /// A coloured palette gives its indices.
    Mask,
    /// A palette gives its colours.
    ColourMask,
}

/// Pixel format in a header, and peak memory of reading the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NativeCost {
    pub native: Native,
    /// Bytes of the file, decompressed.
    pub file: u64,
    /// Bytes of the decoder's output.
    pub pixels: u64,
    /// Other memory of the decoder.
    pub beside: u64,
}

/// Pixel format and cost, from the header as far as it can be read.
pub(crate) fn native_cost(path: &Path, limits: Limits) -> Result<NativeCost, DataError> {
    let (mut file, file_bytes, header) = super::decode::header_of(path, limits)?;
    let (header, file_bytes, packed_bytes) = match header {
        Some(header) => (Some(header), file_bytes, 0),
        None => match unpacked_size(&mut file, file_bytes, limits) {
            Some((header, unpacked)) => (Some(header), unpacked, file_bytes),
            None => (None, file_bytes, 0),
        },
    };
    let Some(header) = header else {
        // Without a header, a decoder has to say what is wrong with the file.
        let cost = Cost::of_no_picture(file_bytes);
        let native = Native::upright(0, 0, 1, PixelDepth::Eight);
        return Ok(NativeCost {
            native,
            file: cost.file,
            pixels: cost.pixels,
            beside: cost.beside,
        });
    };
    check_size(path, header.width, header.height, limits)?;
    let cost = header.cost(file_bytes, None, super::Needed::All);
    Ok(NativeCost {
        native: Native::upright(
            header.width,
            header.height,
            usize::from(header.channels),
            if header.is_deep {
                PixelDepth::Sixteen
            } else {
                PixelDepth::Eight
            },
        ),
        file: cost.file,
        pixels: cost.pixels,
        // Palette indices are held beside their colours, and a picture that is being turned is held twice.
        beside: cost.beside + packed_bytes + header.num_pixels() + header.turned_bytes(),
    })
}

/// Header of a gzipped PNM, and its decompressed size from the last four bytes.
fn unpacked_size(file: &mut StoredFile, file_bytes: u64, limits: Limits) -> Option<(Header, u64)> {
    use std::io::{Seek, SeekFrom};
    let mut magic = [0; 2];
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_exact(&mut magic).ok()?;
    if magic != GZIP || file_bytes < 18 {
        return None;
    }
    let mut size = [0; 4];
    file.seek(SeekFrom::End(-4)).ok()?;
    file.read_exact(&mut size).ok()?;
    let size = u64::from(u32::from_le_bytes(size));
    if size > limits.most_file_bytes {
        return None;
    }
    file.seek(SeekFrom::Start(0)).ok()?;
    let mut beginning = Vec::new();
    let unpacked = flate2::read::GzDecoder::new(file);
    unpacked.take(4 << 10).read_to_end(&mut beginning).ok()?;
    let header = Header::of(&FileBytes::new(Cursor::new(beginning)))?;
    Some((header, size))
}

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a file into `scratch.file` and its pixels, upright, into `pixels`. The caller has claimed the memory.
pub(crate) fn read_native(
    path: &Path,
    read_as: ReadAs,
    scratch: &mut Scratch,
    pixels: &mut Vec<u8>,
) -> Result<Native, DataError> {
    let mut bytes = std::mem::take(&mut scratch.file);
    let native = read_bytes(path, scratch.limits, &mut bytes)
        .and_then(|()| decode_native(path, &bytes, read_as, scratch, pixels));
    scratch.file = bytes;
    native
}

fn read_bytes(path: &Path, limits: Limits, bytes: &mut Vec<u8>) -> Result<(), DataError> {
    let (mut file, file_bytes, _) = super::decode::header_of(path, limits)?;
    use std::io::{Seek, SeekFrom};
    let failed = |cause| unread(path, cause);
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    bytes.clear();
    bytes.reserve_exact(file_bytes as usize);
    file.take(file_bytes).read_to_end(bytes).map_err(failed)?;
    Ok(())
}

/// Decodes bytes into `pixels`; `path` is for messages.
pub(crate) fn decode_native(
    path: &Path,
    bytes: &[u8],
    read_as: ReadAs,
    scratch: &mut Scratch,
    pixels: &mut Vec<u8>,
) -> Result<Native, DataError> {
    contained(path, || {
        let bytes = unpacked(path, bytes, scratch.limits)?;
        decode_or_panic(path, &bytes, read_as, scratch, pixels)
    })
}

/// Decompresses gzip; other bytes are returned unchanged.
fn unpacked<'a>(path: &Path, bytes: &'a [u8], limits: Limits) -> Result<Cow<'a, [u8]>, DataError> {
    if !bytes.starts_with(&GZIP) {
        return Ok(Cow::Borrowed(bytes));
    }
    let size = bytes
        .last_chunk()
        .map_or(0, |size| u32::from_le_bytes(*size));
    let size = u64::from(size);
    if size > limits.most_file_bytes {
        return Err(DataError::PictureFileTooLarge {
            path: path.to_owned(),
            most_bytes: limits.most_file_bytes,
        });
    }
    let mut found = Vec::with_capacity(size as usize);
    let mut reader = flate2::read::GzDecoder::new(bytes).take(size);
    match reader.read_to_end(&mut found) {
        Ok(_) if found.len() as u64 == size && !found.starts_with(&GZIP) => Ok(Cow::Owned(found)),
        _ => Err(DataError::broken_picture(
            path,
            "a gzip file that cannot be unpacked",
        )),
    }
}

fn decode_or_panic(
    path: &Path,
    bytes: &[u8],
    read_as: ReadAs,
    scratch: &mut Scratch,
    pixels: &mut Vec<u8>,
) -> Result<Native, DataError> {
    if let Some(Refusal { found, hint }) = refused(bytes) {
        return Err(DataError::PictureRefused {
            path: path.to_owned(),
            found,
            hint,
        });
    }
    if jpeg::is_jpeg(bytes) {
        return decode_jpeg(path, bytes, scratch, pixels);
    }
    if bytes.starts_with(b"\x89PNG") {
        return super::png::decode(path, bytes, read_as, scratch.limits, pixels);
    }
    let failed = |cause: ImageError| super::decode::broken(path, cause);
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|cause| failed(ImageError::IoError(cause)))?;
    let format = match reader.format() {
        Some(format) if Header::of(bytes).is_some() || format != ImageFormat::Pnm => format,
        _ => return Err(not_a_picture(path, bytes)),
    };
    check_claims(path, bytes, format, scratch.limits)?;
    let mut limits = image::Limits::no_limits();
    limits.max_alloc = Some(scratch.limits.decoder_bytes(bytes));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    check_size(path, width, height, scratch.limits)?;
    let orientation = decoder.orientation().map_err(failed)?;
    let color = decoder.color_type();
    let num_bytes = decoder.total_bytes();
    if num_bytes > scratch.limits.most_pixels.saturating_mul(8) {
        return Err(DataError::broken_picture(
            path,
            "more bytes than pixels have",
        ));
    }
    zeroed(pixels, num_bytes as usize);
    decoder.read_image(pixels).map_err(failed)?;
    let (channels, depth) = match color {
        ColorType::L8 => (1, PixelDepth::Eight),
        ColorType::La8 => (1, PixelDepth::Eight),
        ColorType::Rgb8 | ColorType::Rgba8 => (3, PixelDepth::Eight),
        ColorType::L16 | ColorType::La16 => (1, PixelDepth::Sixteen),
        ColorType::Rgb16 | ColorType::Rgba16 => (3, PixelDepth::Sixteen),
        _ => {
            return Err(DataError::broken_picture(
                path,
                format!("colours of type {color:?}"),
            ));
        }
    };
    if depth == PixelDepth::Sixteen {
        for pair in pixels.as_chunks_mut::<2>().0 {
            *pair = u16::from_ne_bytes(*pair).to_le_bytes();
        }
    }
    let native = Native::upright(width, height, channels, depth);
    drop_alpha(pixels, usize::from(color.channel_count()), native);
    // GIF stores colours only: a mask whose colours are all grey is a mask of grey values.
    if format == ImageFormat::Gif && read_as == ReadAs::Mask && is_grey(pixels) {
        let native = to_grey(pixels, native);
        return Ok(turned(pixels, native, orientation));
    }
    Ok(turned(pixels, native, orientation))
}

fn decode_jpeg(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
    pixels: &mut Vec<u8>,
) -> Result<Native, DataError> {
    // The JPEG decoder writes to `scratch.rgb`; the swap avoids a second buffer.
    std::mem::swap(&mut scratch.rgb, pixels);
    let decoded = jpeg::decode(path, bytes, scratch);
    std::mem::swap(&mut scratch.rgb, pixels);
    let (width, height, orientation) = decoded?;
    let native = Native::upright(width, height, 3, PixelDepth::Eight);
    let is_grey = Header::of(bytes).is_some_and(|header| header.channels == 1);
    let native = if is_grey {
        to_grey(pixels, native)
    } else {
        native
    };
    Ok(turned(pixels, native, orientation))
}

pub(super) fn is_grey(rgb: &[u8]) -> bool {
    let (pixels, _) = rgb.as_chunks::<3>();
    pixels.iter().all(|[r, g, b]| r == g && g == b)
}

fn to_grey(pixels: &mut Vec<u8>, native: Native) -> Native {
    for at in 0..native.num_pixels() {
        pixels[at] = pixels[3 * at];
    }
    pixels.truncate(native.num_pixels());
    Native {
        channels: 1,
        ..native
    }
}

/// Keeps the first `native.channels` of the `held` channels of each pixel.
pub(super) fn drop_alpha(pixels: &mut Vec<u8>, held: usize, native: Native) {
    if held == native.channels {
        return;
    }
    let (from, to) = (
        held * native.depth.bytes(),
        native.channels * native.depth.bytes(),
    );
    for at in 0..native.num_pixels() {
        pixels.copy_within(at * from..at * from + to, at * to);
    }
    pixels.truncate(native.num_bytes());
}

/// Maps pixel (x, y) of an upright picture to its position in the file, whose width and height are the last two arguments.
pub(crate) fn place_in_file(
    orientation: Orientation,
) -> fn(usize, usize, usize, usize) -> (usize, usize) {
    match orientation {
        Orientation::NoTransforms => |x, y, _, _| (x, y),
        Orientation::FlipHorizontal => |x, y, w, _| (w - 1 - x, y),
        Orientation::Rotate180 => |x, y, w, h| (w - 1 - x, h - 1 - y),
        Orientation::FlipVertical => |x, y, _, h| (x, h - 1 - y),
        Orientation::Rotate90FlipH => |x, y, _, _| (y, x),
        Orientation::Rotate90 => |x, y, _, h| (y, h - 1 - x),
        Orientation::Rotate270FlipH => |x, y, w, h| (w - 1 - y, h - 1 - x),
        Orientation::Rotate270 => |x, y, w, _| (w - 1 - y, x),
    }
}

/// Turns pixels upright; most pictures need no turning.
pub(crate) fn turned(pixels: &mut Vec<u8>, native: Native, orientation: Orientation) -> Native {
    if orientation == Orientation::NoTransforms {
        return native;
    }
    let (width, height) = (native.width as usize, native.height as usize);
    let place = place_in_file(orientation);
    let is_on_its_side = super::header::is_on_its_side(orientation);
    let (upright_width, upright_height) = if is_on_its_side {
        (height, width)
    } else {
        (width, height)
    };
    let pixel = native.channels * native.depth.bytes();
    let source = std::mem::take(pixels);
    sized(pixels, source.len());
    for y in 0..upright_height {
        for x in 0..upright_width {
            let (from_x, from_y) = place(x, y, width, height);
            let (from, to) = (from_y * width + from_x, y * upright_width + x);
            pixels[to * pixel..][..pixel].copy_from_slice(&source[from * pixel..][..pixel]);
        }
    }
    Native {
        width: upright_width as u32,
        height: upright_height as u32,
        orientation,
        ..native
    }
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, RgbImage};

    use super::*;

    #[test]
    fn every_orientation_is_that_of_the_image_crate() {
        let source = RgbImage::from_fn(3, 2, |x, y| image::Rgb([x as u8, y as u8, 9]));
        for number in 1..=8 {
            let orientation = Orientation::from_exif(number).unwrap();
            let mut expected = DynamicImage::from(source.clone());
            expected.apply_orientation(orientation);
            let mut pixels = source.as_raw().clone();
            let native = Native::upright(3, 2, 3, PixelDepth::Eight);
            let found = turned(&mut pixels, native, orientation);
            assert_eq!(
                (found.width, found.height),
                (expected.width(), expected.height())
            );
            assert_eq!(pixels, expected.into_bytes(), "{orientation:?}");
        }
    }
}
