//! The last product of a language model with its cross-entropy, and the most likely tokens.
//!
//! A product computes the logits of a tile of rows in scratch, in f32. A kernel folds them into the rows' losses, or overwrites them with
//! gradients in the format of `x`; two more products compute `dx` and `dweight` from the gradients.
//!
//! Legend: `n` rows (tokens of all samples), `v` vocabulary, `d` width.

use holdall_graph::ops::top_tokens::TopTokens;
use holdall_graph::ops::vocabulary_loss::{VocabularyLoss, VocabularyLossGrad};
use holdall_graph::{DType, Write};

use super::super::demand::VocabularyTiles;
use super::super::driver::Argument;
use super::super::product::{Factor, Product};
use super::losses::sum_rows;
use super::{Matrix, Operands};
use crate::DeviceError;

const FLOAT: u64 = 4;

/// Threads of the kernels; a block per row.
const ROW_THREADS: usize = 512;
const TOP_THREADS: usize = 1024;

/// Inputs of both passes; `first` is the index of `x` among the inputs.
struct Head {
    x_nd: Matrix,
    weight_vd: Matrix,
    targets: Vec<Argument>,
    tiles: VocabularyTiles,
}

impl Head {
    fn new(first: usize, tile: usize, o: &Operands<'_, '_>) -> Head {
        let (x_nd, weight_vd) = (o.input(first), o.input(first + 1));
        let [labels, token_weights, sample_weights] =
            [2, 3, 4].map(|index| o.moving(first + index));
        let all = [labels, token_weights, sample_weights];
        let mut targets: Vec<Argument> = all.map(|matrix| matrix.address.into()).into();
        targets.push(o.issuer.tables.micro().into());
        targets.extend(all.map(|matrix| Argument::from(matrix.micro as i64)));
        let samples = sample_weights.num_elements();
        targets.push((x_nd.rows.div_ceil(samples.max(1)).max(1) as i32).into());
        Head {
            x_nd,
            weight_vd,
            targets,
            tiles: VocabularyTiles::new(x_nd.rows, weight_vd.rows, tile),
        }
    }

    /// Rows of `x`, as a factor.
    fn rows_of_x(&self, first: usize) -> Factor {
        let x = self.x_nd;
        Factor {
            address: x.address + (first * x.stride * x.dtype.bytes()) as u64,
            stride: x.stride,
            transposed: false,
        }
    }

    /// Computes the logits of a tile, at the start of the scratch.
    fn logits(
        &self,
        o: &Operands<'_, '_>,
        (first, rows): (usize, usize),
    ) -> Result<(), DeviceError> {
        o.product(&Product {
            rows,
            outputs: self.weight_vd.rows,
            inner: self.x_nd.width,
            left: self.rows_of_x(first),
            right: self.weight_vd.factor(true),
            inputs: o.issuer.format(self.x_nd.dtype),
            scale: 1.0,
            y: (o.scratch(), self.tiles.pitch),
            output: o.issuer.format(DType::F32),
            bias: None,
            added: None,
        })
    }

    /// Launches a kernel on a tile of logits.
    fn launch(
        &self,
        name: &'static str,
        o: &Operands<'_, '_>,
        (first, rows): (usize, usize),
        smoothing: f64,
        last: [Option<u64>; 2],
    ) -> Result<(), DeviceError> {
        let mut arguments: Vec<Argument> = vec![
            o.scratch().into(),
            (self.tiles.pitch as i64).into(),
            (first as i32).into(),
            (self.weight_vd.rows as i32).into(),
        ];
        arguments.extend(&self.targets);
        arguments.push((smoothing as f32).into());
        arguments.extend(last.map(Argument::from));
        o.issuer.launch(name, [rows, 1, 1], ROW_THREADS, &arguments)
    }
}

pub(super) fn loss(op: &VocabularyLoss, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let head = Head::new(0, op.tile, o);
    let losses = o.scratch() + (head.tiles.rows * head.tiles.pitch) as u64 * FLOAT;
    let lse = o.output_address(1);
    for tile in head.tiles.iter() {
        head.logits(o, tile)?;
        let last = [lse, Some(losses)];
        head.launch("vocabulary_loss", o, tile, op.smoothing, last)?;
    }
    sum_rows(o, losses, head.x_nd.rows)
}

pub(super) fn loss_grad(op: &VocabularyLossGrad, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let seed = o.input(0);
    let head = Head::new(1, op.tile, o);
    let lse = o.input(6);
    let dx = op.x.then(|| o.result(0));
    let dweight = op.weight.then(|| o.result(usize::from(op.x)));
    let (x, weight) = (head.x_nd, head.weight_vd);
    let inputs = o.issuer.format(x.dtype);
    for tile in head.tiles.iter() {
        let (first, rows) = tile;
        head.logits(o, tile)?;
        let last = [Some(lse.address), Some(seed.address)];
        head.launch("vocabulary_loss_grad", o, tile, op.smoothing, last)?;
        let gradients = |transposed| Factor {
            address: o.scratch(),
            stride: head.tiles.pitch * FLOAT as usize / x.dtype.bytes(),
            transposed,
        };
        if let Some((dx, mode)) = dx {
            let offset = first * dx.stride * dx.dtype.bytes();
            let y = (dx.address + offset as u64, dx.stride);
            o.product(&Product {
                rows,
                outputs: x.width,
                inner: weight.rows,
                left: gradients(false),
                right: weight.factor(false),
                inputs,
                scale: 1.0,
                y,
                output: o.issuer.format(dx.dtype),
                bias: None,
                added: (mode == Write::Accumulate).then_some(y),
            })?;
        }
        if let Some((dweight, mode)) = dweight {
            // The first tile may replace, later tiles add.
            let adds = mode == Write::Accumulate || first > 0;
            o.product(&Product {
                rows: weight.rows,
                outputs: x.width,
                inner: rows,
                left: gradients(true),
                right: head.rows_of_x(first),
                inputs,
                scale: 1.0,
                y: dweight.result(),
                output: o.issuer.format(dweight.dtype),
                bias: None,
                added: adds.then(|| dweight.result()),
            })?;
        }
    }
    Ok(())
}

pub(super) fn top_tokens(op: &TopTokens, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
    let (logits, banned) = (o.input(0), o.input(1));
    let [values, ids, lse] = [0, 1, 2].map(|index| o.result(index).0);
    for matrix in [banned, values, ids, lse] {
        assert!(matrix.is_contiguous(), "rows follow each other");
    }
    assert_eq!(logits.dtype, DType::F32, "logits in full");
    o.issuer.launch(
        "top_tokens",
        [logits.rows, 1, 1],
        TOP_THREADS,
        arguments![
            logits.address,
            banned.address,
            values.address,
            ids.address,
            lse.address,
            logits.width as i32,
            banned.width as i32,
            op.count as i32,
            logits.stride as i64,
        ],
    )
}
