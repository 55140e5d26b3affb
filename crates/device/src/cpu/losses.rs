//! Separable losses: cross-entropy over rows, and losses of one prediction each.

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
    let class_weights = (o.num_inputs() > 3).then(|| o.input::<T>(3).flat());
    let (total, _) = o.result::<T>(0);
    // Each row of scratch has the exponentials, then the row's loss.
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
        let (log_sum, own) = (peak + sum.ln(), logits[label as usize]);
        let mean = |terms: f64| T::of(terms / logits.len() as f64);
        loss[0] = match &class_weights {
            None if op.smoothing > 0.0 => {
                let spread = mean(logits.iter().map(|x| x.f64()).sum());
                weight * (log_sum - ((T::ONE - smoothing) * own + smoothing * spread))
            }
            None => weight * (log_sum - own),
            Some(class_weights) => {
                let class_weights = class_weights.row(0);
                let own = class_weights[label as usize] * (log_sum - own);
                let mut loss = (T::ONE - smoothing) * own;
                if op.smoothing > 0.0 {
                    let each = logits.iter().zip(class_weights);
                    let terms =
                        each.map(|(&x, &class_weight)| (class_weight * (log_sum - x)).f64());
                    loss += smoothing * mean(terms.sum());
                }
                weight * loss
            }
        };
    });
    let losses = (0..logits.rows).map(|row| scratch.row(row)[logits.width].f64());
    let sum = total.scalar().f64() + losses.sum::<f64>();
    total.row_mut(0)[0] = T::of(sum);
}

pub(super) fn cross_entropy_grad<T: Real>(op: &CrossEntropyGrad, o: &Operands<'_>) {
    let seed = o.input::<T>(0).scalar();
    let logits = o.input::<T>(1);
    let (labels, weights) = (o.input::<i64>(2).flat(), o.input::<T>(3).flat());
    // Weights of the classes, and their sum.
    let class_weights = (o.num_inputs() > 4).then(|| {
        let each = o.input::<T>(4).flat();
        let sum = each.row(0).iter().map(|weight| weight.f64()).sum();
        (each, T::of(sum))
    });
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
        let own = T::of(1.0 - op.smoothing) * seed * weight;
        let spread = T::of(op.smoothing / logits.len() as f64) * seed * weight;
        let each = out.iter_mut().zip(&*exponentials);
        match &class_weights {
            None => {
                let scale = seed * weight / sum;
                each.for_each(|(out, &value)| *out += value * scale - spread);
                out[label as usize] -= own;
            }
            Some((class_weights, all)) => {
                let class_weights = class_weights.row(0);
                let own = own * class_weights[label as usize];
                let scale = (own + spread * *all) / sum;
                for ((out, &value), &class_weight) in each.zip(class_weights) {
                    *out += value * scale - spread * class_weight;
                }
                out[label as usize] -= own;
            }
        }
    });
}

/// A loss of one prediction and its derivative.
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
                let value = if weight == T::ZERO {
                    T::ZERO
                } else {
                    seed * weight * C::slope(x, target)
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
