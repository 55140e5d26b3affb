//! Copies of the right factor in the order in which tiles read it.
//!
//! A panel has the columns of one tile: `[terms, columns]`, filled up with zeros to whole vectors.

use pulp::Simd;

use super::super::real::Real;
use super::super::vectors::{TRANSPOSED, load, store};
use super::Strided;
use super::tile::TileSize;

/// Copies `terms` x `columns` of the right factor to a panel of `width` columns.
///
/// # Safety
/// The factor has these terms and columns; the panel has room for `terms * width` elements and overlaps nothing.
#[inline(always)]
pub(super) unsafe fn copy_right<T: Real, S: Simd>(
    simd: S,
    right: Strided<T>,
    [terms, columns]: [usize; 2],
    panel: *mut T,
    width: usize,
) {
    // SAFETY: all reads are of these terms and columns, all writes within the panel.
    unsafe {
        if right.strides[1] == 1 {
            let lanes = TileSize::<T, S>::LANES;
            let whole = columns / lanes * lanes;
            for term in 0..terms {
                let (from, to) = (right.at(term, 0), panel.add(term * width));
                for column in (0..whole).step_by(lanes) {
                    store::<T, S>(to.add(column), load::<T, S>(from.add(column)));
                }
                for column in whole..width {
                    let value = if column < columns {
                        *from.add(column)
                    } else {
                        T::ZERO
                    };
                    to.add(column).write(value);
                }
            }
            return;
        }
        let mut column = 0;
        while column + TRANSPOSED <= columns {
            let mut term = 0;
            while term + TRANSPOSED <= terms {
                let from = right.at(term, column);
                let to = panel.add(term * width + column);
                T::transpose(simd, from, right.strides[1] as usize, to, width);
                term += TRANSPOSED;
            }
            while term < terms {
                for beside in column..column + TRANSPOSED {
                    panel
                        .add(term * width + beside)
                        .write(*right.at(term, beside));
                }
                term += 1;
            }
            column += TRANSPOSED;
        }
        while column < width {
            for term in 0..terms {
                let value = if column < columns {
                    *right.at(term, column)
                } else {
                    T::ZERO
                };
                panel.add(term * width + column).write(value);
            }
            column += 1;
        }
    }
}
