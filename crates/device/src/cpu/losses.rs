//! Separable losses: cross-entropy over rows, and losses of one number each.

use holdall_graph::Write;
use holdall_graph::ops::cross_entropy::{CrossEntropy, CrossEntropyGrad};
use holdall_graph::ops::pointwise_loss::Pointwise;

use super::elements::for_rows;
use super::operands::Operands;
use super::real::{Real, exp_in_place, largest};

pub(super) fn cross_entropy<T: Real>(op: &CrossEntropy, o: &Operands<'_>) {
    let smoothing = T::of(op.smoothing);
    let logits = o.input::<T>(0);
    let (labels, weights) = (o.input::<i64>(1).flat(), o.input::<T>(2).flat());
    let (total, _) = o.result::<T>(0);
    // Per row: exponentials, then the row's loss in the last place.
    let scratch = o.workspace::<T>(logits.width + 1);
    for_rows(logits.rows, |row| {
        let (exponentials, loss) = scratch.row_mut(row).split_at_mut(logits.width);
        loss[0] = T::ZERO;
        let (label, weight) = (labels.row(0)[row], weights.row(0)[row]);
        if label < 0 || weight == T::ZERO {
            return;
        }
        let logits = logits.row(row);
        assert!(
            (label as usize) < logits.len(),
            "label {label} of {}",
            logits.len()
        );
        let peak = largest(logits);
        exponentials.copy_from_slice(logits);
        let sum = exp_in_place(exponentials, peak);
        let mut target = logits[label as usize];
        if op.smoothing > 0.0 {
            let mean = logits.iter().map(|x| x.f64()).sum::<f64>() / logits.len() as f64;
            target = (T::ONE - smoothing) * target + smoothing * T::of(mean);
        }
        loss[0] = weight * (peak + sum.ln() - target);
    });
    let losses = (0..logits.rows).map(|row| scratch.row(row)[logits.width].f64());
    let sum = total.scalar().f64() + losses.sum::<f64>();
    total.row_mut(0)[0] = T::of(sum);
}

pub(super) fn cross_entropy_grad<T: Real>(op: &CrossEntropyGrad, o: &Operands<'_>) {
    let seed = o.input::<T>(0).scalar();
    let logits = o.input::<T>(1);
    let (labels, weights) = (o.input::<i64>(2).flat(), o.input::<T>(3).flat());
    let (dlogits, mode) = o.result::<T>(0);
    let scratch = o.workspace::<T>(logits.width);
    for_rows(logits.rows, |row| {
        let (label, weight) = (labels.row(0)[row], weights.row(0)[row]);
        let out = dlogits.row_mut(row);
        if mode == Write::Overwrite {
            out.fill(T::ZERO);
        }
        if label < 0 || weight == T::ZERO {
            return;
        }
        let logits = logits.row(row);
        let exponentials = scratch.row_mut(row);
        exponentials.copy_from_slice(logits);
        let sum = exp_in_place(exponentials, largest(logits));
        let scale = seed * weight / sum;
        let spread = T::of(op.smoothing / logits.len() as f64);
        for (out, &value) in out.iter_mut().zip(&*exponentials) {
            *out += value * scale - spread * seed * weight;
        }
        out[label as usize] -= T::of(1.0 - op.smoothing) * seed * weight;
    });
}

/// A loss of one number and its derivative.
trait LossCurve {
    fn value<T: Real>(prediction: T, target: T) -> T;
    fn slope<T: Real>(prediction: T, target: T) -> T;
}

struct BinaryCrossEntropy;
struct SquaredError;

impl LossCurve for BinaryCrossEntropy {
    fn value<T: Real>(z: T, target: T) -> T {
        let (positive, distance) = (z.larger(T::ZERO), z.larger(-z));
        positive - z * target + (T::ONE + (-distance).exp()).ln()
    }

    fn slope<T: Real>(z: T, target: T) -> T {
        T::ONE / (T::ONE + (-z).exp()) - target
    }
}

impl LossCurve for SquaredError {
    fn value<T: Real>(prediction: T, target: T) -> T {
        (prediction - target) * (prediction - target)
    }

    fn slope<T: Real>(prediction: T, target: T) -> T {
        T::of(2.0) * (prediction - target)
    }
}

pub(super) fn pointwise<T: Real>(loss: Pointwise, o: &Operands<'_>) {
    fn run<T: Real, C: LossCurve>(o: &Operands<'_>) {
        let [predictions, targets, weights] = [0, 1, 2].map(|index| o.input::<T>(index));
        let (total, _) = o.result::<T>(0);
        let losses = o.workspace::<f64>(1);
        for_rows(predictions.rows, |row| {
            let operands = targets.row(row).iter().zip(weights.row(row));
            let each = predictions.row(row).iter().zip(operands);
            let counted = each.filter(|(_, (_, weight))| **weight != T::ZERO);
            let terms =
                counted.map(|(&x, (&target, &weight))| (weight * C::value(x, target)).f64());
            losses.row_mut(row)[0] = terms.sum();
        });
        let losses = (0..predictions.rows).map(|row| losses.row(row)[0]);
        let sum = total.scalar().f64() + losses.sum::<f64>();
        total.row_mut(0)[0] = T::of(sum);
    }
    match loss {
        Pointwise::BinaryCrossEntropy => run::<T, BinaryCrossEntropy>(o),
        Pointwise::SquaredError => run::<T, SquaredError>(o),
    }
}

pub(super) fn pointwise_grad<T: Real>(loss: Pointwise, o: &Operands<'_>) {
    fn run<T: Real, C: LossCurve>(o: &Operands<'_>) {
        let seed = o.input::<T>(0).scalar();
        let [predictions, targets, weights] = [1, 2, 3].map(|index| o.input::<T>(index));
        let (gradient, mode) = o.result::<T>(0);
        for_rows(predictions.rows, |row| {
            let operands = targets.row(row).iter().zip(weights.row(row));
            let each = predictions.row(row).iter().zip(operands);
            for (out, (&x, (&target, &weight))) in gradient.row_mut(row).iter_mut().zip(each) {
                let value = match weight == T::ZERO {
                    true => T::ZERO,
                    false => seed * weight * C::slope(x, target),
                };
                *out = match mode {
                    Write::Overwrite => value,
                    Write::Accumulate => *out + value,
                };
            }
        });
    }
    match loss {
        Pointwise::BinaryCrossEntropy => run::<T, BinaryCrossEntropy>(o),
        Pointwise::SquaredError => run::<T, SquaredError>(o),
    }
}
