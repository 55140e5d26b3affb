//! Factors of columns, and dropout.

use holdall_graph::Write;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::ops::scale_columns::ScaleColumnsGrad;

use super::super::demand::norm_parts;
use super::linear::finish_sums;
use super::{ACCESS, BLOCK, DType, Operands};
use crate::DeviceError;

pub(super) fn scale_columns(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, gamma, (y, _)) = (o.input(0), o.input(1), o.result(0));
    o.issuer.launch(
        "scale_columns",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        arguments![
            y.address,
            x.address,
            gamma.address,
            y.rows as i64,
            y.width as i32,
            y.stride as i64,
            x.stride as i64,
        ],
    )
}

pub(super) fn scale_columns_grad(
    op: &ScaleColumnsGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (dy, x, gamma) = (o.input(0), o.input(1), o.input(2));
    let parts = norm_parts(x.rows, o.issuer.cuda.num_processors);
    let partials = op.gamma.then(|| o.scratch());
    let per_block = 32 * ACCESS / dy.dtype.bytes();
    o.issuer.launch(
        "scale_columns_grad",
        [x.width.div_ceil(per_block), parts, 1],
        BLOCK,
        arguments![
            dy.address,
            x.address,
            gamma.address,
            partials,
            x.rows as i64,
            x.width as i32,
            dy.stride as i64,
            x.stride as i64,
            i32::from(op.x),
        ],
    )?;
    let Some(partials) = partials else {
        return Ok(());
    };
    let (dgamma, mode) = o.result(0);
    assert_eq!(mode, Write::Accumulate, "gradients of factors are added to");
    finish_sums(o, partials, parts, x.width, dgamma, [0, 0])
}

pub(super) fn dropout(op: &Dropout, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, samples, stream) = (o.input(0), o.moving(1), o.input(2));
    let (y, _) = o.result(0);
    o.issuer.launch(
        "dropout",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        arguments![
            y.address,
            x.address,
            samples.address,
            stream.address,
            y.rows as i64,
            y.width as i32,
            y.stride as i64,
            x.stride as i64,
            (y.rows / samples.num_elements()) as i64,
            op.layer as i64,
            op.threshold() as i32,
            op.scale() as f32,
            i32::from(op.mode == DropoutMode::Sample),
            i32::from(y.dtype == DType::F32),
            o.issuer.tables.micro(),
            samples.micro as i64,
        ],
    )
}
