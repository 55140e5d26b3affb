//! Dropout: masks drawn from each sample's index in the data set.

use holdall_graph::ops::dropout::{Dropout, DropoutMode};

use super::elements::for_rows;
use super::operands::Operands;
use super::real::Real;

pub(super) fn dropout<T: Real>(op: &Dropout, o: &Operands<'_>) {
    let x = o.input::<T>(0);
    let (samples, stream) = (o.input::<i64>(1).flat(), o.input::<i64>(2).flat());
    let (y, _) = o.result::<T>(0);
    let stream = [0, 1].map(|index| stream.row(0)[index]);
    let (threshold, scale) = (op.threshold(), T::of(op.scale()));
    let per_sample = y.rows / samples.width;
    for_rows(y.rows, |row| {
        let key = op.key(stream, samples.row(0)[row / per_sample]);
        let first = (row % per_sample * y.width) as u64;
        // The backward pass works in place: a second view of the same row would alias.
        let out = y.row_mut(row);
        if x.pointer() != y.pointer() {
            out.copy_from_slice(x.row(row));
        }
        match op.mode {
            DropoutMode::Element => {
                for (index, out) in (first..).zip(out.iter_mut()) {
                    *out = if Dropout::keeps(key, index, threshold) {
                        *out * scale
                    } else {
                        T::ZERO
                    };
                }
            }
            DropoutMode::Sample if Dropout::keeps(key, 0, threshold) => {
                out.iter_mut().for_each(|out| *out *= scale);
            }
            DropoutMode::Sample => out.fill(T::ZERO),
        }
    });
}
