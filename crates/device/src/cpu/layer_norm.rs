//! Layer norm and its gradients, a row at a time.

use holdall_graph::Write;
use rayon::prelude::*;

use super::elements::for_rows;
use super::linear::add_parts;
use super::operands::Operands;
use super::real::{Real, dot, sum, vectorised};

/// Partial sums of the parameter gradients.
pub(super) const PARTS: usize = 16;

pub(super) fn forward<T: Real>(eps: f64, o: &Operands<'_>) {
    let x = o.input::<T>(0);
    let (gamma, beta) = (o.input::<T>(1).flat(), o.input::<T>(2).flat());
    let (y, _) = o.result::<T>(0);
    let mean = o.output::<T>(1).map(|(mean, _)| mean.reshape(1));
    let rstd = o.output::<T>(2).map(|(rstd, _)| rstd.reshape(1));
    let inverse_width = T::of(1.0 / x.width as f64);
    for_rows(x.rows, |row| {
        let x = x.row(row);
        let center = sum(x, |value| value) * inverse_width;
        let variance = sum(x, |value| (value - center) * (value - center)) * inverse_width;
        let scale = T::ONE / (variance + T::of(eps)).sqrt();
        let parameters = gamma.row(0).iter().zip(beta.row(0));
        for ((y, &x), (&gamma, &beta)) in y.row_mut(row).iter_mut().zip(x).zip(parameters) {
            *y = (x - center) * scale * gamma + beta;
        }
        if let Some(mean) = mean {
            mean.row_mut(row)[0] = center;
        }
        if let Some(rstd) = rstd {
            rstd.row_mut(row)[0] = scale;
        }
    });
}

pub(super) fn backward<T: Real>(o: &Operands<'_>) {
    let (dy, x, gamma) = (o.input::<T>(0), o.input::<T>(1), o.input::<T>(2).flat());
    let (mean, rstd) = (o.input::<T>(3).reshape(1), o.input::<T>(4).reshape(1));
    let dx = o.output::<T>(2);
    let width = x.width;
    let inverse_width = T::of(1.0 / width as f64);
    // Each part has sums for gamma, sums for beta, and one row of scratch.
    let parts = o.workspace::<T>(3 * width);
    let per_part = x.rows.div_ceil(PARTS);
    (0..PARTS).into_par_iter().for_each(|part| {
        let scratch = parts.row_mut(part);
        vectorised(|| {
            let (dgamma, rest) = scratch.split_at_mut(width);
            let (dbeta, h) = rest.split_at_mut(width);
            dgamma.fill(T::ZERO);
            dbeta.fill(T::ZERO);
            for row in (part * per_part)..((part + 1) * per_part).min(x.rows) {
                let (center, scale) = (mean.row(row)[0], rstd.row(row)[0]);
                let (x, dy) = (x.row(row), dy.row(row));
                for (h, &x) in h.iter_mut().zip(x) {
                    *h = (x - center) * scale;
                }
                for ((dgamma, dbeta), (&dy, &h)) in dgamma
                    .iter_mut()
                    .zip(dbeta.iter_mut())
                    .zip(dy.iter().zip(&*h))
                {
                    *dgamma += dy * h;
                    *dbeta += dy;
                }
                let Some((dx, mode)) = dx else { continue };
                let gamma = gamma.row(0);
                let mean_g = dot(dy, gamma) * inverse_width;
                let mean_gh = dot_three(dy, gamma, h) * inverse_width;
                let terms = dy.iter().zip(gamma).zip(&*h);
                for (dx, ((&dy, &gamma), &h)) in dx.row_mut(row).iter_mut().zip(terms) {
                    let value = (dy * gamma - mean_g - h * mean_gh) * scale;
                    *dx = match mode {
                        Write::Overwrite => value,
                        Write::Accumulate => *dx + value,
                    };
                }
            }
        });
    });
    for (index, offset) in [0, width].into_iter().enumerate() {
        if let Some((total, mode)) = o.output::<T>(index) {
            let total = total.flat();
            if mode == Write::Overwrite {
                total.row_mut(0).fill(T::ZERO);
            }
            add_parts(total.row_mut(0), parts.columns(offset, width), PARTS);
        }
    }
}

/// `sum of x y z`.
#[inline(always)]
fn dot_three<T: Real>(x: &[T], y: &[T], z: &[T]) -> T {
    const LANES: usize = super::real::LANES;
    let mut lanes = [T::ZERO; LANES];
    let (mut a, mut b, mut c) = (
        x.chunks_exact(LANES),
        y.chunks_exact(LANES),
        z.chunks_exact(LANES),
    );
    for ((a, b), c) in (&mut a).zip(&mut b).zip(&mut c) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane] * c[lane];
        }
    }
    let rest = a.remainder().iter().zip(b.remainder()).zip(c.remainder());
    for (lane, ((&a, &b), &c)) in rest.enumerate() {
        lanes[lane] += a * b * c;
    }
    super::real::fold(lanes)
}
