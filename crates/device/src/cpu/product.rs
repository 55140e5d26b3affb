//! Matrix products by the `gemm` crate.
//!
//! `gemm` packs operands into buffers that it requests from the allocator on every call: `packing` serves them from scratch of the
//! arena, and [`is_running`] lets a test count other allocations.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use gemm::Parallelism;
use holdall_graph::Write;

use super::operands::Rows;
use super::packing::Packing;
use super::real::Real;

static PARALLEL_PRODUCTS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PRODUCTS: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is inside the product library (or a product is running on all threads).
pub fn is_running() -> bool {
    PARALLEL_PRODUCTS.load(Ordering::Relaxed) > 0 || PRODUCTS.with(|count| count.get() > 0)
}

/// A matrix, or the transpose of one.
#[derive(Clone, Copy)]
pub(super) enum Factor<T> {
    Plain(Rows<T>),
    Transposed(Rows<T>),
}

impl<T: Real> Factor<T> {
    /// Rows, columns, row stride, column stride, pointer.
    pub fn parts(&self) -> (usize, usize, isize, isize, *const T) {
        match self {
            Factor::Plain(m) => (m.rows, m.width, m.stride as isize, 1, m.pointer()),
            Factor::Transposed(m) => (m.width, m.rows, 1, m.stride as isize, m.pointer()),
        }
    }
}

/// `y = alpha * left right` (or `y +=`) on all threads of the pool.
pub(super) fn product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    packing: Packing,
) {
    PARALLEL_PRODUCTS.fetch_add(1, Ordering::Relaxed);
    packing.offer(|| run(y, mode, alpha, left, right, Parallelism::Rayon(0)));
    PARALLEL_PRODUCTS.fetch_sub(1, Ordering::Relaxed);
}

/// Like [`product`], on this thread alone, for small products inside a parallel loop.
pub(super) fn small_product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    packing: Packing,
) {
    PRODUCTS.with(|count| count.set(count.get() + 1));
    packing.offer(|| run(y, mode, alpha, left, right, Parallelism::None));
    PRODUCTS.with(|count| count.set(count.get() - 1));
}

/// Rows below which `gemm` may use another path (dot products, matrix times vector) with another order of summation. Products with
/// fewer rows are padded, so that a row's result does not depend on the number of rows.
pub(super) fn least_rows(width: usize) -> usize {
    const LARGEST_SHORT_CUT: usize = 16 * 16;
    (LARGEST_SHORT_CUT / width.max(1) + 1).max(4)
}

/// Elements of scratch that [`row_product`] needs: any strip may end in a tail of a few rows.
pub(super) fn row_scratch_elements(inner: usize, width: usize) -> usize {
    least_rows(width) * (inner + width)
}

/// `y = alpha * left right` (or `y +=`) with few or many rows; a row's bits do not depend on the other rows.
pub(super) fn row_product<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Rows<T>,
    right: Factor<T>,
    scratch: Rows<T>,
    packing: Packing,
) {
    let least = least_rows(y.width);
    if y.rows >= least {
        return product(y, mode, alpha, Factor::Plain(left), right, packing);
    }
    let (inner, width) = (left.width, y.width);
    let scratch = scratch.flat();
    let padded_left = scratch.columns(0, least * inner).reshape(inner);
    let padded_y = scratch.columns(least * inner, least * width).reshape(width);
    for row in 0..least {
        if row < y.rows {
            padded_left.row_mut(row).copy_from_slice(left.row(row));
            padded_y.row_mut(row).copy_from_slice(y.row(row));
        } else {
            padded_left.row_mut(row).fill(T::ZERO);
            padded_y.row_mut(row).fill(T::ZERO);
        }
    }
    let left = Factor::Plain(padded_left);
    product(padded_y, mode, alpha, left, right, packing);
    for row in 0..y.rows {
        y.row_mut(row).copy_from_slice(padded_y.row(row));
    }
}

fn run<T: Real>(
    y: Rows<T>,
    mode: Write,
    alpha: f64,
    left: Factor<T>,
    right: Factor<T>,
    parallelism: Parallelism,
) {
    let (m, k, left_row, left_column, left_pointer) = left.parts();
    let (k2, n, right_row, right_column, right_pointer) = right.parts();
    assert_eq!((y.rows, y.width, k), (m, n, k2), "product of shapes");
    // SAFETY: pointers, extents and strides describe matrices within the arena, checked when the operands were created; the result
    // overlaps neither factor, since all three are alive now and the plan keeps them apart.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.pointer(),
            1,
            y.stride as isize,
            mode == Write::Accumulate,
            left_pointer,
            left_column,
            left_row,
            right_pointer,
            right_column,
            right_row,
            T::ONE,
            T::of(alpha),
            false,
            false,
            false,
            parallelism,
        );
    }
}
