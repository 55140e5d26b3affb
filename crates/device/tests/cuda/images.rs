//! Pooling, upsampling, and pixels as numbers.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `c` channels.

use holdall_graph::ops::normalize_pixels::{NormalizePixels, PixelDepth};
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{DType, ValueId};

use super::harness::{FORMATS, Gpu, Sketch};
use super::step::Contents;

/// Small pictures, and how much larger the others are.
const SIZES: [([usize; 4], usize); 6] = [
    ([2, 5, 3, 16], 2),
    ([1, 4, 6, 24], 3),
    ([2, 3, 4, 5], 2),
    ([1, 1, 1, 8], 4),
    ([1, 7, 1, 1], 2),
    ([1, 40, 50, 64], 2),
];

const POOLS: [Pool; 2] = [Pool::Max, Pool::Average];
const UPSAMPLINGS: [Upsampling; 2] = [Upsampling::Nearest, Upsampling::Bilinear];

fn larger([n, h, w, c]: [usize; 4], factor: usize) -> [usize; 4] {
    [n, h * factor, w * factor, c]
}

#[test]
fn pooling_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (dims, size) in SIZES {
        for kind in POOLS {
            let what = format!("{kind:?} pooling to {dims:?} by {size}");
            gpu.compare(&what, FORMATS, |s| {
                let x = s.input(&larger(dims, size));
                vec![s.graph.pool2d("y", x, kind, size)]
            });
        }
    }
}

/// The first of several largest numbers gets the gradient.
#[test]
fn pooling_of_equal_numbers() {
    let Some(gpu) = Gpu::open() else { return };
    for c in [16, 3] {
        gpu.compare("pooling of equal numbers", FORMATS, |s| {
            let dims = [1, 8, 8, c];
            let values: Vec<f64> = (0..64 * c).map(|_| s.random.below(3) as f64).collect();
            let x = s.full_input(&dims, &values);
            let x = s.graph.cast("x", x, s.graph.compute());
            vec![s.graph.pool2d("y", x, Pool::Max, 2)]
        });
    }
}

#[test]
fn upsampling_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (dims, factor) in SIZES {
        for mode in UPSAMPLINGS {
            let what = format!("{mode:?} upsampling of {dims:?} by {factor}");
            gpu.compare(&what, FORMATS, |s| {
                let x = s.input(&dims);
                vec![s.graph.upsample2d("y", x, factor, mode)]
            });
        }
    }
}

#[test]
fn pooling_and_upsampling_of_channels_of_a_wider_value() {
    let Some(gpu) = Gpu::open() else { return };
    for [start, channels, wide] in [[8, 16, 64], [3, 16, 32], [8, 5, 16]] {
        let columns = |s: &mut Sketch, x: ValueId| s.graph.columns(x, start, channels);
        for kind in POOLS {
            let what = format!("{kind:?} pooling of channels {start}.. of {wide}");
            gpu.compare(&what, FORMATS, |s| {
                let x = s.input(&[2, 6, 4, wide]);
                let x = columns(s, x);
                vec![s.graph.pool2d("y", x, kind, 2)]
            });
        }
        for mode in UPSAMPLINGS {
            let what = format!("{mode:?} upsampling of channels {start}.. of {wide}");
            gpu.compare(&what, FORMATS, |s| {
                let x = s.input(&[2, 3, 4, wide]);
                let x = columns(s, x);
                let joined = s.graph.activation("joined", &[2, 6, 8, wide]);
                let y = columns(s, joined);
                s.graph.upsample2d_into("y", x, 2, mode, y);
                // A whole value: what the gradient comes from is a view again.
                vec![s.graph.pool2d("copy", y, Pool::Average, 1)]
            });
        }
    }
}

#[test]
fn pooling_and_upsampling_add_to_a_gradient_that_is_there() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in [[2, 4, 6, 16], [1, 4, 2, 3]] {
        gpu.compare(&format!("readers of {dims:?}"), FORMATS, |s| {
            let x = s.input(&dims);
            let mut outputs = Vec::new();
            for kind in POOLS {
                outputs.push(s.graph.pool2d("pooled", x, kind, 2));
            }
            for mode in UPSAMPLINGS {
                outputs.push(s.graph.upsample2d("upsampled", x, 2, mode));
            }
            outputs
        });
    }
}

/// Parts of longer rows of bytes, at any byte, with the zeros behind the channels.
#[test]
fn pixels_of_every_format() {
    let Some(gpu) = Gpu::open() else { return };
    let [n, h, w] = [3, 7, 5];
    for depth in [PixelDepth::Eight, PixelDepth::Sixteen] {
        for channels in [1, 3, 8, 11] {
            for offset in [0, 1, 16] {
                let what = format!("{depth:?} bits, {channels} channels from byte {offset} on");
                gpu.compare(&what, FORMATS, |s| {
                    let across = channels * depth.bytes();
                    let row_bytes = offset + h * w * across + 5;
                    let bytes = (0..n * row_bytes).map(|_| s.random.below(256) as u8);
                    let bytes = Contents::Bytes(bytes.collect());
                    let rows = s.given(&[n, row_bytes], DType::U8, bytes);
                    let pixels = s.graph.picture_view(rows, offset, &[h, w, across]);
                    normalized(s, pixels, depth, channels)
                });
            }
        }
    }
    for channels in [1, 3, 11] {
        let what = format!("{channels} channels that are numbers already");
        gpu.compare(&what, FORMATS, |s| {
            let values = s.numbers(n * h * w * channels, 2.0);
            let pixels = s.full_constant(&[n, h, w, channels], &values);
            normalized(s, pixels, PixelDepth::Eight, channels)
        });
    }
}

/// All channels of the storage are compared, the zeros too.
fn normalized(s: &mut Sketch, pixels: ValueId, depth: PixelDepth, channels: usize) -> Vec<ValueId> {
    let numbers = |first: f64| (0..channels).map(move |channel| first + 0.05 * channel as f64);
    let op = NormalizePixels {
        depth,
        mean: numbers(0.3).collect(),
        std: numbers(0.2).collect(),
    };
    let dims = s.graph.shape(pixels);
    let [n, h, w] = [0, 1, 2].map(|axis| dims.dims()[axis]);
    let padded = channels.next_multiple_of(8);
    let y = s.graph.activation("y", &[n, h, w, padded]);
    s.graph.push_new(op, vec![pixels], &[y]);
    s.seen.push(y);
    Vec::new()
}
