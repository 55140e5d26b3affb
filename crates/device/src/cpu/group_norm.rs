//! Group norm with its activation, and its gradients.
//!
//! Channels are processed sixteen at a time, in registers, over a run of pixels. A sample is cut into numbered parts; sums beyond a run
//! are in f64, and the parts are added in order.

use std::marker::PhantomData;
use std::ops::Range;

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::group_norm::{GroupNorm, GroupNormGrad, GroupStatistics};
use holdall_graph::{Shape, Write};

use super::elements::{Curve, ErfCurve, LeakyCurve, QuickCurve, ReluCurve};
use super::operands::{Operands, Rows};
use super::real::{LANES, Pieces, Real, load, run_pieces, store};

/// Parts that a sample is cut into.
const PARTS: usize = 16;
/// Pixels whose sums stay in registers.
const RUN: usize = 128;

/// Bytes of scratch for two sums of each channel in every part of every sample.
pub(super) fn sum_bytes(x: Shape) -> usize {
    x.dims()[0] * PARTS * 2 * x.width() * size_of::<f64>()
}

/// Bytes of [`sum_bytes`], of two totals per channel and of two means per group.
pub(super) fn gradient_bytes(x: Shape, groups: usize) -> usize {
    let totals = x.dims()[0] * 2 * (x.width() + groups);
    sum_bytes(x) + totals * size_of::<f64>()
}

/// The identity, for a norm without an activation.
struct Straight;

impl Curve for Straight {
    #[inline(always)]
    fn value<T: Real>(z: T) -> T {
        z
    }

    #[inline(always)]
    fn slope<T: Real>(_z: T) -> T {
        T::ONE
    }
}

/// Pictures as rows of pixels.
#[derive(Clone, Copy)]
struct PictureSizes {
    samples: usize,
    /// Pixels per sample.
    pixels: usize,
    channels: usize,
}

impl PictureSizes {
    fn new(shape: Shape) -> PictureSizes {
        let samples = shape.dims()[0];
        PictureSizes {
            samples,
            pixels: shape.rows() / samples.max(1),
            channels: shape.width(),
        }
    }

    /// Number of parts of all samples.
    fn parts(&self) -> usize {
        self.samples * PARTS
    }

    /// The pixels of a part, as a range of rows.
    #[inline(always)]
    fn range(&self, part: usize) -> Range<usize> {
        let each = self.pixels.div_ceil(PARTS);
        let first = part / PARTS * self.pixels;
        let start = (part % PARTS * each).min(self.pixels);
        first + start..first + (start + each).min(self.pixels)
    }
}

/// Cuts pixels into runs.
#[inline(always)]
fn runs(pixels: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = pixels.end;
    pixels
        .step_by(RUN)
        .map(move |start| start..(start + RUN).min(end))
}

/// Computes the sums of each channel and of its squares, by part.
struct Sums<T> {
    x: Rows<T>,
    sizes: PictureSizes,
    parts: Rows<f64>,
}

impl<T: Real> Pieces for Sums<T> {
    #[inline(always)]
    fn piece(&self, part: usize) {
        let channels = self.sizes.channels;
        let (sums, squares) = self.parts.row_mut(part).split_at_mut(channels);
        sums.fill(0.0);
        squares.fill(0.0);
        for run in runs(self.sizes.range(part)) {
            for start in (0..channels).step_by(LANES) {
                // Relative to the run's first pixel: squares of numbers far from zero lose the digits of the variance.
                let center = load(self.x.row(run.start), start);
                let (mut sum, mut square) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                for pixel in run.clone() {
                    let x = load(self.x.row(pixel), start);
                    for lane in 0..LANES {
                        let difference = x[lane] - center[lane];
                        sum[lane] += difference;
                        square[lane] += difference * difference;
                    }
                }
                let count = run.len() as f64;
                for lane in 0..LANES.min(channels - start) {
                    let [center, sum, square] = [center, sum, square].map(|of| of[lane].f64());
                    sums[start + lane] += sum + count * center;
                    squares[start + lane] += square + center * (2.0 * sum + count * center);
                }
            }
        }
    }
}

