//! Matrix products: `y = alpha * left right`, or `y += alpha * left right`.
//!
//! Each number of the result is a sum over the terms in order, in runs of [`RUN`]: a run is summed in a register by fused
//! multiply-adds, and added to `y` with the factor `alpha`. Neither the number of rows and columns nor the number of threads changes
//! that order, so a row of the result has the same bits in every batch and every split.
//!
//! ```text
//! blocks of the result, one thread each                                       Grid
//!   strips of columns x runs of terms: right factor -> panels                 panels::copy_right
//!     rows of a tile x panels of the strip: summed in registers               Tile
//! ```
//!
//! Panels lie in scratch of the operation, whose size [`scratch_bytes`] tells the plan.

mod panels;
mod tile;

use std::ops::Range;

use holdall_graph::Write;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::operands::Rows;
use super::real::Real;
use super::vectors::UNIT;
use tile::{Tile, TileSize};

/// Terms that are summed in a register before they are added to the result.
const RUN: usize = 256;
/// Columns of a strip: with runs of 256 terms its panels take a quarter of a second-level cache of 1 MiB.
const STRIP_COLUMNS: usize = 288;
/// Rows below which copying a right factor with contiguous columns costs more than it saves.
const FEW_ROWS: usize = 48;
/// Least and most rows of a block. Each block copies its own panels; more rows of a strip than this would leave the second-level cache
/// before [`Finish`] reads them.
const BLOCK_ROWS: [usize; 2] = [128, 512];
/// Blocks per thread, so that no thread waits long for another.
const BLOCKS_PER_THREAD: usize = 3;
/// Products with fewer multiplications stay on the calling thread.
const SMALL_PRODUCT: usize = 1 << 16;
/// Rows and columns of the largest tile of any machine: blocks are whole tiles.
const TILE: [usize; 2] = [8, 48];
/// Panels begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// A matrix, or the transpose of one.
#[derive(Clone, Copy)]
pub(super) enum Factor<T> {
    Plain(Rows<T>),
    Transposed(Rows<T>),
}

impl<T: Real> Factor<T> {
    /// Rows and columns.
    fn sizes(&self) -> [usize; 2] {
        match self {
            Factor::Plain(matrix) => [matrix.rows, matrix.width],
            Factor::Transposed(matrix) => [matrix.width, matrix.rows],
        }
    }

    fn strided(&self) -> Strided<T> {
        let (matrix, is_transposed) = match self {
            Factor::Plain(matrix) => (matrix, false),
            Factor::Transposed(matrix) => (matrix, true),
        };
        let stride = matrix.stride as isize;
        Strided {
            first: matrix.pointer(),
            strides: if is_transposed {
                [1, stride]
            } else {
                [stride, 1]
            },
        }
    }
}

/// A factor by its first element and the elements between neighbouring rows and columns.
#[derive(Clone, Copy)]
struct Strided<T> {
    first: *const T,
    strides: [isize; 2],
}

impl<T> Strided<T> {
    fn at(&self, row: usize, column: usize) -> *const T {
        let [by_row, by_column] = self.strides;
        self.first
            .wrapping_offset(row as isize * by_row + column as isize * by_column)
    }
}

/// Scratch for the panels of products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: an address and a size; each thread writes its own share.
unsafe impl Send for Panels {}
// SAFETY: as above.
unsafe impl Sync for Panels {}

impl Panels {
    const NONE: Panels = Panels {
        start: std::ptr::null_mut(),
        bytes: 0,
    };

    /// # Safety
    /// The `bytes` after `start` belong to the caller alone until all products that use the scratch are done.
    pub unsafe fn new(start: *mut u8, bytes: usize) -> Panels {
        let skipped = start.align_offset(ALIGNMENT).min(bytes);
        Panels {
            start: start.wrapping_add(skipped),
            bytes: bytes - skipped,
        }
    }

    /// The share of the calling thread.
    pub fn of_thread(self) -> Panels {
        let num_threads = rayon::current_num_threads();
        let thread = rayon::current_thread_index().unwrap_or(0);
        let bytes = self.bytes / num_threads / ALIGNMENT * ALIGNMENT;
        Panels {
            start: self.start.wrapping_add(thread * bytes),
            bytes,
        }
    }
}

