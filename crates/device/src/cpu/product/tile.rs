//! The innermost loop: a few rows and vectors of columns of a product, summed in registers over one run of terms.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use super::super::real::Real;
use super::super::vectors::{UNIT, Unit, load, store};

/// Largest tile for the vectors of `S`: sums, a row of vectors and one number must fit into its registers.
pub(super) struct TileSize<T, S>(PhantomData<(T, S)>);

impl<T: Real, S: Simd> TileSize<T, S> {
    const HAS_MANY_REGISTERS: bool = S::REGISTER_COUNT >= 32;
    pub const LANES: usize = Unit::<T, S>::LANES;
    pub const ROWS: usize = if Self::HAS_MANY_REGISTERS { 8 } else { 6 };
    pub const VECTORS: usize = if Self::HAS_MANY_REGISTERS { 3 } else { 2 };
}

/// Operands of one run of terms of a tile.
pub(super) struct Tile<T> {
    pub y: *mut T,
    /// Elements between rows of the result.
    pub y_stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub alpha: T,
    /// Whether the sums are added to the result.
    pub adds: bool,
    pub left: *const T,
    /// Elements between rows of the left factor, and between its terms.
    pub left_strides: [isize; 2],
    pub right: *const T,
    /// Elements between terms of the right factor, whose columns are contiguous.
    pub right_stride: usize,
    pub terms: usize,
}

impl<T: Real> Tile<T> {
    /// # Safety
    /// The operands hold `rows`, `columns` and `terms`, the right factor whole vectors of columns, and nothing else writes the result.
    /// The tile is not larger than [`TileSize`].
    #[inline(always)]
    pub unsafe fn compute<S: Simd>(&self, simd: S) {
        match self.columns.div_ceil(TileSize::<T, S>::LANES) {
            1 => self.of_width::<S, 1>(simd),
            2 => self.of_width::<S, 2>(simd),
            // A constant, so that machines with few registers compile no larger tiles.
            _ if TileSize::<T, S>::VECTORS == 2 => unreachable!("two vectors at most"),
            _ => self.of_width::<S, 3>(simd),
        }
    }

    #[inline(always)]
    fn of_width<S: Simd, const V: usize>(&self, simd: S) {
        match self.rows {
            1 => simd.vectorize(Run::<T, 1, V>(self)),
            2 => simd.vectorize(Run::<T, 2, V>(self)),
            3 => simd.vectorize(Run::<T, 3, V>(self)),
            4 => simd.vectorize(Run::<T, 4, V>(self)),
            5 => simd.vectorize(Run::<T, 5, V>(self)),
            6 => simd.vectorize(Run::<T, 6, V>(self)),
            _ if TileSize::<T, S>::ROWS == 6 => unreachable!("six rows at most"),
            7 => simd.vectorize(Run::<T, 7, V>(self)),
            _ => simd.vectorize(Run::<T, 8, V>(self)),
        }
    }
}

/// A tile of `P` rows and `V` vectors: a function of its own, compiled for the machine's vectors.
struct Run<'t, T, const P: usize, const V: usize>(&'t Tile<T>);

impl<T: Real, const P: usize, const V: usize> WithSimd for Run<'_, T, P, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Run(tile) = self;
        let lanes = TileSize::<T, S>::LANES;
        let [by_row, by_term] = tile.left_strides;
        // SAFETY: the caller of `compute` promises that the operands hold these rows, columns and terms.
        unsafe {
            let (mut left, mut right) = (tile.left, tile.right);
            let mut sums = [[T::splat(simd, T::ZERO); V]; P];
            for _ in 0..tile.terms {
                let mut vectors = [T::splat(simd, T::ZERO); V];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = load::<T, S>(right.add(v * lanes));
                }
                for (p, sums) in sums.iter_mut().enumerate() {
                    let number = T::splat(simd, *left.offset(p as isize * by_row));
                    for (sum, &vector) in sums.iter_mut().zip(&vectors) {
                        *sum = T::multiply_add(simd, number, vector, *sum);
                    }
                }
                left = left.wrapping_offset(by_term);
                right = right.wrapping_add(tile.right_stride);
            }
            let alpha = T::splat(simd, tile.alpha);
            let zero = T::splat(simd, T::ZERO);
            let has_whole_vectors = tile.columns == V * lanes;
            for (p, sums) in sums.iter().enumerate() {
                let y = tile.y.add(p * tile.y_stride);
                if !has_whole_vectors {
                    for (v, &sum) in sums.iter().take(V - 1).enumerate() {
                        let y = y.add(v * lanes);
                        let before = if tile.adds { load::<T, S>(y) } else { zero };
                        store::<T, S>(y, T::multiply_add(simd, alpha, sum, before));
                    }
                    add_some::<T, S>(simd, tile, alpha, sums[V - 1], y.add((V - 1) * lanes), V);
                } else if tile.adds {
                    for (v, &sum) in sums.iter().enumerate() {
                        let y = y.add(v * lanes);
                        store::<T, S>(y, T::multiply_add(simd, alpha, sum, load::<T, S>(y)));
                    }
                } else {
                    for (v, &sum) in sums.iter().enumerate() {
                        store::<T, S>(y.add(v * lanes), T::multiply_add(simd, alpha, sum, zero));
                    }
                }
            }
        }
    }
}

/// Writes the last columns of a row, fewer than a vector has lanes.
///
/// # Safety
/// The result has these columns at `y`.
#[inline(always)]
unsafe fn add_some<T: Real, S: Simd>(
    simd: S,
    tile: &Tile<T>,
    alpha: T::Vector<S>,
    sum: T::Vector<S>,
    y: *mut T,
    num_vectors: usize,
) {
    let count = tile.columns - (num_vectors - 1) * TileSize::<T, S>::LANES;
    let mut row = [T::ZERO; UNIT];
    // SAFETY: the caller's promise; a vector has at most so many lanes.
    unsafe {
        if tile.adds {
            std::ptr::copy_nonoverlapping(y, row.as_mut_ptr(), count);
        }
        let before = load::<T, S>(row.as_ptr());
        store::<T, S>(row.as_mut_ptr(), T::multiply_add(simd, alpha, sum, before));
        std::ptr::copy_nonoverlapping(row.as_ptr(), y, count);
    }
}
