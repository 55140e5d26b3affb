//! Transposed convolutions whose kernel is their stride: products of bands of pixels, with blocks that are moved to or gathered from
//! pixels of y.

use holdall_graph::ops::conv2d::{
    TransposedConv2d, TransposedConv2dInputGrad, TransposedConv2dWeightGrad,
};
use holdall_graph::{DType, Write};

use super::super::super::product::Product;
use super::super::{BLOCK, Matrix, Operands};
use super::{Conv, aligned, band_pixels, capped};
use crate::DeviceError;

/// Runs `work` on every band of a transposed convolution's pixels: the first pixel, their number, the address of their blocks.
fn in_bands(
    conv: &mut Conv<'_, '_, '_>,
    stride: [usize; 2],
    [x_pixels, channels]: [usize; 2],
    element_bytes: usize,
    mut work: impl FnMut(&mut Conv<'_, '_, '_>, usize, usize, u64) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let each = band_pixels(stride, channels, element_bytes, x_pixels);
    let blocks = conv.take(aligned(
        each * stride[0] * stride[1] * channels * element_bytes,
    ));
    let mut first = 0;
    while first < x_pixels {
        let pixels = each.min(x_pixels - first);
        work(conv, first, pixels, blocks)?;
        first += pixels;
    }
    Ok(())
}

/// `pixels` pixels of a picture from `first` on, as a factor or a result.
fn band(matrix: Matrix, first: usize, pixels: usize) -> Matrix {
    Matrix {
        address: matrix.address + (first * matrix.stride * matrix.dtype.bytes()) as u64,
        rows: pixels,
        ..matrix
    }
}

/// The blocks of a band as a matrix.
fn block_matrix(address: u64, pixels: usize, width: usize, dtype: DType) -> Matrix {
    Matrix {
        address,
        rows: pixels,
        width,
        stride: width,
        dtype,
        micro: 0,
    }
}

pub(in super::super) fn forward(
    op: &TransposedConv2d,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let stride = op.stride;
    let mut conv = Conv::new(o);
    let (x, w) = (o.input(0), o.input(1));
    let bias = (o.num_inputs() > 2).then(|| o.input(2).address);
    let (y, _) = o.result(0);
    let x_width = conv.inputs[0].dims[2];
    let width = stride[0] * stride[1] * y.width;
    let sizes = [x.rows, y.width];
    in_bands(
        &mut conv,
        stride,
        sizes,
        y.dtype.bytes(),
        |conv, first, pixels, blocks| {
            let (x, to) = (
                band(x, first, pixels),
                block_matrix(blocks, pixels, width, y.dtype),
            );
            conv.product(&Product {
                rows: pixels,
                outputs: width,
                inner: x.width,
                left: x.factor(false),
                right: Matrix { stride: width, ..w }.factor(false),
                inputs: o.issuer.format(x.dtype),
                scale: 1.0,
                y: to.result(),
                output: o.issuer.format(y.dtype),
                bias: None,
                added: None,
            })?;
            o.issuer.launch(
                "blocks_to_pixels",
                capped(o.issuer.grid(pixels * width, y.dtype)),
                BLOCK,
                arguments![
                    blocks,
                    y.address,
                    bias,
                    first as i64,
                    pixels as i64,
                    x_width as i32,
                    stride[0] as i32,
                    stride[1] as i32,
                    y.width as i32,
                    y.stride as i64,
                ],
            )
        },
    )
}

/// Gathers the pixels of dy that belong to a band, as blocks.
fn gather_blocks(
    o: &Operands<'_, '_>,
    dy: Matrix,
    stride: [usize; 2],
    x_width: usize,
    [first, pixels]: [usize; 2],
    blocks: u64,
) -> Result<Matrix, DeviceError> {
    let width = stride[0] * stride[1] * dy.width;
    o.issuer.launch(
        "pixels_to_blocks",
        capped(o.issuer.grid(pixels * width, dy.dtype)),
        BLOCK,
        arguments![
            blocks,
            dy.address,
            first as i64,
            pixels as i64,
            x_width as i32,
            stride[0] as i32,
            stride[1] as i32,
            dy.width as i32,
            dy.stride as i64,
        ],
    )?;
    Ok(block_matrix(blocks, pixels, width, dy.dtype))
}

pub(in super::super) fn input_grad(
    op: &TransposedConv2dInputGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let stride = op.stride;
    let mut conv = Conv::new(o);
    let (dy, w) = (o.input(0), o.input(1));
    let (dx, mode) = o.result(0);
    let x_width = conv.inputs[0].dims[2] / stride[1];
    let sizes = [dx.rows, dy.width];
    in_bands(
        &mut conv,
        stride,
        sizes,
        dy.dtype.bytes(),
        |conv, first, pixels, blocks| {
            let from = gather_blocks(o, dy, stride, x_width, [first, pixels], blocks)?;
            let dx = band(dx, first, pixels);
            conv.product(&Product {
                rows: pixels,
                outputs: dx.width,
                inner: from.width,
                left: from.factor(false),
                right: Matrix {
                    stride: from.width,
                    ..w
                }
                .factor(true),
                inputs: o.issuer.format(dy.dtype),
                scale: 1.0,
                y: dx.result(),
                output: o.issuer.format(dx.dtype),
                bias: None,
                added: (mode == Write::Accumulate).then(|| dx.result()),
            })
        },
    )
}

pub(in super::super) fn weight_grad(
    op: &TransposedConv2dWeightGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let &TransposedConv2dWeightGrad {
        stride,
        weight: has_weight,
        bias: has_bias,
    } = op;
    let mut conv = Conv::new(o);
    let (dy, x) = (o.input(0), o.input(1));
    if has_weight {
        let (dw, mode) = o.result(0);
        let x_width = conv.inputs[1].dims[2];
        let sizes = [x.rows, dy.width];
        in_bands(
            &mut conv,
            stride,
            sizes,
            dy.dtype.bytes(),
            |conv, first, pixels, blocks| {
                let from = gather_blocks(o, dy, stride, x_width, [first, pixels], blocks)?;
                let x = band(x, first, pixels);
                let to = (dw.address, from.width);
                conv.product(&Product {
                    rows: x.width,
                    outputs: from.width,
                    inner: pixels,
                    left: x.factor(true),
                    right: from.factor(false),
                    inputs: o.issuer.format(dy.dtype),
                    scale: 1.0,
                    y: to,
                    output: o.issuer.format(dw.dtype),
                    bias: None,
                    added: (mode == Write::Accumulate || first > 0).then_some(to),
                })
            },
        )?;
    }
    if has_bias {
        conv.bias_grad(dy, usize::from(has_weight))
    } else {
        Ok(())
    }
}