/// Scratch of a product of `m x k` by `k x n` on a pool of `num_threads`; smaller products need no more.
pub(super) fn scratch_bytes(
    [m, k, n]: [usize; 3],
    element_bytes: usize,
    num_threads: usize,
) -> usize {
    if m == 0 || k == 0 || n == 0 {
        return 0;
    }
    // Columns are filled up to whole vectors.
    let columns = n.next_multiple_of(UNIT).min(STRIP_COLUMNS);
    let each = k.min(RUN) * columns * element_bytes;
    each.next_multiple_of(ALIGNMENT) * num_threads + ALIGNMENT
}

/// Element-wise work on a product: called for each block of rows and columns of the result, by the thread that has just computed it,
/// while it is in the cache.
pub(super) type Finish<'f> = &'f (dyn Fn([Range<usize>; 2]) + Sync);

/// Computes a product on all threads of the pool.
pub(super) fn product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    panels: Panels,
) {
    product_then(y, mode, alpha, left, right, panels, &|_| ());
}

/// Like [`product`], with element-wise work on the result.
pub(super) fn product_then<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    panels: Panels,
    finish: Finish<'_>,
) {
    let whole = Product::new(y, mode, alpha, left, right);
    let grid = Grid::new(&whole, rayon::current_num_threads());
    if grid.num_blocks() == 1 {
        return whole.block([0..y.rows, 0..y.width], panels.of_thread(), finish);
    }
    (0..grid.num_blocks())
        .into_par_iter()
        .with_max_len(1)
        .for_each(|index| whole.block(grid.block(index), panels.of_thread(), finish));
}

/// Like [`product`], on the calling thread alone, with scratch of its own.
pub(super) fn small_product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    panels: Panels,
) {
    let whole = Product::new(y, mode, alpha, left, right);
    whole.block([0..y.rows, 0..y.width], panels, &|_| ());
}

/// Like [`small_product`], without scratch: the right factor's width is a multiple of [`UNIT`].
pub(super) fn direct_product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Rows<T>,
) {
    assert!(right.width.is_multiple_of(UNIT), "whole vectors");
    small_product(y, mode, alpha, left, Factor::Plain(right), Panels::NONE);
}

/// Operands of a product, their shapes checked.
#[derive(Clone, Copy)]
struct Product<T> {
    y: Rows<T>,
    /// Whether the product is added to `y`.
    adds: bool,
    alpha: T,
    left: Strided<T>,
    right: Strided<T>,
    terms: usize,
}

// SAFETY: addresses and shapes; blocks of the result are written by one thread each.
unsafe impl<T: Send> Send for Product<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Product<T> {}

impl<T: Real> Product<T> {
    fn new(y: Rows<T>, mode: Write, alpha: f64, left: Factor<T>, right: Factor<T>) -> Product<T> {
        let ([rows, terms], [right_terms, columns]) = (left.sizes(), right.sizes());
        assert_eq!(
            [y.rows, y.width, terms],
            [rows, columns, right_terms],
            "product of shapes"
        );
        Product {
            y,
            adds: mode == Write::Accumulate,
            alpha: T::of(alpha),
            left: left.strided(),
            right: right.strided(),
            terms,
        }
    }

    /// Computes a block of the result on the calling thread.
    fn block(&self, [rows, columns]: [Range<usize>; 2], panels: Panels, finish: Finish<'_>) {
        if self.terms == 0 {
            if !self.adds {
                for row in rows.clone() {
                    self.y.row_mut(row)[columns.clone()].fill(T::ZERO);
                }
            }
            return finish([rows, columns]);
        }
        pulp::Arch::new().dispatch(Block {
            product: self,
            rows,
            columns,
            panels,
            finish,
        });
    }
}

/// How a product is cut into blocks. Only speed depends on it.
struct Grid {
    rows: usize,
    columns: usize,
    block_rows: usize,
    block_columns: usize,
}

impl Grid {
    fn new<T: Real>(product: &Product<T>, num_threads: usize) -> Grid {
        let (rows, columns) = (product.y.rows, product.y.width);
        let mut grid = Grid {
            rows,
            columns,
            block_rows: rows.max(1),
            block_columns: columns.max(1),
        };
        if rows * columns * product.terms < SMALL_PRODUCT {
            return grid;
        }
        let wanted = BLOCKS_PER_THREAD * num_threads;
        let [least, most] = BLOCK_ROWS;
        grid.block_rows = rows
            .div_ceil(wanted)
            .clamp(least, most)
            .next_multiple_of(TILE[0]);
        let missing = wanted.div_ceil(rows.div_ceil(grid.block_rows));
        if missing > 1 && num_threads > 1 {
            grid.block_columns = columns.div_ceil(missing).next_multiple_of(TILE[1]);
        }
        grid
    }

