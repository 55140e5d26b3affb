//! Group norm and its gradients. The split of sums depends on the size of a picture alone: a picture gives the same bits at any index of
//! a batch of any size.

use holdall_graph::Shape;
use holdall_graph::ops::activation::{Activation, LEAKY_SLOPE};
use holdall_graph::ops::group_norm::{GroupNorm, GroupNormGrad, GroupStatistics};

use super::super::{ACCESS, Matrix, Operands, accumulates};
use super::{dims, input_dims, packs};
use crate::DeviceError;

/// Threads of a block, and of a block that adds parts up.
const THREADS: usize = 256;
const FINISH_THREADS: usize = 512;
/// Pixels per thread in flight, in kernels without sums.
const DEPTH: usize = 4;
/// Mean and sum of squares, or two sums, in f32.
const PAIR_BYTES: usize = 8;

/// Minimum elements per block, and a number of blocks that fills any card.
const PART_ELEMENTS: usize = 16 << 10;
const MOST_PARTS: usize = 1024;
/// Channels per block in 16-bit formats.
const STRIP: usize = 256;

/// Number of partial sums of a picture.
fn parts(pixels: usize, channels: usize) -> usize {
    let full = (pixels * channels.min(STRIP)).div_ceil(PART_ELEMENTS);
    full.clamp(1, (MOST_PARTS / channels.div_ceil(STRIP)).max(1))
}

/// Scratch of two sums of each channel in every part.
pub(in crate::cuda) fn statistics_bytes(shape: Shape) -> usize {
    let [samples, height, width, channels] = dims(&shape);
    samples * parts(height * width, channels) * channels * PAIR_BYTES
}

/// Scratch of [`statistics_bytes`], of the sums themselves, and of two means of each group.
pub(in crate::cuda) fn gradient_bytes(shape: Shape, groups: usize) -> usize {
    let [samples, _, _, channels] = dims(&shape);
    statistics_bytes(shape) + samples * (channels + groups) * PAIR_BYTES
}

/// Assignment of channels and pixels to the threads of a block.
struct ThreadSplit {
    samples: usize,
    pixels: usize,
    channels: usize,
    /// Threads side by side, a power of two; other threads have other pixels of the same channels.
    lanes: usize,
    /// Blocks side by side.
    strips: usize,
    packed: bool,
}

impl ThreadSplit {
    fn new(o: &Operands<'_, '_>, operands: &[Matrix]) -> ThreadSplit {
        let [samples, height, width, channels] = input_dims(o, 0);
        let packed = packs(operands);
        let each = if packed {
            ACCESS / operands[0].dtype.bytes()
        } else {
            1
        };
        let accesses = channels.div_ceil(each);
        // A warp should read whole sectors of memory.
        let fewest = if packed { 4 } else { 32 };
        let fewest = accesses.next_power_of_two().min(fewest);
        let candidates = [32, 16, 8, 4, 2, 1].into_iter();
        let lanes = candidates
            .filter(|&lanes| lanes >= fewest)
            .min_by_key(|lanes| accesses.next_multiple_of(*lanes))
            .expect("32 lanes are always enough");
        ThreadSplit {
            samples,
            pixels: height * width,
            channels,
            lanes,
            strips: accesses.div_ceil(lanes),
            packed,
        }
    }

    /// Grid of kernels with sums.
    fn sum_grid(&self) -> [usize; 3] {
        [parts(self.pixels, self.channels), self.strips, self.samples]
    }

    /// Grid of kernels that handle each pixel alone: a few rounds per block, if there are enough blocks.
    fn grid(&self) -> [usize; 3] {
        let round = THREADS / self.lanes * DEPTH;
        let rounds = self.pixels.div_ceil(round).max(1);
        let each = (rounds * self.strips * self.samples / 2048).clamp(1, 8);
        [rounds.div_ceil(each), self.strips, self.samples]
    }
}

