//! Losses of every pixel, and overlap losses. Labels, weights and sums may be those of the whole batch.

use holdall_graph::Shape;
use holdall_graph::ops::overlap::{
    OverlapLoss, OverlapLossGrad, OverlapSums, OverlapSumsGrad, Reduction,
};
use holdall_graph::ops::pixel_loss::{PixelLoss, PixelLossGrad, PixelLossKind};

use super::super::losses::{full, sum_rows};
use super::super::{ACCESS, BLOCK, Matrix, Operands, accumulates, rows_of_warps};
use super::{Pixels, dims, input_dims, pixels};
use crate::DeviceError;

/// Minimum pixels per block, and a number of blocks that fills any card.
const PART_PIXELS: usize = 4096;
const MOST_PARTS: usize = 256;
/// Neighbouring pixels that a thread reads at once if there is one logit.
const MANY: usize = 8;
/// Classes whose sums a block has.
const CLASSES: usize = 8;

/// Number of partial sums of a picture: depends on its size alone, not on the batch.
fn parts(pixels: usize) -> usize {
    pixels.div_ceil(PART_PIXELS).clamp(1, MOST_PARTS)
}

/// Number of parts of all pictures.
fn all_parts(logits: Shape) -> usize {
    let [samples, height, width, _] = dims(&logits);
    samples * parts(height * width)
}

/// Bytes of scratch: a sum in every part.
pub(in crate::cuda) fn pixel_loss_bytes(logits: Shape) -> usize {
    all_parts(logits) * 4
}

/// Bytes of scratch: three sums of each class in every part.
pub(in crate::cuda) fn overlap_bytes(logits: Shape) -> usize {
    all_parts(logits) * 3 * logits.width() * 4
}

/// Logits with their labels.
struct Picture {
    samples: usize,
    pixels: usize,
    width: usize,
    classes: usize,
    logits: Matrix,
    labels: Pixels,
}

impl Picture {
    /// Logits are input `index`, labels the next input.
    fn new(o: &Operands<'_, '_>, index: usize) -> Picture {
        let [samples, height, width, classes] = input_dims(o, index);
        Picture {
            samples,
            pixels: height * width,
            width,
            classes,
            logits: o.input(index),
            labels: pixels(o, index + 1),
        }
    }

    fn grid(&self) -> [usize; 3] {
        [parts(self.pixels), self.samples, 1]
    }

    /// Whether [`MANY`] pixels can be read at once, and written to the gradient.
    fn packs(&self, gradient: Option<Matrix>) -> i32 {
        let is_whole = |matrix: Matrix| {
            matrix.width == 1 && matrix.stride == 1 && matrix.address.is_multiple_of(ACCESS as u64)
        };
        let labels = &self.labels;
        let [sample, line, pixel] = labels.strides;
        let apart = [self.pixels, sample, labels.micro, labels.address as usize];
        let packs = is_whole(self.logits)
            && gradient.is_none_or(is_whole)
            && [line, pixel] == [self.width, 1]
            && apart.iter().all(|bytes| bytes.is_multiple_of(MANY));
        i32::from(packs)
    }
}

fn is_softmax(kind: PixelLossKind) -> i32 {
    match kind {
        PixelLossKind::Sigmoid => 0,
        PixelLossKind::Softmax => 1,
    }
}

/// The focal exponent; 0: no focal factor.
fn exponent(focal: Option<f64>) -> f32 {
    focal.unwrap_or(0.0) as f32
}

pub(in crate::cuda::launch) fn pixel_loss(
    op: &PixelLoss,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let p = Picture::new(o, 0);
    let (class_weights, weights) = (o.input(2), o.moving(3));
    let losses = o.scratch();
    let [sample, line, pixel] = p.labels.strides.map(|stride| stride as i64);
    o.issuer.launch(
        "pixel_loss",
        p.grid(),
        BLOCK,
        arguments![
            p.logits.address,
            p.labels.address,
            class_weights.address,
            weights.address,
            losses,
            p.logits.stride as i64,
            sample,
            line,
            pixel,
            p.pixels as i32,
            p.width as i32,
            p.classes as i32,
            exponent(op.focal),
            is_softmax(op.kind),
            full(p.logits),
            p.packs(None),
            o.issuer.tables.micro(),
            p.labels.micro as i64,
            weights.micro as i64,
        ],
    )?;
    sum_rows(o, losses, p.samples * parts(p.pixels))
}

