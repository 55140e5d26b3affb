//! A row of the loader: one picture and its mask, as bytes.
//!
//! ```text
//! pixels    height x width x channels, 1 or 2 bytes each (little-endian)
//! mask      height x width, one class each; 255 is not counted
//! counts    256 little-endian 32-bit numbers: pixels of the mask with each value
//! ```

use std::ops::Range;

use crate::decode::PixelDepth;

/// Class of a mask pixel that is not counted: outside the field of view, padding, or ignored by the data.
pub const IGNORED: u8 = 255;

/// Counts at the end of a row.
const NUM_COUNTS: usize = 256;

/// Layout of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowShape {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub depth: PixelDepth,
}

impl RowShape {
    pub fn num_pixels(&self) -> usize {
        self.height * self.width
    }

    pub fn pixel_bytes(&self) -> usize {
        self.channels * self.depth.bytes()
    }

    /// Byte range of the pixels.
    pub fn pixels(&self) -> Range<usize> {
        0..self.num_pixels() * self.pixel_bytes()
    }

    /// Byte range of the mask.
    pub fn mask(&self) -> Range<usize> {
        let start = self.pixels().end;
        start..start + self.num_pixels()
    }

    /// Byte range of the counts.
    pub fn counts(&self) -> Range<usize> {
        let start = self.mask().end;
        start..start + NUM_COUNTS * size_of::<u32>()
    }

    pub fn row_bytes(&self) -> usize {
        self.counts().end
    }

    /// Number of mask pixels with a value.
    pub fn count(&self, row: &[u8], value: u8) -> u32 {
        let at = self.counts().start + usize::from(value) * size_of::<u32>();
        let mut bytes = [0; size_of::<u32>()];
        bytes.copy_from_slice(&row[at..at + size_of::<u32>()]);
        u32::from_le_bytes(bytes)
    }

    /// Counts the mask of a row, and writes the counts behind it.
    pub fn write_counts(&self, row: &mut [u8]) {
        // Four tables: neighbouring pixels are mostly equal, and increments of one counter would wait for each other.
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
