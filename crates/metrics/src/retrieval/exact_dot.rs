//! Dot products of f32 without rounding.
//!
//! A product of two f32 is an integer of at most 48 bits times a power of two from 2^-298 to 2^208. The sum is kept as
//! one wide integer in units of 2^-298: limbs of 32 bits, each in an i64, so that carries can wait for 2^31 additions.

use std::cmp::Ordering;

/// 507 bit positions, 48 bits of a product, 31 bits of additions, and a limb for the sign.
const LIMBS: usize = 20;

const LIMB_BITS: u32 = 32;

/// An exact sum of products.
#[derive(Clone, Debug)]
pub struct Accumulator {
    limbs: [i64; LIMBS],
}

impl Default for Accumulator {
    fn default() -> Self {
        Accumulator { limbs: [0; LIMBS] }
    }
}

/// Integer and exponent of an f32: `value = whole * 2^(exponent - 149)`.
fn split(value: f32) -> (i64, u32) {
    let bits = value.to_bits();
    let (exponent, fraction) = (bits >> 23 & 0xff, i64::from(bits & 0x7f_ffff));
    let (whole, exponent) = match exponent {
        0 => (fraction, 0),
        _ => (fraction | 1 << 23, exponent - 1),
    };
    (if bits >> 31 == 1 { -whole } else { whole }, exponent)
}

impl Accumulator {
    /// Adds `sign * a * b`; both must be finite.
    fn add(&mut self, a: f32, b: f32, sign: i64) {
        let ((a, exponent_a), (b, exponent_b)) = (split(a), split(b));
        let position = exponent_a + exponent_b;
        let product = i128::from(sign * a * b) << (position % LIMB_BITS);
        let first = (position / LIMB_BITS) as usize;
        // 48 bits and a shift below 32 span three limbs; the last one takes the sign.
        self.limbs[first] += (product & 0xffff_ffff) as i64;
        self.limbs[first + 1] += (product >> 32 & 0xffff_ffff) as i64;
        self.limbs[first + 2] += (product >> 64) as i64;
    }

    pub fn add_dot(&mut self, a: &[f32], b: &[f32]) {
        for (&a, &b) in a.iter().zip(b) {
            self.add(a, b, 1);
        }
    }

    /// Subtracts a dot product.
    pub fn subtract_dot(&mut self, a: &[f32], b: &[f32]) {
        for (&a, &b) in a.iter().zip(b) {
            self.add(a, b, -1);
        }
    }

    /// Comparison of the sum with zero.
    pub fn sign(mut self) -> Ordering {
        let mut carry = 0;
        let mut any = 0;
        for limb in &mut self.limbs {
            let sum = *limb + carry;
            carry = sum >> LIMB_BITS;
            any |= sum & 0xffff_ffff;
        }
        match (carry.cmp(&0), any) {
            (Ordering::Less, _) => Ordering::Less,
            (Ordering::Equal, 0) => Ordering::Equal,
            _ => Ordering::Greater,
        }
    }
}

/// Compares `a . b` with `c . d`.
pub fn compare([a, b]: [&[f32]; 2], [c, d]: [&[f32]; 2]) -> Ordering {
    let mut difference = Accumulator::default();
    difference.add_dot(a, b);
    difference.subtract_dot(c, d);
    difference.sign()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn finite() -> impl Strategy<Value = f32> {
        any::<u32>()
            .prop_map(f32::from_bits)
            .prop_filter("finite", |value| value.is_finite())
    }

    proptest! {
        // Small integers times powers of two, whose sums f64 holds without rounding.
        #[test]
        fn agrees_with_f64_where_f64_is_exact(
            values in prop::collection::vec((-4096i32..4096, -4096i32..4096, -30i32..30), 0..40),
            other in -1_000_000i32..1_000_000,
        ) {
            let scale = |value: i32, by: i32| value as f32 * 2f32.powi(by);
            let a: Vec<f32> = values.iter().map(|&(a, _, by)| scale(a, by)).collect();
            let b: Vec<f32> = values.iter().map(|&(_, b, by)| scale(b, -by)).collect();
            let sum: f64 = values.iter().map(|&(a, b, _)| f64::from(a) * f64::from(b)).sum();
            let found = compare([&a, &b], [&[other as f32], &[1.0]]);
            prop_assert_eq!(found, sum.partial_cmp(&f64::from(other)).unwrap());
        }

        // Numbers of any size: all terms but one are subtracted again in another order, and that one is left.
        #[test]
        fn nothing_is_lost_between_the_largest_and_the_smallest(
            a in prop::collection::vec(finite(), 1..40),
            b in prop::collection::vec(finite(), 40),
            left in (finite(), finite()),
        ) {
            let mut sum = Accumulator::default();
            sum.add_dot(&a, &b);
            sum.add_dot(&[left.0], &[left.1]);
            let backwards = |values: &[f32]| values[..a.len()].iter().rev().copied().collect::<Vec<_>>();
            sum.subtract_dot(&backwards(&b), &backwards(&a));
            let expected = if left.0 == 0.0 || left.1 == 0.0 {
                Ordering::Equal
            } else if left.0.is_sign_positive() == left.1.is_sign_positive() {
                Ordering::Greater
            } else {
                Ordering::Less
            };
            prop_assert_eq!(sum.sign(), expected);
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let tiny = f32::from_bits(1);
        assert_eq!(
            compare([&[tiny], &[tiny]], [&[0.0], &[0.0]]),
            Ordering::Greater
        );
        let large = [f32::MAX; 3];
        let small = [-f32::MAX, -f32::MAX, -f32::MAX];
        assert_eq!(
            compare([&large, &large], [&small, &large]),
            Ordering::Greater
        );
        assert_eq!(compare([&large, &small], [&small, &large]), Ordering::Equal);
    }
}
