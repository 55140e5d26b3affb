//! Dot products of many rows with many rows: the first pass of retrieval.

use holdall_graph::Write;

use super::operands::Rows;
use super::product::{self, Factor, Panels, small_product};

/// Bound on the rounding error of a dot product, relative to the product of both norms. It holds for any order of summation, with and
/// without fused operations: n products and n - 1 sums round by at most u = 2^-24 each, together n u / (1 - n u).
pub fn error_bound(dimension: usize) -> f64 {
    let rounding = dimension as f64 / (1u32 << 24) as f64;
    if rounding < 0.5 {
        rounding / (1.0 - rounding)
    } else {
        1.0
    }
}

/// Bytes of scratch for so many columns.
pub fn scratch_bytes(columns: usize, dimension: usize) -> usize {
    product::scratch_bytes([1, dimension, columns], size_of::<f32>(), 1)
}

/// Writes `products[i][j] = rows[i] . columns[j]`, on this thread. The scratch grows to [`scratch_bytes`].
///
/// # Panics
/// If the lengths do not match the dimension.
pub fn dot_products(
    rows: &[f32],
    columns: &[f32],
    dimension: usize,
    products: &mut [f32],
    scratch: &mut Vec<u8>,
) {
    let [m, n] = [rows.len(), columns.len()].map(|values| values / dimension);
    assert_eq!(
        (m * dimension, n * dimension, m * n),
        (rows.len(), columns.len(), products.len()),
        "whole rows of one dimension"
    );
    let bytes = scratch_bytes(n, dimension);
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
    // SAFETY: m rows and n columns of `dimension` values, which are only read, and m x n products: the lengths were checked above. The
    // result and the scratch are borrowed mutably, so they overlap nothing.
    unsafe {
        let factor = |values: &[f32], count| {
            Rows::at(values.as_ptr().cast_mut(), count, dimension, dimension)
        };
        small_product(
            Rows::at(products.as_mut_ptr(), m, n, n),
            Write::Overwrite,
            1.0,
            Factor::Plain(factor(rows, m)),
            Factor::Transposed(factor(columns, n)),
            Panels::new(scratch.as_mut_ptr(), scratch.len()),
        );
    }
}
