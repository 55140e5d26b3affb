//! `y = activation(x W^T + b + low rank) + residual` and its gradients. The product itself adds bias and residual; low-rank terms are
//! separate products before the activation.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};

use holdall_graph::{Op, Write};
use holdall_plan::{Instruction, Program};

use super::super::demand::{activation_parts, column_parts};
use super::super::product::Product;
use super::{DType, Matrix, Operands};
use crate::DeviceError;

pub(super) fn forward(op: &Linear, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, weight) = (o.input(0), o.input(1));
    let bias = op.bias.then(|| o.input(2).address);
    let residual = op.residual.then(|| o.input(o.num_inputs() - 1));
    let (y, _) = o.result(0);
    let z = op.activation.and_then(|_| o.output(1)).map(|(z, _)| z);
    // If no node reads z, the product writes to y, and the activation is applied in place.
    let landed = z.unwrap_or(y);
    o.product(&Product {
        rows: x.rows,
        outputs: weight.rows,
        inner: x.width,
        left: x.factor(false),
        right: weight.factor(true),
        inputs: o.issuer.format(x.dtype),
        scale: 1.0,
        y: landed.result(),
        output: o.issuer.format(landed.dtype),
        bias,
        added: residual.map(|residual| residual.result()),
    })?;
    for (columns, index) in op.low_rank_terms() {
        let (h, b) = (o.input(index), o.input(index + 1));
        let address = landed.address + (columns.start * landed.dtype.bytes()) as u64;
        let own = (address, landed.stride);
        o.product(&Product {
            rows: h.rows,
            outputs: columns.len(),
            inner: h.width,
            left: h.factor(false),
            right: b.factor(true),
            inputs: o.issuer.format(h.dtype),
            scale: op.low_rank_scale() as f32,
            y: own,
            output: o.issuer.format(landed.dtype),
            bias: None,
            added: Some(own),
        })?;
    }
    match op.activation {
        Some(activation) => o.issuer.activate_into(activation, y, landed),
        None => Ok(()),
    }
}

fn adds_to(matrix: Matrix, mode: Write) -> Option<(u64, usize)> {
    (mode == Write::Accumulate).then(|| matrix.result())
}

pub(super) fn input_grad(
    op: &LinearInputGrad,
    o: &Operands<'_, '_>,
    program: &Program,
    index: usize,
) -> Result<(), DeviceError> {
    let (dz, weight) = (o.input(0), o.input(1));
    let (dx, mode) = o.result(0);
    o.product(&Product {
        rows: dz.rows,
        outputs: weight.width,
        inner: dz.width,
        left: dz.factor(false),
        right: weight.factor(false),
        inputs: o.issuer.format(dz.dtype),
        scale: op.scale as f32,
        y: dx.result(),
        output: o.issuer.format(dx.dtype),
        bias: None,
        added: adds_to(dx, mode),
    })?;
    let Some(activation) = op.activation else {
        return Ok(());
    };
    match summed_along(program, index) {
        Some(next) => {
            let next = Operands {
                issuer: o.issuer,
                instruction: &program.instructions[next],
            };
            let (dbias, _) = next.result(next.instruction.outputs.len() - 1);
            activate_grad_and_sum(activation, dx, o.input(2), dbias, o)
        }
        None => o.issuer.activate_grad(activation, dx, o.input(2)),
    }
}

/// Maximum distance in instructions: recomputed instructions may be in between.
const NEAR: usize = 8;

/// The weight gradient after the backward pass of an activation, if that pass sums its bias gradient.
fn summed_along(program: &Program, index: usize) -> Option<usize> {
    let from = &program.instructions[index];
    let Op::LinearInputGrad(through) = &from.op else {
        return None;
    };
    let (dz, _) = from.outputs[0].as_ref()?;
    let reads_dz = |to: &Instruction| {
        matches!(&to.op, Op::LinearWeightGrad(_))
            && dz.offset == to.inputs[0].offset
            && dz.shape.num_elements() == to.inputs[0].shape.num_elements()
    };
    let rest = program.instructions[index + 1..].iter().take(NEAR);
    let next = index + 1 + rest.clone().position(reads_dz)?;
    let Op::LinearWeightGrad(gradient) = &program.instructions[next].op else {
        return None;
    };
    let whole = dz.strides == dz.shape.contiguous_strides() && dz.shape.width().is_multiple_of(8);
    let plain = gradient.bias && gradient.inert_bias.is_empty();
    (through.activation.is_some() && whole && plain).then_some(next)
}

