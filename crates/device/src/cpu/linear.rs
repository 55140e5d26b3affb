//! `y = activation(x W^T + b + low rank) + residual` and its gradients, in strips of rows that stay in the cache between the product and
//! the element-wise work on its result.

use std::ops::Range;

use holdall_graph::Write;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use rayon::prelude::*;

use super::elements::{Curve, ErfCurve, LeakyCurve, QuickCurve, ReluCurve, for_rows};
use super::operands::{Operands, Rows};
use super::product::{Factor, product};
use super::real::{Real, vectorised};

/// Elements per strip: half of a common second-level cache in f32.
const STRIP_ELEMENTS: usize = 1 << 18;
/// Partial sums of a bias gradient.
const BIAS_PARTS: usize = 16;

/// Bytes of scratch of the partial sums.
pub(super) fn bias_parts_bytes(bias: bool, width: usize) -> usize {
    if bias {
        BIAS_PARTS * width * size_of::<f64>()
    } else {
        0
    }
}

/// Rows per strip. At least 256, or copying the weight for each strip would cost more than strips save.
pub(super) fn strip_rows(rows: usize, width: usize) -> usize {
    (STRIP_ELEMENTS / width.max(1)).clamp(256, 2048).min(rows)
}

fn strips(rows: usize, width: usize) -> impl Iterator<Item = (usize, usize)> {
    let strip = strip_rows(rows, width).max(1);
    (0..rows.div_ceil(strip)).map(move |index| {
        let start = index * strip;
        (start, strip.min(rows - start))
    })
}

pub(super) fn forward<T: Real>(op: &Linear, o: &Operands<'_>) {
    let (x, weight) = (o.input::<T>(0), o.input::<T>(1));
    let bias = op.bias.then(|| o.input::<T>(2).flat());
    let residual = op.residual.then(|| o.input::<T>(o.num_inputs() - 1));
    let (y, _) = o.result::<T>(0);
    let z = op.activation.and_then(|_| o.output::<T>(1)).map(|(z, _)| z);
    let panels = o.panels(0);
    for (start, rows) in strips(y.rows, y.width) {
        let y = y.slice(start, rows);
        let z = z.map(|z| z.slice(start, rows));
        let residual = residual.map(|residual| residual.slice(start, rows));
        // If no node reads z, the product writes to y, and the activation is applied in place.
        let landed = z.unwrap_or(y);
        let x = x.slice(start, rows);
        product(
            landed,
            Write::Overwrite,
            1.0,
            Factor::Plain(x),
            Factor::Transposed(weight),
            panels,
        );
        for (columns, index) in op.low_rank_terms() {
            product(
                landed.columns(columns.start, columns.len()),
                Write::Accumulate,
                op.low_rank_scale(),
                Factor::Plain(o.input::<T>(index).slice(start, rows)),
                Factor::Transposed(o.input::<T>(index + 1)),
                panels,
            );
        }
        match op.activation {
            Some(activation) => {
                let bias = bias.expect("an activated product has a bias");
                match activation {
                    Activation::QuickGelu => activate::<T, QuickCurve>(y, landed, bias),
                    Activation::Gelu => activate::<T, ErfCurve>(y, landed, bias),
                    Activation::Relu => activate::<T, ReluCurve>(y, landed, bias),
                    Activation::LeakyRelu => activate::<T, LeakyCurve>(y, landed, bias),
                }
            }
            None => finish(y, bias, residual),
        }
    }
}

/// `z += bias`, `y = activation(z)`; `z` and `y` may be the same matrix.
fn activate<T: Real, C: Curve>(y: Rows<T>, z: Rows<T>, bias: Rows<T>) {
    if y.pointer() == z.pointer() {
        for_rows(y.rows, |row| {
            for (y, &b) in y.row_mut(row).iter_mut().zip(bias.row(0)) {
                *y = C::value(*y + b);
            }
        });
    } else {
        for_rows(y.rows, |row| {
            let sums = z.row_mut(row).iter_mut().zip(bias.row(0));
            for (y, (z, &b)) in y.row_mut(row).iter_mut().zip(sums) {
                *z += b;
                *y = C::value(*z);
            }
        });
    }
}

