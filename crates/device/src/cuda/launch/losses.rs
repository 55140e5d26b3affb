//! Separable losses. Predictions are f32 or in the compute format; labels, targets and weights are those of the whole batch.

use holdall_graph::ops::pointwise_loss::Pointwise;

use super::super::driver::Argument;
use super::{BLOCK, DType, Matrix, Operands, accumulates, rows_of_warps};
use crate::DeviceError;

/// Kernel argument: whether a matrix is f32, for any compute format.
pub(super) fn full(matrix: Matrix) -> Argument {
    i32::from(matrix.dtype == DType::F32).into()
}

/// Sums the rows' losses and adds them to the loss sum.
pub(super) fn sum_rows(o: &Operands<'_, '_>, losses: u64, rows: usize) -> Result<(), DeviceError> {
    let (total, _) = o.result(0);
    let arguments = [losses.into(), (rows as i32).into(), total.address.into()];
    o.issuer.launch("sum_into", [1, 1, 1], 1024, &arguments)
}

pub(super) fn cross_entropy(smoothing: f64, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (logits, labels, weights) = (o.input(0), o.moving(1), o.moving(2));
    let class_weights = (o.num_inputs() > 3).then(|| o.input(3).address);
    let losses = o.scratch();
    o.issuer.launch(
        "cross_entropy",
        rows_of_warps(logits.rows),
        BLOCK,
        arguments![
            logits.address,
            labels.address,
            weights.address,
            class_weights,
            losses,
            logits.rows as i32,
            logits.width as i32,
            logits.stride as i64,
            smoothing as f32,
            full(logits),
            o.issuer.tables.micro(),
            labels.micro as i64,
            weights.micro as i64,
        ],
    )?;
    sum_rows(o, losses, logits.rows)
}

pub(super) fn cross_entropy_grad(smoothing: f64, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (seed, logits) = (o.input(0), o.input(1));
    let (labels, weights) = (o.moving(2), o.moving(3));
    let class_weights = (o.num_inputs() > 4).then(|| o.input(4).address);
    let (dlogits, mode) = o.result(0);
    o.issuer.launch(
        "cross_entropy_grad",
        rows_of_warps(logits.rows),
        BLOCK,
        arguments![
            seed.address,
            logits.address,
            labels.address,
            weights.address,
            class_weights,
            dlogits.address,
            logits.rows as i32,
            logits.width as i32,
            logits.stride as i64,
            dlogits.stride as i64,
            smoothing as f32,
            accumulates(Some(mode)),
            full(logits),
            o.issuer.tables.micro(),
            labels.micro as i64,
            weights.micro as i64,
        ],
    )
}

fn is_squared(loss: Pointwise) -> Argument {
    let squared = match loss {
        Pointwise::BinaryCrossEntropy => 0,
        Pointwise::SquaredError => 1,
    };
    Argument::from(squared)
}

pub(super) fn pointwise(loss: Pointwise, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (predictions, targets, weights) = (o.input(0), o.moving(1), o.moving(2));
    let losses = o.scratch();
    o.issuer.launch(
        "pointwise_loss",
        rows_of_warps(predictions.rows),
        BLOCK,
        arguments![
            predictions.address,
            targets.address,
            weights.address,
            losses,
            predictions.rows as i32,
            predictions.width as i32,
            predictions.stride as i64,
            targets.stride as i64,
            weights.stride as i64,
            is_squared(loss),
            full(predictions),
            o.issuer.tables.micro(),
            targets.micro as i64,
            weights.micro as i64,
        ],
    )?;
    sum_rows(o, losses, predictions.rows)
}

pub(super) fn pointwise_grad(loss: Pointwise, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (seed, predictions) = (o.input(0), o.input(1));
    let (targets, weights) = (o.moving(2), o.moving(3));
    let (gradient, mode) = o.result(0);
    o.issuer.launch(
        "pointwise_loss_grad",
        rows_of_warps(predictions.rows),
        BLOCK,
        arguments![
            seed.address,
            predictions.address,
            targets.address,
            weights.address,
            gradient.address,
            predictions.rows as i32,
            predictions.width as i32,
            predictions.stride as i64,
            targets.stride as i64,
            weights.stride as i64,
            gradient.stride as i64,
            is_squared(loss),
            accumulates(Some(mode)),
            full(predictions),
            o.issuer.tables.micro(),
            targets.micro as i64,
            weights.micro as i64,
        ],
    )
}
