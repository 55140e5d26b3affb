//! The pixels of a picture at its own size, with the classes of its mask.

use std::borrow::Cow;

use image::metadata::Orientation;

use crate::decode::picture::{PixelDepth, is_on_its_side, place_in_file};

/// A picture at its own size, and the classes of its pixels where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WholePicture {
    pub width: usize,
    pub height: usize,
    pub channels: usize,
    pub depth: PixelDepth,
    /// Rows from the top, channels interleaved; 16 bits are little-endian.
    pub pixels: Vec<u8>,
    /// A class per pixel, 255 for pixels that do not count.
    pub mask: Option<Vec<u8>>,
    /// EXIF orientation that was applied, if any.
    pub turn: Option<Orientation>,
}

impl WholePicture {
    /// Red, green and blue of a pixel in 8 bits; a single channel is repeated.
    pub(crate) fn rgb(&self, column: usize, row: usize) -> [u8; 3] {
        let bytes = self.depth.bytes();
        let pixel = (row * self.width + column) * self.channels * bytes;
        [0, 1, 2].map(|channel| {
            let channel = if self.channels < 3 { 0 } else { channel };
            // Little-endian: the upper byte comes last.
            self.pixels[pixel + channel * bytes + bytes - 1]
        })
    }

    /// Values of the upright pixels, `per_pixel` each, turned to the orientation of the file; and the file's height and width.
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

    pub fn num_pixels(&self) -> usize {
        self.width * self.height
    }
}
