//! The skeleton of a mask: lines of one pixel's width along its middle.
//!
//! Zhang and Suen's thinning (1984), pixel for pixel equal to `skimage.morphology.skeletonize` for 2D images. Two kinds of pass alternate.
//! Each removes all pixels at once whose eight neighbours allow it in that pass; thinning ends when neither pass removes any. With `B`
//! neighbours in the mask, and `A` changes from outside to inside on the way around the pixel, the rule is
//!
//! ```text
//! 2 <= B <= 6 and A = 1, and
//! first pass    one of north, east, south is outside, and one of east, south, west      removes from the south-east
//! second pass   one of north, east, west is outside, and one of north, south, west      removes from the north-west
//! ```
//!
//! scikit-image deviates from the rule in the 25 neighbourhoods of [`EXCEPTIONS`]: staircases lose their corners, and some ends of
//! lines of two pixels' width are removed in one pass only.
//!
//! Cost: a pass visits only blocks of pixels with a removal nearby in the last two passes; no other block can have changed.

const NW: u8 = 1;
const N: u8 = 2;
const NE: u8 = 4;
const E: u8 = 8;
const SE: u8 = 16;
const S: u8 = 32;
const SW: u8 = 64;
const W: u8 = 128;

const FIRST: u8 = 1;
const SECOND: u8 = 2;
const NEVER: u8 = 0;
const BOTH: u8 = FIRST | SECOND;

/// Neighbours in the mask, and the passes that remove the pixel between them.
const EXCEPTIONS: [(u8, u8); 25] = [
    // Corners of staircases: two neighbours that touch each other diagonally.
    (N | E, BOTH),
    (E | S, BOTH),
    (S | W, BOTH),
    (W | N, BOTH),
    // Corners of staircases with an additional diagonal neighbour.
    (N | E | NW, FIRST),
    (N | E | SE, SECOND),
    (E | S | SW, SECOND),
    (S | W | NW, FIRST),
    (S | W | SE, SECOND),
    (W | N | NE, FIRST),
    (W | N | SW, FIRST),
    (E | S | NE | SW, SECOND),
    (W | N | NE | SW, FIRST),
    // Filled corners.
    (N | NE | E, FIRST),
    (W | NW | N, FIRST),
    (E | SE | S, SECOND),
    (S | SW | W, SECOND),
    // Ends of lines of two pixels' width.
    (NW | N, FIRST),
    (N | NE, FIRST),
    (NE | E, FIRST),
    (E | SE, SECOND),
    (S | SW, SECOND),
    (SW | W, SECOND),
    (SE | S, NEVER),
    (NW | W, NEVER),
];

/// The passes that remove a pixel, by its neighbourhood.
static PASSES: [u8; 256] = passes();

const fn passes() -> [u8; 256] {
    let mut table = [NEVER; 256];
    let mut code = 0;
    while code < table.len() {
        let around = code as u8;
        let changes = (!around & around.rotate_right(1)).count_ones();
        let count = around.count_ones();
        if 2 <= count && count <= 6 && changes == 1 {
            if !has(around, N | E | S) && !has(around, E | S | W) {
                table[code] |= FIRST;
            }
            if !has(around, N | E | W) && !has(around, N | S | W) {
                table[code] |= SECOND;
            }
        }
        code += 1;
    }
    let mut index = 0;
    while index < EXCEPTIONS.len() {
        let (around, passes) = EXCEPTIONS[index];
        table[around as usize] = passes;
        index += 1;
    }
    table
}

const fn has(around: u8, all: u8) -> bool {
    around & all == all
}

/// Pixels per block, in one row.
const BLOCK: usize = 64;
/// In the mask.
const SET: u8 = 1;
/// In the mask, and marked for removal at the end of the pass.
const LEAVING: u8 = 2;

/// Buffers of the thinning: a little over one byte per pixel, reused from picture to picture.
#[derive(Clone, Debug, Default)]
pub struct SkeletonBuffer {
    /// Pixels, with a border of one pixel outside of the mask.
    pixels: Vec<u8>,
    /// Last pass that removed a pixel of each block, with a border of blocks.
    changed: Vec<u32>,
    size: [usize; 2],
}

