//! Resamples a picture and its mask through one inverse map, applied once per pixel, whatever rotation, scale and mirror it combines.
//! Pixels are bilinear, classes are those of the nearest pixel, and both are sampled at the same position.
//!
//! Beyond its edges a picture continues as its mirror image, repeatedly: norms average over all pixels, and mirror images leave mean and
//! variance as they are. Their classes do not count.
//!
//! Positions are integers in units of 2^-32 pixels, so that a picture is the same on every machine. A map from pixels to pixels (mirrors,
//! quarter turns, shifts) copies them.

use super::augment::PairDraw;
use super::row::{IGNORED, RowShape};
use crate::decode::PixelDepth;
use crate::decode::WholePicture;

/// Affine map from a pixel `(x, y)` of the result to a position of the source: `(xx x + xy y + x0, yx x + yy y + y0)`, where a whole number
/// is the middle of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Map {
    xx: i64,
    xy: i64,
    x0: i64,
    yx: i64,
    yy: i64,
    y0: i64,
}

const ONE: i64 = 1 << 32;
const HALF: i64 = ONE / 2;
/// Bits of a bilinear weight.
const WEIGHT_BITS: u32 = 11;

impl Map {
    /// Map of a random draw, around the middle of the patch of the source that begins at `(left, top)` and has the size of the result.
    pub(super) fn new(draw: &PairDraw, shape: RowShape, (left, top): (usize, usize)) -> Map {
        let fixed = |number: f64| (number * ONE as f64).round() as i64;
        // Step in the source for one pixel to the right in the result; the step down is this one turned by a quarter.
        let (cos, sin) = match (draw.angle, draw.num_turns) {
            (0.0, 0) => (ONE, 0),
            (0.0, 1) => (0, ONE),
            (0.0, 2) => (-ONE, 0),
            (0.0, _) => (0, -ONE),
            (angle, turns) => {
                let angle = angle + f64::from(turns) * std::f64::consts::FRAC_PI_2;
                (fixed(angle.cos()), fixed(angle.sin()))
            }
        };
        let scaled = |number: i64| match draw.zoom {
            1.0 => number,
            zoom => (number as f64 / zoom).round() as i64,
        };
        let mirror = |is_mirrored: bool| if is_mirrored { -1 } else { 1 };
        let (across, down) = (mirror(draw.is_mirrored), mirror(draw.is_upside_down));
        let (xx, yx) = (across * scaled(cos), across * scaled(sin));
        let (xy, yy) = (down * scaled(-sin), down * scaled(cos));
        // The middle of the result, in halves of a pixel, maps to the middle of the patch.
        let (width, height) = (shape.width as i64, shape.height as i64);
        let start = |begin: usize, side: i64, x: i64, y: i64| {
            begin as i64 * ONE + (side - 1) * HALF - ((width - 1) * x + (height - 1) * y) / 2
        };
        Map {
            xx,
            xy,
            x0: start(left, width, xx, xy),
            yx,
            yy,
            y0: start(top, height, yx, yy),
        }
    }

    /// Map between two sizes of the same picture: bilinear, not widened.
    fn between((from_width, from_height): (usize, usize), (width, height): (usize, usize)) -> Map {
        let step = |from: usize, to: usize| from as i64 * ONE / to as i64;
        let (xx, yy) = (step(from_width, width), step(from_height, height));
        Map {
            xx,
            xy: 0,
            x0: (xx - ONE) / 2,
            yx: 0,
            yy,
            y0: (yy - ONE) / 2,
        }
    }

    fn at(&self, x: usize, y: usize) -> (i64, i64) {
        let (x, y) = (x as i64, y as i64);
        (
            self.xx * x + self.xy * y + self.x0,
            self.yx * x + self.yy * y + self.y0,
        )
    }

    /// Whether pixels map to pixels.
    fn is_exact(&self) -> bool {
        let parts = [self.xx, self.xy, self.x0, self.yx, self.yy, self.y0];
        parts.iter().all(|part| part % ONE == 0)
    }
}

/// Output buffers.
pub(super) struct RowBuffers<'a> {
    pub shape: RowShape,
    pub pixels: &'a mut [u8],
    pub mask: &'a mut [u8],
}

/// Writes every pixel and class of the target. Pixel values go through `table`.
pub(super) fn sample(
    source: &WholePicture,
    map: Map,
    table: Option<&[u16]>,
    target: &mut RowBuffers<'_>,
) {
    let table_bytes: Option<Vec<u8>> = match source.depth {
        PixelDepth::Eight => table.map(|table| table.iter().map(|value| *value as u8).collect()),
        PixelDepth::Sixteen => None,
    };
    match (source.depth, source.channels) {
        (PixelDepth::Eight, 1) => sample_bytes::<1>(source, map, table_bytes.as_deref(), target),
        (PixelDepth::Eight, 3) => sample_bytes::<3>(source, map, table_bytes.as_deref(), target),
        _ => sample_any(source, map, table, target),
    }
}

/// Side of the tiles in which the target is filled: under a rotation, neighbouring reads stay close in memory.
const TILE: usize = 32;

/// Calls `line` for each line of each tile.
fn each_line(shape: RowShape, mut line: impl FnMut(usize, std::ops::Range<usize>)) {
    for top in (0..shape.height).step_by(TILE) {
        for left in (0..shape.width).step_by(TILE) {
            for y in top..(top + TILE).min(shape.height) {
                line(y, left..(left + TILE).min(shape.width));
            }
        }
    }
}

/// Position on a line of `length` pixels of pixel `at` of its continuation by mirror images, the outermost pixels repeated.
fn mirrored(at: i64, length: usize) -> usize {
    let length = length as i64;
    if (0..length).contains(&at) {
        return at as usize;
    }
    let at = at.rem_euclid(2 * length);
    at.min(2 * length - 1 - at) as usize
}

