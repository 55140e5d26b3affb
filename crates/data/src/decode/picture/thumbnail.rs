//! JPEG thumbnails of pixels for reports.

use image::codecs::jpeg::JpegEncoder;
use image::{ImageBuffer, Rgb, imageops};

use super::CHANNELS;

/// A square of RGB pixels as a JPEG whose sides are `at_most` that long; `None` where it is no square.
pub fn thumbnail(pixels: &[u8], at_most: u32) -> Option<Vec<u8>> {
    let side = u32::try_from((pixels.len() / CHANNELS).isqrt()).ok()?;
    let square = ImageBuffer::<Rgb<u8>, &[u8]>::from_raw(side, side, pixels)?;
    if side == 0 || side as usize * side as usize * CHANNELS != pixels.len() {
        return None;
    }
    let mut jpeg = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut jpeg, 82);
    let written = if side > at_most {
        encoder.encode_image(&imageops::thumbnail(&square, at_most, at_most))
    } else {
        encoder.encode_image(&square)
    };
    written.ok().map(|()| jpeg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_becomes_a_small_jpeg() {
        let pixels: Vec<u8> = (0..40 * 40 * 3).map(|byte| (byte % 251) as u8).collect();
        for (at_most, side) in [(64, 40), (16, 16)] {
            let jpeg = thumbnail(&pixels, at_most).unwrap();
            let read = image::load_from_memory(&jpeg).unwrap();
            assert_eq!((read.width(), read.height()), (side, side));
        }
        assert_eq!(thumbnail(&pixels[1..], 64), None);
        assert_eq!(thumbnail(&[], 64), None);
    }
}