/// Curve number of the kernels, and the slope below zero of piecewise-linear curves.
fn curve(activation: Option<Activation>) -> (i32, f32) {
    match activation {
        None => (0, 1.0),
        Some(Activation::Relu) => (0, 0.0),
        Some(Activation::LeakyRelu) => (0, LEAKY_SLOPE as f32),
        Some(Activation::QuickGelu) => (1, 0.0),
        Some(Activation::Gelu) => (2, 0.0),
    }
}

pub(in crate::cuda::launch) fn group_statistics(
    op: &GroupStatistics,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (x, partials) = (o.input(0), o.scratch());
    let [mean, rstd] = [0, 1].map(|index| o.result(index).0);
    let split = ThreadSplit::new(o, &[x]);
    let grid = split.sum_grid();
    o.issuer.launch(
        "group_statistics",
        grid,
        THREADS,
        arguments![
            x.address,
            partials,
            split.pixels as i32,
            split.channels as i32,
            x.stride as i64,
            split.lanes as i32,
            i32::from(split.packed),
        ],
    )?;
    o.issuer.launch(
        "group_statistics_finish",
        [op.groups, split.samples, 1],
        FINISH_THREADS,
        arguments![
            partials,
            mean.address,
            rstd.address,
            split.pixels as i32,
            split.channels as i32,
            grid[0] as i32,
            op.eps as f32,
        ],
    )
}

pub(in crate::cuda::launch) fn group_norm(
    op: &GroupNorm,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let x = o.input(0);
    let [mean, rstd, gamma, beta] = [1, 2, 3, 4].map(|index| o.input(index).address);
    let residual = (o.num_inputs() > 5).then(|| o.input(5));
    let (y, _) = o.result(0);
    let split = ThreadSplit::new(o, &[x, y, residual.unwrap_or(x)]);
    let (curve, below) = curve(op.activation);
    o.issuer.launch(
        "group_norm",
        split.grid(),
        THREADS,
        arguments![
            x.address,
            residual.map(|residual| residual.address),
            mean,
            rstd,
            gamma,
            beta,
            y.address,
            x.stride as i64,
            residual.map_or(0, |residual| residual.stride) as i64,
            y.stride as i64,
            split.pixels as i32,
            split.channels as i32,
            op.groups as i32,
            split.lanes as i32,
            i32::from(split.packed),
            curve,
            below,
        ],
    )
}

/// Operands that all kernels of the gradients read.
struct GradientInputs {
    dy: Matrix,
    x: Matrix,
    residual: Option<Matrix>,
    mean: u64,
    rstd: u64,
    gamma: u64,
    beta: u64,
}

impl GradientInputs {
    fn new(o: &Operands<'_, '_>) -> GradientInputs {
        let [mean, rstd, gamma, beta] = [2, 3, 4, 5].map(|index| o.input(index).address);
        GradientInputs {
            dy: o.input(0),
            x: o.input(1),
            residual: (o.num_inputs() > 6).then(|| o.input(6)),
            mean,
            rstd,
            gamma,
            beta,
        }
    }

    fn residual_address(&self) -> Option<u64> {
        self.residual.map(|residual| residual.address)
    }

    fn residual_stride(&self) -> i64 {
        self.residual.map_or(0, |residual| residual.stride) as i64
    }
}

/// Sums over pixels, in the scratch.
struct GradientSums {
    /// Pairs of sums per sample and channel.
    sums: u64,
    /// Pairs of means per sample and group.
    means: u64,
}