impl SkeletonBuffer {
    /// Memory for pictures of this size.
    pub fn bytes([height, width]: [usize; 2]) -> u64 {
        let blocks = (height + 2) * (width.div_ceil(BLOCK) + 2);
        ((height + 2) * (width + 2) + blocks * size_of::<u32>()) as u64
    }

    pub fn thin(&mut self, mask: impl Fn(usize) -> bool, [height, width]: [usize; 2]) {
        let row = width + 2;
        self.size = [height, width];
        self.pixels.clear();
        self.pixels.resize((height + 2) * row, 0);
        for y in 0..height {
            for x in 0..width {
                self.pixels[(y + 1) * row + x + 1] = u8::from(mask(y * width + x));
            }
        }
        self.changed.clear();
        self.changed
            .resize((height + 2) * (width.div_ceil(BLOCK) + 2), 0);
        // All blocks changed in pass 0: the first two passes visit every one.
        let mut pass = 1;
        loop {
            let first = self.pass(pass, FIRST);
            let second = self.pass(pass + 1, SECOND);
            if !first && !second {
                return;
            }
            pass += 2;
        }
    }

    /// Pixel indices of the skeleton.
    pub fn places(&self) -> impl Iterator<Item = usize> {
        let [height, width] = self.size;
        let rows =
            (0..height).map(move |y| (y, &self.pixels[(y + 1) * (width + 2) + 1..][..width]));
        rows.flat_map(move |(y, row)| {
            let set = row.iter().enumerate().filter(|(_, pixel)| **pixel == SET);
            set.map(move |(x, _)| y * width + x)
        })
    }

    /// Runs one pass; returns whether it removed a pixel.
    fn pass(&mut self, number: u32, pass: u8) -> bool {
        let [height, width] = self.size;
        let (row, blocks) = (width + 2, width.div_ceil(BLOCK));
        let mut has_removed = false;
        for y in 1..=height {
            for block in 1..=blocks {
                if !self.may_change([y, block], number) {
                    continue;
                }
                let start = y * row + 1 + (block - 1) * BLOCK;
                let end = (start + BLOCK).min(y * row + 1 + width);
                let mut is_leaving = false;
                for at in start..end {
                    if self.pixels[at] & SET != 0 && PASSES[self.around(at)] & pass != 0 {
                        self.pixels[at] |= LEAVING;
                        is_leaving = true;
                    }
                }
                if is_leaving {
                    self.changed[y * (blocks + 2) + block] = number;
                    has_removed = true;
                }
            }
        }
        for y in 1..=height {
            for block in 1..=blocks {
                if self.changed[y * (blocks + 2) + block] == number {
                    let start = y * row + 1 + (block - 1) * BLOCK;
                    let end = (start + BLOCK).min(y * row + 1 + width);
                    for pixel in &mut self.pixels[start..end] {
                        // Marked pixels are cleared.
                        *pixel = u8::from(*pixel == SET);
                    }
                }
            }
        }
        has_removed
    }

    /// Whether a pixel in or next to the block was removed since the last pass of this kind.
    fn may_change(&self, [y, block]: [usize; 2], number: u32) -> bool {
        let [_, width] = self.size;
        let row = width.div_ceil(BLOCK) + 2;
        (y - 1..=y + 1).any(|y| {
            let near = &self.changed[y * row + block - 1..=y * row + block + 1];
            near.iter().any(|&changed| changed + 2 >= number)
        })
    }

    /// The eight neighbours as bits.
    fn around(&self, at: usize) -> usize {
        let row = self.size[1] + 2;
        let set = |at: usize| self.pixels[at] & SET;
        let north = set(at - row - 1) | set(at - row) << 1 | set(at - row + 1) << 2;
        let south = set(at + row + 1) << 4 | set(at + row) << 5 | set(at + row - 1) << 6;
        usize::from(north | set(at + 1) << 3 | south | set(at - 1) << 7)
    }
}
