//! Launches for pictures: pooling, upsampling, pixels as floats; norms and losses are in submodules.

mod group_norm;
mod pixel_losses;

use holdall_graph::Shape;
use holdall_graph::ops::normalize_pixels::{CHANNEL_STEP, NormalizePixels, PixelDepth};
use holdall_graph::ops::pool2d::{Pool, Pool2d, Pool2dGrad};
use holdall_graph::ops::upsample2d::{Upsample2d, Upsample2dGrad, Upsampling};

use super::super::driver::Argument;
use super::{ACCESS, BLOCK, DType, Matrix, Operands, accumulates};
use crate::DeviceError;

pub(in crate::cuda) use group_norm::{gradient_bytes, statistics_bytes};
pub(super) use group_norm::{group_norm, group_norm_grad, group_statistics};
pub(in crate::cuda) use pixel_losses::{overlap_bytes, pixel_loss_bytes};
pub(super) use pixel_losses::{
    overlap_loss, overlap_loss_grad, overlap_sums, overlap_sums_grad, pixel_loss, pixel_loss_grad,
};

/// Whether a thread can access 16 bytes of neighbouring channels of every operand.
fn packs(operands: &[Matrix]) -> bool {
    operands.iter().all(|operand| {
        let each = ACCESS / operand.dtype.bytes();
        operand.width.is_multiple_of(each)
            && operand.stride.is_multiple_of(each)
            && operand.address.is_multiple_of(ACCESS as u64)
    })
}

/// One thread per access to a matrix.
fn grid(matrix: Matrix, packed: bool) -> [usize; 3] {
    let each = if packed {
        ACCESS / matrix.dtype.bytes()
    } else {
        1
    };
    let accesses = matrix.num_elements().div_ceil(each);
    [accesses.div_ceil(BLOCK).max(1), 1, 1]
}

/// `[samples, lines, pixels per line, channels]`.
fn dims(shape: &Shape) -> [usize; 4] {
    match *shape.dims() {
        [samples, height, width, channels] => [samples, height, width, channels],
        _ => panic!("pictures are [n, h, w, c], found {shape:?}"),
    }
}

fn input_dims(o: &Operands<'_, '_>, index: usize) -> [usize; 4] {
    dims(&o.input_place(index).shape)
}

/// Pictures with even strides between samples, lines and pixels: parts of longer rows, or every other pixel.
struct Pixels {
    address: u64,
    dtype: DType,
    /// Elements between samples, between lines and between pixels.
    strides: [usize; 3],
    /// Elements that the address advances per micro-batch.
    micro: usize,
}

fn pixels(o: &Operands<'_, '_>, index: usize) -> Pixels {
    let (issuer, place) = (o.issuer, o.input_place(index));
    let address = issuer.base + place.offset + issuer.slot as u64 * place.slot_stride;
    let (dims, strides) = (place.shape.dims(), place.strides.dims());
    let is_whole = dims.get(3).is_none_or(|&channels| channels == 1) || strides[3] == 1;
    assert!(is_whole, "the channels of a pixel are neighbours");
    let last: usize = dims
        .iter()
        .zip(strides)
        .map(|(dim, stride)| dim.saturating_sub(1) * stride)
        .sum();
    let bytes = place.dtype.bytes();
    let end = address - issuer.base + ((last + 1) * bytes) as u64;
    assert!(end <= issuer.bytes, "operand within the arena");
    Pixels {
        address,
        dtype: place.dtype,
        strides: [strides[0], strides[1], strides[2]],
        micro: place.micro_stride as usize / bytes,
    }
}

pub(super) fn pool(op: &Pool2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, (y, _)) = (o.input(0), o.result(0));
    let [_, _, width, channels] = input_dims(o, 0);
    let packed = packs(&[x, y]);
    let average = match op.kind {
        Pool::Max => 0,
        Pool::Average => 1,
    };
    o.issuer.launch(
        "pool2d",
        grid(y, packed),
        BLOCK,
        arguments![
            x.address,
            y.address,
            y.rows as i64,
            (width / op.size) as i32,
            channels as i32,
            x.stride as i64,
            y.stride as i64,
            op.size as i32,
            average,
            i32::from(packed),
        ],
    )
}

pub(super) fn pool_grad(op: &Pool2dGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dy, (dx, mode)) = (o.input(0), o.result(0));
    let x = match op.kind {
        Pool::Max => Some(o.input(1)),
        Pool::Average => None,
    };
    let [_, _, width, channels] = input_dims(o, 0);
    let packed = packs(&[dy, x.unwrap_or(dy), dx]);
    o.issuer.launch(
        "pool2d_grad",
        grid(dy, packed),
        BLOCK,
        arguments![
            dy.address,
            x.map(|x| x.address),
            dx.address,
            dy.rows as i64,
            width as i32,
            channels as i32,
            dy.stride as i64,
            x.map_or(0, |x| x.stride) as i64,
            dx.stride as i64,
            op.size as i32,
            accumulates(Some(mode)),
            i32::from(packed),
        ],
    )
}

