//! Gradient norm and AdamW.

use holdall_graph::ops::update::AdamW;
use rayon::prelude::*;

use super::operands::Operands;
use super::real::{LANES, Real, vectorised};

/// Elements that one thread handles at a time.
pub(super) const TASK_ELEMENTS: usize = 1 << 14;

/// Sum of squares in f64: a norm over hundreds of millions of elements keeps its digits.
#[inline(always)]
fn sum_of_squares<T: Real>(x: &[T]) -> f64 {
    let mut lanes = [0.0; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += value.f64() * value.f64();
        }
    }
    super::real::fold(lanes)
}

pub(super) fn gradient_norm<T: Real>(o: &Operands<'_>) {
    let (out, _) = o.result::<T>(0);
    let parts = o.workspace::<f64>(1);
    let mut total = 0.0;
    for input in 0..o.num_inputs() {
        let gradient = o.input::<T>(input).flat();
        let chunks = gradient.width.div_ceil(TASK_ELEMENTS);
        (0..chunks).into_par_iter().for_each(|chunk| {
            let start = chunk * TASK_ELEMENTS;
            let end = (start + TASK_ELEMENTS).min(gradient.width);
            parts.row_mut(chunk)[0] = vectorised(|| sum_of_squares(&gradient.row(0)[start..end]));
        });
        total += (0..chunks).map(|chunk| parts.row(chunk)[0]).sum::<f64>();
    }
    let norm = T::of(total.sqrt());
    let out = out.flat();
    out.row_mut(0)[0] = norm;
    out.row_mut(0)[1] = if norm.is_finite() { T::ONE } else { T::ZERO };
}

/// Numbers of one update, in the arithmetic of the weights.
#[derive(Clone, Copy)]
struct Numbers<T> {
    beta1: T,
    beta2: T,
    eps: T,
    gradient_scale: T,
    correction1: T,
    root_correction2: T,
    rate: T,
    keep: T,
}

pub(super) fn adamw<T: Real>(op: &AdamW, o: &Operands<'_>) {
    let schedule = o.input::<T>(0).flat();
    let norm = o.input::<T>(1).flat();
    if norm.row(0)[1] == T::ZERO {
        return;
    }
    let inverse_scale = schedule.row(0)[0].f64();
    let unscaled = norm.row(0)[0].f64() * inverse_scale;
    let clip = op
        .clip_norm
        .map_or(1.0, |clip| (clip / (unscaled + 1e-6)).min(1.0));
    (0..op.parameters.len()).into_par_iter().for_each(|index| {
        let parameter = &op.parameters[index];
        let rate = schedule.row(0)[3 + parameter.rate].f64();
        let numbers = Numbers {
            beta1: T::of(op.beta1),
            beta2: T::of(op.beta2),
            eps: T::of(op.eps),
            gradient_scale: T::of(clip * inverse_scale),
            correction1: schedule.row(0)[1],
            root_correction2: schedule.row(0)[2].sqrt(),
            rate: T::of(rate),
            keep: T::of(1.0 - rate * parameter.weight_decay),
        };
        let gradient = o.input::<T>(2 + index).flat();
        let [weight, m, v] = [0, 1, 2].map(|part| o.result::<T>(3 * index + part).0.flat());
        (0..gradient.width.div_ceil(TASK_ELEMENTS))
            .into_par_iter()
            .for_each(|chunk| {
                let start = chunk * TASK_ELEMENTS;
                let width = TASK_ELEMENTS.min(gradient.width - start);
                let part = |all: super::operands::Rows<T>| all.columns(start, width);
                let (weight, m, v) = (part(weight), part(m), part(v));
                vectorised(|| {
                    step(
                        weight.row_mut(0),
                        m.row_mut(0),
                        v.row_mut(0),
                        part(gradient).row(0),
                        numbers,
                    );
                    if let Some(maximum) = parameter.maximum {
                        for weight in weight.row_mut(0) {
                            if *weight > T::of(maximum) {
                                *weight = T::of(maximum);
                            }
                        }
                    }
                });
            });
    });
}

#[inline(always)]
fn step<T: Real>(weight: &mut [T], m: &mut [T], v: &mut [T], gradient: &[T], n: Numbers<T>) {
    let state = m.iter_mut().zip(v.iter_mut());
    for ((weight, &gradient), (m, v)) in weight.iter_mut().zip(gradient).zip(state) {
        let g = gradient * n.gradient_scale;
        *m = n.beta1 * *m + (T::ONE - n.beta1) * g;
        *v = n.beta2 * *v + (T::ONE - n.beta2) * g * g;
        let root = (*v).sqrt() * n.root_correction2;
        *weight = *weight * n.keep - n.rate * n.correction1 * *m / (root + n.eps);
    }
}
