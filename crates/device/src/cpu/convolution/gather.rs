//! `result[pixel, o] (+)= bias[o] + sum over the window of source[.., c] weight[.., c, o]`.
//!
//! The sums of several pixels and sixteen (or thirty-two) channels stay in registers during the walk through a window: each number of
//! the source is multiplied with a vector of weights. Weights are packed so that these vectors are consecutive.

use holdall_graph::{Shape, Write};
use pulp::Simd;
use rayon::prelude::*;

use super::super::operands::{Operands, Rows};
use super::super::real::Real;
use super::super::vectors::{UNIT, Unit, load, store};
use super::geometry::{AllWindows, Windows};
use super::padded;

/// Maximum number of result lines per task.
const MOST_LINES: usize = 8;
/// Minimum number of tasks.
const LEAST_TASKS: usize = 16;

/// A convolution as a sum over windows of a source.
pub(super) struct Gather {
    /// `[n, h, w, channels in]`.
    pub source: Shape,
    /// `[n, h, w, channels out]`.
    pub result: Shape,
    /// Elements between weights of neighbouring channels: `[in, out]`.
    pub channel_strides: [usize; 2],
    /// Elements between weights of neighbouring kernel positions.
    pub tap_stride: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Sets of windows that together cover every pixel of the result.
    pub windows: AllWindows,
}

/// Operands and scratch of all tasks.
#[derive(Clone, Copy)]
struct SharedOperands<T> {
    source: Rows<T>,
    result: Rows<T>,
    mode: Write,
    /// Bias, padded to whole units of output channels.
    bias: Rows<T>,
    bands: Rows<T>,
}

impl Gather {
    fn channels(&self) -> [usize; 2] {
        [self.source.width(), self.result.width()]
    }

    fn units(&self) -> usize {
        self.result.width().div_ceil(UNIT)
    }

    /// Elements of the packed weights of one set of windows.
    fn weight_elements(&self, windows: &Windows) -> usize {
        windows.taps() * self.source.width() * self.units() * UNIT
    }

    /// Result lines per task: depends on the shape alone.
    fn lines(&self, windows: &Windows) -> usize {
        let all = self.result.dims()[0] * windows.down.count;
        (all / LEAST_TASKS).clamp(1, MOST_LINES)
    }

    /// Whether windows can be read without a band: each is a single pixel, and all are inside the source.
    fn in_place(&self, windows: &Windows) -> bool {
        let inside = |axis: &super::geometry::Axis, size: usize| {
            axis.first >= 0 && axis.first as usize + axis.span(axis.count) <= size
        };
        windows.taps() == 1
            && inside(&windows.down, self.source.dims()[1])
            && inside(&windows.across, self.source.dims()[2])
    }

    fn band_elements(&self) -> usize {
        let of = |windows: Windows| {
            if self.in_place(&windows) {
                0
            } else {
                let lines = windows.down.span(self.lines(&windows));
                lines * windows.across.span(windows.across.count) * self.source.width()
            }
        };
        padded(self.windows.each().map(of).max().unwrap_or(0))
    }

    /// Elements of scratch: packed weights and bias, and a band for each thread.
    pub fn elements(&self, num_threads: usize) -> usize {
        let windows = self.windows.each();
        let weights: usize = windows.map(|w| self.weight_elements(&w)).sum();
        weights + self.units() * UNIT + num_threads * self.band_elements()
    }

