//! First scan of all features: finiteness, row norms and number of bits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use holdall_device::cpu::digits;
use rayon::prelude::*;

use super::exact_comparison::Sums;
use super::{RetrievalError, Side};
use crate::features::Features;

/// Properties of one side's values.
#[derive(Clone, Copy, Debug)]
pub struct FeatureScan {
    /// Exponent of the coarsest unit that a row's digits need; other units are relative to it.
    pub exponent: i32,
    /// Norm of the longest row.
    norm: f64,
    /// Norm of the longest row of digits, if digits represent every row exactly.
    digits: Option<f64>,
    /// Exponent of the lowest bit of any value, if f64 sums may be exact.
    lowest_bit: Option<i32>,
}

/// Finest unit relative to the coarsest; a finer one would not fit f32 beside it.
const FINEST: i32 = 60;

impl FeatureScan {
    /// Exponent e such that no value reaches 2^(e + 1).
    pub fn largest_exponent(&self) -> i32 {
        if self.norm > 0.0 {
            self.norm.log2().floor() as i32
        } else {
            0
        }
    }

    /// Exponent of the unit for a row's digits.
    pub fn unit(&self, survey: &digits::Survey) -> i32 {
        survey.exponent.max(self.exponent - FINEST)
    }
}

/// Rows per task of a thread.
const ROWS: usize = 256;

/// Scans every value of a side.
pub fn scan(features: &Features<'_>, side: Side) -> Result<FeatureScan, RetrievalError> {
    let (few_bits, few_digits) = (AtomicBool::new(true), AtomicBool::new(true));
    let start = FeatureScan {
        exponent: i32::MIN,
        norm: 0.0,
        digits: Some(0.0),
        lowest_bit: Some(i32::MAX),
    };
    let bad = Mutex::new(None::<usize>);
    let blocks = (0..features.num_rows().div_ceil(ROWS)).into_par_iter();
    let look = |block: usize| {
        let (mut seen, mut room, mut digits) = (start, vec![], vec![0; features.dimension()]);
        for row in block * ROWS..((block + 1) * ROWS).min(features.num_rows()) {
            let values = features.row(row, &mut room);
            let found = digits::survey(values);
            if !found.norm.is_finite() {
                let mut bad = bad.lock().expect("never poisoned: nothing panics with it");
                *bad = Some(bad.map_or(row, |other| other.min(row)));
                return seen;
            }
            seen.exponent = seen.exponent.max(found.exponent);
            seen.norm = seen.norm.max(found.norm);
            if found.norm == 0.0 {
                continue;
            }
            seen.digits = seen.digits.filter(|_| few_digits.load(Ordering::Relaxed));
            seen.digits = seen.digits.and_then(|longest| {
                let split = digits::split(values, found.norm, found.exponent, &mut digits);
                let exact = split.residual == 0.0;
                exact.then(|| longest.max(split.norm))
            });
            seen.lowest_bit = seen.lowest_bit.filter(|_| few_bits.load(Ordering::Relaxed));
            seen.lowest_bit = seen.lowest_bit.and_then(|lowest| {
                let lowest = values.iter().fold(lowest, |low, &v| low.min(lowest_bit(v)));
                let bits = seen.norm.log2() - f64::from(lowest);
                (bits < f64::from(f64::MANTISSA_DIGITS)).then_some(lowest)
            });
            few_digits.fetch_and(seen.digits.is_some(), Ordering::Relaxed);
            few_bits.fetch_and(seen.lowest_bit.is_some(), Ordering::Relaxed);
        }
        seen
    };
    let both = |a: FeatureScan, b: FeatureScan| FeatureScan {
        exponent: a.exponent.max(b.exponent),
        norm: a.norm.max(b.norm),
        digits: a.digits.zip(b.digits).map(|(a, b)| a.max(b)),
        lowest_bit: a.lowest_bit.zip(b.lowest_bit).map(|(a, b)| a.min(b)),
    };
    let seen = blocks.map(look).reduce(|| start, both);
    let bad = bad
        .into_inner()
        .expect("never poisoned: nothing panics with it");
    if let Some(row) = bad {
        let mut room = vec![];
        let values = features.row(row, &mut room);
        let column = values.iter().position(|value| !value.is_finite());
        let column = column.expect("a row whose norm is not finite has such a value");
        return Err(RetrievalError::NotFinite {
            side,
            row,
            column,
            value: values[column].to_string(),
        });
    }
    // All rows are zero: any unit is valid.
    let exponent = if seen.exponent == i32::MIN {
        0
    } else {
        seen.exponent
    };
    Ok(FeatureScan { exponent, ..seen })
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

/// Whether f64 sums are exact: every product is a multiple of the product of the lowest bits, and every sum is below 2^53 of those.
pub fn sums(queries: &FeatureScan, gallery: &FeatureScan) -> Sums {
    let bits = |side: &FeatureScan| Some(side.norm.log2() - f64::from(side.lowest_bit?));
    match bits(queries).zip(bits(gallery)) {
        // 52 rather than 53, to allow for rounding of the logarithms.
        Some((a, b)) if a + b < 52.0 => Sums::Exact,
        _ => Sums::Rounded,
    }
}

/// Whether the first product is exact, also in f32.
pub fn products_are_exact(queries: &FeatureScan, gallery: &FeatureScan) -> bool {
    let longest = queries.digits.zip(gallery.digits);
    longest.is_some_and(|(a, b)| a * b < 2f64.powi(24)) && sums(queries, gallery) == Sums::Exact
}