/// Sums the gradients over the pixels of every sample.
fn gradient_sums(
    op: &GroupNormGrad,
    o: &Operands<'_, '_>,
    inputs: &GradientInputs,
) -> Result<GradientSums, DeviceError> {
    let GradientInputs { dy, x, .. } = *inputs;
    // The same split whatever is wanted: sums do not depend on the destination of gradients.
    let split = ThreadSplit::new(o, &[dy, x, inputs.residual.unwrap_or(x)]);
    let ThreadSplit {
        samples,
        pixels,
        channels,
        ..
    } = split;
    let grid = split.sum_grid();
    let partials = o.scratch();
    let sums = partials + (samples * grid[0] * channels * PAIR_BYTES) as u64;
    let means = sums + (samples * channels * PAIR_BYTES) as u64;
    if op.gamma || op.beta || op.x {
        let (curve, below) = curve(op.activation);
        o.issuer.launch(
            "group_norm_grad_sums",
            grid,
            THREADS,
            arguments![
                dy.address,
                x.address,
                inputs.residual_address(),
                inputs.mean,
                inputs.rstd,
                inputs.gamma,
                inputs.beta,
                partials,
                dy.stride as i64,
                x.stride as i64,
                inputs.residual_stride(),
                pixels as i32,
                channels as i32,
                op.groups as i32,
                split.lanes as i32,
                i32::from(split.packed),
                curve,
                below,
            ],
        )?;
        let per_group = channels / op.groups;
        o.issuer.launch(
            "group_norm_grad_finish",
            [op.groups, samples, 1],
            FINISH_THREADS,
            arguments![
                partials,
                inputs.gamma,
                sums,
                means,
                pixels as i32,
                channels as i32,
                grid[0] as i32,
                per_group.next_power_of_two().min(32) as i32,
            ],
        )?;
    }
    Ok(GradientSums { sums, means })
}

pub(in crate::cuda::launch) fn group_norm_grad(
    op: &GroupNormGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let inputs = GradientInputs::new(o);
    let GradientInputs { dy, x, .. } = inputs;
    let mut next = 0;
    let [dgamma, dbeta, dx, dresidual] = [op.gamma, op.beta, op.x, op.residual].map(|is_wanted| {
        is_wanted.then(|| {
            next += 1;
            o.result(next - 1)
        })
    });
    let GradientSums { sums, means } = gradient_sums(op, o, &inputs)?;
    if op.gamma || op.beta {
        let [samples, _, _, channels] = input_dims(o, 0);
        let modes = [dgamma, dbeta].map(|gradient| gradient.map(|(_, mode)| mode));
        let [dgamma, dbeta] = [dgamma, dbeta].map(|gradient| gradient.map(|(to, _)| to.address));
        o.issuer.launch(
            "group_norm_grad_parameters",
            [channels.div_ceil(128), 1, 1],
            128,
            arguments![
                sums,
                dgamma,
                dbeta,
                samples as i32,
                channels as i32,
                accumulates(modes[0]),
                accumulates(modes[1]),
            ],
        )?;
    }
    if !op.x && !op.residual {
        return Ok(());
    }
    let (dx, x_mode) = dx.unzip();
    let (dresidual, residual_mode) = dresidual.unzip();
    let results = [dx.unwrap_or(x), dresidual.unwrap_or(x)];
    let residual = inputs.residual.unwrap_or(x);
    let split = ThreadSplit::new(o, &[dy, x, residual, results[0], results[1]]);
    let (curve, below) = curve(op.activation);
    o.issuer.launch(
        "group_norm_grad",
        split.grid(),
        THREADS,
        arguments![
            dy.address,
            x.address,
            inputs.residual_address(),
            inputs.mean,
            inputs.rstd,
            inputs.gamma,
            inputs.beta,
            means,
            dx.map(|dx| dx.address),
            dresidual.map(|dresidual| dresidual.address),
            dy.stride as i64,
            x.stride as i64,
            inputs.residual_stride(),
            dx.map_or(0, |dx| dx.stride) as i64,
            dresidual.map_or(0, |dresidual| dresidual.stride) as i64,
            split.pixels as i32,
            split.channels as i32,
            op.groups as i32,
            split.lanes as i32,
            i32::from(split.packed),
            curve,
            below,
            accumulates(x_mode),
            accumulates(residual_mode),
        ],
    )
}
