//! Convolutions and their gradients.

use holdall_graph::Write;
use holdall_graph::ops::conv2d::{
    Conv2d, Conv2dInputGrad, Conv2dWeightGrad, TransposedConv2dWeightGrad,
};
use rayon::prelude::*;

use super::operands::{Operands, Rows};
use super::pictures::for_lines;
use super::real::{Real, dot, vectorised};

/// Sizes of a convolution.
#[derive(Clone, Copy)]
struct Sizes {
    /// Lines and pixels of x.
    x: [usize; 2],
    /// Lines and pixels of y.
    y: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

impl Sizes {
    /// The pixel of x under place `at` of the kernel of pixel `y` of y, along one direction.
    fn under(&self, axis: usize, y: usize, at: usize) -> Option<usize> {
        let x = (y * self.stride[axis] + at).checked_sub(self.padding[axis])?;
        (x < self.x[axis]).then_some(x)
    }

    /// The pixel of y whose kernel has pixel `x` of x under its place `at`, along one direction.
    fn over(&self, axis: usize, x: usize, at: usize) -> Option<usize> {
        let from = (x + self.padding[axis]).checked_sub(at)?;
        let y = from / self.stride[axis];
        (from % self.stride[axis] == 0 && y < self.y[axis]).then_some(y)
    }