fn activate_grad_and_sum(
    activation: Activation,
    dy: Matrix,
    z: Matrix,
    dbias: Matrix,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let name = match activation {
        Activation::QuickGelu => "activate_grad_sums_quick",
        Activation::Gelu => "activate_grad_sums_erf",
        Activation::Relu => "activate_grad_sums_relu",
        Activation::LeakyRelu => "activate_grad_sums_leaky",
    };
    assert!(
        dy.is_contiguous() && z.is_contiguous(),
        "contiguous operands"
    );
    let (parts, partials) = (activation_parts(dy.rows), o.scratch());
    let each = super::ACCESS / dy.dtype.bytes();
    o.issuer.launch(
        name,
        [dy.width.div_ceil(ONCE_LANES * each), parts, 1],
        512,
        arguments![
            dy.address,
            z.address,
            partials,
            dbias.address,
            dy.rows as i64,
            dy.width as i32,
        ],
    )?;
    match parts {
        1 => Ok(()),
        _ => finish_sums(o, partials, parts, dy.width, dbias, [0, 0]),
    }
}

pub(super) fn weight_grad(
    op: &LinearWeightGrad,
    o: &Operands<'_, '_>,
    program: &Program,
    index: usize,
) -> Result<(), DeviceError> {
    let (dz, x) = (o.input(0), o.input(1));
    if op.weight {
        let (dweight, mode) = o.result(0);
        o.product(&Product {
            rows: dz.width,
            outputs: x.width,
            inner: dz.rows,
            left: dz.factor(true),
            right: x.factor(false),
            inputs: o.issuer.format(dz.dtype),
            scale: op.scale as f32,
            y: dweight.result(),
            output: o.issuer.format(dweight.dtype),
            bias: None,
            added: adds_to(dweight, mode),
        })?;
    }
    let before = index.saturating_sub(NEAR)..index;
    let done_before = before
        .into_iter()
        .any(|before| summed_along(program, before) == Some(index));
    if !op.bias || done_before {
        return Ok(());
    }
    let (dbias, mode) = o.result(usize::from(op.weight));
    assert_eq!(mode, Write::Accumulate, "bias gradients are added to");
    bias_grad(op, dz, dbias, o)
}

/// Columns per block of `column_sums` and of `column_sums_once`, in accesses of a thread.
const PART_LANES: usize = 32;
const ONCE_LANES: usize = 4;

fn bias_grad(
    op: &LinearWeightGrad,
    dz: Matrix,
    dbias: Matrix,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let issuer = o.issuer;
    let full = dz.dtype == DType::F32;
    let each = super::ACCESS / dz.dtype.bytes();
    let parts = column_parts(dz.rows);
    let inert = [op.inert_bias.start, op.inert_bias.end].map(|column| column as i32);
    if parts == 1 {
        let name = if full {
            "column_sums_once_f32"
        } else {
            "column_sums_once"
        };
        return issuer.launch(
            name,
            [dz.width.div_ceil(ONCE_LANES * each), 1, 1],
            1024,
            arguments![
                dz.address,
                dbias.address,
                dz.rows as i64,
                dz.width as i32,
                dz.stride as i64,
                inert[0],
                inert[1],
            ],
        );
    }
    let name = if full {
        "column_sums_f32"
    } else {
        "column_sums"
    };
    let partials = o.scratch();
    issuer.launch(
        name,
        [dz.width.div_ceil(PART_LANES * each), parts, 1],
        256,
        arguments![
            dz.address,
            partials,
            dz.rows as i64,
            dz.width as i32,
            dz.stride as i64,
        ],
    )?;
    finish_sums(o, partials, parts, dz.width, dbias, inert)
}

/// Sums the partial sums and adds them to the bias gradient.
pub(super) fn finish_sums(
    o: &Operands<'_, '_>,
    partials: u64,
    parts: usize,
    width: usize,
    dbias: Matrix,
    inert: [i32; 2],
) -> Result<(), DeviceError> {
    let to = Matrix {
        rows: 1,
        width,
        ..dbias
    };
    finish_rows(o, partials, parts, to, inert)
}

/// Like [`finish_sums`], for every row of a matrix; their partial sums are consecutive.
pub(super) fn finish_rows(
    o: &Operands<'_, '_>,
    partials: u64,
    parts: usize,
    to: Matrix,
    inert: [i32; 2],
) -> Result<(), DeviceError> {
    o.issuer.launch(
        "column_sums_finish",
        [to.width.div_ceil(32), to.rows, 1],
        512,
        arguments![
            partials,
            parts as i32,
            to.width as i32,
            to.address,
            inert[0],
            inert[1],
        ],
    )
}
