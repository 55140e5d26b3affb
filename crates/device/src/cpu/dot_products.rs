//! Dot products of many rows with many rows: the first pass of retrieval.

use gemm::Parallelism;

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

/// Writes `products[i][j] = rows[i] . columns[j]`, on this thread.
///
/// # Panics
/// If the lengths do not match the dimension.
pub fn dot_products(rows: &[f32], columns: &[f32], dimension: usize, products: &mut [f32]) {
    let [m, n] = [rows.len(), columns.len()].map(|values| values / dimension);
    assert_eq!(
        (m * dimension, n * dimension, m * n),
        (rows.len(), columns.len(), products.len()),
        "whole rows of one dimension"
    );
    let stride = dimension as isize;
    // SAFETY: m rows and n columns of `dimension` values, and m x n products: the lengths were checked above. The result is borrowed
    // mutably, so it overlaps neither factor.
    unsafe {
        gemm::gemm(
            m,
            n,
            dimension,
            products.as_mut_ptr(),
            1,
            n as isize,
            false,
            rows.as_ptr(),
            1,
            stride,
            columns.as_ptr(),
            stride,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
