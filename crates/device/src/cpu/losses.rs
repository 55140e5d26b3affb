//! Cross-entropy over rows.

use holdall_graph::Write;
use holdall_graph::ops::cross_entropy::{CrossEntropy, CrossEntropyGrad};

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
