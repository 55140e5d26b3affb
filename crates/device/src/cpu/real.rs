//! Floating-point arithmetic that the compiler can vectorise.
//!
//! Reductions run over sixteen lanes that are added pairwise at the end, so that vector registers can hold them and different
//! instruction sets change the result by rounding alone.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use rayon::prelude::*;

use super::vectors::Vectors;

/// A number that can be stored in the arena: any bit pattern is a valid value.
pub trait Element: Copy + Send + Sync + 'static {}

impl Element for f32 {}
impl Element for f64 {}
impl Element for i64 {}
impl Element for u8 {}
impl Element for u16 {} // the bits of a 16-bit float

/// Partial sums of a reduction.
pub(super) const LANES: usize = 16;

/// f32 for work, f64 for gradient checks.
pub(super) trait Real:
    Element
    + Vectors
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    fn erf(self) -> Self;
    /// The larger of two numbers; branch-free.
    fn larger(self, other: Self) -> Self;
    fn is_finite(self) -> bool;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn f64(self) -> f64 {
        f64::from(self)
    }

    /// `2^n * p(r)` with `x = n ln 2 + r`; relative error below 2e-7 (tested), 0 below -87, saturating above 88.
    #[inline(always)]
    fn exp(self) -> f32 {
        const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
        let x = if self > 88.0 { 88.0 } else { self };
        let x = if x < -87.0 { -87.0 } else { x };
        let shifted = x * std::f32::consts::LOG2_E + SHIFT;
        let n = shifted - SHIFT;
        // ln 2 in two parts, so that n ln 2 is subtracted exactly.
        let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
        let p = ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2)
            * r
            + 1.666_666_5e-1)
            * r
            + 0.5;
        let p = p * r * r + r + 1.0;
        let exponent =
            (shifted.to_bits().wrapping_sub(SHIFT.to_bits()) << 23).wrapping_add(1.0f32.to_bits());
        let result = p * f32::from_bits(exponent);
        if self < -87.0 { 0.0 } else { result }
    }

    #[inline(always)]
    fn ln(self) -> f32 {
        f32::ln(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    /// Abramowitz and Stegun 7.1.26: absolute error below 6e-7 (tested).
    #[inline(always)]
    fn erf(self) -> f32 {
        let x = if self < 0.0 { -self } else { self };
        let t = 1.0 / (1.0 + 0.327_591_1 * x);
        let p = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t
            + 0.254_829_6)
            * t;
        let y = 1.0 - p * Real::exp(-x * x);
        if self < 0.0 { -y } else { y }
    }

    #[inline(always)]
    fn larger(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;

    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }

    #[inline(always)]
    fn ln(self) -> f64 {
        f64::ln(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn larger(self, other: f64) -> f64 {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}

/// Runs `work` with the widest vector instructions of this machine.
#[inline(always)]
pub(super) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}

/// Work in numbered pieces whose body is too long for the compiler to inline into [`vectorised`] on its own: `piece` must be
/// `#[inline(always)]`, or it is compiled without the machine's vectors.
pub(super) trait Pieces: Sync {
    fn piece(&self, number: usize);
}

/// Runs every piece, on all threads, with the widest vector instructions of this machine.
pub(super) fn run_pieces(count: usize, work: &impl Pieces) {
    struct OnePiece<'a, W>(&'a W, usize);

    impl<W: Pieces> pulp::NullaryFnOnce for OnePiece<'_, W> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            self.0.piece(self.1);
        }
    }

    (0..count)
        .into_par_iter()
        .for_each(|number| pulp::Arch::new().dispatch(OnePiece(work, number)));
}

/// Runs every piece on this thread, with the widest vector instructions of this machine.
pub(super) fn run_pieces_here(count: usize, work: &impl Pieces) {
    struct All<'a, W>(&'a W, usize);

    impl<W: Pieces> pulp::NullaryFnOnce for All<'_, W> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            for number in 0..self.1 {
                self.0.piece(number);
            }
        }
    }

    pulp::Arch::new().dispatch(All(work, count));
}

