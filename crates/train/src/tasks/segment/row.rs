//! A loader row of segmentation: a picture, its mask, and how often each value is in the mask.

use std::ops::Range;

use holdall_graph::ops::normalize_pixels::PixelDepth;

/// Value of a mask's pixel that is not counted: ignored, padding, outside of the field of view.
pub const NOT_COUNTED: u8 = 255;

/// `[pixels: h * w * c * bytes][mask: h * w bytes][counts: 256 x u32 little-endian]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowShape {
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Bits of a value.
    pub depth: PixelDepth,
}

impl RowShape {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.counts().end
    }

    /// Where the picture is.
    pub fn pixels(&self) -> Range<usize> {
        0..self.num_pixels() * self.channels * self.depth.bytes()
    }

    /// Where the mask is.
    pub fn mask(&self) -> Range<usize> {
        let start = self.pixels().end;
        start..start + self.num_pixels()
    }

    /// Where the counts are.
    pub fn counts(&self) -> Range<usize> {
        let start = self.mask().end;
        start..start + 256 * size_of::<u32>()
    }

    /// Pixels of a picture.
    pub fn num_pixels(&self) -> usize {
        self.height * self.width
    }
}
