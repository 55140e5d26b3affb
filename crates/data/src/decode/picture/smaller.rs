//! Re-encodes a picture at a smaller size, once, so that training need not resize it in every epoch.

use std::io::Cursor;
use std::path::Path;

use image::codecs::pnm::{PnmEncoder, PnmSubtype, SampleEncoding};
use image::codecs::webp::WebPEncoder;
use image::metadata::Orientation;
use image::{ExtendedColorType, ImageEncoder};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};

use super::geometry::Window;
use super::{CHANNELS, Filter, Framing, Scratch, decode, resize};
use super::{Native, PixelDepth, ReadAs, native_cost, read_native, turned};
use crate::error::DataError;

/// File format of a smaller picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SmallerFormat {
    /// JPEG of quality 95 with 4:2:0 chroma: the bytes that Pillow writes for that quality.
    #[default]
    Jpeg,
    /// Lossless WebP.
    Webp,
    /// Raw pixels, which need no decoding.
    Ppm,
}

impl SmallerFormat {
    pub fn extension(self) -> &'static str {
        match self {
            SmallerFormat::Jpeg => "jpg",
            SmallerFormat::Webp => "webp",
            SmallerFormat::Ppm => "ppm",
        }
    }
}

const QUALITY: u8 = 95;

/// Width and height once the shorter side is `size`.
fn smaller_size((width, height): (u32, u32), size: u32) -> (u32, u32) {
    let shorter = u64::from(width.min(height));
    let scaled = |side: u32| {
        let scaled = (u64::from(side) * u64::from(size) + shorter / 2) / shorter;
        scaled.max(1) as u32
    };
    (scaled(width), scaled(height))
}

/// A re-encoded picture, upright and without EXIF.
pub(crate) struct SmallerPicture {
    pub(crate) bytes: Vec<u8>,
    /// Size and EXIF orientation of the picture before, which say how its masks are turned.
    pub(crate) original: Native,
}

/// The encoded picture whose shorter side is `size`, resized with Pillow's bicubic filter; `None` where the shorter side is already at most
/// `size`: then [`Scratch::file`] holds the file to copy.
pub(crate) fn smaller_picture(
    path: &Path,
    size: u32,
    format: SmallerFormat,
    scratch: &mut Scratch,
) -> Result<Option<SmallerPicture>, DataError> {
    let (width, height) =
        decode::decode(path, Some(Framing::clip(size)), |_, height| height, scratch)?;
    if width.min(height) <= size {
        return Ok(None);
    }
    let (pixels, new_size) = smaller_pixels(path, (width, height), size, scratch)?;
    Ok(Some(SmallerPicture {
        bytes: encoded(path, &pixels, new_size, format)?,
        original: Native {
            orientation: scratch.orientation.unwrap_or(Orientation::NoTransforms),
            ..Native::upright(width, height, CHANNELS, PixelDepth::Eight)
        },
    }))
}

/// Resizes the pixels in `Scratch::rgb` so that the shorter side is `size`; returns the new size too.
fn smaller_pixels(
    path: &Path,
    (width, height): (u32, u32),
    size: u32,
    scratch: &mut Scratch,
) -> Result<(Vec<u8>, (u32, u32)), DataError> {
    let (new_width, new_height) = smaller_size((width, height), size);
    let filter = Filter::Bicubic
        .convolution()
        .expect("bicubic is a convolution");
    let window = |width: u32, height: u32| Window {
        left: 0.0,
        top: 0.0,
        width: f64::from(width),
        height: f64::from(height),
    };
    let Scratch {
        rgb, rows, resizer, ..
    } = scratch;
    decode::sized(rows, new_width as usize * height as usize * CHANNELS);
    resize(
        (path, resizer, filter),
        (rgb, width, height),
        window(width, height),
        (rows, new_width, height),
    )?;
    let mut pixels = vec![0; new_width as usize * new_height as usize * CHANNELS];
    resize(
        (path, resizer, filter),
        (rows, new_width, height),
        window(new_width, height),
        (&mut pixels, new_width, new_height),
    )?;
    Ok((pixels, (new_width, new_height)))
}

/// Encodes pixels as a file.
fn encoded(
    path: &Path,
    pixels: &[u8],
    (width, height): (u32, u32),
    format: SmallerFormat,
) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let color = ExtendedColorType::Rgb8;
    let failed = |cause: image::ImageError| DataError::broken_picture(path, cause);
    match format {
        SmallerFormat::Jpeg => {
            let (width, height) = (width as usize, height as usize);
            // Huffman tables optimised for the picture make it a twentieth smaller and faster to decode.
            let encoder = Encoder::new(pixels, width, height, PixelFormat::Rgb)
                .quality(QUALITY)
                .subsampling(Subsampling::S420)
                .optimize_huffman(true);
            let encoded = encoder.encode();
            return encoded.map_err(|cause| DataError::broken_picture(path, cause));
        }
        SmallerFormat::Webp => WebPEncoder::new_lossless(&mut bytes)
            .write_image(pixels, width, height, color)
            .map_err(failed)?,
        SmallerFormat::Ppm => PnmEncoder::new(&mut bytes)
            .with_subtype(PnmSubtype::Pixmap(SampleEncoding::Binary))
            .write_image(pixels, width, height, color)
            .map_err(failed)?,
    }
    Ok(bytes)
}

