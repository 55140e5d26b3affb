//! Dice and Tversky losses: sums of each sample, a line of pixels at a time, and the loss of the sums.

use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::{Shape, Write};

use super::operands::{Operands, Rows};
use super::pictures::for_lines;
use super::real::{Real, largest};

/// Bytes of scratch of the sums: three per class for each line.
pub(super) fn line_bytes(logits: Shape) -> usize {
    logits.dims()[0] * logits.dims()[1] * 3 * logits.width() * size_of::<f64>()
}

#[inline(always)]
fn sigmoid<T: Real>(z: T) -> T {
    T::ONE / (T::ONE + (-z).exp())
}

/// The largest logit and the sum of exponentials around it.
#[inline(always)]
fn softmax<T: Real>(logits: &[T]) -> (T, T) {
    let peak = largest(logits);
    let mut all = T::ZERO;
    for &logit in logits {
        all += (logit - peak).exp();
    }
    (peak, all)
}

/// Whether a label is class `class`; a sigmoid's only class is class 1.
#[inline(always)]
fn is_there(kind: PixelLossKind, label: usize, class: usize) -> bool {
    match kind {
        PixelLossKind::Sigmoid => label == 1,
        PixelLossKind::Softmax => label == class,
    }
}

pub(super) fn sums<T: Real>(kind: PixelLossKind, o: &Operands<'_>) {
    let (logits, labels) = (o.input::<T>(0), o.pictures::<u8>(1));
    let (sums, _) = o.result::<T>(0);
    let [samples, height, width] = labels.dims;
    let classes = kind.num_classes(logits.width);
    let lines = o.workspace::<f64>(3 * logits.width);
    for_lines(samples * height, |line| {
        let sums = lines.row_mut(line);
        sums.fill(0.0);
        for column in 0..width {
            let label = usize::from(labels.pixel([line / height, line % height, column])[0]);
            if label >= classes {
                continue;
            }
            let logits = logits.row(line * width + column);
            let (peak, all) = match kind {
                PixelLossKind::Sigmoid => (T::ZERO, T::ONE),
                PixelLossKind::Softmax => softmax(logits),
            };
            for (class, (&logit, sums)) in logits.iter().zip(sums.chunks_exact_mut(3)).enumerate() {
                let p = match kind {
                    PixelLossKind::Sigmoid => sigmoid(logit),
                    PixelLossKind::Softmax => (logit - peak).exp() / all,
                };
                sums[1] += p.f64();
                if is_there(kind, label, class) {
                    sums[0] += p.f64();
                    sums[2] += 1.0;
                }
            }
        }
    });
    for sample in 0..samples {
        for (index, out) in sums.row_mut(sample).iter_mut().enumerate() {
            let each = (0..height).map(|line| lines.row(sample * height + line)[index]);
            *out = T::of(each.sum());
        }
    }
}

pub(super) fn sums_grad<T: Real>(kind: PixelLossKind, o: &Operands<'_>) {
    let (dsums, logits) = (o.input::<T>(0), o.input::<T>(1));
    let labels = o.pictures::<u8>(2);
    let (dlogits, mode) = o.result::<T>(0);
    let [samples, height, width] = labels.dims;
    let classes = kind.num_classes(logits.width);
    for_lines(samples * height, |line| {
        let dsums = dsums.row(line / height);
        for column in 0..width {
            let label = usize::from(labels.pixel([line / height, line % height, column])[0]);
            let out = dlogits.row_mut(line * width + column);
            if mode == Write::Overwrite {
                out.fill(T::ZERO);
            }
            if label >= classes {
                continue;
            }
            let logits = logits.row(line * width + column);
            // Derivative of the loss by the probability of a class.
            let slope = |class: usize| {
                let d = &dsums[3 * class..3 * class + 2];
                if is_there(kind, label, class) {
                    d[0] + d[1]
                } else {
                    d[1]
                }
            };
            match kind {
                PixelLossKind::Sigmoid => {
                    let p = sigmoid(logits[0]);
                    out[0] += slope(0) * p * (T::ONE - p);
                }
                PixelLossKind::Softmax => {
                    let (peak, all) = softmax(logits);
                    let probability = |logit: T| (logit - peak).exp() / all;
                    let mut mean = T::ZERO;
                    for (class, &logit) in logits.iter().enumerate() {
                        mean += probability(logit) * slope(class);
                    }
                    for (class, (out, &logit)) in out.iter_mut().zip(logits).enumerate() {
                        *out += probability(logit) * (slope(class) - mean);
                    }
                }
            }
        }
    });
}

