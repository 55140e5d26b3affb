//! Pooling, upsampling, and conversion of pixel bytes to floats.

use holdall_graph::ops::normalize_pixels::{NormalizePixels, PixelDepth};
use holdall_graph::ops::pool2d::{Pool, Pool2d, Pool2dGrad};
use holdall_graph::ops::upsample2d::{Upsample2d, Upsample2dGrad, Upsampling};
use holdall_graph::{DType, Write};
use rayon::prelude::*;

use super::operands::{Operands, Rows};
use super::real::{Element, LANES, Pieces, Real, load, run_pieces, store, vectorised};

/// Calls `work` with each line of pixels, on all threads, vectorised.
pub(super) fn for_lines(lines: usize, work: impl Fn(usize) + Send + Sync) {
    (0..lines)
        .into_par_iter()
        .for_each(|line| vectorised(|| work(line)));
}

/// Operands of a pooling; work is split by line.
struct Pooling<T> {
    kind: Pool,
    size: usize,
    /// Pixels of a pooled line.
    width: usize,
    /// The input of the pooling, if the kernel reads it.
    x: Option<Rows<T>>,
    /// The pooled picture, or its gradient.
    y: Rows<T>,
}

impl<T: Real> Pooling<T> {
    /// Row of the pixel of `x` at a position of a window.
    #[inline(always)]
    fn pixel(&self, [line, column]: [usize; 2], (k, l): (usize, usize)) -> usize {
        let size = self.size;
        (line * size + k) * self.width * size + column * size + l
    }

    fn share(&self) -> T {
        T::of(1.0 / (self.size * self.size) as f64)
    }
}

impl<T: Real> Pieces for Pooling<T> {
    #[inline(always)]
    fn piece(&self, line: usize) {
        let x = self.x.expect("pooling reads x");
        for column in 0..self.width {
            let y = self.y.row_mut(line * self.width + column);
            for start in (0..y.len()).step_by(LANES) {
                let first = self.pixel([line, column], (0, 0));
                let mut pooled = load(x.row(first), start);
                for place in window(self.size).skip(1) {
                    let x = load(x.row(self.pixel([line, column], place)), start);
                    for lane in 0..LANES {
                        pooled[lane] = match self.kind {
                            Pool::Max if exceeds(x[lane], pooled[lane]) => x[lane],
                            Pool::Max => pooled[lane],
                            Pool::Average => pooled[lane] + x[lane],
                        };
                    }
                }
                if self.kind == Pool::Average {
                    pooled = pooled.map(|sum| sum * self.share());
                }
                store(y, start, pooled);
            }
        }
    }
}

/// Computes the gradient of a pooling, by line.
struct PoolingGradient<T> {
    pooling: Pooling<T>,
    dx: Rows<T>,
    mode: Write,
}

impl<T: Real> Pieces for PoolingGradient<T> {
    #[inline(always)]
    fn piece(&self, line: usize) {
        let pooling = &self.pooling;
        for column in 0..pooling.width {
            let dy = pooling.y.row(line * pooling.width + column);
            for start in (0..dy.len()).step_by(LANES) {
                let dy = load(dy, start);
                // Position of the first maximum in the window.
                let mut which = [T::ZERO; LANES];
                if let Some(x) = pooling.x {
                    let mut most = load(x.row(pooling.pixel([line, column], (0, 0))), start);
                    for (number, place) in window(pooling.size).enumerate().skip(1) {
                        let x = load(x.row(pooling.pixel([line, column], place)), start);
                        let number = T::of(number as f64);
                        for lane in 0..LANES {
                            let more = exceeds(x[lane], most[lane]);
                            most[lane] = if more { x[lane] } else { most[lane] };
                            which[lane] = if more { number } else { which[lane] };
                        }
                    }
                }
                for (number, place) in window(pooling.size).enumerate() {
                    let number = T::of(number as f64);
                    let pixel = pooling.pixel([line, column], place);
                    let mut value = match self.mode {
                        Write::Overwrite => [T::ZERO; LANES],
                        Write::Accumulate => load(self.dx.row(pixel), start),
                    };
                    for lane in 0..LANES {
                        value[lane] += match pooling.kind {
                            Pool::Max if which[lane] == number => dy[lane],
                            Pool::Max => T::ZERO,
                            Pool::Average => dy[lane] * pooling.share(),
                        };
                    }
                    store(self.dx.row_mut(pixel), start, value);
                }
            }
        }
    }
}