    /// Inputs `source, weight, [bias]`.
    pub fn run<T: Real>(&self, o: &Operands<'_>, has_bias: bool) {
        let (result, mode) = o.result::<T>(0);
        let scratch = o.workspace::<T>(1).flat();
        let weight = o.input::<T>(1).flat();
        let width = self.units() * UNIT;
        let bias = scratch.columns(0, width);
        let padded_bias = bias.row_mut(0);
        padded_bias.fill(T::ZERO);
        if has_bias {
            padded_bias[..result.width].copy_from_slice(o.input::<T>(2).flat().row(0));
        }
        let band = self.band_elements();
        let threads = rayon::current_num_threads();
        let shared = SharedOperands {
            source: o.input::<T>(0),
            result,
            mode,
            bias,
            bands: scratch.columns(width, threads * band).reshape(band.max(1)),
        };
        let samples = self.result.dims()[0];
        let mut used = width + threads * band;
        for windows in self.windows.each() {
            let elements = self.weight_elements(&windows);
            let weights = scratch.columns(used, elements);
            self.pack(&windows, weight, weights);
            used += elements;
            let each = self.lines(&windows);
            let per_sample = windows.down.count.div_ceil(each);
            (0..samples * per_sample).into_par_iter().for_each(|task| {
                let start = task % per_sample * each;
                let lines = start..(start + each).min(windows.down.count);
                self.task(&shared, &windows, weights, task / per_sample, lines);
            });
        }
    }

    /// Packs weights in the order in which tiles read them: by unit of output channels, window position, input channel.
    fn pack<T: Real>(&self, windows: &Windows, weight: Rows<T>, packed: Rows<T>) {
        let [channels_in, channels_out] = self.channels();
        let [by_in, by_out] = self.channel_strides;
        let taps = windows.taps();
        if taps == 0 {
            return;
        }
        let packed = packed.reshape(channels_in * UNIT);
        (0..packed.rows).into_par_iter().for_each(|row| {
            let (unit, tap) = (row / taps, row % taps);
            let (k, l) = (tap / windows.across.taps, tap % windows.across.taps);
            let place = windows.down.kernel_at(k) * self.kernel[1] + windows.across.kernel_at(l);
            let lanes = UNIT.min(channels_out - unit * UNIT);
            let from = &weight.row(0)[place * self.tap_stride + unit * UNIT * by_out..];
            let to = packed.row_mut(row);
            if lanes < UNIT {
                to.fill(T::ZERO);
            }
            if by_out == 1 {
                for (channel, to) in to.chunks_exact_mut(UNIT).enumerate() {
                    let at = channel * by_in;
                    to[..lanes].copy_from_slice(&from[at..at + lanes]);
                }
            } else {
                for lane in 0..lanes {
                    let from = &from[lane * by_out..];
                    for (channel, to) in to.chunks_exact_mut(UNIT).enumerate() {
                        to[lane] = from[channel * by_in];
                    }
                }
            }
        });
    }

    /// Computes some lines of one sample.
    fn task<T: Real>(
        &self,
        shared: &SharedOperands<T>,
        windows: &Windows,
        weights: Rows<T>,
        sample: usize,
        lines: std::ops::Range<usize>,
    ) {
        let [channels_in, channels_out] = self.channels();
        let (down, across) = (&windows.down, &windows.across);
        let [height, width] = super::sides(self.source);
        let [result_height, result_width] = super::sides(self.result);
        // First window of the first line, and distances between lines and between pixels.
        let (source, line_stride, pixel_stride) = if self.in_place(windows) {
            let line = down.first as usize + lines.start * down.stride;
            let pixel = (sample * height + line) * width + across.first as usize;
            let source = shared.source.slice(pixel, 1);
            (
                source.pointer().cast_const(),
                width * source.stride,
                source.stride,
            )
        } else {
            let thread = rayon::current_thread_index().unwrap_or(0);
            let band = shared.bands.row_mut(thread);
            let span = across.span(across.count);
            let pictures = shared.source.slice(sample * height * width, height * width);
            let first = down.first + (lines.start * down.stride) as isize;
            copy_band(
                pictures,
                [height, width],
                [first, across.first],
                [down.span(lines.len()), span],
                band,
            );
            (band.as_ptr(), span * channels_in, channels_in)
        };
        let first = sample * result_height + down.start + lines.start * down.step;
        let result = shared.result.slice(first * result_width + across.start, 1);
        pulp::Arch::new().dispatch(LineOperands {
            source,
            line_stride,
            window_stride: [down.stride * line_stride, across.stride * pixel_stride],
            runs: down.taps,
            run: across.taps * channels_in,
            weights: weights.pointer().cast_const(),
            unit_stride: windows.taps() * channels_in * UNIT,
            bias: shared.bias.pointer().cast_const(),
            result: result.pointer(),
            result_stride: [
                down.step * result_width * result.stride,
                across.step * result.stride,
            ],
            lines: lines.len(),
            pixels: across.count,
            channels: channels_out,
            mode: shared.mode,
        });
    }
}

