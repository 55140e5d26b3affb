//! The contrastive loss in tiles: a product computes the dots of a tile, kernels fold them into maxima and sums, or turn them into
//! gradients. In f32, for any format of the activations.
//!
//! Legend: `i` image rows, `j` text rows.

use std::ops::Range;

use holdall_graph::Write;
use holdall_graph::ops::collective::Processes;
use holdall_graph::ops::contrastive::{Contrastive, ContrastiveGrad};

use super::super::demand::contrastive_tile;
use super::super::driver::Argument;
use super::super::product::{Factor, Product, ProductFormat};
use super::{Matrix, Operands, accumulates, rows_of_warps};
use crate::DeviceError;

const FLOAT: u64 = 4;

/// Tiles along the rows, cut at the borders of this process's rows: first row, number of rows, and whether this process owns them.
fn tiles(
    rows: usize,
    tile: usize,
    processes: Processes,
) -> impl Iterator<Item = ((usize, usize), bool)> {
    let own = processes.own(rows);
    let parts = [0..own.start, own.clone(), own.end..rows];
    let of_part = move |part: Range<usize>| {
        let (is_own, end) = (part == own, part.end);
        part.step_by(tile)
            .map(move |first| ((first, tile.min(end - first)), is_own))
    };
    parts.into_iter().flat_map(of_part)
}

/// Rows `first..first + count` of a matrix, as a factor.
fn rows_of(matrix: Matrix, first: usize, transposed: bool) -> Factor {
    Factor {
        address: matrix.address + (first * matrix.stride) as u64 * FLOAT,
        stride: matrix.stride,
        transposed,
    }
}

/// Computes the dots of a tile, at the start of the scratch.
fn dots(
    o: &Operands<'_, '_>,
    [image, text]: [Matrix; 2],
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
    tile: usize,
) -> Result<(), DeviceError> {
    o.product(&Product {
        rows,
        outputs: columns,
        inner: image.width,
        left: rows_of(image, i, false),
        right: rows_of(text, j, true),
        inputs: ProductFormat::F32,
        scale: 1.0,
        y: (o.scratch(), tile),
        output: ProductFormat::F32,
        bias: None,
        added: None,
    })
}

/// The first arguments of every kernel: position and size of a tile.
fn tile_arguments(
    o: &Operands<'_, '_>,
    tile: usize,
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
    weights: Matrix,
    logit_scale: Matrix,
) -> Vec<Argument> {
    let mut arguments = vec![o.scratch().into()];
    arguments.extend([tile, i, rows, j, columns].map(|size| Argument::from(size as i32)));
    arguments.extend([weights, logit_scale].map(|at| Argument::from(at.address)));
    arguments
}

/// Groups and shares of rows that are positives of each other; null without groups.
fn groups_and_shares(o: &Operands<'_, '_>, first: usize) -> [Argument; 2] {
    [first, first + 1].map(|index| {
        let address = (index < o.num_inputs()).then(|| o.input(index).address);
        Argument::from(address)
    })
}

pub(super) fn forward(op: &Contrastive, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let features = [o.input(0), o.input(1)];
    let (weights, logit_scale) = (o.input(2), o.input(3));
    let groups = groups_and_shares(o, 4);
    let (rows, processes) = (features[0].rows, op.processes);
    let tile = contrastive_tile(rows, op.tile);
    let vector = |index: usize| o.scratch() + (tile * tile + index * rows) as u64 * FLOAT;
    let [diagonal, row_peak, row_sum, column_peak, column_sum] = [0, 1, 2, 3, 4].map(vector);
    let issuer = o.issuer;
    issuer.launch(
        "contrastive_begin",
        [rows.div_ceil(256), 1, 1],
        256,
        arguments![row_peak, row_sum, column_peak, column_sum, rows as i32,],
    )?;
    for (along, own_rows) in tiles(rows, tile, processes) {
        for (across, own_columns) in tiles(rows, tile, processes) {
            if !own_rows && !own_columns {
                continue;
            }
            dots(o, features, along, across, tile)?;
            let place = tile_arguments(o, tile, along, across, weights, logit_scale);
            if own_rows {
                let mut arguments = place.clone();
                arguments.extend(groups);
                arguments.extend([row_peak, row_sum, diagonal].map(Argument::from));
                issuer.launch("contrastive_rows", rows_of_warps(along.1), 256, &arguments)?;
            }
            if own_columns {
                let mut arguments = place;
                arguments.extend([column_peak, column_sum].map(Argument::from));
                let grid = [across.1.div_ceil(32), 1, 1];
                issuer.launch("contrastive_columns", grid, 512, &arguments)?;
            }
        }
    }
    let (total, _) = o.result(0);
    let [row_lse, column_lse] = [1, 2].map(|index| o.result(index).0.address);
    issuer.launch(
        "contrastive_finish",
        [1, 1, 1],
        1024,
        arguments![
            row_peak,
            row_sum,
            column_peak,
            column_sum,
            diagonal,
            weights.address,
            row_lse,
            column_lse,
            total.address,
            processes.own(rows).start as i32,
            processes.own(rows).end as i32,
        ],
    )
}