pub(super) fn statistics<T: Real>(op: &GroupStatistics, o: &Operands<'_>) {
    let sizes = PictureSizes::new(o.input_place(0).shape);
    let PictureSizes {
        samples,
        pixels,
        channels,
    } = sizes;
    let parts = o.workspace::<f64>(2 * channels);
    let x = o.input::<T>(0);
    run_pieces(sizes.parts(), &Sums { x, sizes, parts });
    let [mean, rstd] = [0, 1].map(|index| o.result::<T>(index).0);
    let each = channels / op.groups;
    let count = (pixels * each) as f64;
    for sample in 0..samples {
        for group in 0..op.groups {
            let total = |offset: usize| -> f64 {
                let start = offset + group * each;
                let parts = (0..PARTS).map(|part| parts.row(sample * PARTS + part));
                parts
                    .map(|sums| sums[start..start + each].iter().sum::<f64>())
                    .sum()
            };
            let center = total(0) / count;
            let variance = (total(channels) / count - center * center).max(0.0);
            mean.row_mut(sample)[group] = T::of(center);
            rstd.row_mut(sample)[group] = T::of(1.0 / (variance + op.eps).sqrt());
        }
    }
}

#[inline(always)]
fn add_lanes<T: Real>(totals: &mut [f64], start: usize, lanes: [T; LANES]) {
    for (total, lane) in totals[start..].iter_mut().zip(lanes) {
        *total += lane.f64();
    }
}

/// Operands of a group norm other than `x`.
struct Norm<T> {
    mean: Rows<T>,
    rstd: Rows<T>,
    gamma: Rows<T>,
    beta: Rows<T>,
    residual: Option<Rows<T>>,
    /// Channels per group.
    each: usize,
}

/// Factors of sixteen channels that turn `x` into `z`.
struct Scales<T> {
    center: [T; LANES],
    rstd: [T; LANES],
    gamma: [T; LANES],
    beta: [T; LANES],
}

impl<T: Real> Norm<T> {
    fn new(o: &Operands<'_>, first: usize, groups: usize) -> Norm<T> {
        let [mean, rstd, gamma, beta] = [1, 2, 3, 4].map(|index| o.input::<T>(first + index));
        let residual = (o.num_inputs() > first + 5).then(|| o.input::<T>(first + 5));
        let (gamma, beta) = (gamma.flat(), beta.flat());
        Norm {
            mean,
            rstd,
            gamma,
            beta,
            residual,
            each: gamma.width / groups,
        }
    }

    #[inline(always)]
    fn scales(&self, sample: usize, start: usize) -> Scales<T> {
        Scales {
            center: self.of_groups(self.mean.row(sample), start),
            rstd: self.of_groups(self.rstd.row(sample), start),
            gamma: load(self.gamma.row(0), start),
            beta: load(self.beta.row(0), start),
        }
    }

    /// The value of each channel's group, for sixteen channels.
    #[inline(always)]
    fn of_groups(&self, groups: &[T], start: usize) -> [T; LANES] {
        let last = groups.len() - 1;
        std::array::from_fn(|lane| groups[((start + lane) / self.each).min(last)])
    }

    #[inline(always)]
    fn residual(&self, pixel: usize, start: usize) -> [T; LANES] {
        match self.residual {
            Some(residual) => load(residual.row(pixel), start),
            None => [T::ZERO; LANES],
        }
    }
}

pub(super) fn forward<T: Real>(op: &GroupNorm, o: &Operands<'_>) {
    match op.activation {
        None => normalize::<T, Straight>(op, o),
        Some(Activation::QuickGelu) => normalize::<T, QuickCurve>(op, o),
        Some(Activation::Gelu) => normalize::<T, ErfCurve>(op, o),
        Some(Activation::Relu) => normalize::<T, ReluCurve>(op, o),
        Some(Activation::LeakyRelu) => normalize::<T, LeakyCurve>(op, o),
    }
}

/// Computes the norm.
struct Normalize<T, C> {
    x: Rows<T>,
    y: Rows<T>,
    sizes: PictureSizes,
    norm: Norm<T>,
    curve: PhantomData<C>,
}

impl<T: Real, C: Curve + Sync> Pieces for Normalize<T, C> {
    #[inline(always)]
    fn piece(&self, part: usize) {
        for run in runs(self.sizes.range(part)) {
            for start in (0..self.sizes.channels).step_by(LANES) {
                let s = self.norm.scales(part / PARTS, start);
                let factor: [T; LANES] = std::array::from_fn(|lane| s.rstd[lane] * s.gamma[lane]);
                for pixel in run.clone() {
                    let x = load(self.x.row(pixel), start);
                    let residual = self.norm.residual(pixel, start);
                    let mut lanes = [T::ZERO; LANES];
                    for lane in 0..LANES {
                        let z = (x[lane] - s.center[lane]) * factor[lane] + s.beta[lane];
                        lanes[lane] = C::value(z + residual[lane]);
                    }
                    store(self.y.row_mut(pixel), start, lanes);
                }
            }
        }
    }
}

