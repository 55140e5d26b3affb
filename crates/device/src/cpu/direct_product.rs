//! `y[a, ..] (+)= alpha * sum over i of x[a, i] r[i, ..]`, without packing: for products so small that packing would cost more than
//! multiplying.
//!
//! The sums of several rows and sixteen (or thirty-two) columns stay in registers; each number of `x` is multiplied with a vector of
//! `r`. Terms are added in order, in runs of [`RUN`].

use holdall_graph::Write;
use pulp::Simd;

use super::operands::Rows;
use super::product::Factor;
use super::real::Real;
use super::vectors::{UNIT, Unit, load, store};

/// Terms per run: that many rows of `r` stay in the cache.
const RUN: usize = 256;

/// Computes the product on this thread. The widths of `y` and `r` are multiples of sixteen.
pub(super) fn direct_product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Rows<T>,
) {
    let (rows, inner, row_stride, inner_stride, x) = left.parts();
    assert_eq!(
        (y.rows, y.width, inner, y.width % UNIT),
        (rows, right.width, right.rows, 0),
        "product of shapes"
    );
    if inner == 0 && mode == Write::Overwrite {
        for row in 0..rows {
            y.row_mut(row).fill(T::ZERO);
        }
    }
    let mut start = 0;
    while start < inner {
        let run = RUN.min(inner - start);
        pulp::Arch::new().dispatch(TermRun {
            y,
            adds: start > 0 || mode == Write::Accumulate,
            alpha: T::of(alpha),
            // SAFETY: `start` is a column of the left factor.
            x: unsafe { x.offset(start as isize * inner_stride) },
            x_strides: [row_stride, inner_stride],
            right: right.slice(start, run),
        });
        start += run;
    }
}

/// Operands of one run of terms of every sum.
struct TermRun<T> {
    y: Rows<T>,
    adds: bool,
    alpha: T,
    x: *const T,
    /// Elements between neighbouring rows of the result, and between neighbouring terms.
    x_strides: [isize; 2],
    right: Rows<T>,
}

impl<T: Real> pulp::WithSimd for TermRun<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Tile by number of vectors per unit: its sums must fit into registers and hide each other's latency.
        match Unit::<T, S>::VECTORS {
            1 => self.units::<S, 16, 1>(simd),
            2 => self.units::<S, 6, 2>(simd),
            4 => self.units::<S, 4, 4>(simd),
            8 => self.units::<S, 2, 8>(simd),
            _ => self.units::<S, 1, 16>(simd),
        }
    }
}

impl<T: Real> TermRun<T> {
    /// Processes `P` rows at a time with units of `V` vectors; if a unit is one vector, two units of half as many rows.
    #[inline(always)]
    fn units<S: Simd, const P: usize, const V: usize>(&self, simd: S) {
        let mut column = 0;
        while column < self.y.width {
            if V == 1 && column + UNIT < self.y.width {
                self.rows::<S, 8, V, 2>(simd, column);
                column += 2 * UNIT;
            } else {
                self.rows::<S, P, V, 1>(simd, column);
                column += UNIT;
            }
        }
    }

    #[inline(always)]
    fn rows<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        column: usize,
    ) {
        let mut row = 0;
        while row + P <= self.y.rows {
            self.tile::<S, P, V, U>(simd, [row, column]);
            row += P;
        }
        while P > 4 && row + 4 <= self.y.rows {
            self.tile::<S, 4, V, U>(simd, [row, column]);
            row += 4;
        }
        while row < self.y.rows {
            self.tile::<S, 1, V, U>(simd, [row, column]);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        [row, column]: [usize; 2],
    ) {
        let lanes = Unit::<T, S>::LANES;
        let [by_row, by_term] = self.x_strides;
        // SAFETY: a tile reads `P` rows of the left factor from `row` on and `U` units of the right factor's columns from `column` on,
        // which both contain, and writes the same rows and columns of the result: the shapes were compared before the product began.
        unsafe {
            let mut x = self.x.offset(row as isize * by_row);
            let mut right = self.right.pointer().cast_const().add(column);
            let mut sums = [[[T::splat(simd, T::ZERO); V]; U]; P];
            for _ in 0..self.right.rows {
                let mut vectors = [[T::splat(simd, T::ZERO); V]; U];
                for (u, vectors) in vectors.iter_mut().enumerate() {
                    for (v, vector) in vectors.iter_mut().enumerate() {
                        *vector = load::<T, S>(right.add(u * UNIT + v * lanes));
                    }
                }
                for (p, sums) in sums.iter_mut().enumerate() {
                    let number = T::splat(simd, *x.offset(p as isize * by_row));
                    for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                        for (sum, &vector) in sums.iter_mut().zip(vectors) {
                            *sum = T::multiply_add(simd, number, vector, *sum);
                        }
                    }
                }
                x = x.wrapping_offset(by_term);
                right = right.wrapping_add(self.right.stride);
            }
            let alpha = T::splat(simd, self.alpha);
            for (p, sums) in sums.iter().enumerate() {
                let y = self.y.pointer().add((row + p) * self.y.stride + column);
                for (u, sums) in sums.iter().enumerate() {
                    for (v, &sum) in sums.iter().enumerate() {
                        let y = y.add(u * UNIT + v * lanes);
                        let before = if self.adds {
                            load::<T, S>(y.cast_const())
                        } else {
                            T::splat(simd, T::ZERO)
                        };
                        store::<T, S>(y, T::multiply_add(simd, alpha, sum, before));
                    }
                }
            }
        }
    }
}