/// Copies lines of pictures into a band, with zeros outside of the picture.
pub(super) fn copy_band<T: Real>(
    pictures: Rows<T>,
    [height, width]: [usize; 2],
    [first_line, first_pixel]: [isize; 2],
    [lines, pixels]: [usize; 2],
    band: &mut [T],
) {
    let channels = pictures.width;
    // Zero pixels before the picture, and the end of the picture.
    let before = (-first_pixel).clamp(0, pixels as isize) as usize;
    let end = (width as isize - first_pixel).clamp(before as isize, pixels as isize) as usize;
    for (number, band) in band
        .chunks_exact_mut(pixels * channels)
        .take(lines)
        .enumerate()
    {
        let line = first_line + number as isize;
        if !(0..height as isize).contains(&line) {
            band.fill(T::ZERO);
            continue;
        }
        band[..before * channels].fill(T::ZERO);
        band[end * channels..].fill(T::ZERO);
        let from = line as usize * width + (first_pixel + before as isize) as usize;
        let inner = &mut band[before * channels..end * channels];
        if pictures.stride == channels {
            inner.copy_from_slice(pictures.slice(from, end - before).flat().row(0));
            continue;
        }
        for (pixel, to) in inner.chunks_exact_mut(channels).enumerate() {
            to.copy_from_slice(pictures.row(from + pixel));
        }
    }
}

/// Operands of some lines of the result.
struct LineOperands<T> {
    source: *const T,
    /// Elements between rows of a window.
    line_stride: usize,
    /// Elements between the windows of neighbouring lines and of neighbouring pixels.
    window_stride: [usize; 2],
    /// Number of rows in a window, and elements per row.
    runs: usize,
    run: usize,
    weights: *const T,
    unit_stride: usize,
    bias: *const T,
    result: *mut T,
    /// Elements between neighbouring lines and between neighbouring pixels.
    result_stride: [usize; 2],
    lines: usize,
    pixels: usize,
    channels: usize,
    mode: Write,
}

/// Elements of a window whose weights stay in the first-level cache during the walk through lines.
const CHUNK: usize = 256;

/// The channels and the part of the window that a tile adds up.
#[derive(Clone, Copy)]
struct WindowPart {
    /// First channel.
    channel: usize,
    /// Range of elements of the window.
    start: usize,
    end: usize,
}

impl<T: Real> pulp::WithSimd for LineOperands<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Tile by number of vectors per unit: its sums must fit into registers and hide each other's latency.
        match Unit::<T, S>::VECTORS {
            1 => self.units::<S, 16, 1>(simd),
            2 => self.units::<S, 6, 2>(simd),
            4 => self.units::<S, 4, 4>(simd),
            8 => self.units::<S, 2, 8>(simd),
            _ => self.units::<S, 1, 16>(simd),
        }
    }
}

impl<T: Real> LineOperands<T> {
    /// Processes `P` pixels at a time with units of `V` vectors; if a unit is one vector, two units of half as many pixels.
    #[inline(always)]
    fn units<S: Simd, const P: usize, const V: usize>(&self, simd: S) {
        let mut channel = 0;
        while channel < self.channels {
            if V == 1 && channel + UNIT < self.channels {
                self.chunks::<S, 8, V, 2>(simd, channel);
                channel += 2 * UNIT;
            } else {
                self.chunks::<S, P, V, 1>(simd, channel);
                channel += UNIT;
            }
        }
    }

