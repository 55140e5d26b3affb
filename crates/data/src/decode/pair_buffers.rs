//! Memory cost of reading a picture with its mask, from headers alone, and the buffers for it.

use super::whole_picture::WholePicture;

/// Buffers that one thread reuses for each pair.
#[derive(Debug, Default)]
pub(crate) struct PairBuffers {
    pub decoded: Vec<u8>,
    pub whole: WholePicture,
    pub base: WholePicture,
    /// Pixels between the two passes of a filter.
    pub filtered: Vec<u8>,
}

/// Memory for reading a pair, by buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairCost {
    pub file: u64,
    pub decoded: u64,
    pub pixels: u64,
    pub mask: u64,
    pub base_pixels: u64,
    pub base_mask: u64,
    pub filtered: u64,
    /// Other memory of the decoder.
    pub decoder: u64,
    pub resizer: u64,
}

impl PairCost {
    pub(crate) fn total(&self) -> u64 {
        self.file
            + self.decoded
            + self.pixels
            + self.mask
            + self.base_pixels
            + self.base_mask
            + self.filtered
            + self.decoder
            + self.resizer
    }
}

impl PairBuffers {
    fn buffers(&self) -> [u64; 6] {
        let kept = |buffer: &Vec<u8>| buffer.capacity() as u64;
        let mask = |picture: &WholePicture| picture.mask.as_ref().map_or(0, kept);
        [
            kept(&self.decoded),
            kept(&self.whole.pixels),
            mask(&self.whole),
            kept(&self.base.pixels),
            mask(&self.base),
            kept(&self.filtered),
        ]
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.buffers().iter().sum()
    }

    /// Size of the buffers once they have held a pair of this cost.
    pub(crate) fn grown_bytes(&self, cost: &PairCost) -> u64 {
        let [decoded, pixels, mask, base_pixels, base_mask, filtered] = self.buffers();
        // The first two buffers may be swapped.
        let either = cost.decoded.max(cost.pixels);
        decoded.max(either)
            + pixels.max(either)
            + mask.max(cost.mask)
            + base_pixels.max(cost.base_pixels)
            + base_mask.max(cost.base_mask)
            + filtered.max(cost.filtered)
    }
}