pub(super) fn upsample(op: &Upsample2d, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, (y, _)) = (o.input(0), o.result(0));
    let [_, height, width, channels] = input_dims(o, 0);
    let packed = packs(&[x, y]);
    let factor = op.factor as i32;
    match op.mode {
        Upsampling::Nearest => o.issuer.launch(
            "upsample_nearest",
            grid(x, packed),
            BLOCK,
            arguments![
                x.address,
                y.address,
                x.rows as i64,
                width as i32,
                channels as i32,
                x.stride as i64,
                y.stride as i64,
                factor,
                i32::from(packed),
            ],
        ),
        Upsampling::Bilinear => o.issuer.launch(
            "upsample_bilinear",
            grid(y, packed),
            BLOCK,
            arguments![
                x.address,
                y.address,
                y.rows as i64,
                height as i32,
                width as i32,
                channels as i32,
                x.stride as i64,
                y.stride as i64,
                factor,
                i32::from(packed),
            ],
        ),
    }
}

pub(super) fn upsample_grad(op: &Upsample2dGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dy, (dx, mode)) = (o.input(0), o.result(0));
    let [_, height, width, channels] = input_dims(o, 0);
    let packed = packs(&[dy, dx]);
    let grid = grid(dx, packed);
    let [height, width] = [height, width].map(|size| (size / op.factor) as i32);
    let (factor, accumulate) = (op.factor as i32, accumulates(Some(mode)));
    match op.mode {
        Upsampling::Nearest => o.issuer.launch(
            "upsample_nearest_grad",
            grid,
            BLOCK,
            arguments![
                dy.address,
                dx.address,
                dx.rows as i64,
                width,
                channels as i32,
                dy.stride as i64,
                dx.stride as i64,
                factor,
                accumulate,
                i32::from(packed),
            ],
        ),
        Upsampling::Bilinear => o.issuer.launch(
            "upsample_bilinear_grad",
            grid,
            BLOCK,
            arguments![
                dy.address,
                dx.address,
                dx.rows as i64,
                height,
                width,
                channels as i32,
                dy.stride as i64,
                dx.stride as i64,
                factor,
                accumulate,
                i32::from(packed),
            ],
        ),
    }
}

/// Channels that a launch of `normalize_pixels` writes: their factors and shifts are arguments.
const NORMALIZED: usize = CHANNEL_STEP;

pub(super) fn normalize_pixels(
    op: &NormalizePixels,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (from, (y, _)) = (pixels(o, 0), o.result(0));
    assert_eq!(from.micro, 0, "pixels that move with the micro-batch");
    assert!(
        y.stride.is_multiple_of(NORMALIZED) && packs(&[y]),
        "pixels lie a multiple of {NORMALIZED} channels apart"
    );
    let [_, height, width, _] = input_dims(o, 0);
    let format = match (from.dtype, op.depth) {
        (DType::U8, PixelDepth::Eight) => 0,
        (DType::U8, PixelDepth::Sixteen) => 1,
        (DType::F32, _) => 2,
        (DType::F16 | DType::Bf16, _) => 3,
        (other @ (DType::F64 | DType::I64), _) => panic!("pixels of {other:?} on a GPU"),
    };
    let channels = op.mean.len();
    let [sample, line, pixel] = from
        .strides
        .map(|stride| (stride * from.dtype.bytes()) as i64);
    for first in (0..y.width).step_by(NORMALIZED) {
        let factors_and_shifts: [[f64; 2]; NORMALIZED] = std::array::from_fn(|index| {
            let is_byte = from.dtype == DType::U8;
            if first + index < channels && is_byte {
                op.factor_and_shift(first + index)
            } else {
                [1.0, 0.0]
            }
        });
        let mut arguments = arguments![
            from.address,
            y.address,
            y.rows as i64,
            height as i32,
            width as i32,
            sample,
            line,
            pixel,
            y.stride as i64,
            first as i32,
            channels as i32,
            format,
        ]
        .to_vec();
        for which in 0..2 {
            let numbers = factors_and_shifts.iter();
            arguments.extend(numbers.map(|pair| Argument::from(pair[which] as f32)));
        }
        let grid = [y.rows.div_ceil(BLOCK).max(1), 1, 1];
        o.issuer
            .launch("normalize_pixels", grid, BLOCK, &arguments)?;
    }
    Ok(())
}
