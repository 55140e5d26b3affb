//! Convolutions and their gradients against plain loops, in sizes that fill whole tiles, leave some over, or fill none; and the same
//! bits whatever the number of threads.

use holdall_device::cpu::Cpu;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{DType, Output, Role, Section, ValueId, backward};
use holdall_plan::{Recompute, RecomputePolicy};

use super::gradient_check::{Sketch, cpu};
use super::step::{Contents, Kept, Planned, Step, norm, zero_gradients};

#[derive(Clone, Copy, Debug)]
struct Sizes {
    x: [usize; 4],
    out: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Sizes {
    fn y(&self) -> [usize; 4] {
        let side = |axis: usize| {
            let padded = self.x[1 + axis] + 2 * self.padding[axis];
            (padded - self.kernel[axis]) / self.stride[axis] + 1
        };
        [self.x[0], side(0), side(1), self.out]
    }

    /// Calls `visit` with the places in x, w and y of every product of the convolution.
    fn products(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let ([n, height, width, c], [_, down, across, out]) = (self.x, self.y());
        let [kh, kw] = self.kernel;
        for (sample, i, j) in triples([n, down, across]) {
            for (k, l, channel) in triples([kh, kw, c]) {
                let row = (i * self.stride[0] + k).wrapping_sub(self.padding[0]);
                let column = (j * self.stride[1] + l).wrapping_sub(self.padding[1]);
                if row >= height || column >= width {
                    continue;
                }
                let x = ((sample * height + row) * width + column) * c + channel;
                for o in 0..out {
                    let w = ((o * kh + k) * kw + l) * c + channel;
                    visit(x, w, ((sample * down + i) * across + j) * out + o);
                }
            }
        }
    }
}

fn triples([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a * b * c).map(move |at| (at / (b * c), at / c % b, at % c))
}

/// Outcome of y, dx and dw, with x and y's gradient among wider channels where `wide`.
fn run(sizes: Sizes, dtype: DType, wide: usize) -> (Step, [Vec<f64>; 3]) {
    let mut s = Sketch::new(dtype);
    let [n, height, width, c] = sizes.x;
    let all = s.constant(&[n, height, width, c + wide]);
    let x = s.graph.columns(all, wide / 2, c);
    let weight = s.parameter(&[sizes.out, sizes.kernel[0], sizes.kernel[1], c]);
    let y = s
        .graph
        .conv2d("y", x, weight, None, sizes.stride, sizes.padding);
    zero_gradients(&mut s.graph);
    let seed = s.constant(&sizes.y());
    let found = backward(
        &mut s.graph,
        Section::Forward,
        Section::Backward,
        &[(y, seed)],
        &[all],
    );
    for (name, value, section) in [
        ("seen", y, Section::Forward),
        ("dx", found[0].unwrap(), Section::Backward),
    ] {
        let shape = s.graph.shape(value);
        let copy = s.graph.tensor(name, shape.dims(), dtype, Role::Feature);
        s.graph.enter(section);
        s.graph
            .push(AddInto {}, vec![value], vec![Output::overwrite(copy)]);
    }
    let step = s.into_step();
    let policy = RecomputePolicy::uniform(Recompute::None, 0);
    let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
    let outcome = step.run(&planned, cpu());
    let found = ["seen", "dx", "parameter 0.grad"].map(|name| outcome.of(name).to_vec());
    (step, found)
}

fn floats(step: &Step, input: usize) -> Vec<f64> {
    match &step.inputs[input].1[0] {
        Contents::Floats(values) => values.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn convolutions_and_their_gradients_are_what_plain_loops_make() {
    let square = |x, out, kernel, stride, padding| Sizes {
        x,
        out,
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
    };
    let cases = [
        square([1, 5, 17, 3], 16, 3, 1, 1),
        square([2, 4, 16, 16], 32, 3, 1, 1),
        square([1, 6, 21, 33], 48, 3, 1, 1),
        square([1, 19, 23, 8], 40, 3, 2, 1),
        square([1, 3, 9, 130], 33, 3, 1, 1),
        square([1, 40, 5, 2], 5, 5, 1, 2),
        square([2, 9, 8, 20], 64, 1, 1, 0),
        square([1, 9, 8, 20], 17, 1, 2, 0),
        square([1, 8, 8, 16], 32, 2, 2, 0),
        square([1, 14, 11, 4], 16, 7, 2, 3),
        Sizes {
            x: [1, 6, 40, 5],
            out: 18,
            kernel: [1, 5],
            stride: [1, 3],
            padding: [0, 4],
        },
    ];
    for sizes in cases {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 3e-6)] {
            for wide in [0, 6] {
                let (step, found) = run(sizes, dtype, wide);
                let (all, seed) = (floats(&step, 0), floats(&step, 1));
                let weight = &step.initial[0].1;
                let c = sizes.x[3];
                let at = |x: usize| x / c * (c + wide) + wide / 2 + x % c;
                let mut expected = [&found[0], &all, weight].map(|like| vec![0.0; like.len()]);
                sizes.products(|x, w, y| {
                    expected[0][y] += all[at(x)] * weight[w];
                    expected[1][at(x)] += seed[y] * weight[w];
                    expected[2][w] += seed[y] * all[at(x)];
                });
                for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let difference = found.iter().zip(expected).map(|(a, b)| a - b);
                    let error = norm(difference) / norm(expected.iter().copied());
                    let what = ["y", "dx", "dw"][index];
                    assert!(
                        error < tolerance,
                        "{what} of {sizes:?}, {dtype:?}, {wide} more channels: off by {error:e}"
                    );
                }
            }
        }
    }
}