    #[inline(always)]
    fn chunks<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        channel: usize,
    ) {
        let window = self.runs * self.run;
        let mut start = 0;
        loop {
            let end = (start + CHUNK / U).min(window);
            let part = WindowPart {
                channel,
                start,
                end,
            };
            for line in 0..self.lines {
                self.pixels::<S, P, V, U>(simd, part, line);
            }
            start = end;
            if start == window {
                break;
            }
        }
    }

    #[inline(always)]
    fn pixels<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        part: WindowPart,
        line: usize,
    ) {
        let mut pixel = 0;
        while pixel + P <= self.pixels {
            self.tile::<S, P, V, U>(simd, part, [line, pixel]);
            pixel += P;
        }
        while P > 4 && pixel + 4 <= self.pixels {
            self.tile::<S, 4, V, U>(simd, part, [line, pixel]);
            pixel += 4;
        }
        while pixel < self.pixels {
            self.tile::<S, 1, V, U>(simd, part, [line, pixel]);
            pixel += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        part: WindowPart,
        [line, pixel]: [usize; 2],
    ) {
        let lanes = Unit::<T, S>::LANES;
        let channels = self.channels - part.channel;
        let between = self.window_stride[1];
        // SAFETY: a line reads `pixels` windows of `runs` rows of `run` elements each, which the band or the source contains, and the
        // weights
        // of `channel`'s units; it writes the channels of its own pixels.
        unsafe {
            let source = self
                .source
                .add(line * self.window_stride[0] + pixel * between);
            let weights = self.weights.add(part.channel / UNIT * self.unit_stride);
            let result = self
                .result
                .add(line * self.result_stride[0] + pixel * self.result_stride[1] + part.channel);
            let mut sums = [[[T::splat(simd, T::ZERO); V]; U]; P];
            for (p, sums) in sums.iter_mut().enumerate() {
                let begun = match (part.start, self.mode) {
                    (0, Write::Overwrite) => self.bias.add(part.channel),
                    _ => result.add(p * self.result_stride[1]).cast_const(),
                };
                let mut few = [T::ZERO; 2 * UNIT];
                let begun = if channels >= U * UNIT {
                    begun
                } else {
                    for (number, few) in few.iter_mut().take(channels).enumerate() {
                        *few = *begun.add(number);
                    }
                    few.as_ptr()
                };
                for (u, sums) in sums.iter_mut().enumerate() {
                    for (v, sum) in sums.iter_mut().enumerate() {
                        *sum = load::<T, S>(begun.add(u * UNIT + v * lanes));
                    }
                }
            }
            let mut next = part.start;
            while next < part.end {
                let (run, first) = (next / self.run, next % self.run);
                let last = (first + part.end - next).min(self.run);
                let source = source.add(run * self.line_stride);
                let weights = weights.add(run * self.run * UNIT);
                for at in first..last {
                    let mut vectors = [[T::splat(simd, T::ZERO); V]; U];
                    for (u, vectors) in vectors.iter_mut().enumerate() {
                        for (v, vector) in vectors.iter_mut().enumerate() {
                            let weights = weights.add(u * self.unit_stride + at * UNIT);
                            *vector = load::<T, S>(weights.add(v * lanes));
                        }
                    }
                    for (p, sums) in sums.iter_mut().enumerate() {
                        let number = T::splat(simd, *source.add(p * between + at));
                        for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                            for (sum, &vector) in sums.iter_mut().zip(vectors) {
                                *sum = T::multiply_add(simd, number, vector, *sum);
                            }
                        }
                    }
                }
                next += last - first;
            }
            for (p, sums) in sums.iter().enumerate() {
                let result = result.add(p * self.result_stride[1]);
                let mut few = [T::ZERO; 2 * UNIT];
                let all = channels >= U * UNIT;
                let to = if all { result } else { few.as_mut_ptr() };
                for (u, sums) in sums.iter().enumerate() {
                    for (v, &sum) in sums.iter().enumerate() {
                        store::<T, S>(to.add(u * UNIT + v * lanes), sum);
                    }
                }
                if !all {
                    for (number, &sum) in few.iter().take(channels).enumerate() {
                        *result.add(number) = sum;
                    }
                }
            }
        }
    }
}
