//! Norms, pooling, upsampling and losses of pictures.

use holdall_graph::ops::group_norm::{GroupNorm, GroupNormGrad, GroupStatistics};
use holdall_graph::ops::normalize_pixels::NormalizePixels;
use holdall_graph::ops::overlap::{OverlapLoss, OverlapLossGrad, OverlapSums, OverlapSumsGrad};
use holdall_graph::ops::pixel_loss::{PixelLoss, PixelLossGrad};
use holdall_graph::ops::pool2d::{Pool2d, Pool2dGrad};
use holdall_graph::ops::upsample2d::{Upsample2d, Upsample2dGrad};
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

pub(super) fn group_statistics(
    _op: &GroupStatistics,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn group_norm(_op: &GroupNorm, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn group_norm_grad(
    _op: &GroupNormGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn pool(_op: &Pool2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn pool_grad(_op: &Pool2dGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn upsample(_op: &Upsample2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn upsample_grad(_op: &Upsample2dGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn normalize_pixels(
    _op: &NormalizePixels,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn pixel_loss(_op: &PixelLoss, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn pixel_loss_grad(
    _op: &PixelLossGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn overlap_sums(_op: &OverlapSums, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn overlap_sums_grad(
    _op: &OverlapSumsGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn overlap_loss(_op: &OverlapLoss, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    missing(o)
}

pub(super) fn overlap_loss_grad(
    _op: &OverlapLossGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    missing(o)
}
