//! `y = activation(x W^T + b + low rank) + residual` and its gradients. Element-wise work on a product follows each of its blocks, while
//! that is in the cache.

use std::marker::PhantomData;
use std::ops::Range;

use holdall_graph::Write;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};
use rayon::prelude::*;

use super::elements::{Curve, ErfCurve, LeakyCurve, QuickCurve, ReluCurve};
use super::operands::{Operands, Rows};
use super::product::{Factor, Finish, product, product_then};
use super::real::{Pieces, Real, run_pieces_here, vectorised};

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

pub(super) fn forward<T: Real>(op: &Linear, o: &Operands<'_>) {
    let (x, weight) = (o.input::<T>(0), o.input::<T>(1));
    let bias = op.bias.then(|| o.input::<T>(2).flat());
    let residual = op.residual.then(|| o.input::<T>(o.num_inputs() - 1));
    let (y, _) = o.result::<T>(0);
    let z = op.activation.and_then(|_| o.output::<T>(1)).map(|(z, _)| z);
    let panels = o.panels(0);
    // If no node reads z, the product writes to y, and the activation is applied in place.
    let landed = z.unwrap_or(y);
    let finish: Finish<'_> = &|[rows, columns]| {
        let part = |matrix: Rows<T>| {
            matrix
                .slice(rows.start, rows.len())
                .columns(columns.start, columns.len())
        };
        let (y, z) = (part(y), part(landed));
        let bias = bias.map(|bias| bias.columns(columns.start, columns.len()));
        match op.activation {
            Some(activation) => {
                let bias = bias.expect("an activated product has a bias");
                match activation {
                    Activation::QuickGelu => activate::<T, QuickCurve>(y, z, bias),
                    Activation::Gelu => activate::<T, ErfCurve>(y, z, bias),
                    Activation::Relu => activate::<T, ReluCurve>(y, z, bias),
                    Activation::LeakyRelu => activate::<T, LeakyCurve>(y, z, bias),
                }
            }
            None => {
                let residual = residual.map(part);
                run_pieces_here(y.rows, &Add { y, bias, residual });
            }
        }
    };
    let (left, right) = (Factor::Plain(x), Factor::Transposed(weight));
    let mut terms = op.low_rank_terms().peekable();
    if terms.peek().is_none() {
        return product_then(landed, Write::Overwrite, 1.0, left, right, panels, finish);
    }
    product(landed, Write::Overwrite, 1.0, left, right, panels);
    for (columns, index) in terms {
        product(
            landed.columns(columns.start, columns.len()),
            Write::Accumulate,
            op.low_rank_scale(),
            Factor::Plain(o.input::<T>(index)),
            Factor::Transposed(o.input::<T>(index + 1)),
            panels,
        );
    }
    for_row_blocks(y.rows, |rows| finish([rows, 0..y.width]));
}

/// Runs `work` on blocks of rows, on all threads.
fn for_row_blocks(rows: usize, work: impl Fn(Range<usize>) + Sync) {
    const BLOCK: usize = 64;
    (0..rows.div_ceil(BLOCK))
        .into_par_iter()
        .for_each(|block| work(block * BLOCK..rows.min((block + 1) * BLOCK)));
}

/// `z += bias`, `y = activation(z)`; `z` and `y` may be the same matrix.
struct Activate<T, C> {
    y: Rows<T>,
    z: Rows<T>,
    bias: Rows<T>,
    curve: PhantomData<C>,
}

fn activate<T: Real, C: Curve>(y: Rows<T>, z: Rows<T>, bias: Rows<T>) {
    let curve = PhantomData::<C>;
    run_pieces_here(y.rows, &Activate { y, z, bias, curve });
}

impl<T: Real, C: Curve> Pieces for Activate<T, C> {
    #[inline(always)]
    fn piece(&self, row: usize) {
        let bias = self.bias.row(0);
        if self.y.pointer() == self.z.pointer() {
            for (y, &b) in self.y.row_mut(row).iter_mut().zip(bias) {
                *y = C::value(*y + b);
            }
        } else {
            let sums = self.z.row_mut(row).iter_mut().zip(bias);
            for (y, (z, &b)) in self.y.row_mut(row).iter_mut().zip(sums) {
                *z += b;
                *y = C::value(*z);
            }
        }
    }
}

/// `y += bias + residual`, where there are any.
struct Add<T> {
    y: Rows<T>,
    bias: Option<Rows<T>>,
    residual: Option<Rows<T>>,
}

impl<T: Real> Pieces for Add<T> {
    #[inline(always)]
    fn piece(&self, row: usize) {
        let y = self.y.row_mut(row);
        match (self.bias, self.residual) {
            (None, None) => {}
            (Some(bias), None) => {
                for (y, &b) in y.iter_mut().zip(bias.row(0)) {
                    *y += b;
                }
            }
            (None, Some(residual)) => {
                for (y, &r) in y.iter_mut().zip(residual.row(row)) {
                    *y += r;
                }
            }
            (Some(bias), Some(residual)) => {
                let added = bias.row(0).iter().zip(residual.row(row));
                for (y, (&b, &r)) in y.iter_mut().zip(added) {
                    *y = *y + b + r;
                }
            }
        }
    }
}

pub(super) fn input_grad<T: Real>(op: &LinearInputGrad, o: &Operands<'_>) {
    let (dz, weight) = (o.input::<T>(0), o.input::<T>(1));
    let (dx, mode) = o.result::<T>(0);
    let finish: Finish<'_> = &|[rows, columns]| {
        let Some(activation) = op.activation else {
            return;
        };
        let [dx, z] = [dx, o.input::<T>(2)].map(|matrix| {
            matrix
                .slice(rows.start, rows.len())
                .columns(columns.start, columns.len())
        });
        match activation {
            Activation::QuickGelu => through::<T, QuickCurve>(dx, z),
            Activation::Gelu => through::<T, ErfCurve>(dx, z),
            Activation::Relu => through::<T, ReluCurve>(dx, z),
            Activation::LeakyRelu => through::<T, LeakyCurve>(dx, z),
        }
    };
    let (left, right) = (Factor::Plain(dz), Factor::Plain(weight));
    product_then(dx, mode, op.scale, left, right, o.panels(0), finish);
}

/// `dx *= activation'(z)`.
struct Through<T, C> {
    dx: Rows<T>,
    z: Rows<T>,
    curve: PhantomData<C>,
}

fn through<T: Real, C: Curve>(dx: Rows<T>, z: Rows<T>) {
    let curve = PhantomData::<C>;
    run_pieces_here(dx.rows, &Through { dx, z, curve });
}

impl<T: Real, C: Curve> Pieces for Through<T, C> {
    #[inline(always)]
    fn piece(&self, row: usize) {
        for (dx, &z) in self.dx.row_mut(row).iter_mut().zip(self.z.row(row)) {
            *dx *= C::slope(z);
        }
    }
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
