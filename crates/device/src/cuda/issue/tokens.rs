//! Pictures to patches, class token, embeddings, and picking one token of each sample.

use holdall_graph::ops::patchify::{Normalization, Patchify};
use holdall_graph::{DType, Write};

use super::super::driver::Argument;
use super::super::target::EMBEDDING_CHUNK;
use super::{ACCESS, BLOCK, Matrix, Operands, accumulates};
use crate::DeviceError;

pub(super) fn patchify(op: &Patchify, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let shape = o.input_place(0).shape;
    let [samples, height, width, _] = *shape.dims() else {
        panic!("pictures are [batch, height, width, channels]");
    };
    let (pixels, (patches, _)) = (o.input(0), o.result(0));
    let per_thread = if op.patch_size.is_multiple_of(8) {
        8
    } else {
        1
    };
    let threads = height * (width / per_thread);
    let grid = [threads.div_ceil(BLOCK), samples.min(65_535), 1];
    let mut arguments = vec![pixels.address.into(), patches.address.into()];
    let sizes = [samples, height, width, op.patch_size];
    arguments.extend(sizes.map(|size| Argument::from(size as i32)));
    if pixels.dtype != DType::U8 {
        return o.issuer.launch("patchify_f32", grid, BLOCK, &arguments);
    }
    let Normalization { mean, std } = op.normalization;
    for std in std {
        arguments.push((1.0 / (255.0 * std)).into());
    }
    for (mean, std) in mean.into_iter().zip(std) {
        arguments.push((-mean / std).into());
    }
    o.issuer.launch("patchify_u8", grid, BLOCK, &arguments)
}

/// Samples and tokens of `[batch, tokens, width]`.
fn samples_and_tokens(shape: holdall_graph::Shape) -> (usize, usize) {
    (shape.dims()[0], shape.dims()[1])
}

pub(super) fn class_token(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (patches, class, positions) = (o.input(0), o.input(1), o.input(2));
    let (x, _) = o.result(0);
    let tokens = positions.rows;
    o.issuer.launch(
        "class_token",
        o.issuer.grid(x.num_elements(), x.dtype),
        BLOCK,
        &[
            patches.address.into(),
            class.address.into(),
            positions.address.into(),
            x.address.into(),
            ((x.rows / tokens) as i32).into(),
            (tokens as i32).into(),
            (x.width as i32).into(),
        ],
    )
}

pub(super) fn class_token_grad(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let dx = o.input(0);
    assert!(dx.is_contiguous(), "tokens of a sample follow each other");
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    if let Some((dpatches, mode)) = o.output(0) {
        o.issuer.launch(
            "class_token_grad",
            o.issuer.grid(dpatches.num_elements(), dx.dtype),
            BLOCK,
            &[
                dx.address.into(),
                dpatches.address.into(),
                (samples as i32).into(),
                (tokens as i32).into(),
                (dx.width as i32).into(),
                accumulates(Some(mode)).into(),
            ],
        )?;
    }
    let (Some((dclass, _)), Some((dpositions, _))) = (o.output(1), o.output(2)) else {
        return Ok(());
    };
    positions_grad(o, dx, dpositions, Some(dclass), [samples, tokens])
}

/// Accesses side by side in a block of `positions_grad`.
const POSITION_LANES: usize = 8;

fn positions_grad(
    o: &Operands<'_, '_>,
    dx: Matrix,
    dpositions: Matrix,
    dclass: Option<Matrix>,
    [samples, tokens]: [usize; 2],
) -> Result<(), DeviceError> {
    let each = ACCESS / dx.dtype.bytes();
    o.issuer.launch(
        "positions_grad",
        [dx.width.div_ceil(POSITION_LANES * each), tokens, 1],
        512,
        &[
            dx.address.into(),
            dpositions.address.into(),
            dclass.map(|dclass| dclass.address).into(),
            (samples as i32).into(),
            (tokens as i32).into(),
            (dx.width as i32).into(),
        ],
    )
}

pub(super) fn embedding(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (ids, table, positions) = (o.input(0), o.input(1), o.input(2));
    let (x, _) = o.result(0);
    o.issuer.launch(
        "embedding",
        o.issuer.grid(x.num_elements(), x.dtype),
        BLOCK,
        &[
            ids.address.into(),
            table.address.into(),
            positions.address.into(),
            x.address.into(),
            (x.rows as i64).into(),
            (positions.rows as i32).into(),
            (x.width as i32).into(),
        ],
    )
}

pub(super) fn embedding_grad(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dx, ids) = (o.input(0), o.input(1));
    assert!(dx.is_contiguous(), "tokens of a sample follow each other");
    assert!(
        o.num_inputs() == 3,
        "a GPU adds equal ids in a given order: `order_bt`"
    );
    let order = o.input(2);
    let [(dtable, table_mode), (dpositions, _)] = [0, 1].map(|index| o.result(index));
    assert_eq!(table_mode, Write::Accumulate, "gradients are added to");
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    let (count, partials) = (dx.rows, o.scratch());
    let chunks = count.div_ceil(EMBEDDING_CHUNK);
    let each = ACCESS / dx.dtype.bytes();
    o.issuer.launch(
        "embedding_grad",
        [chunks, dx.width.div_ceil(64 * each), 1],
        64,
        &[
            dx.address.into(),
            ids.address.into(),
            order.address.into(),
            dtable.address.into(),
            partials.into(),
            (count as i64).into(),
            (dx.width as i32).into(),
        ],
    )?;
    o.issuer.launch(
        "embedding_grad_finish",
        [chunks, dx.width.div_ceil(128), 1],
        512,
        &[
            ids.address.into(),
            order.address.into(),
            partials.into(),
            dtable.address.into(),
            (count as i64).into(),
            (dx.width as i32).into(),
        ],
    )?;
    positions_grad(o, dx, dpositions, None, [samples, tokens])
}

pub(super) fn gather_rows(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, index, (y, _)) = (o.input(0), o.input(1), o.result(0));
    assert!(x.is_contiguous(), "tokens of a sample follow each other");
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    o.issuer.launch(
        "gather_rows",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        &[
            x.address.into(),
            index.address.into(),
            y.address.into(),
            (samples as i32).into(),
            (tokens as i32).into(),
            (x.width as i32).into(),
            (y.stride as i64).into(),
        ],
    )
}

pub(super) fn scatter_rows(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dy, index, (dx, _)) = (o.input(0), o.input(1), o.result(0));
    assert!(dx.is_contiguous(), "tokens of a sample follow each other");
    o.issuer.launch(
        "scatter_rows",
        o.issuer.grid(dy.num_elements(), dy.dtype),
        BLOCK,
        &[
            dy.address.into(),
            index.address.into(),
            dx.address.into(),
            (dy.rows as i32).into(),
            ((dx.rows / dy.rows) as i32).into(),
            (dx.width as i32).into(),
            (dy.stride as i64).into(),
        ],
    )
}
