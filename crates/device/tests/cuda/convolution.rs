//! Convolutions: by cuDNN, as products, by the kernels of a head, and what stands around them.

use holdall_graph::ValueId;

use super::harness::{ALL, Gpu, Settings, Sketch};

/// Kernel, stride, padding, channels in and out, height and width.
type Size = (usize, usize, usize, [usize; 2], [usize; 2]);

const SIZES: [Size; 8] = [
    (3, 1, 1, [16, 24], [20, 12]),
    (3, 2, 1, [8, 16], [21, 13]),
    (1, 1, 0, [32, 40], [9, 7]),
    (1, 2, 0, [16, 16], [9, 7]),
    (2, 2, 0, [8, 8], [12, 10]),
    (5, 1, 2, [8, 8], [11, 17]),
    (7, 2, 3, [8, 32], [32, 24]),
    (3, 1, 1, [64, 64], [48, 40]),
];

fn conv(
    s: &mut Sketch,
    x: ValueId,
    (kernel, stride, padding, [channels, outputs], _): Size,
    bias: bool,
) -> ValueId {
    let weight = s.parameter(&[outputs, kernel, kernel, channels]);
    let bias = bias.then(|| s.parameter(&[outputs]));
    s.graph
        .conv2d("y", x, weight, bias, [stride; 2], [padding; 2])
}

#[test]
fn convolutions_of_every_kind() {
    let Some(gpu) = Gpu::open() else { return };
    for size in SIZES {
        let (_, _, _, [channels, _], [height, width]) = size;
        for bias in [false, true] {
            let what = format!("convolution {size:?}, bias {bias}");
            gpu.compare_with(&what, Settings::of(ALL).long_sums(), |s| {
                let x = s.input(&[3, height, width, channels]);
                vec![conv(s, x, size, bias)]
            });
        }
    }
}

#[test]
fn pictures_of_few_channels_are_padded() {
    let Some(gpu) = Gpu::open() else { return };
    for channels in [1, 3, 5, 4, 10] {
        let what = format!("convolution of {channels} channels");
        gpu.compare_with(&what, Settings::of(ALL).long_sums(), |s| {
            let wide = s.constant(&[2, 18, 14, usize::next_multiple_of(channels, 8)]);
            let x = s.graph.columns(wide, 0, channels);
            vec![conv(s, x, (3, 1, 1, [channels, 16], [18, 14]), false)]
        });
    }
}

/// A value that two convolutions read: the second adds to its gradient. And slices: of what is read, and of gradients.
#[test]
fn slices_and_gradients_that_add_up() {
    let Some(gpu) = Gpu::open() else { return };
    for (first, channels) in [(0, 16), (16, 16), (8, 24)] {
        let what = format!("channels {first} to {}", first + channels);
        gpu.compare_with(&what, Settings::of(ALL).long_sums(), |s| {
            let wide = s.input(&[2, 12, 16, 32]);
            let slice = s.graph.columns(wide, first, channels);
            let size = (3, 1, 1, [channels, 16], [12, 16]);
            let a = conv(s, slice, size, true);
            let b = conv(s, slice, (3, 2, 1, [channels, 8], [12, 16]), false);
            let whole = conv(s, wide, (3, 1, 1, [32, 8], [12, 16]), false);
            let again = conv(s, wide, (1, 1, 0, [32, 8], [12, 16]), false);
            vec![a, b, s.graph.add("sum", whole, again)]
        });
    }
}

#[test]
fn heads_of_few_outputs_and_of_many() {
    let Some(gpu) = Gpu::open() else { return };
    for outputs in [1, 2, 3, 4, 5, 11] {
        for channels in [16, 64, 20] {
            let what = format!("head of {outputs} outputs for {channels} channels");
            gpu.compare_with(&what, Settings::of(ALL).long_sums(), |s| {
                let x = s.input(&[2, 23, 31, channels]);
                vec![conv(s, x, (1, 1, 0, [channels, outputs], [23, 31]), true)]
            });
        }
    }
}

/// The join of a U-Net: what is upsampled lands beside what is there, and the gradient comes from there.
#[test]
fn transposed_convolutions_into_a_join() {
    let Some(gpu) = Gpu::open() else { return };
    for (stride, [channels, outputs], [height, width]) in [
        ([2, 2], [32, 16], [6, 10]),
        ([2, 2], [24, 12], [5, 7]),
        ([4, 4], [16, 8], [3, 5]),
        ([1, 2], [16, 8], [8, 8]),
        ([2, 2], [64, 32], [96, 128]),
    ] {
        // The large one takes as long as all others together.
        let biases = if width < 100 {
            &[false, true][..]
        } else {
            &[true]
        };
        for &bias in biases {
            let what = format!("transposed {stride:?} {channels} -> {outputs}, {height} x {width}");
            gpu.compare_with(&what, Settings::of(ALL).long_sums(), |s| {
                let x = s.input(&[2, height, width, channels]);
                let [down, across] = stride;
                let dims = [2, height * down, width * across, 8 + outputs];
                let joined = s.graph.activation("joined", &dims);
                let left = s.graph.columns(joined, 0, 8);
                let right = s.graph.columns(joined, 8, outputs);
                let skip = s.constant(&[2, height * down, width * across, 8]);
                s.graph
                    .push_new(holdall_graph::ops::add::AddInto {}, vec![skip], &[left]);
                let weight = s.parameter(&[channels, down, across, outputs]);
                let bias = bias.then(|| s.parameter(&[outputs]));
                s.graph
                    .transposed_conv2d_into("up", x, weight, bias, stride, right);
                let size = (3, 1, 1, [8 + outputs, 8], [0, 0]);
                vec![conv(s, joined, size, false)]
            });
        }
    }
}
