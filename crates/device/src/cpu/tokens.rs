//! Pictures to patches, class token, and one token per sample: a token by its index, or the mean of several tokens.

use holdall_graph::ops::mix_pictures::MixPictures;
use holdall_graph::ops::patchify::{Normalization, Patchify};
use holdall_graph::{DType, Write};
use rayon::prelude::*;

use super::elements::for_rows;
use super::operands::{Operands, Rows};
use super::real::{Element, Real, vectorised};

/// Columns per thread at a time.
const TASK_COLUMNS: usize = 64;

/// Factor and shift of `(byte / 255 - mean) / std`.
fn scale_and_shift<T: Real>(normalization: Normalization) -> ([T; 3], [T; 3]) {
    let Normalization { mean, std } = normalization;
    let scale = std.map(|std| T::of(1.0 / (255.0 * f64::from(std))));
    let shift = std::array::from_fn(|c| T::of(-f64::from(mean[c]) / f64::from(std[c])));
    (scale, shift)
}

pub(super) fn mix_pictures<T: Real>(op: &MixPictures, o: &Operands<'_>) {
    let shape = o.input_place(0).shape;
    let (height, width) = (shape.dims()[1], shape.dims()[2]);
    let [pixels, partner] = [0, 1].map(|index| o.input::<u8>(index).reshape(width * 3));
    let mix = o.input::<T>(2);
    let (mixed, _) = o.result::<T>(0);
    let mixed = mixed.reshape(width * 3);
    let (scale, shift) = scale_and_shift::<T>(op.normalization);
    for_rows(mixed.rows, |row| {
        let [lambda, y0, x0, y1, x1] = *mix.row(row / height) else {
            unreachable!("five numbers per sample: checked when the graph was written");
        };
        let line = T::of((row % height) as f64);
        let boxed = y0 <= line && line < y1;
        let sources = pixels.row(row).iter().zip(partner.row(row));
        for (index, (out, (&own, &other))) in mixed.row_mut(row).iter_mut().zip(sources).enumerate()
        {
            let (x, c) = (T::of((index / 3) as f64), index % 3);
            let [own, other] = [own, other].map(|byte| T::of(f64::from(byte)));
            let value = if boxed && x0 <= x && x < x1 {
                other
            } else {
                lambda * own + (T::ONE - lambda) * other
            };
            *out = value * scale[c] + shift[c];
        }
    });
}

pub(super) fn patchify<T: Real>(op: &Patchify, o: &Operands<'_>) {
    if o.input_place(0).dtype == DType::U8 {
        let (scale, shift) = scale_and_shift::<T>(op.normalization);
        cut::<T, u8>(op.patch_size, o, |value, c| {
            T::of(f64::from(value)) * scale[c] + shift[c]
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
    let (patches, positions) = (o.input::<T>(0), o.input::<T>(2));
    let class = o.input::<T>(1).reshape(patches.width);
    let (x, _) = o.result::<T>(0);
    let tokens = positions.rows;
    for_rows(x.rows, |row| {
        let (sample, token) = (row / tokens, row % tokens);
        let source = match token.checked_sub(class.rows) {
            None => class.row(token),
            Some(patch) => patches.row(sample * (tokens - class.rows) + patch),
        };
        let terms = source.iter().zip(positions.row(token));
        for (x, (&value, &position)) in x.row_mut(row).iter_mut().zip(terms) {
            *x = value + position;
        }
    });
}

pub(super) fn class_token_grad<T: Real>(num_prefix: usize, o: &Operands<'_>) {
    let dx = o.input::<T>(0);
    let tokens = o.input_place(0).shape.dims()[1];
    if let Some((dpatches, mode)) = o.output::<T>(0) {
        for_rows(dpatches.rows, |row| {
            let num_patches = tokens - num_prefix;
            let (sample, patch) = (row / num_patches, row % num_patches);
            let source = dx.row(sample * tokens + num_prefix + patch);
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
    let dclass = dclass.reshape(dx.width);
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
                    if token < num_prefix {
                        add(dclass.row_mut(token));
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

pub(super) fn mean_tokens<T: Real>(first: usize, o: &Operands<'_>) {
    let x = o.input::<T>(0);
    let (y, _) = o.result::<T>(0);
    let tokens = o.input_place(0).shape.dims()[1];
    let lengths = Lengths::new(o, tokens - first);
    for_rows(y.rows, |sample| {
        let y = y.row_mut(sample);
        y.fill(T::ZERO);
        let (length, share) = lengths.of(sample);
        for token in first..first + length {
            for (y, &x) in y.iter_mut().zip(x.row(sample * tokens + token)) {
                *y += x;
            }
        }
        y.iter_mut().for_each(|y| *y *= share);
    });
}

pub(super) fn mean_tokens_grad<T: Real>(first: usize, o: &Operands<'_>) {
    let dy = o.input::<T>(0);
    let (dx, mode) = o.result::<T>(0);
    let tokens = dx.rows / dy.rows;
    let lengths = Lengths::new(o, tokens - first);
    for_rows(dx.rows, |row| {
        let (sample, token) = (row / tokens, row % tokens);
        let (length, share) = lengths.of(sample);
        let dx = dx.row_mut(row);
        if mode == Write::Overwrite {
            dx.fill(T::ZERO);
        }
        if (first..first + length).contains(&token) {
            for (dx, &dy) in dx.iter_mut().zip(dy.row(sample)) {
                *dx += dy * share;
            }
        }
    });
}

/// Number of tokens of each sample: from the second input, or all tokens.
struct Lengths {
    each: Option<Rows<i64>>,
    most: usize,
}

impl Lengths {
    fn new(o: &Operands<'_>, most: usize) -> Lengths {
        let each = (o.num_inputs() > 1).then(|| o.input::<i64>(1).flat());
        Lengths { each, most }
    }

    /// Number of tokens of a sample, and the factor that turns their sum into a mean.
    fn of<T: Real>(&self, sample: usize) -> (usize, T) {
        let length = match self.each {
            Some(each) => each.row(0)[sample].clamp(0, self.most as i64) as usize,
            None => self.most,
        };
        (length, T::of(1.0 / length.max(1) as f64))
    }
}

fn position(index: i64, tokens: usize) -> usize {
    assert!(
        (0..tokens as i64).contains(&index),
        "token {index} of {tokens}"
    );
    index as usize
}