/// Whether a vector register holds sixteen f32.
pub(super) fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        matches!(pulp::Arch::new(), pulp::Arch::V4(_))
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Sixteen numbers of a row from `start` on; zeros after its end.
#[inline(always)]
pub(super) fn load<T: Real>(row: &[T], start: usize) -> [T; LANES] {
    let mut lanes = [T::ZERO; LANES];
    match row.get(start..start + LANES) {
        Some(all) => lanes.copy_from_slice(all),
        None => {
            for (lane, &value) in lanes.iter_mut().zip(&row[start..]) {
                *lane = value;
            }
        }
    }
    lanes
}

/// Writes sixteen numbers to a row from `start` on, up to its end.
#[inline(always)]
pub(super) fn store<T: Real>(row: &mut [T], start: usize, lanes: [T; LANES]) {
    match row.get_mut(start..start + LANES) {
        Some(all) => all.copy_from_slice(&lanes),
        None => {
            for (value, lane) in row[start..].iter_mut().zip(lanes) {
                *value = lane;
            }
        }
    }
}

/// Adds the lanes in a fixed order.
#[inline(always)]
pub(super) fn fold<T: Real>(mut lanes: [T; LANES]) -> T {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let other = lanes[lane + width];
            lanes[lane] += other;
        }
        width /= 2;
    }
    lanes[0]
}

/// `sum of f(x)`.
#[inline(always)]
pub(super) fn sum<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            lanes[lane] += f(chunk[lane]);
        }
    }
    for (lane, &value) in chunks.remainder().iter().enumerate() {
        lanes[lane] += f(value);
    }
    fold(lanes)
}

/// `sum of x y`.
#[inline(always)]
pub(super) fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (mut left, mut right) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    for (a, b) in (&mut left).zip(&mut right) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    for (lane, (&a, &b)) in left.remainder().iter().zip(right.remainder()).enumerate() {
        lanes[lane] += a * b;
    }
    fold(lanes)
}

/// The largest element, or minus infinity.
#[inline(always)]
pub(super) fn largest<T: Real>(x: &[T]) -> T {
    let mut lanes = [T::NEG_INFINITY; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            lanes[lane] = chunk[lane].larger(lanes[lane]);
        }
    }
    for (lane, &value) in chunks.remainder().iter().enumerate() {
        lanes[lane] = value.larger(lanes[lane]);
    }
    lanes
        .iter()
        .fold(T::NEG_INFINITY, |best, &lane| lane.larger(best))
}

/// Replaces `x` by `exp(x - shift)` and returns the sum.
#[inline(always)]
pub(super) fn exp_in_place<T: Real>(x: &mut [T], shift: T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            let e = (chunk[lane] - shift).exp();
            chunk[lane] = e;
            lanes[lane] += e;
        }
    }
    for (lane, value) in chunks.into_remainder().iter_mut().enumerate() {
        let e = (*value - shift).exp();
        *value = e;
        lanes[lane] += e;
    }
    fold(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_2e7_of_the_true_value_where_f32_can_hold_it() {
        let mut worst: f64 = 0.0;
        for step in 0..2_000_000 {
            let x = -87.0 + step as f32 * (175.0 / 2_000_000.0);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(Real::exp(x)) / exact - 1.0).abs());
        }
        assert!(worst < 2e-7, "{worst:e}");
        assert_eq!(Real::exp(-88.0f32), 0.0);
        assert_eq!(Real::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Real::exp(0.0f32), 1.0);
        assert!(Real::exp(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_within_6e7_of_the_true_value() {
        for step in -60_000..60_000 {
            let x = step as f32 * 1e-4;
            let error = f64::from(Real::erf(x)) - libm::erf(f64::from(x));
            assert!(error.abs() < 6e-7, "erf({x}) is off by {error:e}");
        }
    }

    #[test]
    fn reductions_take_every_element() {
        for length in 0..70 {
            let x: Vec<f64> = (0..length).map(|i| f64::from(i) + 0.5).collect();
            let total: f64 = x.iter().sum();
            assert_eq!(sum(&x, |value| value), total);
            assert_eq!(dot(&x, &vec![2.0; x.len()]), 2.0 * total);
            assert_eq!(largest(&x), x.last().copied().unwrap_or(f64::NEG_INFINITY));
            let mut e = x.clone();
            let total = exp_in_place(&mut e, 70.0);
            let expected: f64 = x.iter().map(|value| (value - 70.0).exp()).sum();
            assert!((total - expected).abs() <= 1e-15 * expected.max(1.0));
        }
    }
}