/// The overlap `T` of `TP, P, G`, and its derivatives.
fn overlap(op: &OverlapLoss, [tp, p, g]: [f64; 3]) -> (f64, [f64; 3]) {
    let numerator = tp + op.smooth;
    let denominator = tp + op.alpha * (p - tp) + op.beta * (g - tp) + op.smooth;
    if denominator == 0.0 {
        return (1.0, [0.0; 3]);
    }
    let t = numerator / denominator;
    let along = [1.0 - op.alpha - op.beta, op.alpha, op.beta].map(|rate| -rate * t / denominator);
    (t, [along[0] + 1.0 / denominator, along[1], along[2]])
}

/// `TP, P, G` of a class: of one sample, or of all samples.
fn of_class<T: Real>(
    op: &OverlapLoss,
    sums: Rows<T>,
    weights: &[T],
    sample: usize,
    class: usize,
) -> [f64; 3] {
    std::array::from_fn(|index| {
        let of = |row: usize| sums.row(row)[3 * class + index].f64();
        match op.reduction {
            Reduction::PerSample => of(sample),
            Reduction::Batch => {
                let counted = weights.iter().enumerate().filter(|(_, w)| **w != T::ZERO);
                counted.map(|(row, &weight)| weight.f64() * of(row)).sum()
            }
        }
    })
}

pub(super) fn loss<T: Real>(op: &OverlapLoss, o: &Operands<'_>) {
    let (sums, weights) = (o.input::<T>(0), o.input::<T>(1).flat());
    let weights = weights.row(0);
    let (total, _) = o.result::<T>(0);
    let classes = op.first_class..sums.width / 3;
    let each = 1.0 / classes.len() as f64;
    let mut sum = 0.0;
    for sample in 0..overlaps(op, sums.rows) {
        let weight = match op.reduction {
            Reduction::Batch => 1.0,
            Reduction::PerSample => weights[sample].f64(),
        };
        if weight == 0.0 {
            continue;
        }
        let losses = classes.clone().map(|class| {
            let (t, _) = overlap(op, of_class(op, sums, weights, sample, class));
            1.0 - t
        });
        sum += weight * each * losses.sum::<f64>();
    }
    total.row_mut(0)[0] = T::of(total.scalar().f64() + sum);
}

/// Number of overlaps per class.
fn overlaps(op: &OverlapLoss, samples: usize) -> usize {
    match op.reduction {
        Reduction::Batch => 1,
        Reduction::PerSample => samples,
    }
}

pub(super) fn loss_grad<T: Real>(op: &OverlapLoss, o: &Operands<'_>) {
    let seed = o.input::<T>(0).scalar().f64();
    let (sums, weights) = (o.input::<T>(1), o.input::<T>(2).flat());
    let weights = weights.row(0);
    let (dsums, mode) = o.result::<T>(0);
    let num_classes = sums.width / 3;
    let each = seed / (num_classes - op.first_class) as f64;
    for class in 0..num_classes {
        let derivative = |sample: usize| {
            if class < op.first_class {
                [0.0; 3]
            } else {
                overlap(op, of_class(op, sums, weights, sample, class)).1
            }
        };
        let of_all = match op.reduction {
            Reduction::Batch => derivative(0),
            Reduction::PerSample => [0.0; 3],
        };
        for (sample, &weight) in weights.iter().enumerate() {
            let slopes = match op.reduction {
                _ if weight == T::ZERO => [0.0; 3],
                Reduction::Batch => of_all,
                Reduction::PerSample => derivative(sample),
            };
            let out = &mut dsums.row_mut(sample)[3 * class..3 * class + 3];
            for (out, slope) in out.iter_mut().zip(slopes) {
                let value = T::of(-each * weight.f64() * slope);
                *out = match mode {
                    Write::Overwrite => value,
                    Write::Accumulate => *out + value,
                };
            }
        }
    }
}