/// Columns and rows of a block of `contrastive_grad_tile`.
const GRAD_BLOCK: [usize; 2] = [128, 8];

pub(super) fn backward(op: &ContrastiveGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let seed = o.input(0);
    let features = [o.input(1), o.input(2)];
    let (weights, logit_scale) = (o.input(3), o.input(4));
    let (row_lse, column_lse) = (o.input(5), o.input(6));
    let groups = groups_and_shares(o, 7);
    let [
        (dimage, image_mode),
        (dtext, text_mode),
        (dscale, scale_mode),
    ] = [0, 1, 2].map(|index| o.result(index));
    let (rows, processes) = (features[0].rows, op.processes);
    let tile = contrastive_tile(rows, op.tile);
    let partials = o.scratch() + (tile * tile) as u64 * FLOAT;
    let mut num_partials = 0;
    for (along, own_rows) in tiles(rows, tile, processes) {
        for (across, own_columns) in tiles(rows, tile, processes) {
            if !own_rows && !own_columns {
                continue;
            }
            dots(o, features, along, across, tile)?;
            let [x, y] = [
                across.1.div_ceil(GRAD_BLOCK[0]),
                along.1.div_ceil(GRAD_BLOCK[1]),
            ];
            let mut arguments = tile_arguments(o, tile, along, across, weights, logit_scale);
            arguments.extend(groups);
            arguments.extend([row_lse, column_lse, seed].map(|at| Argument::from(at.address)));
            arguments.push((partials + num_partials as u64 * FLOAT).into());
            o.issuer
                .launch("contrastive_grad_tile", [x, y, 1], 256, &arguments)?;
            // Pairs of other processes' rows are counted by those processes: the next tile overwrites these partial sums.
            if own_rows {
                num_partials += x * y;
            }
            let gradients = |transposed| Factor {
                address: o.scratch(),
                stride: tile,
                transposed,
            };
            if own_rows {
                let dimage = (dimage, image_mode);
                add_gradient(o, dimage, along, gradients(false), features[1], across)?;
            }
            if own_columns {
                let dtext = (dtext, text_mode);
                add_gradient(o, dtext, across, gradients(true), features[0], along)?;
            }
        }
    }
    o.issuer.launch(
        "contrastive_grad_scale",
        [1, 1, 1],
        1024,
        arguments![
            partials,
            num_partials as i32,
            dscale.address,
            accumulates(Some(scale_mode)),
        ],
    )
}

/// Adds a tile's part to the gradient of one side's rows: the tile times the other side's rows. The first tile of a row or column replaces.
fn add_gradient(
    o: &Operands<'_, '_>,
    (to, mode): (Matrix, Write),
    (start, count): (usize, usize),
    tile: Factor,
    other: Matrix,
    (first, inner): (usize, usize),
) -> Result<(), DeviceError> {
    let y = (to.address + (start * to.stride) as u64 * FLOAT, to.stride);
    let adds = mode == Write::Accumulate || first != 0;
    o.product(&Product {
        rows: count,
        outputs: to.width,
        inner,
        left: tile,
        right: rows_of(other, first, false),
        inputs: ProductFormat::F32,
        scale: 1.0,
        y,
        output: ProductFormat::F32,
        bias: None,
        added: adds.then_some(y),
    })
}
