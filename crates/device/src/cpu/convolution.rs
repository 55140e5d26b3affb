//! Convolutions and their gradients: two kernels for six operations.
//!
//! Forward, transposed and input-gradient operations all gather: a pixel of the result is a sum over a window of the source ([`gather`]).
//! Both weight gradients are sums over pixels ([`weight_gradient`]). The operations differ in which source pixel lies under which position
//! of
//! a window ([`geometry`]).
//!
//! Lines of the source are copied into bands padded with zeros, so that a row of a window is one run of numbers. Every sum has a fixed
//! order: rows of the window, columns, channels; parts of a batch are added in order of their index.

mod gather;
mod geometry;
mod weight_gradient;

use holdall_graph::ops::conv2d::{
    Conv2d, Conv2dInputGrad, Conv2dWeightGrad, TransposedConv2dWeightGrad,
};
use holdall_graph::{NodeView, Op, Shape};

use super::linear::{add_column_sums, bias_parts_bytes};
use super::operands::Operands;
use super::real::Real;
use super::vectors::UNIT;
use gather::Gather;
use geometry::{AllWindows, Windows};
use weight_gradient::WeightGradient;

/// Elements of scratch, rounded up to whole units: the scratch that follows is aligned for vectors.
fn padded(elements: usize) -> usize {
    elements.next_multiple_of(UNIT)
}

/// Height and width of a kernel or a picture, `[_, height, width, _]`.
fn sides(shape: Shape) -> [usize; 2] {
    [shape.dims()[1], shape.dims()[2]]
}

/// Scratch of a convolution or of one of its gradients, in bytes.
pub(super) fn scratch_bytes(node: NodeView<'_>, num_threads: usize) -> usize {
    let element = node.graph.compute().bytes();
    let (input, output) = (|index| node.input(index), || node.output(0));
    match &node.node.op {
        Op::Conv2d(op) => {
            gather_forward(op, [input(0), input(1), output()]).elements(num_threads) * element
        }
        Op::Conv2dInputGrad(op) => {
            gather_input_grad(op, [input(0), input(1), output()]).elements(num_threads) * element
        }
        Op::TransposedConv2d(op) => {
            gather_transposed(op.stride, [input(0), output()]).elements(num_threads) * element
        }
        Op::TransposedConv2dInputGrad(op) => {
            gather_transposed_input_grad(op.stride, [input(0), output()]).elements(num_threads)
                * element
        }
        Op::Conv2dWeightGrad(op) => {
            let bias = bias_parts_bytes(op.bias, input(0).width());
            let elements =
                |weight| weight_gradient_of(op, [input(0), input(1), weight]).elements(num_threads);
            bias + if op.weight {
                elements(output()) * element
            } else {
                0
            }
        }
        Op::TransposedConv2dWeightGrad(op) => {
            let bias = bias_parts_bytes(op.bias, input(0).width());
            let elements = transposed_weight_gradient_of(op.stride, [input(0), input(1)]);
            let weight = if op.weight {
                elements.elements(num_threads)
            } else {
                0
            };
            bias + weight * element
        }
        other => panic!("{}: not a convolution", other.rules().name()),
    }
}

/// Forward: `y` gathers windows of `x`; neighbouring weights belong to neighbouring input channels.
fn gather_forward(op: &Conv2d, [x, weight, y]: [Shape; 3]) -> Gather {
    let kernel = sides(weight);
    let windows = Windows::sliding(kernel, op.stride, op.padding, sides(y));
    let channels_in = x.width();
    Gather {
        source: x,
        result: y,
        channel_strides: [1, kernel[0] * kernel[1] * channels_in],
        tap_stride: channels_in,
        kernel,
        windows: AllWindows::Sliding(windows),
    }
}

/// Input gradient: `dx` gathers windows of `dy`; each offset within the stride has its own kernel positions.
fn gather_input_grad(op: &Conv2dInputGrad, [dy, weight, dx]: [Shape; 3]) -> Gather {
    let kernel = sides(weight);
    let channels = dx.width();
    Gather {
        source: dy,
        result: dx,
        channel_strides: [kernel[0] * kernel[1] * channels, 1],
        tap_stride: channels,
        kernel,
        windows: AllWindows::Reversed {
            kernel,
            stride: op.stride,
            padding: op.padding,
            result: sides(dx),
        },
    }
}

