//! Pictures to patches, class token, embeddings, rows of tables, and one token per sample: a token by its index, or the mean of several
//! tokens.

use holdall_graph::ops::mix_pictures::MixPictures;
use holdall_graph::ops::patchify::{Normalization, Patchify};
use holdall_graph::{DType, Write};

use super::super::demand::EMBEDDING_CHUNK;
use super::super::driver::Argument;
use super::linear::finish_rows;
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
    arguments.extend(scale_and_shift(op.normalization));
    o.issuer.launch("patchify_u8", grid, BLOCK, &arguments)
}

/// Factor and shift of `(byte / 255 - mean) / std`, channel by channel.
fn scale_and_shift(normalization: Normalization) -> impl Iterator<Item = Argument> {
    let Normalization { mean, std } = normalization;
    let scale = std.map(|std| 1.0 / (255.0 * std));
    let shift: [f32; 3] = std::array::from_fn(|channel| -mean[channel] / std[channel]);
    scale.into_iter().chain(shift).map(Argument::from)
}

pub(super) fn mix_pictures(op: &MixPictures, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let shape = o.input_place(0).shape;
    let operands = [o.input(0), o.input(1), o.input(2), o.result(0).0];
    assert!(
        operands.iter().all(Matrix::is_contiguous),
        "pictures follow each other"
    );
    let mut arguments: Vec<Argument> = operands.map(|matrix| matrix.address.into()).to_vec();
    let sizes = shape.dims()[..3].iter();
    arguments.extend(sizes.map(|&size| Argument::from(size as i32)));
    arguments.extend(scale_and_shift(op.normalization));
    let grid = [(shape.num_elements() / 3).div_ceil(BLOCK).max(1), 1, 1];
    o.issuer.launch("mix_pictures", grid, BLOCK, &arguments)
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
        arguments![
            patches.address,
            class.address,
            positions.address,
            x.address,
            (x.rows / tokens) as i32,
            tokens as i32,
            (class.num_elements() / x.width) as i32,
            x.width as i32,
        ],
    )
}

pub(super) fn class_token_grad(num_prefix: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let dx = o.input(0);
    assert!(dx.is_contiguous(), "tokens of a sample follow each other");
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    if let Some((dpatches, mode)) = o.output(0) {
        o.issuer.launch(
            "class_token_grad",
            o.issuer.grid(dpatches.num_elements(), dx.dtype),
            BLOCK,
            arguments![
                dx.address,
                dpatches.address,
                samples as i32,
                tokens as i32,
                num_prefix as i32,
                dx.width as i32,
                accumulates(Some(mode)),
            ],
        )?;
    }
    let (Some((dclass, _)), Some((dpositions, _))) = (o.output(1), o.output(2)) else {
        return Ok(());
    };
    let class = Some((dclass, num_prefix));
    let to = (dpositions.address, Write::Accumulate);
    positions_grad(o, dx, to, class, [samples, tokens])
}

/// Accesses side by side in a block of `positions_grad`.
const POSITION_LANES: usize = 8;

/// Sums over samples, written to f32 rows.
fn positions_grad(
    o: &Operands<'_, '_>,
    dx: Matrix,
    (dpositions, mode): (u64, Write),
    class: Option<(Matrix, usize)>,
    [samples, tokens]: [usize; 2],
) -> Result<(), DeviceError> {
    let each = ACCESS / dx.dtype.bytes();
    o.issuer.launch(
        "positions_grad",
        [dx.width.div_ceil(POSITION_LANES * each), tokens, 1],
        512,
        arguments![
            dx.address,
            dpositions,
            class.map(|(dclass, _)| dclass.address),
            samples as i32,
            tokens as i32,
            class.map_or(0, |(_, num_prefix)| num_prefix) as i32,
            dx.width as i32,
            accumulates(Some(mode)),
        ],
    )
}

pub(super) fn add_positions(repeat: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, table, (y, _)) = (o.input(0), o.input(1), o.result(0));
    let (_, tokens) = samples_and_tokens(o.input_place(0).shape);
    assert!(
        table.is_contiguous() && y.is_contiguous(),
        "rows follow each other"
    );
    assert_eq!(table.dtype, DType::F32, "tables are parameters");
    o.issuer.launch(
        "add_positions",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        arguments![
            x.address,
            table.address,
            y.address,
            y.rows as i64,
            tokens as i32,
            repeat as i32,
            y.width as i32,
            x.stride as i64,
        ],
    )
}