fn finish<T: Real>(y: Rows<T>, bias: Option<Rows<T>>, residual: Option<Rows<T>>) {
    match (bias, residual) {
        (None, None) => {}
        (Some(bias), None) => for_rows(y.rows, |row| {
            for (y, &b) in y.row_mut(row).iter_mut().zip(bias.row(0)) {
                *y += b;
            }
        }),
        (None, Some(residual)) => for_rows(y.rows, |row| {
            for (y, &r) in y.row_mut(row).iter_mut().zip(residual.row(row)) {
                *y += r;
            }
        }),
        (Some(bias), Some(residual)) => for_rows(y.rows, |row| {
            let added = bias.row(0).iter().zip(residual.row(row));
            for (y, (&b, &r)) in y.row_mut(row).iter_mut().zip(added) {
                *y = *y + b + r;
            }
        }),
    }
}

pub(super) fn input_grad<T: Real>(op: &LinearInputGrad, o: &Operands<'_>) {
    let (dz, weight) = (o.input::<T>(0), o.input::<T>(1));
    let (dx, mode) = o.result::<T>(0);
    let panels = o.panels(0);
    for (start, rows) in strips(dx.rows, dx.width) {
        let dx = dx.slice(start, rows);
        product(
            dx,
            mode,
            op.scale,
            Factor::Plain(dz.slice(start, rows)),
            Factor::Plain(weight),
            panels,
        );
        if let Some(activation) = op.activation {
            let z = o.input::<T>(2).slice(start, rows);
            match activation {
                Activation::QuickGelu => through::<T, QuickCurve>(dx, z),
                Activation::Gelu => through::<T, ErfCurve>(dx, z),
                Activation::Relu => through::<T, ReluCurve>(dx, z),
                Activation::LeakyRelu => through::<T, LeakyCurve>(dx, z),
            }
        }
    }
}

/// `dx *= activation'(z)`.
fn through<T: Real, C: Curve>(dx: Rows<T>, z: Rows<T>) {
    for_rows(dx.rows, |row| {
        for (dx, &z) in dx.row_mut(row).iter_mut().zip(z.row(row)) {
            *dx *= C::slope(z);
        }
    });
}

pub(super) fn weight_grad<T: Real>(op: &LinearWeightGrad, o: &Operands<'_>) {
    let (dz, x) = (o.input::<T>(0), o.input::<T>(1));
    if op.weight {
        let (dweight, mode) = o.result::<T>(0);
        let (left, right) = (Factor::Transposed(dz), Factor::Plain(x));
        let panels = o.panels(bias_parts_bytes(op.bias, dz.width));
        product(dweight, mode, op.scale, left, right, panels);
    }
    if op.bias {
        add_column_sums::<T>(o, usize::from(op.weight), &op.inert_bias);
    }
}

/// Adds the column sums of the first input to a result, except for inert columns. The scratch begins with the partial sums.
pub(super) fn add_column_sums<T: Real>(o: &Operands<'_>, result: usize, inert: &Range<usize>) {
    let dz = o.input::<T>(0);
    let (dbias, _) = o.result::<T>(result);
    let parts = o.workspace::<f64>(dz.width);
    let per_part = dz.rows.div_ceil(BIAS_PARTS);
    (0..BIAS_PARTS).into_par_iter().for_each(|part| {
        let sums = parts.row_mut(part);
        vectorised(|| {
            sums.fill(0.0);
            for row in (part * per_part)..((part + 1) * per_part).min(dz.rows) {
                for (sum, &value) in sums.iter_mut().zip(dz.row(row)) {
                    *sum += value.f64();
                }
            }
        });
    });
    let dbias = dbias.flat();
    for (column, dbias) in dbias.row_mut(0).iter_mut().enumerate() {
        if inert.contains(&column) {
            continue;
        }
        let total: f64 = (0..BIAS_PARTS).map(|part| parts.row(part)[column]).sum();
        *dbias += T::of(total);
    }
}

/// Adds the first `count` rows of `parts` to `total`, in order.
pub(super) fn add_parts<T: Real>(total: &mut [T], parts: Rows<T>, count: usize) {
    vectorised(|| {
        for part in 0..count {
            for (total, &value) in total.iter_mut().zip(parts.row(part)) {
                *total += value;
            }
        }
    });
}