/// Re-encoding of a clip's frames: the shorter side has at most `size` pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallerFrames {
    pub(crate) size: u32,
    pub(crate) coding: FrameCoding,
}

/// Storage format of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameCoding {
    /// JPEG of quality 95 with 4:2:0 chroma.
    Jpeg,
    /// Raw pixels.
    Pixels,
}

/// A re-encoded frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmallerFrame {
    pub(crate) size: (u32, u32),
    pub(crate) bytes: Vec<u8>,
}

impl SmallerFrames {
    /// Framing for the memory estimate.
    pub(crate) fn framing(&self) -> Framing {
        Framing::clip(self.size)
    }

    /// Re-encodes a frame that is a file of its own.
    pub(crate) fn of_file(
        &self,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<SmallerFrame, DataError> {
        let size = decode::decode(path, Some(self.framing()), |_, height| height, scratch)?;
        self.of_pixels(path, size, scratch)
    }

    /// Re-encodes the frame in `Scratch::file`, whose memory is claimed; `path` is for messages.
    pub(crate) fn of_loaded(
        &self,
        path: &Path,
        scratch: &mut Scratch,
    ) -> Result<SmallerFrame, DataError> {
        let file = std::mem::take(&mut scratch.file);
        let decoded = decode::decode_bytes(path, &file, scratch);
        scratch.file = file;
        self.of_pixels(path, decoded?, scratch)
    }

    /// Re-encodes the frame whose pixels are in `Scratch::rgb`.
    pub(crate) fn of_pixels(
        &self,
        path: &Path,
        size: (u32, u32),
        scratch: &mut Scratch,
    ) -> Result<SmallerFrame, DataError> {
        let (pixels, size) = if size.0.min(size.1) > self.size {
            smaller_pixels(path, size, self.size, scratch)?
        } else {
            let num_bytes = size.0 as usize * size.1 as usize * CHANNELS;
            (scratch.rgb[..num_bytes].to_vec(), size)
        };
        let bytes = match self.coding {
            FrameCoding::Jpeg => encoded(path, &pixels, size, SmallerFormat::Jpeg)?,
            FrameCoding::Pixels => pixels,
        };
        Ok(SmallerFrame { size, bytes })
    }
}

/// A mask as PNG, turned and resized like its picture with the nearest neighbour; `None` where it stays as it is. `picture` is `None` where
/// that stays as it is, with its EXIF.
pub(crate) fn smaller_mask(
    path: &Path,
    size: u32,
    (read_as, picture): (ReadAs, Option<&Native>),
    scratch: &mut Scratch,
) -> Result<Option<Vec<u8>>, DataError> {
    let cost = native_cost(path, scratch.limits())?;
    let total = super::Cost {
        file: cost.file,
        pixels: cost.pixels,
        beside: cost.beside + cost.pixels,
    };
    scratch.claim_frame(path, (cost.native.width, cost.native.height), total)?;
    let mut pixels = Vec::new();
    let native = read_native(path, read_as, scratch, &mut pixels)?;
    if native.width.min(native.height) <= size {
        return Ok(None);
    }
    let native = match picture {
        Some(picture) => turned(&mut pixels, native, picture.turn_of(&native)),
        None => native,
    };
    let (new_width, new_height) = smaller_size((native.width, native.height), size);
    let pixel_bytes = native.channels * native.depth.bytes();
    let mut out = vec![0; new_width as usize * new_height as usize * pixel_bytes];
    for y in 0..new_height as usize {
        let from_y = middle(y, new_height, native.height);
        for x in 0..new_width as usize {
            let from_x = middle(x, new_width, native.width);
            let from = (from_y * native.width as usize + from_x) * pixel_bytes;
            let to = (y * new_width as usize + x) * pixel_bytes;
            out[to..to + pixel_bytes].copy_from_slice(&pixels[from..from + pixel_bytes]);
        }
    }
    let color = match (native.channels, native.depth) {
        (1, PixelDepth::Eight) => png::ColorType::Grayscale,
        (1, PixelDepth::Sixteen) => png::ColorType::Grayscale,
        _ => png::ColorType::Rgb,
    };
    if native.depth == PixelDepth::Sixteen {
        // PNG is big-endian.
        out.as_chunks_mut::<2>()
            .0
            .iter_mut()
            .for_each(|pair| pair.reverse());
    }
    let mut bytes = Cursor::new(Vec::new());
    let mut encoder = png::Encoder::new(&mut bytes, new_width, new_height);
    encoder.set_color(color);
    encoder.set_depth(match native.depth {
        PixelDepth::Eight => png::BitDepth::Eight,
        PixelDepth::Sixteen => png::BitDepth::Sixteen,
    });
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(&out));
    written.map_err(|cause| DataError::broken_picture(path, cause))?;
    Ok(Some(bytes.into_inner()))
}