/// Positions in a window, in row order.
#[inline(always)]
fn window(size: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..size).flat_map(move |k| (0..size).map(move |l| (k, l)))
}

pub(super) fn pool<T: Real>(op: &Pool2d, o: &Operands<'_>) {
    let shape = o.output_place(0).expect("the result is read").shape;
    let pooling = Pooling {
        kind: op.kind,
        size: op.size,
        width: shape.dims()[2],
        x: Some(o.input::<T>(0)),
        y: o.result(0).0,
    };
    run_pieces(shape.dims()[0] * shape.dims()[1], &pooling);
}

pub(super) fn pool_grad<T: Real>(op: &Pool2dGrad, o: &Operands<'_>) {
    let shape = o.input_place(0).shape;
    let (dx, mode) = o.result::<T>(0);
    let pooling = Pooling {
        kind: op.kind,
        size: op.size,
        width: shape.dims()[2],
        x: (op.kind == Pool::Max).then(|| o.input(1)),
        y: o.input(0),
    };
    let work = PoolingGradient { pooling, dx, mode };
    run_pieces(shape.dims()[0] * shape.dims()[1], &work);
}

/// Whether `x` replaces the maximum so far. A NaN does, as in PyTorch.
#[inline(always)]
#[allow(clippy::eq_op)] // a NaN does not equal itself
fn exceeds<T: Real>(x: T, most: T) -> bool {
    x > most || x != x
}

/// The two source pixels around a pixel of the upsampled picture, and the weight of the second.
fn between(index: usize, factor: usize, size: usize) -> (usize, usize, f64) {
    let at = ((index as f64 + 0.5) / factor as f64 - 0.5).max(0.0);
    let first = (at as usize).min(size - 1);
    (first, (first + 1).min(size - 1), at - first as f64)
}

pub(super) fn upsample<T: Real>(op: &Upsample2d, o: &Operands<'_>) {
    let (x, (y, _)) = (o.input::<T>(0), o.result::<T>(0));
    let shape = o.input_place(0).shape;
    let (samples, height, width) = (shape.dims()[0], shape.dims()[1], shape.dims()[2]);
    let factor = op.factor;
    for_lines(samples * height * factor, |line| {
        let (sample, i) = (line / (height * factor), line % (height * factor));
        for column in 0..width * factor {
            let y = y.row_mut(line * width * factor + column);
            let pixel = |row: usize, column: usize| x.row((sample * height + row) * width + column);
            match op.mode {
                Upsampling::Nearest => y.copy_from_slice(pixel(i / factor, column / factor)),
                Upsampling::Bilinear => {
                    let (above, below, down) = between(i, factor, height);
                    let (left, right, across) = between(column, factor, width);
                    let [down, across] = [down, across].map(|weight| T::of(weight));
                    let corners = [(above, left), (above, right), (below, left), (below, right)];
                    let [a, b, c, d] = corners.map(|(row, column)| pixel(row, column));
                    for (channel, y) in y.iter_mut().enumerate() {
                        let upper = a[channel] * (T::ONE - across) + b[channel] * across;
                        let lower = c[channel] * (T::ONE - across) + d[channel] * across;
                        *y = upper * (T::ONE - down) + lower * down;
                    }
                }
            }
        }
    });
}