/// Two levels and two heads, every operation of images in it; more lines and pixels than a task has.
fn two_levels() -> Step {
    let mut s = Sketch::new(DType::F32);
    let [n, h, w, c] = [2, 36, 44, 16];
    let x = s.input(&[n, h, w, 3]);
    let labels = (0..n * h * w).map(|at| [0, 1, 2, 255, 1, 0, 2][at * 5 % 7]);
    let labels = s.given(&[n, h, w], Contents::Bytes(labels.collect()));
    let joined = s.graph.activation("joined", &[n, h, w, 2 * c]);
    let [skip, up] = [0, c].map(|start| s.graph.columns(joined, start, c));
    let normed = |s: &mut Sketch, x: ValueId, into: Option<ValueId>, out: usize| {
        let c = s.graph.shape(x).width();
        let weight = s.parameter(&[out, 3, 3, c]);
        let y = s.graph.conv2d("y", x, weight, None, [1; 2], [1; 2]);
        let [gamma, beta] = [(); 2].map(|()| s.parameter(&[out]));
        let shape = s.graph.shape(y);
        let into = into.unwrap_or_else(|| s.graph.activation("a", shape.dims()));
        let relu = Some(Activation::Relu);
        s.graph
            .group_norm_into("norm", y, gamma, beta, 4, 1e-5, relu, None, into);
        into
    };
    normed(&mut s, x, Some(skip), c);
    let pooled = s.graph.pool2d("pooled", skip, Pool::Max, 2);
    let deep = normed(&mut s, pooled, None, 40);
    let (weight, bias) = (s.parameter(&[40, 2, 2, c]), s.parameter(&[c]));
    s.graph
        .transposed_conv2d_into("up", deep, weight, Some(bias), [2; 2], up);
    let (weight, bias) = (s.parameter(&[3, 1, 1, 2 * c]), s.parameter(&[3]));
    let logits = s
        .graph
        .conv2d("logits", joined, weight, Some(bias), [1; 2], [0; 2]);
    let weight = s.parameter(&[3, 3, 3, 40]);
    let coarse = s.graph.conv2d("coarse", deep, weight, None, [2; 2], [1; 2]);
    let fine = s.graph.upsample2d("fine", coarse, 4, Upsampling::Bilinear);
    let class_weights = s.given(&[3], Contents::Floats(vec![0.5, 2.0, 1.0]));
    let sample_weights = s.given(&[n], Contents::Floats(vec![1.0, 0.5]));
    let kind = PixelLossKind::Softmax;
    let mut totals = Vec::new();
    for logits in [logits, fine] {
        let [pixel, overlap] = [(); 2].map(|()| s.total());
        s.graph.pixel_loss_into(
            "pixel",
            logits,
            labels,
            class_weights,
            sample_weights,
            pixel,
            kind,
            Some(2.0),
        );
        let sums = s.graph.overlap_sums("sums", logits, labels, kind);
        let op = OverlapLoss {
            reduction: Reduction::Batch,
            alpha: 0.5,
            beta: 0.5,
            smooth: 0.5,
            first_class: 1,
        };
        s.graph
            .overlap_loss_into("overlap", sums, sample_weights, overlap, op);
        totals.extend([pixel, overlap]);
    }
    zero_gradients(&mut s.graph);
    let seeds: Vec<(ValueId, ValueId)> = totals
        .into_iter()
        .map(|total| (total, s.given(&[1], Contents::Floats(vec![1.0]))))
        .collect();
    backward(
        &mut s.graph,
        Section::Forward,
        Section::Backward,
        &seeds,
        &[],
    );
    s.into_step()
}

#[test]
fn one_two_three_and_five_threads_agree_in_every_bit() {
    let step = two_levels();
    let outcome = |num_threads: usize| {
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, num_threads);
        step.run(&planned, &Cpu::new(Some(num_threads)))
    };
    let expected = outcome(1);
    expected.assert_finite("one thread");
    for num_threads in [2, 3, 5] {
        expected.assert_same_bits(&outcome(num_threads), &format!("{num_threads} threads"));
    }
}
