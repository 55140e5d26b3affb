//! A row of the loader: one picture and its mask, as bytes.
//!
//! ```text
//! pixels    height x width x channels, 1 or 2 bytes each (the lower one first)
//! mask      height x width, a class each; 255 is not counted
//! counts    256 numbers of 32 bits, the lowest byte first: how many pixels of the mask have each value
//! ```

use std::ops::Range;

pub use crate::picture::PixelDepth;

/// A pixel of a mask that is not counted: outside of the field of view, padding, or what the data says to ignore.
pub const IGNORED: u8 = 255;

/// Numbers at the end of a row.
const NUM_COUNTS: usize = 256;

/// What a row holds, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowShape {
    /// Pixels down.
    pub height: usize,
    /// Pixels across.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Bits of a channel.
    pub depth: PixelDepth,
}

impl RowShape {
    /// Width times height.
    pub fn num_pixels(&self) -> usize {
        self.height * self.width
    }

    /// Bytes of a pixel.
    pub fn pixel_bytes(&self) -> usize {
        self.channels * self.depth.bytes()
    }

    /// Where the pixels are.
    pub fn pixels(&self) -> Range<usize> {
        0..self.num_pixels() * self.pixel_bytes()
    }

    /// Where the mask is.
    pub fn mask(&self) -> Range<usize> {
        let start = self.pixels().end;
        start..start + self.num_pixels()
    }

    /// Where the counts are.
    pub fn counts(&self) -> Range<usize> {
        let start = self.mask().end;
        start..start + NUM_COUNTS * size_of::<u32>()
    }

    /// Bytes of the whole row.
    pub fn row_bytes(&self) -> usize {
        self.counts().end
    }

    /// How many pixels of a row's mask have a value.
    pub fn count(&self, row: &[u8], value: u8) -> u32 {
        let at = self.counts().start + usize::from(value) * size_of::<u32>();
        let mut bytes = [0; size_of::<u32>()];
        bytes.copy_from_slice(&row[at..at + size_of::<u32>()]);
        u32::from_le_bytes(bytes)
    }

    /// Counts the mask of a row, and writes the counts behind it.
    pub fn write_counts(&self, row: &mut [u8]) {
        // Four tables: most neighbours are equal, and one would wait for itself.
        let mut tables = [[0_u32; NUM_COUNTS]; 4];
        let mask = &row[self.mask()];
        let (fours, rest) = mask.as_chunks::<4>();
        for four in fours {
            for (table, value) in tables.iter_mut().zip(four) {
                table[usize::from(*value)] += 1;
            }
        }
        for value in rest {
            tables[0][usize::from(*value)] += 1;
        }
        let (counts, _) = row[self.counts()].as_chunks_mut::<4>();
        for (value, count) in counts.iter_mut().enumerate() {
            let sum: u32 = tables.iter().map(|table| table[value]).sum();
            *count = sum.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_end_to_end_and_counts_add_up() {
        let shape = RowShape {
            height: 3,
            width: 5,
            channels: 2,
            depth: PixelDepth::Sixteen,
        };
        assert_eq!(shape.pixels(), 0..60);
        assert_eq!(shape.mask(), 60..75);
        assert_eq!(shape.counts(), 75..75 + 1024);
        assert_eq!(shape.row_bytes(), 75 + 1024);
        let mut row = vec![7; shape.row_bytes()];
        row[shape.mask()].fill(0);
        row[60..67].fill(1);
        row[74] = IGNORED;
        shape.write_counts(&mut row);
        let counted = [0, 1, 2, IGNORED].map(|value| shape.count(&row, value));
        assert_eq!(counted, [7, 7, 0, 1]);
    }
}
