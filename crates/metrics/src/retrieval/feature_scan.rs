//! First scan of all features: finiteness, row norms and number of bits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use super::exact_comparison::Sums;
use super::{RetrievalError, Side};
use crate::features::Features;

/// Properties of one side's values.
#[derive(Clone, Copy, Debug)]
pub struct FeatureScan {
    /// Norm of the longest row.
    norm: f64,
    /// Exponent of the lowest bit of any value, if f64 sums may be exact.
    lowest_bit: Option<i32>,
}

impl FeatureScan {
    /// Exponent e such that no value reaches 2^(e + 1).
    pub fn largest_exponent(&self) -> i32 {
        if self.norm > 0.0 {
            self.norm.log2().floor() as i32
        } else {
            0
        }
    }
}

/// Rows per task of a thread.
const ROWS: usize = 256;

/// More than the relative rounding error of a sum of squares in f64.
const UP: f64 = 1.0 + 1e-6;

/// 2-norm of a row, rounded up a little; not finite if a value is not finite.
pub fn norm(row: &[f32]) -> f64 {
    pulp::Arch::new().dispatch(SumOfSquares(row)).sqrt() * UP
}

/// A struct rather than a closure: a closure would be compiled without the vector instructions of its caller.
struct SumOfSquares<'a>(&'a [f32]);

impl pulp::WithSimd for SumOfSquares<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> f64 {
        const LANES: usize = 16;
        let mut squares = [0.0; LANES];
        let (whole, rest) = self.0.as_chunks::<LANES>();
        for values in whole {
            for (sum, &value) in squares.iter_mut().zip(values) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        for (sum, &value) in squares.iter_mut().zip(rest) {
            *sum += f64::from(value) * f64::from(value);
        }
        squares.iter().sum()
    }
}

/// Scans every value of a side.
pub fn scan(features: &Features<'_>, side: Side) -> Result<FeatureScan, RetrievalError> {
    let few_bits = AtomicBool::new(true);
    let start = FeatureScan {
        norm: 0.0,
        lowest_bit: Some(i32::MAX),
    };
    let bad = Mutex::new(None::<usize>);
    let blocks = (0..features.num_rows().div_ceil(ROWS)).into_par_iter();
    let look = |block: usize| {
        let (mut seen, mut room) = (start, vec![]);
        for row in block * ROWS..((block + 1) * ROWS).min(features.num_rows()) {
            let values = features.row(row, &mut room);
            let norm = norm(values);
            if !norm.is_finite() {
                let mut bad = bad.lock().expect("never poisoned: nothing panics with it");
                *bad = Some(bad.map_or(row, |other| other.min(row)));
                return seen;
            }
            seen.norm = seen.norm.max(norm);
            seen.lowest_bit = seen.lowest_bit.filter(|_| few_bits.load(Ordering::Relaxed));
            seen.lowest_bit = seen.lowest_bit.and_then(|lowest| {
                let lowest = values.iter().fold(lowest, |low, &v| low.min(lowest_bit(v)));
                let bits = seen.norm.log2() - f64::from(lowest);
                (bits < f64::from(f64::MANTISSA_DIGITS)).then_some(lowest)
            });
            few_bits.fetch_and(seen.lowest_bit.is_some(), Ordering::Relaxed);
        }
        seen
    };
    let both = |a: FeatureScan, b: FeatureScan| FeatureScan {
        norm: a.norm.max(b.norm),
        lowest_bit: a.lowest_bit.zip(b.lowest_bit).map(|(a, b)| a.min(b)),
    };
    let seen = blocks.map(look).reduce(|| start, both);
    let bad = bad
        .into_inner()
        .expect("never poisoned: nothing panics with it");
    let Some(row) = bad else {
        return Ok(seen);
    };
    let mut room = vec![];
    let values = features.row(row, &mut room);
    let column = values.iter().position(|value| !value.is_finite());
    let column = column.expect("a row whose norm is not finite has such a value");
    Err(RetrievalError::NotFinite {
        side,
        row,
        column,
        value: values[column].to_string(),
    })
}

/// Exponent of the lowest set bit; `i32::MAX` for zero.
fn lowest_bit(value: f32) -> i32 {
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 23 & 0xff) as i32, bits & 0x7f_ffff);
    match (exponent, fraction) {
        (0, 0) => i32::MAX,
        (0, _) => fraction.trailing_zeros() as i32 - 149,
        _ => (fraction | 1 << 23).trailing_zeros() as i32 + exponent - 150,
    }
}

/// Bits of the longest sum: every product is a multiple of the product of the lowest bits, and no sum exceeds the product of the norms.
fn bits_of_sums(queries: &FeatureScan, gallery: &FeatureScan) -> Option<f64> {
    let bits = |side: &FeatureScan| Some(side.norm.log2() - f64::from(side.lowest_bit?));
    Some(bits(queries)? + bits(gallery)?)
}

/// Whether f64 sums are exact.
pub fn sums(queries: &FeatureScan, gallery: &FeatureScan) -> Sums {
    match bits_of_sums(queries, gallery) {
        // One less than f64 has, to allow for rounding of the logarithms.
        Some(bits) if bits < 52.0 => Sums::Exact,
        _ => Sums::Rounded,
    }
}

/// Whether sums are exact in f32 too.
pub fn f32_sums_are_exact(queries: &FeatureScan, gallery: &FeatureScan) -> bool {
    bits_of_sums(queries, gallery).is_some_and(|bits| bits < 23.0)
}
