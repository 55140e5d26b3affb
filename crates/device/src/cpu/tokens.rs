//! Pictures to patches, class token, and picking one token of each sample.

use holdall_graph::ops::patchify::{Normalization, Patchify};
use holdall_graph::{DType, Write};
use rayon::prelude::*;

use super::elements::for_rows;
use super::operands::Operands;
use super::real::{Element, Real, vectorised};

/// Columns that one thread handles at a time.
const TASK_COLUMNS: usize = 64;

pub(super) fn patchify<T: Real>(op: &Patchify, o: &Operands<'_>) {
    if o.input_place(0).dtype == DType::U8 {
        let Normalization { mean, std } = op.normalization;
        let scale = std.map(|std| 1.0 / (255.0 * f64::from(std)));
        let shift: [f64; 3] = std::array::from_fn(|c| -f64::from(mean[c]) / f64::from(std[c]));
        cut::<T, u8>(op.patch_size, o, |value, c| {
            T::of(f64::from(value)) * T::of(scale[c]) + T::of(shift[c])
        });
    } else {
        cut::<T, T>(op.patch_size, o, |value, _| value);
    }
}

fn cut<T: Real, U: Element>(
    size: usize,
    o: &Operands<'_>,
    convert: impl Fn(U, usize) -> T + Send + Sync,
) {
    let shape = o.input_place(0).shape;
    let (height, width) = (shape.dims()[1], shape.dims()[2]);
    let pixels = o.input::<U>(0).reshape(width * 3);
    let (patches, _) = o.result::<T>(0);
    let (down, across) = (height / size, width / size);
    for_rows(patches.rows, |row| {
        let (sample, patch) = (row / (down * across), row % (down * across));
        let (top, left) = (patch / across * size, patch % across * size);
        let out = patches.row_mut(row);
        for y in 0..size {
            let line = &pixels.row(sample * height + top + y)[left * 3..(left + size) * 3];
            for channel in 0..3 {
                let start = (channel * size + y) * size;
                for (x, out) in out[start..start + size].iter_mut().enumerate() {
                    *out = convert(line[x * 3 + channel], channel);
                }
            }
        }
    });
}

pub(super) fn class_token<T: Real>(o: &Operands<'_>) {
    let (patches, class, positions) = (o.input::<T>(0), o.input::<T>(1).flat(), o.input::<T>(2));
    let (x, _) = o.result::<T>(0);
    let tokens = positions.rows;
    for_rows(x.rows, |row| {
        let (sample, token) = (row / tokens, row % tokens);
        let source = match token {
            0 => class.row(0),
            _ => patches.row(sample * (tokens - 1) + token - 1),
        };
        let terms = source.iter().zip(positions.row(token));
        for (x, (&value, &position)) in x.row_mut(row).iter_mut().zip(terms) {
            *x = value + position;
        }
    });
}

pub(super) fn class_token_grad<T: Real>(o: &Operands<'_>) {
    let dx = o.input::<T>(0);
    let tokens = o.input_place(0).shape.dims()[1];
    if let Some((dpatches, mode)) = o.output::<T>(0) {
        for_rows(dpatches.rows, |row| {
            let (sample, patch) = (row / (tokens - 1), row % (tokens - 1));
            let source = dx.row(sample * tokens + 1 + patch);
            let target = dpatches.row_mut(row);
            match mode {
                Write::Overwrite => target.copy_from_slice(source),
                Write::Accumulate => {
                    for (target, &value) in target.iter_mut().zip(source) {
                        *target += value;
                    }
                }
            }
        });
    }
    let (Some((dclass, _)), Some((dpositions, _))) = (o.output::<T>(1), o.output::<T>(2)) else {
        return;
    };
    let dclass = dclass.flat();
    (0..dx.width.div_ceil(TASK_COLUMNS))
        .into_par_iter()
        .for_each(|task| {
            let start = task * TASK_COLUMNS;
            let width = TASK_COLUMNS.min(dx.width - start);
            let (dx, dclass, dpositions) = (
                dx.columns(start, width),
                dclass.columns(start, width),
                dpositions.columns(start, width),
            );
            vectorised(|| {
                for row in 0..dx.rows {
                    let token = row % tokens;
                    let add = |total: &mut [T]| {
                        for (total, &value) in total.iter_mut().zip(dx.row(row)) {
                            *total += value;
                        }
                    };
                    add(dpositions.row_mut(token));
                    if token == 0 {
                        add(dclass.row_mut(0));
                    }
                }
            });
        });
}

pub(super) fn gather_rows<T: Real>(o: &Operands<'_>) {
    let (x, index) = (o.input::<T>(0), o.input::<i64>(1).flat());
    let (y, _) = o.result::<T>(0);
    let tokens = o.input_place(0).shape.dims()[1];
    for_rows(y.rows, |sample| {
        let row = sample * tokens + position(index.row(0)[sample], tokens);
        y.row_mut(sample).copy_from_slice(x.row(row));
    });
}

pub(super) fn scatter_rows<T: Real>(o: &Operands<'_>) {
    let (dy, index) = (o.input::<T>(0), o.input::<i64>(1).flat());
    let (dx, _) = o.result::<T>(0);
    let tokens = dx.rows / dy.rows;
    for_rows(dy.rows, |sample| {
        let row = sample * tokens + position(index.row(0)[sample], tokens);
        for (dx, &dy) in dx.row_mut(row).iter_mut().zip(dy.row(sample)) {
            *dx += dy;
        }
    });
}

fn position(index: i64, tokens: usize) -> usize {
    assert!(
        (0..tokens as i64).contains(&index),
        "token {index} of {tokens}"
    );
    index as usize
}