    fn num_blocks(&self) -> usize {
        self.rows.div_ceil(self.block_rows) * self.columns.div_ceil(self.block_columns)
    }

    /// Rows and columns of a block. Neighbouring blocks have the same columns.
    fn block(&self, index: usize) -> [Range<usize>; 2] {
        let down = self.rows.div_ceil(self.block_rows);
        let span =
            |index: usize, size: usize, all: usize| index * size..all.min((index + 1) * size);
        [
            span(index % down, self.block_rows, self.rows),
            span(index / down, self.block_columns, self.columns),
        ]
    }
}

/// A block of a product, for one thread.
struct Block<'p, T> {
    product: &'p Product<T>,
    rows: Range<usize>,
    columns: Range<usize>,
    panels: Panels,
    finish: Finish<'p>,
}

impl<T: Real> WithSimd for Block<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for start in self.columns.clone().step_by(STRIP_COLUMNS) {
            let columns = start..self.columns.end.min(start + STRIP_COLUMNS);
            for term in (0..self.product.terms).step_by(RUN) {
                let terms = term..self.product.terms.min(term + RUN);
                self.strip(simd, columns.clone(), terms);
            }
            (self.finish)([self.rows.clone(), columns]);
        }
    }
}

/// Columns of each panel: as many vectors as a tile has. The last two share, so that none is left with a single vector.
fn panels(columns: usize, vectors: usize, lanes: usize) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = (columns - start).div_ceil(lanes);
        let count = if left == vectors + 1 {
            left.div_ceil(2)
        } else {
            left.min(vectors)
        };
        let panel = start..columns.min(start + count * lanes);
        start = panel.end;
        (!panel.is_empty()).then_some(panel)
    })
}

/// Cuts `0..count` into as few parts of at most `largest` as there can be, all of about the same size.
fn parts(count: usize, largest: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let num_parts = count.div_ceil(largest);
    (0..num_parts).map(move |part| part * count / num_parts..(part + 1) * count / num_parts)
}

impl<T: Real> Block<'_, T> {
    /// One run of terms of a strip of columns.
    #[inline(always)]
    fn strip<S: Simd>(&self, simd: S, columns: Range<usize>, terms: Range<usize>) {
        let Product { y, left, right, .. } = *self.product;
        let lanes = TileSize::<T, S>::LANES;
        let num_terms = terms.len();
        let has_whole_vectors = right.strides[1] == 1 && columns.len().is_multiple_of(lanes);
        let copied_bytes = columns.len().next_multiple_of(lanes) * num_terms * size_of::<T>();
        let has_room = copied_bytes <= self.panels.bytes;
        assert!(has_room || has_whole_vectors, "scratch as planned");
        let is_right_copied = has_room && (!has_whole_vectors || self.rows.len() > FEW_ROWS);
        let right_panels = self.panels.start.cast::<T>();
        let panels = || panels(columns.len(), TileSize::<T, S>::VECTORS, lanes);
        if is_right_copied {
            for panel in panels() {
                let factor = Strided {
                    first: right.at(terms.start, columns.start + panel.start),
                    ..right
                };
                let width = panel.len().next_multiple_of(lanes);
                // SAFETY: the columns lie within the factor, and there is scratch for all panels, as checked.
                unsafe {
                    let to = right_panels.add(num_terms * panel.start);
                    panels::copy_right(simd, factor, [num_terms, panel.len()], to, width);
                }
            }
        }
        for rows in parts(self.rows.len(), TileSize::<T, S>::ROWS) {
            let row = self.rows.start + rows.start;
            for panel in panels() {
                let column = columns.start + panel.start;
                let (right, right_stride) = if is_right_copied {
                    let from = right_panels.wrapping_add(num_terms * panel.start);
                    (from.cast_const(), panel.len().next_multiple_of(lanes))
                } else {
                    (right.at(terms.start, column), right.strides[0] as usize)
                };
                let tile = Tile {
                    y: y.pointer().wrapping_add(row * y.stride + column),
                    y_stride: y.stride,
                    rows: rows.len(),
                    columns: panel.len(),
                    alpha: self.product.alpha,
                    adds: self.product.adds || terms.start > 0,
                    left: left.at(row, terms.start),
                    left_strides: left.strides,
                    right,
                    right_stride,
                    terms: num_terms,
                };
                // SAFETY: shapes were compared when the product began; the right factor has whole vectors of columns, its own or those
                // of its panels; this thread alone writes the block.
                unsafe { tile.compute(simd) };
            }
        }
    }
}

#[cfg(test)]
mod tests;