/// Weight of source pixel `of` in a pixel of the upsampled picture.
fn share(index: usize, of: usize, op: &Upsample2dGrad, size: usize) -> f64 {
    match op.mode {
        Upsampling::Nearest => f64::from(u8::from(index / op.factor == of)),
        Upsampling::Bilinear => {
            let (first, second, weight) = between(index, op.factor, size);
            let of_first = if first == of { 1.0 - weight } else { 0.0 };
            of_first + if second == of { weight } else { 0.0 }
        }
    }
}

pub(super) fn upsample_grad<T: Real>(op: &Upsample2dGrad, o: &Operands<'_>) {
    let (dy, (dx, mode)) = (o.input::<T>(0), o.result::<T>(0));
    let shape = o.output_place(0).expect("the result is read").shape;
    let (samples, height, width) = (shape.dims()[0], shape.dims()[1], shape.dims()[2]);
    let factor = op.factor;
    // Pixels of the upsampled picture that may depend on source pixel `of`.
    let takers = |of: usize, size: usize| match op.mode {
        Upsampling::Nearest => of * factor..(of + 1) * factor,
        Upsampling::Bilinear => of.saturating_sub(1) * factor..(of + 2).min(size) * factor,
    };
    for_lines(samples * height, |line| {
        let (sample, i) = (line / height, line % height);
        for column in 0..width {
            let dx = dx.row_mut(line * width + column);
            if mode == Write::Overwrite {
                dx.fill(T::ZERO);
            }
            for row in takers(i, height) {
                let down = share(row, i, op, height);
                if down == 0.0 {
                    continue;
                }
                for taker in takers(column, width) {
                    let across = share(taker, column, op, width);
                    if across == 0.0 {
                        continue;
                    }
                    let weight = T::of(down * across);
                    let dy = dy.row((sample * height * factor + row) * width * factor + taker);
                    for (dx, &dy) in dx.iter_mut().zip(dy) {
                        *dx += dy * weight;
                    }
                }
            }
        }
    });
}

pub(super) fn normalize_pixels<T: Real>(op: &NormalizePixels, o: &Operands<'_>) {
    let scaled = |value: f64, channel: usize| {
        let [factor, shift] = op.factor_and_shift(channel).map(|number| T::of(number));
        T::of(value) * factor + shift
    };
    let channels = op.mean.len();
    match (o.input_place(0).dtype, op.depth) {
        (DType::U8, PixelDepth::Eight) => each_pixel::<T, u8>(o, channels, |bytes, channel| {
            scaled(f64::from(bytes[channel]), channel)
        }),
        (DType::U8, PixelDepth::Sixteen) => each_pixel::<T, u8>(o, channels, |bytes, channel| {
            let value = u16::from_le_bytes([bytes[2 * channel], bytes[2 * channel + 1]]);
            scaled(f64::from(value), channel)
        }),
        (DType::F32, _) => each_pixel::<T, f32>(o, channels, |values, channel| {
            T::of(f64::from(values[channel]))
        }),
        (DType::F64, _) => {
            each_pixel::<T, f64>(o, channels, |values, channel| T::of(values[channel]))
        }
        (other, _) => panic!("pixels are bytes or floats, not {other:?}"),
    }
}

/// Computes every channel of every pixel by `value`; padding channels are zero.
fn each_pixel<T: Real, U: Element>(
    o: &Operands<'_>,
    channels: usize,
    value: impl Fn(&[U], usize) -> T + Send + Sync,
) {
    let pixels = o.pictures::<U>(0);
    let (y, _) = o.result::<T>(0);
    let [samples, height, width] = pixels.dims;
    for_lines(samples * height, |line| {
        for column in 0..width {
            let pixel = pixels.pixel([line / height, line % height, column]);
            let (y, padding) = y.row_mut(line * width + column).split_at_mut(channels);
            for (channel, y) in y.iter_mut().enumerate() {
                *y = value(pixel, channel);
            }
            padding.fill(T::ZERO);
        }
    });
}
