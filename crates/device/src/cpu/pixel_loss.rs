//! Losses of every pixel, a line of pixels at a time.

use holdall_graph::ops::pixel_loss::{PixelLoss, PixelLossGrad, PixelLossKind};
use holdall_graph::{Shape, Write};

use super::operands::Operands;
use super::pictures::for_lines;
use super::real::{Real, largest};

/// Bytes of scratch of the forward pass: one sum per line.
pub(super) fn line_bytes(logits: Shape) -> usize {
    logits.dims()[0] * logits.dims()[1] * size_of::<f64>()
}

/// `-log p` and `1 - p` of the true class, for one logit and two classes; `towards` is the logit of the true class.
#[inline(always)]
fn binary<T: Real>(towards: T) -> (T, T) {
    let distance = towards.larger(-towards);
    let small = (-distance).exp();
    let loss = (-towards).larger(T::ZERO) + (T::ONE + small).ln();
    let minor = small / (T::ONE + small);
    let q = if towards > T::ZERO {
        minor
    } else {
        T::ONE / (T::ONE + small)
    };
    (loss, q)
}

/// `-log p`, `1 - p`, and the sum of exponentials relative to the largest logit.
#[inline(always)]
fn many<T: Real>(logits: &[T], label: usize) -> (T, T, T, T) {
    let peak = largest(logits);
    let (mut all, mut others) = (T::ZERO, T::ZERO);
    for (class, &logit) in logits.iter().enumerate() {
        let e = (logit - peak).exp();
        all += e;
        if class != label {
            others += e;
        }
    }
    (peak + all.ln() - logits[label], others / all, all, peak)
}

/// `q^focal`.
#[inline(always)]
fn power<T: Real>(q: T, focal: f64) -> T {
    (T::of(focal) * q.ln()).exp()
}

pub(super) fn forward<T: Real>(op: &PixelLoss, o: &Operands<'_>) {
    let (logits, labels) = (o.input::<T>(0), o.pictures::<u8>(1));
    let [class_weights, sample_weights] = [2, 3].map(|index| o.input::<T>(index).flat());
    let (total, _) = o.result::<T>(0);
    let [samples, height, width] = labels.dims;
    let classes = op.kind.num_classes(logits.width);
    let lines = o.workspace::<f64>(1);
    for_lines(samples * height, |line| {
        let weight = sample_weights.row(0)[line / height];
        let mut sum = 0.0;
        if weight != T::ZERO {
            for column in 0..width {
                let label = usize::from(labels.pixel([line / height, line % height, column])[0]);
                if label >= classes {
                    continue;
                }
                let logits = logits.row(line * width + column);
                let (loss, q) = match op.kind {
                    PixelLossKind::Sigmoid => {
                        binary(if label == 1 { logits[0] } else { -logits[0] })
                    }
                    PixelLossKind::Softmax => {
                        let (loss, q, ..) = many(logits, label);
                        (loss, q)
                    }
                };
                let focal = op.focal.map_or(T::ONE, |focal| power(q, focal));
                sum += (class_weights.row(0)[label] * focal * loss).f64();
            }
            sum *= weight.f64();
        }
        lines.row_mut(line)[0] = sum;
    });
    let sums = (0..samples * height).map(|line| lines.row(line)[0]);
    let sum = total.scalar().f64() + sums.sum::<f64>();
    total.row_mut(0)[0] = T::of(sum);
}

pub(super) fn backward<T: Real>(op: &PixelLossGrad, o: &Operands<'_>) {
    let seed = o.input::<T>(0).scalar();
    let (logits, labels) = (o.input::<T>(1), o.pictures::<u8>(2));
    let [class_weights, sample_weights] = [3, 4].map(|index| o.input::<T>(index).flat());
    let (dlogits, mode) = o.result::<T>(0);
    let [samples, height, width] = labels.dims;
    let classes = op.kind.num_classes(logits.width);
    for_lines(samples * height, |line| {
        let weight = seed * sample_weights.row(0)[line / height];
        for column in 0..width {
            let label = usize::from(labels.pixel([line / height, line % height, column])[0]);
            let out = dlogits.row_mut(line * width + column);
            if mode == Write::Overwrite {
                out.fill(T::ZERO);
            }
            if label >= classes || weight == T::ZERO {
                continue;
            }
            let weight = weight * class_weights.row(0)[label];
            let logits = logits.row(line * width + column);
            match op.kind {
                PixelLossKind::Sigmoid => {
                    let sign = if label == 1 { T::ONE } else { -T::ONE };
                    let (loss, q) = binary(sign * logits[0]);
                    let slope = match op.focal {
                        None => q,
                        Some(focal) => power(q, focal) * (T::of(focal) * (T::ONE - q) * loss + q),
                    };
                    out[0] += -(sign * weight * slope);
                }
                PixelLossKind::Softmax => {
                    let (loss, q, all, peak) = many(logits, label);
                    let factor = match op.focal {
                        None => T::ONE,
                        // As q approaches zero, so does -log p, as fast.
                        Some(_) if q == T::ZERO => T::ZERO,
                        Some(focal) => {
                            let p = T::ONE - q;
                            power(q, focal) * (T::ONE + T::of(focal) * p * (loss / q))
                        }
                    };
                    let scale = weight * factor;
                    for (class, (out, &logit)) in out.iter_mut().zip(logits).enumerate() {
                        let slope = if class == label {
                            -q
                        } else {
                            (logit - peak).exp() / all
                        };
                        *out += scale * slope;
                    }
                }
            }
        }
    });
}
