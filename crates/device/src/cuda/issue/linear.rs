//! `y = activation(x W^T + b) + residual` and its gradients. Bias and residual are added by the product itself.

use holdall_graph::Write;
use holdall_graph::ops::linear::{Linear, LinearInputGrad, LinearWeightGrad};

use super::super::product::Product;
use super::super::target::column_parts;
use super::{DType, Matrix, Operands};
use crate::DeviceError;

pub(super) fn forward(op: &Linear, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, weight) = (o.input(0), o.input(1));
    let bias = op.bias.then(|| o.input(2).address);
    let residual = op.residual.then(|| o.input(o.num_inputs() - 1));
    let (y, _) = o.result(0);
    let z = op.activation.and_then(|_| o.output(1)).map(|(z, _)| z);
    // Without a reader for z, the activation is applied where the product landed.
    let landed = z.unwrap_or(y);
    o.product(&Product {
        rows: x.rows,
        outputs: weight.rows,
        inner: x.width,
        left: x.factor(false),
        right: weight.factor(true),
        inputs: o.issuer.format(x.dtype),
        y: landed.result(),
        output: o.issuer.format(landed.dtype),
        bias,
        added: residual.map(|residual| residual.result()),
    })?;
    match op.activation {
        Some(activation) => o.issuer.activate_into(activation, y, landed),
        None => Ok(()),
    }
}

fn adds_to(matrix: Matrix, mode: Write) -> Option<(u64, usize)> {
    (mode == Write::Accumulate).then(|| matrix.result())
}

pub(super) fn input_grad(op: &LinearInputGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dz, weight) = (o.input(0), o.input(1));
    let (dx, mode) = o.result(0);
    o.product(&Product {
        rows: dz.rows,
        outputs: weight.width,
        inner: dz.width,
        left: dz.factor(false),
        right: weight.factor(false),
        inputs: o.issuer.format(dz.dtype),
        y: dx.result(),
        output: o.issuer.format(dx.dtype),
        bias: None,
        added: adds_to(dx, mode),
    })?;
    match op.activation {
        Some(activation) => o.issuer.activate_grad(activation, dx, o.input(2)),
        None => Ok(()),
    }
}

pub(super) fn weight_grad(op: &LinearWeightGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
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
            y: dweight.result(),
            output: o.issuer.format(dweight.dtype),
            bias: None,
            added: adds_to(dweight, mode),
        })?;
    }
    if !op.bias {
        return Ok(());
    }
    let (dbias, mode) = o.result(usize::from(op.weight));
    assert_eq!(mode, Write::Accumulate, "bias gradients are added to");
    bias_grad(op, dz, dbias, o)
}

/// Columns that a block of `column_sums` and of `column_sums_once` has, in accesses of a thread.
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
        let name = match full {
            true => "column_sums_once_f32",
            false => "column_sums_once",
        };
        return issuer.launch(
            name,
            [dz.width.div_ceil(ONCE_LANES * each), 1, 1],
            1024,
            &[
                dz.address.into(),
                dbias.address.into(),
                (dz.rows as i64).into(),
                (dz.width as i32).into(),
                (dz.stride as i64).into(),
                inert[0].into(),
                inert[1].into(),
            ],
        );
    }
    let name = match full {
        true => "column_sums_f32",
        false => "column_sums",
    };
    let partials = o.scratch();
    issuer.launch(
        name,
        [dz.width.div_ceil(PART_LANES * each), parts, 1],
        256,
        &[
            dz.address.into(),
            partials.into(),
            (dz.rows as i64).into(),
            (dz.width as i32).into(),
            (dz.stride as i64).into(),
        ],
    )?;
    issuer.launch(
        "column_sums_finish",
        [dz.width.div_ceil(32), 1, 1],
        512,
        &[
            partials.into(),
            (parts as i32).into(),
            (dz.width as i32).into(),
            dbias.address.into(),
            inert[0].into(),
            inert[1].into(),
        ],
    )
}
