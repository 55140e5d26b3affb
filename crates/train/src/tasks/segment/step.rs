//! Graph of segmentation: the training step and the forward programs.
//!
//! Dice over the batch is coupled through sums: every micro-batch leaves one row of (TP, P, G) per picture and class, the loss
//! adds them over the whole effective batch, and the backward pass of each micro-batch starts from the gradients of its own rows.
//! A picture leaves only a few numbers.
//!
//! The forward program `segmenter` takes `segmenter/rows` and gives `segmenter/logits`, `[b, h, w, k]` in f32, before sigmoid or
//! softmax. Rows of other sizes have their own programs, such as `segmenter 96 x 64`: norms see the whole row, so padding a
//! picture to the size of a larger one would change its prediction.

use holdall_data::segmentation::RowShape;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::cast::Cast;
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::{DType, Graph, ValueId};
use holdall_models::unet;

use super::batch::{CLASS_WEIGHTS, ROWS};
use super::loss_terms::TermKind;
use super::{Coupling, SegmentTask};
use crate::engine::step_graph::StepWriter;

/// Name of the forward program.
pub const PROGRAM: &str = "segmenter";
/// Input of [`PROGRAM`].
pub const PROGRAM_ROWS: &str = "segmenter/rows";
/// Output of [`PROGRAM`].
pub const LOGITS: &str = "segmenter/logits";

/// Name of the sums that micro-batches leave for a head.
fn sums_name(level: usize) -> String {
    match level {
        0 => "overlap sums".to_owned(),
        _ => format!("overlap sums {}", 1 << level),
    }
}

pub(super) fn write_forward(task: &SegmentTask, step: &mut StepWriter<'_>) {
    let row = task.row;
    let rows = step.input(ROWS, &[row.row_bytes()], DType::U8);
    let pixels = pixels_of(row, step.graph, rows);
    let labels = [row.height, row.width];
    let labels = step.graph.picture_view(rows, row.mask().start, &labels);
    let kind = kind_of(task);
    let heads = unet::logits(step.graph, &task.model, pixels);
    let values = task.model.num_mask_values();
    let class_weights = step.graph.input(CLASS_WEIGHTS, &[values], DType::F32);
    let all_weights = step.sample_weights();
    let weights = step.micro_rows(all_weights);
    for (level, logits) in heads.into_iter().enumerate() {
        let labels = step.graph.every_pixel(labels, 1 << level);
        let mut sums = None;
        for (index, term) in task.terms.iter().enumerate() {
            let loss = task.place_of(level, index);
            match term.kind {
                TermKind::Pixels { focal } => {
                    let sum = step.separable_loss(loss);
                    step.graph.pixel_loss_into(
                        term.name,
                        logits,
                        labels,
                        class_weights,
                        weights,
                        sum,
                        kind,
                        focal,
                    );
                }
                TermKind::Overlap { alpha, beta, over } => {
                    let sums_nc = *sums.get_or_insert_with(|| {
                        let name = format!("{} of a micro-batch", sums_name(level));
                        step.graph.overlap_sums(&name, logits, labels, kind)
                    });
                    if term.is_coupled() && task.coupling == Coupling::EffectiveBatch {
                        continue;
                    }
                    let op = task.overlap_loss(alpha, beta, over);
                    let sum = step.separable_loss(loss);
                    step.graph
                        .overlap_loss_into(term.name, sums_nc, weights, sum, op);
                }
            }
        }
        let is_coupled = task.terms.iter().any(|term| term.is_coupled());
        if let (Some(sums), true) = (
            sums,
            is_coupled && task.coupling == Coupling::EffectiveBatch,
        ) {
            step.leave(&sums_name(level), sums);
        }
    }
}

pub(super) fn write_coupled_losses(task: &SegmentTask, step: &mut StepWriter<'_>) {
    let weights = step.sample_weights();
    for level in 0..task.model.num_heads() {
        for (index, term) in task.terms.iter().enumerate() {
            let TermKind::Overlap { alpha, beta, over } = term.kind else {
                continue;
            };
            if !term.is_coupled() {
                continue;
            }
            let sums = step.graph.endpoint(&sums_name(level));
            let sums = sums.expect("left by the forward pass");
            let op = task.overlap_loss(alpha, beta, over);
            let sum = step.coupled_loss(task.place_of(level, index));
            step.graph
                .overlap_loss_into(term.name, sums, weights, sum, op);
        }
    }
}

/// Name of the forward program for rows of this height and width.
pub(super) fn program(task: &SegmentTask, [height, width]: [usize; 2]) -> String {
    if [height, width] == [task.row.height, task.row.width] {
        return PROGRAM.to_owned();
    }
    format!("{PROGRAM} {width} x {height}")
}

/// Writes one forward program per size. They share one buffer for rows (the step's, if it has the same batch size) and one for
/// logits, so that another size costs no memory beyond its program.
pub(super) fn write_programs(task: &SegmentTask, graph: &mut Graph, batch: usize) {
    let row = task.row;
    let outputs = task.model.num_outputs();
    let rows = match graph.endpoint(ROWS) {
        Some(value) if graph.shape(value).dims()[0] == batch => value,
        _ => graph.input("evaluated rows", &[batch, row.row_bytes()], DType::U8),
    };
    let rows = graph.reshape(rows, &[batch * row.row_bytes()]);
    let logits = [batch * row.num_pixels() * outputs];
    let logits = graph.output("evaluated logits", &logits);
    for &[height, width] in &task.sizes {
        let row = RowShape {
            height,
            width,
            ..row
        };
        graph.forward_program(&program(task, [height, width]), |graph| {
            let rows = graph.rows(rows, 0, batch * row.row_bytes());
            let rows = graph.reshape(rows, &[batch, row.row_bytes()]);
            graph.name_endpoint("rows", rows);
            let logits = graph.rows(logits, 0, batch * row.num_pixels() * outputs);
            let logits = graph.reshape(logits, &[batch, height, width, outputs]);
            graph.name_endpoint("logits", logits);
            let pixels = pixels_of(row, graph, rows);
            let own = unet::full_size_logits(graph, &task.model, pixels);
            match graph.dtype(own) {
                DType::F32 => graph.push_new(AddInto {}, vec![own], &[logits]),
                _ => graph.push_new(Cast {}, vec![own], &[logits]),
            };
        });
    }
}

fn pixels_of(row: RowShape, graph: &mut Graph, rows: ValueId) -> ValueId {
    let dims = [row.height, row.width, row.channels * row.depth.bytes()];
    graph.picture_view(rows, row.pixels().start, &dims)
}

fn kind_of(task: &SegmentTask) -> PixelLossKind {
    match task.model.num_outputs() {
        1 => PixelLossKind::Sigmoid,
        _ => PixelLossKind::Softmax,
    }
}