/// Nearest pixel of a position, and its class: ignored beyond the picture's edges.
fn nearest(source: &WholePicture, x: i64, y: i64) -> (usize, u8) {
    let (x, y) = ((x + HALF) >> 32, (y + HALF) >> 32);
    let at = mirrored(y, source.height) * source.width + mirrored(x, source.width);
    let is_inside = (0..source.width as i64).contains(&x) && (0..source.height as i64).contains(&y);
    let class = match &source.mask {
        Some(mask) if is_inside => mask[at],
        _ => IGNORED,
    };
    (at, class)
}

/// The four pixels around a position, and the weights of the right and the lower ones.
struct Around {
    at: [usize; 4],
    right: u32,
    down: u32,
}

fn around(source: &WholePicture, x: i64, y: i64) -> Around {
    let side = |place: i64, length: usize| {
        let first = place >> 32;
        let weight = ((place & (ONE - 1)) >> (32 - WEIGHT_BITS)) as u32;
        (mirrored(first, length), mirrored(first + 1, length), weight)
    };
    let (left, right, weight_right) = side(x, source.width);
    let (upper, lower, weight_down) = side(y, source.height);
    let (upper, lower) = (upper * source.width, lower * source.width);
    Around {
        at: [upper + left, upper + right, lower + left, lower + right],
        right: weight_right,
        down: weight_down,
    }
}

/// Bilinear interpolation of four values, rounded.
fn between(values: [u32; 4], right: u32, down: u32) -> u32 {
    let whole = 1_u64 << WEIGHT_BITS;
    let [a, b, c, d] = values.map(u64::from);
    let (right, down) = (u64::from(right), u64::from(down));
    let upper = a * (whole - right) + b * right;
    let lower = c * (whole - right) + d * right;
    let sum = upper * (whole - down) + lower * down;
    ((sum + (1 << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS)) as u32
}

fn sample_bytes<const C: usize>(
    source: &WholePicture,
    map: Map,
    table: Option<&[u8]>,
    target: &mut RowBuffers<'_>,
) {
    let (from, _) = source.pixels.as_chunks::<C>();
    let is_exact = map.is_exact();
    let width = target.shape.width;
    let (pixels, _) = target.pixels.as_chunks_mut::<C>();
    let classes = &mut *target.mask;
    each_line(target.shape, |y, columns| {
        for x in columns {
            let to = y * width + x;
            let (place_x, place_y) = map.at(x, y);
            let (at, class) = nearest(source, place_x, place_y);
            classes[to] = class;
            let mut pixel = from[at];
            if !is_exact {
                let Around { at, right, down } = around(source, place_x, place_y);
                let four = at.map(|at| from[at]);
                for (channel, value) in pixel.iter_mut().enumerate() {
                    let values = four.map(|pixel| u32::from(pixel[channel]));
                    *value = between(values, right, down) as u8;
                }
            }
            if let Some(table) = table {
                pixel = pixel.map(|value| table[usize::from(value)]);
            }
            pixels[to] = pixel;
        }
    });
}

/// Sampling for any number of channels, and for 16 bits.
fn sample_any(source: &WholePicture, map: Map, table: Option<&[u16]>, target: &mut RowBuffers<'_>) {
    let bytes = source.depth.bytes();
    let size = source.channels * bytes;
    let read = |at: usize, channel: usize| {
        let place = at * size + channel * bytes;
        match source.depth {
            PixelDepth::Eight => u32::from(source.pixels[place]),
            PixelDepth::Sixteen => {
                let two = [source.pixels[place], source.pixels[place + 1]];
                u32::from(u16::from_le_bytes(two))
            }
        }
    };
    let width = target.shape.width;
    let RowBuffers { pixels, mask, .. } = target;
    each_line(target.shape, |y, columns| {
        for x in columns {
            let to = y * width + x;
            let (place_x, place_y) = map.at(x, y);
            let pixel = &mut pixels[to * size..][..size];
            (_, mask[to]) = nearest(source, place_x, place_y);
            let Around { at, right, down } = around(source, place_x, place_y);
            for channel in 0..source.channels {
                let value = between(at.map(|at| read(at, channel)), right, down);
                let value = table.map_or(value as u16, |table| table[value as usize]);
                let place = channel * bytes;
                pixel[place..place + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
            }
        }
    });
}

/// Reduces the resolution by `coarseness` per side, and interpolates back bilinearly.
pub(super) fn coarsen(shape: RowShape, coarseness: f64, pixels: &mut [u8], buffer: &mut Vec<u8>) {
    let fewer = |side: usize| ((side as f64 / coarseness).round() as usize).clamp(1, side);
    let (width, height) = (fewer(shape.width), fewer(shape.height));
    let size = shape.pixel_bytes();
    buffer.clear();
    buffer.reserve_exact(shape.pixels().len());
    let place = |at: usize, side: usize, from: usize| (2 * at + 1) * from / (2 * side);
    for y in 0..height {
        let line = place(y, height, shape.height) * shape.width;
        for x in 0..width {
            let at = line + place(x, width, shape.width);
            buffer.extend_from_slice(&pixels[at * size..][..size]);
        }
    }
    let source = WholePicture {
        width,
        height,
        channels: shape.channels,
        depth: shape.depth,
        pixels: std::mem::take(buffer),
        ..WholePicture::default()
    };
    let map = Map::between((width, height), (shape.width, shape.height));
    let mut unused = vec![0; shape.num_pixels()];
    sample(
        &source,
        map,
        None,
        &mut RowBuffers {
            shape,
            pixels,
            mask: &mut unused,
        },
    );
    *buffer = source.pixels;
}

#[cfg(test)]
mod tests;
