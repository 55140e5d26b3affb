//! Convolutions.

use holdall_graph::ops::conv2d::{
    Conv2d, Conv2dInputGrad, Conv2dWeightGrad, TransposedConv2d, TransposedConv2dInputGrad,
    TransposedConv2dWeightGrad,
};
use holdall_graph::{Op, Shape};

use super::Operands;
use crate::DeviceError;

/// Scratch of the kernels of one of these operations.
pub(in crate::cuda) fn own_scratch(
    _op: &Op,
    _input: &dyn Fn(usize) -> Shape,
    _processors: usize,
) -> usize {
    0
}

/// Kernels that one of these operations launches.
pub(in crate::cuda) fn kernels(_op: &Op) -> f64 {
    1.0
}

fn missing(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let name = o.instruction.op.rules().name();
    Err(DeviceError::Missing(format!(
        "{name}: not on a GPU yet\nhint: `--device cpu`"
    )))
}

pub(super) fn forward(_op: &Conv2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn input_grad(_op: &Conv2dInputGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn weight_grad(_op: &Conv2dWeightGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn transposed(_op: &TransposedConv2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn transposed_input_grad(
    _op: &TransposedConv2dInputGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn transposed_weight_grad(
    _op: &TransposedConv2dWeightGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}
