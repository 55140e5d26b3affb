//! Number formats, and the product of two matrices in f32.

use half::{bf16, f16};
use rayon::prelude::*;

use crate::foreign::{slice, slice_mut};

/// Storage format of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    F32,
    F16,
    Bf16,
}

impl NumberFormat {
    pub fn bytes(self) -> usize {
        match self {
            NumberFormat::F32 => 4,
            NumberFormat::F16 | NumberFormat::Bf16 => 2,
        }
    }

    /// Reads `count` numbers, `stride` elements apart.
    pub fn read(self, address: u64, count: usize, stride: usize, to: &mut [f32]) {
        let span = if count == 0 {
            0
        } else {
            (count - 1) * stride + 1
        };
        let to = to[..count].iter_mut();
        match self {
            NumberFormat::F32 => {
                let from = slice::<f32>(address, span).iter().step_by(stride);
                to.zip(from).for_each(|(to, from)| *to = *from);
            }
            NumberFormat::F16 => {
                let from = slice::<f16>(address, span).iter().step_by(stride);
                to.zip(from).for_each(|(to, from)| *to = from.to_f32());
            }
            NumberFormat::Bf16 => {
                let from = slice::<bf16>(address, span).iter().step_by(stride);
                to.zip(from).for_each(|(to, from)| *to = from.to_f32());
            }
        }
    }

    /// Writes consecutive numbers.
    pub fn write(self, address: u64, values: &[f32]) {
        match self {
            NumberFormat::F32 => slice_mut::<f32>(address, values.len()).copy_from_slice(values),
            NumberFormat::F16 => {
                let to = slice_mut::<f16>(address, values.len()).iter_mut();
                to.zip(values)
                    .for_each(|(to, from)| *to = f16::from_f32(*from));
            }
            NumberFormat::Bf16 => {
                let to = slice_mut::<bf16>(address, values.len()).iter_mut();
                to.zip(values)
                    .for_each(|(to, from)| *to = bf16::from_f32(*from));
            }
        }
    }
}

/// Rounds to the 10 bits of mantissa of TF32, to nearest.
pub fn round_to_tf32(values: &mut [f32]) {
    for value in values {
        let bits = value.to_bits();
        if value.is_finite() {
            *value = f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff);
        }
    }
}

/// A matrix in f32, with the strides of its rows and columns.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub values: &'a [f32],
    pub row_stride: usize,
    pub column_stride: usize,
}

impl Matrix<'_> {
    fn last(&self, rows: usize, columns: usize) -> usize {
        (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
    }
}

/// `left [rows, inner] right [inner, columns]`, row-major.
pub fn product(rows: usize, columns: usize, inner: usize, left: Matrix, right: Matrix) -> Vec<f32> {
    let mut result = vec![0f32; rows * columns];
    if rows == 0 || columns == 0 || inner == 0 {
        return result;
    }
    assert!(
        left.last(rows, inner) < left.values.len(),
        "left of a product"
    );
    assert!(
        right.last(inner, columns) < right.values.len(),
        "right of a product"
    );
    const BLOCK_ROWS: usize = 64;
    let block = |first: usize, result: &mut [f32]| {
        // SAFETY: strides and extents stay within the three slices, as checked above.
        unsafe {
            matrixmultiply::sgemm(
                result.len() / columns,
                inner,
                columns,
                1.0,
                left.values.as_ptr().add(first * left.row_stride),
                left.row_stride as isize,
                left.column_stride as isize,
                right.values.as_ptr(),
                right.row_stride as isize,
                right.column_stride as isize,
                0.0,
                result.as_mut_ptr(),
                columns as isize,
                1,
            );
        }
    };
    let blocks = result.par_chunks_mut(BLOCK_ROWS * columns).enumerate();
    blocks.for_each(|(index, result)| block(index * BLOCK_ROWS, result));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf32_has_ten_bits() {
        let mut values = [
            1.0 + 2f32.powi(-10),
            1.0 + 2f32.powi(-11),
            1.0 + 3.0 * 2f32.powi(-11),
            -2.0,
        ];
        round_to_tf32(&mut values);
        assert_eq!(
            values,
            [1.0 + 2f32.powi(-10), 1.0, 1.0 + 2f32.powi(-9), -2.0]
        );
    }

    #[test]
    fn a_product_of_a_transpose() {
        let left = Matrix {
            values: &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            row_stride: 1,
            column_stride: 2,
        };
        let right = Matrix {
            values: &[1.0, 1.0, 1.0],
            row_stride: 1,
            column_stride: 3,
        };
        assert_eq!(product(2, 1, 3, left, right), [9.0, 12.0]);
    }
}