fn normalize<T: Real, C: Curve + Sync>(op: &GroupNorm, o: &Operands<'_>) {
    let sizes = PictureSizes::new(o.input_place(0).shape);
    let work = Normalize::<T, C> {
        x: o.input(0),
        y: o.result(0).0,
        sizes,
        norm: Norm::new(o, 0, op.groups),
        curve: PhantomData,
    };
    run_pieces(sizes.parts(), &work);
}

pub(super) fn backward<T: Real>(op: &GroupNormGrad, o: &Operands<'_>) {
    match op.activation {
        None => gradients::<T, Straight>(op, o),
        Some(Activation::QuickGelu) => gradients::<T, QuickCurve>(op, o),
        Some(Activation::Gelu) => gradients::<T, ErfCurve>(op, o),
        Some(Activation::Relu) => gradients::<T, ReluCurve>(op, o),
        Some(Activation::LeakyRelu) => gradients::<T, LeakyCurve>(op, o),
    }
}

/// `h` and `g` of sixteen channels of a pixel.
#[inline(always)]
fn terms<T: Real, C: Curve>(
    s: &Scales<T>,
    x: [T; LANES],
    dy: [T; LANES],
    residual: [T; LANES],
) -> ([T; LANES], [T; LANES]) {
    let (mut h, mut g) = ([T::ZERO; LANES], [T::ZERO; LANES]);
    for lane in 0..LANES {
        h[lane] = (x[lane] - s.center[lane]) * s.rstd[lane];
        let z = h[lane] * s.gamma[lane] + s.beta[lane] + residual[lane];
        g[lane] = dy[lane] * C::slope(z);
    }
    (h, g)
}

/// Computes the sums of `g` and of `g h` of each channel, by part.
struct GradientSums<'a, T, C> {
    dy: Rows<T>,
    x: Rows<T>,
    sizes: PictureSizes,
    norm: &'a Norm<T>,
    parts: Rows<f64>,
    curve: PhantomData<C>,
}

impl<T: Real, C: Curve + Sync> Pieces for GradientSums<'_, T, C> {
    #[inline(always)]
    fn piece(&self, part: usize) {
        let channels = self.sizes.channels;
        let (dbeta, dgamma) = self.parts.row_mut(part).split_at_mut(channels);
        dbeta.fill(0.0);
        dgamma.fill(0.0);
        for run in runs(self.sizes.range(part)) {
            for start in (0..channels).step_by(LANES) {
                let s = self.norm.scales(part / PARTS, start);
                let (mut sum_g, mut sum_gh) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                for pixel in run.clone() {
                    let (dy, x) = (
                        load(self.dy.row(pixel), start),
                        load(self.x.row(pixel), start),
                    );
                    let (h, g) = terms::<T, C>(&s, x, dy, self.norm.residual(pixel, start));
                    for lane in 0..LANES {
                        sum_g[lane] += g[lane];
                        sum_gh[lane] += g[lane] * h[lane];
                    }
                }
                add_lanes(dbeta, start, sum_g);
                add_lanes(dgamma, start, sum_gh);
            }
        }
    }
}

/// Computes the gradients of x and of the residual, from the means of `g gamma` and of `g gamma h` of each group.
struct Gradients<'a, T, C> {
    dy: Rows<T>,
    x: Rows<T>,
    dx: Option<(Rows<T>, Write)>,
    dresidual: Option<(Rows<T>, Write)>,
    sizes: PictureSizes,
    norm: &'a Norm<T>,
    means: Rows<f64>,
    curve: PhantomData<C>,
}