/// Transposed forward: each pixel of `x` produces a tile of `y`.
fn gather_transposed(stride: [usize; 2], [x, y]: [Shape; 2]) -> Gather {
    let out = y.width();
    Gather {
        source: x,
        result: y,
        channel_strides: [stride[0] * stride[1] * out, 1],
        tap_stride: out,
        kernel: stride,
        windows: AllWindows::Reversed {
            kernel: stride,
            stride,
            padding: [0, 0],
            result: sides(y),
        },
    }
}

/// Transposed input gradient: each tile of `dy` produces a pixel of `dx`.
fn gather_transposed_input_grad(stride: [usize; 2], [dy, dx]: [Shape; 2]) -> Gather {
    let out = dy.width();
    Gather {
        source: dy,
        result: dx,
        channel_strides: [1, stride[0] * stride[1] * out],
        tap_stride: out,
        kernel: stride,
        windows: AllWindows::Sliding(Windows::sliding(stride, stride, [0, 0], sides(dx))),
    }
}

fn weight_gradient_of(op: &Conv2dWeightGrad, [dy, x, weight]: [Shape; 3]) -> WeightGradient {
    WeightGradient {
        pixels: dy,
        pictures: x,
        windows: Windows::sliding(sides(weight), op.stride, op.padding, sides(dy)),
    }
}

/// Transposed weight gradient: windows are in `dy`, one for each pixel of `x`.
fn transposed_weight_gradient_of(stride: [usize; 2], [dy, x]: [Shape; 2]) -> WeightGradient {
    WeightGradient {
        pixels: x,
        pictures: dy,
        windows: Windows::sliding(stride, stride, [0, 0], sides(x)),
    }
}

fn shapes<const N: usize>(o: &Operands<'_>, inputs: [usize; N]) -> ([Shape; N], Shape) {
    let result = o.output_place(0).expect("the result is read").shape;
    (inputs.map(|index| o.input_place(index).shape), result)
}

pub(super) fn forward<T: Real>(op: &Conv2d, o: &Operands<'_>) {
    let ([x, weight], y) = shapes(o, [0, 1]);
    gather_forward(op, [x, weight, y]).run::<T>(o, o.num_inputs() > 2);
}

pub(super) fn input_grad<T: Real>(op: &Conv2dInputGrad, o: &Operands<'_>) {
    let ([dy, weight], dx) = shapes(o, [0, 1]);
    gather_input_grad(op, [dy, weight, dx]).run::<T>(o, false);
}

pub(super) fn transposed<T: Real>(stride: [usize; 2], o: &Operands<'_>) {
    let ([x], y) = shapes(o, [0]);
    gather_transposed(stride, [x, y]).run::<T>(o, o.num_inputs() > 2);
}

pub(super) fn transposed_input_grad<T: Real>(stride: [usize; 2], o: &Operands<'_>) {
    let ([dy], dx) = shapes(o, [0]);
    gather_transposed_input_grad(stride, [dy, dx]).run::<T>(o, false);
}

pub(super) fn weight_grad<T: Real>(op: &Conv2dWeightGrad, o: &Operands<'_>) {
    if op.weight {
        let ([dy, x], weight) = shapes(o, [0, 1]);
        let behind = bias_parts_bytes(op.bias, dy.width());
        weight_gradient_of(op, [dy, x, weight]).run::<T>(o, [0, 1], behind);
    }
    if op.bias {
        add_column_sums::<T>(o, usize::from(op.weight), &(0..0));
    }
}

pub(super) fn transposed_weight_grad<T: Real>(op: &TransposedConv2dWeightGrad, o: &Operands<'_>) {
    if op.weight {
        let ([dy, x], _) = shapes(o, [0, 1]);
        let behind = bias_parts_bytes(op.bias, dy.width());
        transposed_weight_gradient_of(op.stride, [dy, x]).run::<T>(o, [1, 0], behind);
    }
    if op.bias {
        add_column_sums::<T>(o, usize::from(op.weight), &(0..0));
    }
}
