//! The innermost loop: a few rows and up to three vectors of columns of a product, summed in registers over one run of terms.

use pulp::{NullaryFnOnce, Simd};

use super::super::real::Real;
use super::super::vectors::{load, store};

/// Vectors of a tile: with eight rows, 24 of 32 registers hold sums.
const MAX_VECTORS: usize = 3;

/// Largest tile for the vectors of `S`.
pub(super) struct TileSize<T, S>(std::marker::PhantomData<(T, S)>);

impl<T: Real, S: Simd> TileSize<T, S> {
    pub const LANES: usize = size_of::<T::Vector<S>>() / size_of::<T>();
    pub const ROWS: usize = if S::REGISTER_COUNT >= 32 { 8 } else { 4 };
    pub const VECTORS: usize = MAX_VECTORS;
    pub const COLUMNS: usize = MAX_VECTORS * Self::LANES;
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
            _ => self.of_width::<S, MAX_VECTORS>(simd),
        }
    }

    #[inline(always)]
    fn of_width<S: Simd, const V: usize>(&self, simd: S) {
        let tile = self;
        match self.rows {
            1 => simd.vectorize(Run::<T, S, 1, V> { simd, tile }),
            2 => simd.vectorize(Run::<T, S, 2, V> { simd, tile }),
            3 => simd.vectorize(Run::<T, S, 3, V> { simd, tile }),
            4 => simd.vectorize(Run::<T, S, 4, V> { simd, tile }),
            // Constants, so that machines with few registers compile no larger tiles.
            _ if TileSize::<T, S>::ROWS == 4 => unreachable!("four rows at most"),
            5 => simd.vectorize(Run::<T, S, 5, V> { simd, tile }),
            6 => simd.vectorize(Run::<T, S, 6, V> { simd, tile }),
            7 => simd.vectorize(Run::<T, S, 7, V> { simd, tile }),
            _ => simd.vectorize(Run::<T, S, 8, V> { simd, tile }),
        }
    }
}

/// A tile of `P` rows and `V` vectors, as a function of its own that is compiled for the instructions of `S`.
struct Run<'t, T, S, const P: usize, const V: usize> {
    simd: S,
    tile: &'t Tile<T>,
}

impl<T: Real, S: Simd, const P: usize, const V: usize> NullaryFnOnce for Run<'_, T, S, P, V> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Run { simd, tile } = self;
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
    let mut row = [T::ZERO; 16];
    // SAFETY: the caller's promise; a vector has at most sixteen lanes.
    unsafe {
        if tile.adds {
            std::ptr::copy_nonoverlapping(y, row.as_mut_ptr(), count);
        }
        let before = load::<T, S>(row.as_ptr());
        store::<T, S>(row.as_mut_ptr(), T::multiply_add(simd, alpha, sum, before));
        std::ptr::copy_nonoverlapping(row.as_ptr(), y, count);
    }
}