pub(in crate::cuda::launch) fn pixel_loss_grad(
    op: &PixelLossGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (seed, p) = (o.input(0), Picture::new(o, 1));
    let (class_weights, weights) = (o.input(3), o.moving(4));
    let (dlogits, mode) = o.result(0);
    let [sample, line, pixel] = p.labels.strides.map(|stride| stride as i64);
    o.issuer.launch(
        "pixel_loss_grad",
        p.grid(),
        BLOCK,
        arguments![
            seed.address,
            p.logits.address,
            p.labels.address,
            class_weights.address,
            weights.address,
            dlogits.address,
            p.logits.stride as i64,
            sample,
            line,
            pixel,
            dlogits.stride as i64,
            p.pixels as i32,
            p.width as i32,
            p.classes as i32,
            exponent(op.focal),
            is_softmax(op.kind),
            accumulates(Some(mode)),
            full(p.logits),
            p.packs(Some(dlogits)),
            o.issuer.tables.micro(),
            p.labels.micro as i64,
            weights.micro as i64,
        ],
    )
}

pub(in crate::cuda::launch) fn overlap_sums(
    op: &OverlapSums,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (p, partials) = (Picture::new(o, 0), o.scratch());
    let (sums, _) = o.moving_result(0);
    let [sample, line, pixel] = p.labels.strides.map(|stride| stride as i64);
    let [parts, samples, _] = p.grid();
    o.issuer.launch(
        "overlap_sums",
        [parts, samples, p.classes.div_ceil(CLASSES)],
        BLOCK,
        arguments![
            p.logits.address,
            p.labels.address,
            partials,
            p.logits.stride as i64,
            sample,
            line,
            pixel,
            p.pixels as i32,
            p.width as i32,
            p.classes as i32,
            is_softmax(op.kind),
            full(p.logits),
            p.packs(None),
            o.issuer.tables.micro(),
            p.labels.micro as i64,
        ],
    )?;
    let columns = 3 * p.classes;
    o.issuer.launch(
        "overlap_sums_finish",
        rows_of_warps(samples * columns),
        BLOCK,
        arguments![
            partials,
            sums.address,
            samples as i32,
            columns as i32,
            parts as i32,
            sums.stride as i64,
            o.issuer.tables.micro(),
            sums.micro as i64,
        ],
    )
}

pub(in crate::cuda::launch) fn overlap_sums_grad(
    op: &OverlapSumsGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (dsums, p) = (o.moving(0), Picture::new(o, 1));
    let (dlogits, mode) = o.result(0);
    let [sample, line, pixel] = p.labels.strides.map(|stride| stride as i64);
    o.issuer.launch(
        "overlap_sums_grad",
        p.grid(),
        BLOCK,
        arguments![
            dsums.address,
            p.logits.address,
            p.labels.address,
            dlogits.address,
            dsums.stride as i64,
            p.logits.stride as i64,
            sample,
            line,
            pixel,
            dlogits.stride as i64,
            p.pixels as i32,
            p.width as i32,
            p.classes as i32,
            is_softmax(op.kind),
            accumulates(Some(mode)),
            full(p.logits),
            p.packs(Some(dlogits)),
            o.issuer.tables.micro(),
            dsums.micro as i64,
            p.labels.micro as i64,
        ],
    )
}

fn is_batch(reduction: Reduction) -> i32 {
    match reduction {
        Reduction::Batch => 1,
        Reduction::PerSample => 0,
    }
}

pub(in crate::cuda::launch) fn overlap_loss(
    op: &OverlapLoss,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (sums, weights) = (o.moving(0), o.moving(1));
    let (total, _) = o.result(0);
    o.issuer.launch(
        "overlap_loss",
        [1, 1, 1],
        BLOCK,
        arguments![
            sums.address,
            weights.address,
            total.address,
            sums.rows as i32,
            (sums.width / 3) as i32,
            sums.stride as i64,
            op.first_class as i32,
            is_batch(op.reduction),
            op.alpha as f32,
            op.beta as f32,
            op.smooth as f32,
            o.issuer.tables.micro(),
            sums.micro as i64,
            weights.micro as i64,
        ],
    )
}

pub(in crate::cuda::launch) fn overlap_loss_grad(
    op: &OverlapLossGrad,
    o: &Operands<'_, '_>,
) -> Result<(), DeviceError> {
    let (seed, sums, weights) = (o.input(0), o.moving(1), o.moving(2));
    let (dsums, mode) = o.moving_result(0);
    let op = &op.forward;
    o.issuer.launch(
        "overlap_loss_grad",
        [1, 1, 1],
        BLOCK,
        arguments![
            seed.address,
            sums.address,
            weights.address,
            dsums.address,
            sums.rows as i32,
            (sums.width / 3) as i32,
            sums.stride as i64,
            dsums.stride as i64,
            op.first_class as i32,
            is_batch(op.reduction),
            op.alpha as f32,
            op.beta as f32,
            op.smooth as f32,
            accumulates(Some(mode)),
            o.issuer.tables.micro(),
            sums.micro as i64,
            weights.micro as i64,
            dsums.micro as i64,
        ],
    )
}
