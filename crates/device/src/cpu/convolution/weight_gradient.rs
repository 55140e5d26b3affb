//! `dw[m, window] += sum over pixels of pixels[pixel, m] pictures[window of the pixel]`.
//!
//! The sums of eight `m` and thirty-two neighbours of a window stay in registers over some lines of pixels; they are added to the sums of
//! a part of the batch, and parts are added in order of their index.

use holdall_graph::{Shape, Write};
use pulp::Simd;
use rayon::prelude::*;

use super::super::operands::{Operands, Rows};
use super::super::real::{Real, vectorised};
use super::super::vectors::{UNIT, Unit, load, store};
use super::gather::copy_band;
use super::geometry::Windows;
use super::padded;

/// Approximate number of pixels whose sums stay in registers.
const BAND_PIXELS: usize = 512;
/// Channels of `pixels` per task.
const TASK_CHANNELS: usize = 32;
/// Minimum number of tasks.
const LEAST_TASKS: usize = 16;

/// A weight gradient as sums over pixels.
pub(super) struct WeightGradient {
    /// `[n, h, w, m]`: each pixel has a window.
    pub pixels: Shape,
    /// `[n, h, w, c]`: the source of the windows.
    pub pictures: Shape,
    pub windows: Windows,
}

impl WeightGradient {
    /// Number of lines of all samples.
    fn all_lines(&self) -> usize {
        self.pixels.dims()[0] * self.pixels.dims()[1]
    }

    /// Lines per band; a band is within one sample.
    fn lines(&self) -> usize {
        let [height, width] = super::sides(self.pixels);
        (BAND_PIXELS / width.max(1)).clamp(1, height.max(1))
    }

    fn channel_blocks(&self) -> usize {
        self.pixels.width().div_ceil(TASK_CHANNELS)
    }

    /// Number of parts that the batch is summed in: depends on the shape alone.
    fn parts(&self) -> usize {
        LEAST_TASKS
            .div_ceil(self.channel_blocks())
            .clamp(1, self.all_lines().max(1))
    }

    /// Elements per row of a window.
    fn run_elements(&self) -> usize {
        self.windows.across.taps * self.pictures.width()
    }

    /// Elements of the sums of one part: by channel of `pixels`, row of the window, padded run.
    fn part_elements(&self) -> usize {
        self.pixels.width() * self.windows.down.taps * padded(self.run_elements())
    }

    /// Elements of a band, padded because vectors may be read beyond the last run.
    fn band_elements(&self) -> usize {
        let across = &self.windows.across;
        let lines = self.windows.down.span(self.lines());
        padded(lines * across.span(across.count) * self.pictures.width()) + 2 * UNIT
    }

    /// Elements of scratch: sums of each part, and a band for each thread.
    pub fn elements(&self, num_threads: usize) -> usize {
        self.parts() * self.part_elements() + num_threads * self.band_elements()
    }

    /// `pixels` and `pictures` are indices of inputs; the first `behind` bytes of scratch are reserved for another use.
    pub fn run<T: Real>(&self, o: &Operands<'_>, [pixels, pictures]: [usize; 2], behind: usize) {
        let (pixels, pictures) = (o.input::<T>(pixels), o.input::<T>(pictures));
        let threads = rayon::current_num_threads();
        let scratch = o.workspace::<T>(1).flat();
        let scratch = scratch.columns(behind / size_of::<T>(), self.elements(threads));
        let (num_parts, elements) = (self.parts(), self.part_elements());
        let parts = scratch.columns(0, num_parts * elements).reshape(elements);
        let band = self.band_elements();
        let bands = scratch
            .columns(num_parts * elements, threads * band)
            .reshape(band);
        let blocks = self.channel_blocks();
        let each = self.all_lines().div_ceil(num_parts);
        (0..num_parts * blocks).into_par_iter().for_each(|task| {
            let (part, block) = (task / blocks, task % blocks);
            let end = ((part + 1) * each).min(self.all_lines());
            let first = block * TASK_CHANNELS;
            let channels = first..(first + TASK_CHANNELS).min(pixels.width);
            let thread = rayon::current_thread_index().unwrap_or(0);
            let sums = parts.slice(part, 1).reshape(elements / pixels.width);
            let sums = sums.slice(first, channels.len()).flat();
            sums.row_mut(0).fill(T::ZERO);
            self.part(
                [pixels, pictures],
                part * each..end,
                channels,
                bands.row_mut(thread),
                sums,
            );
        });
        self.add_parts(parts, o.result::<T>(0));
    }

