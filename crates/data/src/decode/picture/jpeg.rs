//! JPEG decoding: `libjpeg-turbo-rs` gives the same bytes as Pillow's libjpeg-turbo (fixtures in `tests`), in three
//! quarters of the time that `zune-jpeg` takes (docs/benchmarks.md).

use std::path::Path;

use image::metadata::Orientation;
use libjpeg_turbo_rs::{ColorSpace, DecodeLimits, Decoder, JpegError, PixelFormat, ScalingFactor};

use super::decode::{check_size, convert, sized};
use super::{CHANNELS, Scratch};
use crate::error::DataError;

/// Limit of a progressive picture's scans. Real files have about ten; each scan goes over all pixels again.
const MOST_SCANS: usize = 200;

pub(super) fn is_jpeg(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xff\xd8\xff")
}

/// Decodes a JPEG into `scratch.rgb`, not turned yet. Returns width, height and EXIF orientation.
pub(super) fn decode(
    path: &Path,
    bytes: &[u8],
    scratch: &mut Scratch,
) -> Result<(u32, u32, Orientation), DataError> {
    if is_cut_short(bytes) {
        return Err(DataError::PictureTruncated {
            path: path.to_owned(),
        });
    }
    let failed = |cause: JpegError| broken(path, cause);
    let limits = DecodeLimits {
        max_scans: MOST_SCANS,
        ..DecodeLimits::default()
    };
    let mut decoder = Decoder::new_with_limits(bytes, limits).map_err(failed)?;
    let header = decoder.header();
    let (width, height) = (u32::from(header.width), u32::from(header.height));
    check_size(path, width, height, scratch.limits)?;
    let divisor = scratch.needed.divisor(width, height);
    decoder.set_scale(ScalingFactor::try_new(1, divisor).map_err(failed)?);
    let is_cmyk = matches!(
        decoder.jpeg_color_space(),
        ColorSpace::Cmyk | ColorSpace::Ycck
    );
    decoder.set_output_format(if is_cmyk {
        PixelFormat::Cmyk
    } else {
        PixelFormat::Rgb
    });
    let rgb = &mut scratch.rgb;
    sized(rgb, decoder.output_buffer_size().map_err(failed)?);
    let info = decoder.decode_image_into(rgb).map_err(failed)?;
    if is_cmyk {
        convert(rgb, 0, ink);
        rgb.truncate(info.width * info.height * CHANNELS);
    }
    let orientation = decoder
        .exif_orientation()
        .and_then(Orientation::from_exif)
        .unwrap_or(Orientation::NoTransforms);
    // At most what was checked above, so it fits.
    let (width, height) = (info.width as u32, info.height as u32);
    Ok((width, height, orientation))
}

/// The height field in a JPEG's header. With a smaller height the decoder stops after the upper rows and skips the Huffman
/// decoding of the rows below.
pub(super) struct HeightField {
    /// Byte position in the file.
    at: usize,
    /// Width and height in the header.
    pub size: (u32, u32),
}

impl HeightField {
    /// Finds the field in a sequential JPEG; a progressive one cannot be decoded row by row.
    pub(super) fn find(jpeg: &[u8]) -> Option<HeightField> {
        const BASELINE: [u8; 2] = [0xc0, 0xc1];
        const SCAN: u8 = 0xda;
        let mut at = 2;
        let at = loop {
            let &[0xff, marker, high, low] = jpeg.get(at..at + 4)? else {
                return None;
            };
            match marker {
                SCAN => return None,
                marker if BASELINE.contains(&marker) => break at + 5,
                _ => at += 2 + usize::from(u16::from_be_bytes([high, low])),
            }
        };
        let number = |at: usize| {
            let bytes = jpeg.get(at..at + 2)?;
            Some(u32::from(u16::from_be_bytes([bytes[0], bytes[1]])))
        };
        let size = (number(at + 2)?, number(at)?);
        Some(HeightField { at, size })
    }

    /// Writes a height, at most the original one.
    pub(super) fn set(&self, jpeg: &mut [u8], height: u32) {
        jpeg[self.at..self.at + 2].copy_from_slice(&(height as u16).to_be_bytes());
    }

    /// Rows to decode where the first `rows` are needed: chroma upsampling of the last rows reads the next row of blocks. `None` where
    /// that saves too little.
    pub(super) fn rows_to_decode(&self, rows: u32) -> Option<u32> {
        const LARGEST_BLOCK: u32 = 32;
        let rows = rows.next_multiple_of(LARGEST_BLOCK) + LARGEST_BLOCK;
        (rows < self.size.1).then_some(rows)
    }
}

/// Whether EXIF leaves the JPEG as it is.
pub(super) fn is_upright(jpeg: &[u8]) -> bool {
    let decoder = Decoder::new_with_limits(jpeg, DecodeLimits::default());
    decoder.is_ok_and(|decoder| decoder.exif_orientation().is_none_or(|turn| turn == 1))
}

/// CMYK to RGB, with Pillow's arithmetic. Files store inverted inks, as Photoshop writes them: 255 is no ink.
fn ink([c, m, y, k]: [u8; 4]) -> [u8; CHANNELS] {
    let part = |colour: u8| {
        let product = u32::from(255 - colour) * u32::from(k) + 128;
        k - ((product + (product >> 8)) >> 8) as u8
    };
    [part(c), part(m), part(y)]
}

fn broken(path: &Path, cause: JpegError) -> DataError {
    let path = path.to_owned();
    match cause {
        JpegError::UnexpectedEof => DataError::PictureTruncated { path },
        cause => DataError::broken_picture(&path, cause),
    }
}

/// Whether a JPEG stops before its end marker. A truncated progressive JPEG has all its pixels, but blurred.
fn is_cut_short(jpeg: &[u8]) -> bool {
    const END: u8 = 0xd9;
    if jpeg.ends_with(&[0xff, END]) {
        return false;
    }
    // Markers without a length: start, end, restarts, TEM; 0 is a stuffed byte, 0xff is padding.
    let stands_alone = |marker: u8| matches!(marker, 0 | 1 | 0xd0..=0xd8 | 0xff);
    let mut at = 0;
    while let Some(found) = jpeg
        .get(at..)
        .and_then(|rest| rest.iter().position(|b| *b == 0xff))
    {
        at += found + 1;
        match jpeg.get(at) {
            None => return true,
            Some(&END) => return false,
            Some(&0xff) => {}
            Some(&marker) if stands_alone(marker) => at += 1,
            Some(_) => match jpeg.get(at + 1..at + 3) {
                Some(&[high, low]) => at += 1 + usize::from(u16::from_be_bytes([high, low])),
                _ => return true,
            },
        }
    }
    true
}
