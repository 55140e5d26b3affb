//! The dynamic map: 256 levels for the moments of 8-bit optimizers, dense where moments are frequent (Dettmers et al. 2022,
//! block-wise quantisation).
//!
//! Magnitudes relative to the largest of a block are between 0 and 1. Each of the seven decades from `1e-6` to 1 has twice as many
//! levels as the decade below it: the midpoints of equal parts of `[0.1, 1]` of the decade. 0 and 1 are levels too. Signed moments have
//! `2^i` levels of either sign in decade `i`, unsigned moments have twice as many.
//!
//! The nearest level is found without a search: the first 16 bits of a float cut a decade into parts that contain at most one midpoint
//! between neighbouring levels, and a table has the number of midpoints below each part.

use std::sync::LazyLock;

const DECADES: i32 = 7;
/// Code of zero in the signed map.
pub(crate) const SIGNED_ZERO: u8 = 127;
/// First 16 bits of 2^-23: the nearest level of smaller magnitudes is zero.
const LOWEST_KEY: u32 = 104 << 7;
/// Parts from [`LOWEST_KEY`] to the part of 1, rounded up to whole accesses of 16 bytes.
pub(crate) const NUM_PARTS: usize = 2960;

/// Levels of magnitude, with the tables to find the nearest.
pub(crate) struct DynamicMap {
    /// The number of each code.
    pub numbers: [f32; 256],
    /// Midpoints between neighbouring levels; infinite after the last.
    pub midpoints: [f32; 256],
    /// Number of midpoints below each part.
    pub first: [u8; NUM_PARTS],
}

/// The signed map, for first moments.
pub(crate) static SIGNED: LazyLock<DynamicMap> = LazyLock::new(|| {
    let levels = levels(1);
    let mut map = DynamicMap::new(&levels);
    for (level, &magnitude) in levels.iter().enumerate() {
        map.numbers[usize::from(SIGNED_ZERO) + level] = magnitude;
        // There is no code for -1.
        if level < 128 {
            map.numbers[usize::from(SIGNED_ZERO) - level] = -magnitude;
        }
    }
    map.numbers[usize::from(SIGNED_ZERO)] = 0.0;
    map
});

/// The unsigned map, for second moments.
pub(crate) static UNSIGNED: LazyLock<DynamicMap> = LazyLock::new(|| {
    let levels = levels(2);
    let mut map = DynamicMap::new(&levels);
    map.numbers.copy_from_slice(&levels);
    map
});

/// Levels in ascending order, from 0 to 1.
fn levels(in_first_decade: usize) -> Vec<f32> {
    let mut levels = vec![0.0];
    for decade in 0..DECADES {
        let parts = in_first_decade << decade;
        let width = 0.9 / parts as f64;
        let scale = 10f64.powi(decade - DECADES + 1);
        levels.extend((0..parts).map(|part| {
            let middle = 0.1 + (part as f64 + 0.5) * width;
            (scale * middle) as f32
        }));
    }
    levels.push(1.0);
    levels
}

impl DynamicMap {
    fn new(levels: &[f32]) -> DynamicMap {
        let mut map = DynamicMap {
            numbers: [0.0; 256],
            midpoints: [f32::INFINITY; 256],
            first: [0; NUM_PARTS],
        };
        for (midpoint, pair) in map.midpoints.iter_mut().zip(levels.windows(2)) {
            *midpoint = 0.5 * (pair[0] + pair[1]);
        }
        for (part, first) in map.first.iter_mut().enumerate() {
            let start = f32::from_bits((LOWEST_KEY + part as u32) << 16);
            *first = map.midpoints.partition_point(|&midpoint| midpoint < start) as u8;
        }
        map
    }

    /// The level nearest to a magnitude from 0 to 1; the lower level if two are equally near.
    #[inline(always)]
    pub fn level(&self, magnitude: f32) -> u8 {
        let key = magnitude.to_bits() >> 16;
        if key < LOWEST_KEY {
            return 0;
        }
        let part = ((key - LOWEST_KEY) as usize).min(NUM_PARTS - 1);
        let first = self.first[part];
        first + u8::from(magnitude > self.midpoints[usize::from(first)])
    }

    /// The code of a number, given its magnitude relative to the largest of its block. A negative number keeps its sign.
    #[inline(always)]
    pub fn signed_code(&self, is_negative: bool, magnitude: f32) -> u8 {
        let level = self.level(magnitude);
        if is_negative {
            SIGNED_ZERO - level.clamp(1, SIGNED_ZERO)
        } else {
            SIGNED_ZERO + level
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_every_code_is_nearest_to_its_own_number() {
        assert_eq!(SIGNED.numbers[usize::from(SIGNED_ZERO)], 0.0);
        assert_eq!((UNSIGNED.numbers[0], UNSIGNED.numbers[255]), (0.0, 1.0));
        assert_eq!(
            (SIGNED.numbers[255], SIGNED.numbers[0]),
            (1.0, -0.992_968_75)
        );
        for map in [&*SIGNED, &*UNSIGNED] {
            assert!(map.numbers.is_sorted_by(|a, b| a < b));
        }
        for code in 0..=255u8 {
            let number = SIGNED.numbers[usize::from(code)];
            assert_eq!(SIGNED.signed_code(number < 0.0, number.abs()), code);
            assert_eq!(UNSIGNED.level(UNSIGNED.numbers[usize::from(code)]), code);
        }
    }

    /// Compares the table lookup with a search: every float around every midpoint, and a walk over all magnitudes.
    #[test]
    fn the_level_is_the_nearest_of_all() {
        let nearest = |map: &DynamicMap, x: f32| map.midpoints.iter().filter(|&&m| x > m).count();
        for map in [&*SIGNED, &*UNSIGNED] {
            let around = map.midpoints.iter().filter(|midpoint| midpoint.is_finite());
            let around = around.flat_map(|midpoint| {
                let bits = midpoint.to_bits();
                (bits - 3..=bits + 3).map(f32::from_bits)
            });
            let mut walk = vec![0.0, f32::MIN_POSITIVE, 1e-30, 1.0];
            walk.extend((0..=1 << 16).map(|part| part as f32 / 65_536.0));
            walk.extend((0..4_000).map(|part| 10f32.powf(-9.0 * part as f32 / 4_000.0)));
            for x in around.chain(walk) {
                assert_eq!(usize::from(map.level(x)), nearest(map, x), "{x:e}");
            }
        }
        // A negative number whose nearest level is zero keeps its sign.
        assert_eq!(SIGNED.signed_code(true, 1e-9), SIGNED_ZERO - 1);
        assert_eq!(SIGNED.signed_code(false, 1e-9), SIGNED_ZERO);
        assert_eq!(SIGNED.signed_code(true, 1.0), 0);
    }
}