    fn part<T: Real>(
        &self,
        [pixels, pictures]: [Rows<T>; 2],
        mut lines: std::ops::Range<usize>,
        channels: std::ops::Range<usize>,
        band: &mut [T],
        sums: Rows<T>,
    ) {
        let (down, across) = (&self.windows.down, &self.windows.across);
        let [height, width] = super::sides(self.pictures);
        let [pixel_height, pixel_width] = super::sides(self.pixels);
        let span = across.span(across.count);
        while lines.start < lines.end {
            // A band is within one sample.
            let (sample, line) = (lines.start / pixel_height, lines.start % pixel_height);
            let count = self
                .lines()
                .min(pixel_height - line)
                .min(lines.end - lines.start);
            let first = down.first + (line * down.stride) as isize;
            copy_band(
                pictures.slice(sample * height * width, height * width),
                [height, width],
                [first, across.first],
                [down.span(count), span],
                band,
            );
            let pixels = pixels.slice(lines.start * pixel_width, count * pixel_width);
            for row in 0..down.taps {
                let line_stride = span * self.pictures.width();
                let pass = WindowRow {
                    // SAFETY: a row of the window begins within the band.
                    pictures: unsafe { band.as_ptr().add(row * line_stride) },
                    line_stride: down.stride * line_stride,
                    pixel_stride: across.stride * self.pictures.width(),
                    pixels: pixels.columns(channels.start, channels.len()),
                    lines: count,
                    width: pixel_width,
                    run: self.run_elements(),
                    sums: sums.columns(row * padded(self.run_elements()), 0).pointer(),
                    sums_stride: down.taps * padded(self.run_elements()),
                };
                pulp::Arch::new().dispatch(pass);
            }
            lines.start += count;
        }
    }

    fn add_parts<T: Real>(&self, parts: Rows<T>, (gradient, mode): (Rows<T>, Write)) {
        let run = self.run_elements();
        let gradient = gradient.reshape(run);
        (0..gradient.rows).into_par_iter().for_each(|row| {
            let out = gradient.row_mut(row);
            vectorised(|| {
                if mode == Write::Overwrite {
                    out.fill(T::ZERO);
                }
                for part in 0..parts.rows {
                    let at = row * padded(run);
                    let sums = &parts.row(part)[at..at + run];
                    for (out, &sum) in out.iter_mut().zip(sums) {
                        *out += sum;
                    }
                }
            });
        });
    }
}

/// Operands of one row of the window, over some lines of pixels.
struct WindowRow<T> {
    pictures: *const T,
    line_stride: usize,
    pixel_stride: usize,
    /// The channels of this task.
    pixels: Rows<T>,
    lines: usize,
    width: usize,
    run: usize,
    sums: *mut T,
    /// Elements between the sums of neighbouring channels.
    sums_stride: usize,
}

impl<T: Real> pulp::WithSimd for WindowRow<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match Unit::<T, S>::VECTORS {
            1 => self.units::<S, 8, 1>(simd),
            2 => self.units::<S, 6, 2>(simd),
            4 => self.units::<S, 4, 4>(simd),
            8 => self.units::<S, 2, 8>(simd),
            _ => self.units::<S, 1, 16>(simd),
        }
    }
}

impl<T: Real> WindowRow<T> {
    /// Processes `P` channels at a time with units of `V` vectors; if a unit is one vector, two units.
    #[inline(always)]
    fn units<S: Simd, const P: usize, const V: usize>(&self, simd: S) {
        let mut at = 0;
        while at < self.run {
            if V == 1 && at + UNIT < self.run {
                self.channels::<S, P, V, 2>(simd, at);
                at += 2 * UNIT;
            } else {
                self.channels::<S, P, V, 1>(simd, at);
                at += UNIT;
            }
        }
    }

    #[inline(always)]
    fn channels<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        at: usize,
    ) {
        let channels = self.pixels.width;
        let mut channel = 0;
        while channel + P <= channels {
            self.tile::<S, P, V, U>(simd, at, channel);
            channel += P;
        }
        while channel < channels {
            self.tile::<S, 1, V, U>(simd, at, channel);
            channel += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const P: usize, const V: usize, const U: usize>(
        &self,
        simd: S,
        at: usize,
        channel: usize,
    ) {
        let lanes = Unit::<T, S>::LANES;
        // SAFETY: a pass reads the windows of its pixels, which the band contains with two units to spare, and its channels; it adds to its
        // own sums, whose runs are padded to whole units.
        unsafe {
            let mut sums = [[[T::splat(simd, T::ZERO); V]; U]; P];
            for line in 0..self.lines {
                let mut pictures = self.pictures.add(line * self.line_stride + at);
                let first = self.pixels.pointer().cast_const();
                let mut pixels = first.add(line * self.width * self.pixels.stride + channel);
                for _ in 0..self.width {
                    let mut vectors = [[T::splat(simd, T::ZERO); V]; U];
                    for (u, vectors) in vectors.iter_mut().enumerate() {
                        for (v, vector) in vectors.iter_mut().enumerate() {
                            *vector = load::<T, S>(pictures.add(u * UNIT + v * lanes));
                        }
                    }
                    for (p, sums) in sums.iter_mut().enumerate() {
                        let number = T::splat(simd, *pixels.add(p));
                        for (sums, vectors) in sums.iter_mut().zip(&vectors) {
                            for (sum, &vector) in sums.iter_mut().zip(vectors) {
                                *sum = T::multiply_add(simd, number, vector, *sum);
                            }
                        }
                    }
                    pictures = pictures.add(self.pixel_stride);
                    pixels = pixels.add(self.pixels.stride);
                }
            }
            for (p, sums) in sums.iter().enumerate() {
                let total = self.sums.add((channel + p) * self.sums_stride + at);
                for (u, sums) in sums.iter().enumerate() {
                    for (v, &sum) in sums.iter().enumerate() {
                        let total = total.add(u * UNIT + v * lanes);
                        store::<T, S>(total, T::plus(simd, load::<T, S>(total), sum));
                    }
                }
            }
        }
    }
}