pub(super) fn repeat(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (table, (y, _)) = (o.input(0), o.result(0));
    assert!(
        table.is_contiguous() && y.is_contiguous(),
        "rows follow each other"
    );
    assert_eq!(table.dtype, DType::F32, "tables are parameters");
    o.issuer.launch(
        "repeat_table",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        arguments![
            table.address,
            y.address,
            y.rows as i64,
            table.rows as i32,
            y.width as i32,
        ],
    )
}

/// The gradient of a table whose rows are shared by `repeat` tokens: sums over samples for every token, then over the tokens of a row.
pub(super) fn table_grad(repeat: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dy, (dtable, mode)) = (o.input(0), o.result(0));
    assert!(
        dy.is_contiguous() && dtable.is_contiguous(),
        "rows follow each other"
    );
    assert_eq!(
        (dtable.dtype, mode),
        (DType::F32, Write::Accumulate),
        "gradients of parameters are added to"
    );
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    if repeat == 1 {
        return positions_grad(o, dy, (dtable.address, mode), None, [samples, tokens]);
    }
    let sums = o.scratch();
    let to = (sums, Write::Overwrite);
    positions_grad(o, dy, to, None, [samples, tokens])?;
    finish_rows(o, sums, repeat, dtable, [0, 0])
}

pub(super) fn embedding(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (ids, table, positions) = (o.input(0), o.input(1), o.input(2));
    let (x, _) = o.result(0);
    o.issuer.launch(
        "embedding",
        o.issuer.grid(x.num_elements(), x.dtype),
        BLOCK,
        arguments![
            ids.address,
            table.address,
            positions.address,
            x.address,
            x.rows as i64,
            positions.rows as i32,
            x.width as i32,
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
        arguments![
            dx.address,
            ids.address,
            order.address,
            dtable.address,
            partials,
            count as i64,
            dx.width as i32,
        ],
    )?;
    o.issuer.launch(
        "embedding_grad_finish",
        [chunks, dx.width.div_ceil(128), 1],
        512,
        arguments![
            ids.address,
            order.address,
            partials,
            dtable.address,
            count as i64,
            dx.width as i32,
        ],
    )?;
    let to = (dpositions.address, Write::Accumulate);
    positions_grad(o, dx, to, None, [samples, tokens])
}

pub(super) fn gather_rows(o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, index, (y, _)) = (o.input(0), o.input(1), o.result(0));
    assert!(x.is_contiguous(), "tokens of a sample follow each other");
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    o.issuer.launch(
        "gather_rows",
        o.issuer.grid(y.num_elements(), y.dtype),
        BLOCK,
        arguments![
            x.address,
            index.address,
            y.address,
            samples as i32,
            tokens as i32,
            x.width as i32,
            y.stride as i64,
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
        arguments![
            dy.address,
            index.address,
            dx.address,
            dy.rows as i32,
            (dx.rows / dy.rows) as i32,
            dx.width as i32,
            dy.stride as i64,
        ],
    )
}

pub(super) fn mean_tokens(first: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (x, (y, _)) = (o.input(0), o.result(0));
    let (samples, tokens) = samples_and_tokens(o.input_place(0).shape);
    let lengths = (o.num_inputs() > 1).then(|| o.input(1).address);
    let mut arguments = vec![x.address.into(), lengths.into(), y.address.into()];
    let sizes = [samples, tokens, first, x.width];
    arguments.extend(sizes.map(|size| Argument::from(size as i32)));
    arguments.extend([x.stride, y.stride].map(|stride| Argument::from(stride as i64)));
    let grid = o.issuer.grid(y.num_elements(), y.dtype);
    o.issuer.launch("mean_tokens", grid, BLOCK, &arguments)
}

pub(super) fn mean_tokens_grad(first: usize, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (dy, (dx, mode)) = (o.input(0), o.result(0));
    let lengths = (o.num_inputs() > 1).then(|| o.input(1).address);
    let mut arguments = vec![dy.address.into(), lengths.into(), dx.address.into()];
    let sizes = [dy.rows, dx.rows / dy.rows, first, dx.width];
    arguments.extend(sizes.map(|size| Argument::from(size as i32)));
    arguments.extend([dy.stride, dx.stride].map(|stride| Argument::from(stride as i64)));
    arguments.push(accumulates(Some(mode)).into());
    let grid = o.issuer.grid(dx.num_elements(), dx.dtype);
    o.issuer.launch("mean_tokens_grad", grid, BLOCK, &arguments)
}