/// Source pixel under the middle of target pixel `at`.
fn middle(at: usize, side: u32, from_side: u32) -> usize {
    let place = (at as f64 + 0.5) * f64::from(from_side) / f64::from(side);
    (place as usize).min(from_side as usize - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::test_tiff::grey_pages;

    fn waves(width: u32, height: u32) -> image::RgbImage {
        image::RgbImage::from_fn(width, height, |x, y| {
            let wave =
                (127.0 + 90.0 * (f64::from(x) / 9.0).sin() * (f64::from(y) / 7.0).cos()) as u8;
            image::Rgb([wave, 255 - wave, 60])
        })
    }

    #[test]
    fn the_shorter_side_is_as_asked_and_nothing_is_enlarged() {
        assert_eq!(smaller_size((1024, 768), 256), (341, 256));
        assert_eq!(smaller_size((768, 1024), 256), (256, 341));
        assert_eq!(smaller_size((100, 9_000), 50), (50, 4_500));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        waves(90, 60).save(&path).unwrap();
        let mut scratch = Scratch::default();
        let mut read = |size, format| {
            let smaller = smaller_picture(&path, size, format, &mut scratch).unwrap();
            smaller.map(|one| image::load_from_memory(&one.bytes).unwrap().to_rgb8())
        };
        assert!(read(60, SmallerFormat::Jpeg).is_none());
        let lossless = read(30, SmallerFormat::Webp).unwrap();
        assert_eq!(lossless.dimensions(), (45, 30));
        assert_eq!(read(30, SmallerFormat::Ppm).unwrap(), lossless);
        let jpeg = read(30, SmallerFormat::Jpeg).unwrap();
        assert_eq!(jpeg.dimensions(), (45, 30));
        // Compares luma, since chroma has half the resolution.
        let [lossless, jpeg] =
            [lossless, jpeg].map(|one| image::DynamicImage::from(one).into_luma8());
        let difference = lossless.as_raw().iter().zip(jpeg.as_raw());
        let worst = difference.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= 12, "{worst}");
    }

    /// A mask stays on its picture, whichever way EXIF turns that.
    #[test]
    fn masks_are_turned_with_their_picture() {
        let folder = tempfile::tempdir().unwrap();
        let [picture, mask] = ["picture.tif", "mask.tif"].map(|name| folder.path().join(name));
        // A bright quarter in a corner.
        let is_bright = |at: usize| at / 16 < 6 && at % 16 < 8;
        let pixels: Vec<u8> = (0..16 * 12)
            .map(|at| if is_bright(at) { 255 } else { 0 })
            .collect();
        let file = |orientation| grey_pages((16, 12), orientation, 0, &[&pixels]);
        std::fs::write(&mask, file(1)).unwrap();
        let mut scratch = Scratch::default();
        for orientation in 1..=8 {
            std::fs::write(&picture, file(orientation)).unwrap();
            let smaller = smaller_picture(&picture, 6, SmallerFormat::Ppm, &mut scratch);
            let smaller = smaller.unwrap().unwrap();
            let read_as = (ReadAs::Mask, Some(&smaller.original));
            let of_mask = smaller_mask(&mask, 6, read_as, &mut scratch).unwrap();
            let [picture, mask] = [smaller.bytes, of_mask.unwrap()]
                .map(|bytes| image::load_from_memory(&bytes).unwrap().to_luma8());
            assert_eq!(picture.dimensions(), mask.dimensions(), "{orientation}");
            for (picture, mask) in picture.pixels().zip(mask.pixels()) {
                assert_eq!(picture.0[0] > 127, mask.0[0] == 255, "{orientation}");
            }
        }
    }

    /// Byte for byte Pillow's file for this quality (make_packed.py).
    #[test]
    fn a_jpeg_is_that_of_pillow() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let pixels = image::open(fixtures.join("pictures/rgb.png"))
            .unwrap()
            .to_rgb8();
        let found = encoded(
            Path::new("rgb.png"),
            pixels.as_raw(),
            pixels.dimensions(),
            SmallerFormat::Jpeg,
        );
        let expected = std::fs::read(fixtures.join("packed/rgb.jpg")).unwrap();
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn a_mask_keeps_its_values() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mask.png");
        let mask =
            image::GrayImage::from_fn(90, 60, |x, _| image::Luma([if x < 45 { 0 } else { 255 }]));
        mask.save(&path).unwrap();
        let bytes = smaller_mask(&path, 20, (ReadAs::Mask, None), &mut Scratch::default())
            .unwrap()
            .unwrap();
        let small = image::load_from_memory(&bytes).unwrap().to_luma8();
        assert_eq!(small.dimensions(), (30, 20));
        let expected =
            image::GrayImage::from_fn(30, 20, |x, _| image::Luma([if x < 15 { 0 } else { 255 }]));
        assert_eq!(small, expected);
    }
}