impl<T: Real, C: Curve + Sync> Pieces for Gradients<'_, T, C> {
    #[inline(always)]
    fn piece(&self, part: usize) {
        let sample = part / PARTS;
        let groups = self.means.width / 2;
        let (of_g, of_gh) = self.means.row(sample).split_at(groups);
        for run in runs(self.sizes.range(part)) {
            for start in (0..self.sizes.channels).step_by(LANES) {
                let s = self.norm.scales(sample, start);
                let [mean_g, mean_gh]: [[T; LANES]; 2] = [of_g, of_gh].map(|means| {
                    let group = |lane: usize| ((start + lane) / self.norm.each).min(groups - 1);
                    std::array::from_fn(|lane| T::of(means[group(lane)]))
                });
                for pixel in run.clone() {
                    let (dy, x) = (
                        load(self.dy.row(pixel), start),
                        load(self.x.row(pixel), start),
                    );
                    let (h, g) = terms::<T, C>(&s, x, dy, self.norm.residual(pixel, start));
                    if let Some((dx, mode)) = self.dx {
                        let mut value = [T::ZERO; LANES];
                        for lane in 0..LANES {
                            let inner = g[lane] * s.gamma[lane] - mean_g[lane];
                            value[lane] = (inner - h[lane] * mean_gh[lane]) * s.rstd[lane];
                        }
                        write(dx, mode, pixel, start, value);
                    }
                    if let Some((dresidual, mode)) = self.dresidual {
                        write(dresidual, mode, pixel, start, g);
                    }
                }
            }
        }
    }
}

fn gradients<T: Real, C: Curve + Sync>(op: &GroupNormGrad, o: &Operands<'_>) {
    let (dy, x) = (o.input::<T>(0), o.input::<T>(1));
    let norm = &Norm::new(o, 1, op.groups);
    let sizes = PictureSizes::new(o.input_place(1).shape);
    let PictureSizes {
        samples,
        pixels,
        channels,
    } = sizes;
    let scratch = o.workspace::<f64>(1).reshape(1);
    let parts = scratch
        .slice(0, samples * PARTS * 2 * channels)
        .reshape(2 * channels);
    let sums = GradientSums::<T, C> {
        dy,
        x,
        sizes,
        norm,
        parts,
        curve: PhantomData,
    };
    run_pieces(sizes.parts(), &sums);
    // Totals of each sample, in the order of the parts: over its channels, then over its groups.
    let behind = samples * PARTS * 2 * channels;
    let totals = scratch
        .slice(behind, samples * 2 * channels)
        .reshape(2 * channels);
    let means = scratch
        .slice(behind + samples * 2 * channels, samples * 2 * op.groups)
        .reshape(2 * op.groups);
    let count = (pixels * norm.each) as f64;
    for sample in 0..samples {
        let total = totals.row_mut(sample);
        total.fill(0.0);
        for part in 0..PARTS {
            let sums = parts.row(sample * PARTS + part);
            for (total, &sum) in total.iter_mut().zip(sums) {
                *total += sum;
            }
        }
        let gamma = norm.gamma.row(0);
        for group in 0..op.groups {
            let mean = |offset: usize| -> f64 {
                let of_group = group * norm.each..(group + 1) * norm.each;
                let weighted = of_group.map(|c| gamma[c].f64() * total[offset + c]);
                weighted.sum::<f64>() / count
            };
            let [of_g, of_gh] = [mean(0), mean(channels)];
            let means = means.row_mut(sample);
            (means[group], means[op.groups + group]) = (of_g, of_gh);
        }
    }
    let mut next = 0;
    for (wanted, offset) in [(op.gamma, channels), (op.beta, 0)] {
        if wanted {
            let (gradient, mode) = o.result::<T>(next);
            add_totals(gradient.flat(), mode, totals, samples, offset);
            next += 1;
        }
    }
    let dx = op.x.then(|| o.result::<T>(next));
    let dresidual = op.residual.then(|| o.result::<T>(next + usize::from(op.x)));
    if dx.is_none() && dresidual.is_none() {
        return;
    }
    let work = Gradients::<T, C> {
        dy,
        x,
        dx,
        dresidual,
        sizes,
        norm,
        means,
        curve: PhantomData,
    };
    run_pieces(sizes.parts(), &work);
}

#[inline(always)]
fn write<T: Real>(y: Rows<T>, mode: Write, pixel: usize, start: usize, mut value: [T; LANES]) {
    if mode == Write::Accumulate {
        let before = load(y.row(pixel), start);
        for lane in 0..LANES {
            value[lane] += before[lane];
        }
    }
    store(y.row_mut(pixel), start, value);
}

/// Adds the totals of all samples to a parameter's gradient.
fn add_totals<T: Real>(
    gradient: Rows<T>,
    mode: Write,
    totals: Rows<f64>,
    samples: usize,
    offset: usize,
) {
    for (channel, out) in gradient.row_mut(0).iter_mut().enumerate() {
        let each = (0..samples).map(|sample| totals.row(sample)[offset + channel]);
        let total = T::of(each.sum());
        *out = match mode {
            Write::Overwrite => total,
            Write::Accumulate => *out + total,
        };
    }
}