    fn places(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let [down, across] = self.kernel;
        (0..down).flat_map(move |k| (0..across).map(move |l| (k, l)))
    }
}

fn sides(dims: &[usize]) -> [usize; 2] {
    [dims[1], dims[2]]
}

pub(super) fn forward<T: Real>(op: &Conv2d, o: &Operands<'_>) {
    let (x, (y, _)) = (o.input::<T>(0), o.result::<T>(0));
    let weight = o.input::<T>(1).flat();
    let bias = (o.num_inputs() > 2).then(|| o.input::<T>(2).flat());
    let place = o.output_place(0).expect("the result is read");
    let kernel = o.input_place(1).shape;
    let sizes = Sizes {
        x: sides(o.input_place(0).shape.dims()),
        y: sides(place.shape.dims()),
        kernel: sides(kernel.dims()),
        stride: op.stride,
        padding: op.padding,
    };
    let channels = x.width;
    for_lines(place.shape.dims()[0] * sizes.y[0], |line| {
        let (sample, i) = (line / sizes.y[0], line % sizes.y[0]);
        for j in 0..sizes.y[1] {
            let y = y.row_mut(line * sizes.y[1] + j);
            for (out, y) in y.iter_mut().enumerate() {
                let mut sum = bias.map_or(T::ZERO, |bias| bias.row(0)[out]);
                for (k, l) in sizes.places() {
                    let under = (sizes.under(0, i, k), sizes.under(1, j, l));
                    let (Some(row), Some(column)) = under else {
                        continue;
                    };
                    let at = ((out * sizes.kernel[0] + k) * sizes.kernel[1] + l) * channels;
                    let x = x.row((sample * sizes.x[0] + row) * sizes.x[1] + column);
                    sum += dot(x, &weight.row(0)[at..at + channels]);
                }
                *y = sum;
            }
        }
    });
}

pub(super) fn input_grad<T: Real>(op: &Conv2dInputGrad, o: &Operands<'_>) {
    let (dy, (dx, mode)) = (o.input::<T>(0), o.result::<T>(0));
    let weight = o.input::<T>(1).flat();
    let place = o.output_place(0).expect("the result is read");
    let sizes = Sizes {
        x: sides(place.shape.dims()),
        y: sides(o.input_place(0).shape.dims()),
        kernel: sides(o.input_place(1).shape.dims()),
        stride: op.stride,
        padding: op.padding,
    };
    let channels = dx.width;
    for_lines(place.shape.dims()[0] * sizes.x[0], |line| {
        let (sample, i) = (line / sizes.x[0], line % sizes.x[0]);
        for j in 0..sizes.x[1] {
            let dx = dx.row_mut(line * sizes.x[1] + j);
            if mode == Write::Overwrite {
                dx.fill(T::ZERO);
            }
            for (k, l) in sizes.places() {
                let over = (sizes.over(0, i, k), sizes.over(1, j, l));
                let (Some(row), Some(column)) = over else {
                    continue;
                };
                let dy = dy.row((sample * sizes.y[0] + row) * sizes.y[1] + column);
                for (out, &dy) in dy.iter().enumerate() {
                    let at = ((out * sizes.kernel[0] + k) * sizes.kernel[1] + l) * channels;
                    for (dx, &w) in dx.iter_mut().zip(&weight.row(0)[at..at + channels]) {
                        *dx += dy * w;
                    }
                }
            }
        }
    });
}

pub(super) fn weight_grad<T: Real>(op: &Conv2dWeightGrad, o: &Operands<'_>) {
    let (dy, x) = (o.input::<T>(0), o.input::<T>(1));
    if op.weight {
        let (dweight, mode) = o.result::<T>(0);
        let place = o.output_place(0).expect("the result is read");
        let sizes = Sizes {
            x: sides(o.input_place(1).shape.dims()),
            y: sides(o.input_place(0).shape.dims()),
            kernel: sides(place.shape.dims()),
            stride: op.stride,
            padding: op.padding,
        };
        let samples = o.input_place(0).shape.dims()[0];
        let channels = x.width;
        let dweight = dweight.reshape(dweight.rows / place.shape.dims()[0] * channels);
        for_lines(dweight.rows, |out| {
            let dweight = dweight.row_mut(out);
            if mode == Write::Overwrite {
                dweight.fill(T::ZERO);
            }
            for pixel in 0..samples * sizes.y[0] * sizes.y[1] {
                let (sample, i) = (
                    pixel / (sizes.y[0] * sizes.y[1]),
                    pixel / sizes.y[1] % sizes.y[0],
                );
                let dy = dy.row(pixel)[out];
                for (k, l) in sizes.places() {
                    let under = (sizes.under(0, i, k), sizes.under(1, pixel % sizes.y[1], l));
                    let (Some(row), Some(column)) = under else {
                        continue;
                    };
                    let x = x.row((sample * sizes.x[0] + row) * sizes.x[1] + column);
                    let at = (k * sizes.kernel[1] + l) * channels;
                    for (dw, &x) in dweight[at..at + channels].iter_mut().zip(x) {
                        *dw += dy * x;
                    }
                }
            }
        });
    }
    if op.bias {
        bias_grad(dy, o.result::<T>(usize::from(op.weight)));
    }
}

fn bias_grad<T: Real>(dy: Rows<T>, (dbias, mode): (Rows<T>, Write)) {
    let dbias = dbias.flat();
    dbias
        .row_mut(0)
        .par_iter_mut()
        .enumerate()
        .for_each(|(out, dbias)| {
            vectorised(|| {
                let sum = (0..dy.rows).map(|pixel| dy.row(pixel)[out].f64());
                let sum = T::of(sum.sum());
                *dbias = match mode {
                    Write::Overwrite => sum,
                    Write::Accumulate => *dbias + sum,
                };
            });
        });
}

pub(super) fn transposed<T: Real>(stride: [usize; 2], o: &Operands<'_>) {
    let (x, (y, _)) = (o.input::<T>(0), o.result::<T>(0));
    let weight = o.input::<T>(1).flat();
    let bias = (o.num_inputs() > 2).then(|| o.input::<T>(2).flat());
    let width = o.input_place(0).shape.dims()[2];
    let out = y.width;
    for_lines(y.rows / (width * stride[1]), |line| {
        for column in 0..width * stride[1] {
            let x = x.row(line / stride[0] * width + column / stride[1]);
            let y = y.row_mut(line * width * stride[1] + column);
            match bias {
                Some(bias) => y.copy_from_slice(bias.row(0)),
                None => y.fill(T::ZERO),
            }
            let place = line % stride[0] * stride[1] + column % stride[1];
            for (channel, &x) in x.iter().enumerate() {
                let at = (channel * stride[0] * stride[1] + place) * out;
                for (y, &w) in y.iter_mut().zip(&weight.row(0)[at..at + out]) {
                    *y += x * w;
                }
            }
        }
    });
}

pub(super) fn transposed_input_grad<T: Real>(stride: [usize; 2], o: &Operands<'_>) {
    let (dy, (dx, mode)) = (o.input::<T>(0), o.result::<T>(0));
    let weight = o.input::<T>(1).flat();
    let width = o.input_place(0).shape.dims()[2] / stride[1];
    let out = dy.width;
    for_lines(dx.rows / width, |line| {
        for column in 0..width {
            let dx = dx.row_mut(line * width + column);
            for (channel, dx) in dx.iter_mut().enumerate() {
                let mut sum = T::ZERO;
                for place in 0..stride[0] * stride[1] {
                    let row = line * stride[0] + place / stride[1];
                    let dy = dy.row((row * width + column) * stride[1] + place % stride[1]);
                    let at = (channel * stride[0] * stride[1] + place) * out;
                    sum += dot(dy, &weight.row(0)[at..at + out]);
                }
                *dx = match mode {
                    Write::Overwrite => sum,
                    Write::Accumulate => *dx + sum,
                };
            }
        }
    });
}

pub(super) fn transposed_weight_grad<T: Real>(op: &TransposedConv2dWeightGrad, o: &Operands<'_>) {
    let (dy, x) = (o.input::<T>(0), o.input::<T>(1));
    let width = o.input_place(1).shape.dims()[2];
    let stride = op.stride;
    let out = dy.width;
    if op.weight {
        let (dweight, mode) = o.result::<T>(0);
        let dweight = dweight.reshape(stride[0] * stride[1] * out);
        for_lines(dweight.rows, |channel| {
            let dweight = dweight.row_mut(channel);
            if mode == Write::Overwrite {
                dweight.fill(T::ZERO);
            }
            for pixel in 0..x.rows {
                let x = x.row(pixel)[channel];
                let (line, column) = (pixel / width, pixel % width);
                for place in 0..stride[0] * stride[1] {
                    let row = line * stride[0] + place / stride[1];
                    let dy = dy.row((row * width + column) * stride[1] + place % stride[1]);
                    let dw = &mut dweight[place * out..(place + 1) * out];
                    for (dw, &dy) in dw.iter_mut().zip(dy) {
                        *dw += x * dy;
                    }
                }
            }
        });
    }
    if op.bias {
        bias_grad(dy, o.result::<T>(usize::from(op.weight)));
    }
}
