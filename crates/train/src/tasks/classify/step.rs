//! Graph of classification: the training step and the forward program.

use holdall_data::samples::TargetKind;
use holdall_graph::ops::add::AddInto;
use holdall_graph::{DType, Graph, ValueId};
use holdall_models::vit::{self, Regularization};

use super::batch::{MIX, PARTNER_PIXELS, PIXELS};
use super::{ClassifyTask, Head};
use crate::engine::step_graph::StepWriter;

/// Name of the forward program; its output has shape `[b, outputs]`.
pub(super) const PROGRAM: &str = "classifier";
pub(super) const PROGRAM_PIXELS: &str = "classifier/pixels";
pub(super) const LOGITS: &str = "classifier/logits";

pub(super) fn write_forward(task: &ClassifyTask, step: &mut StepWriter<'_>) {
    let (backbone, size) = (&task.model.backbone, task.image_size());
    let picture = [size, size, 3];
    let mut pixels = step.input(PIXELS, &picture, task.pixels);
    if task.mixing.is_on() {
        let partner = step.input(PARTNER_PIXELS, &picture, DType::U8);
        let mix = step.input(MIX, &[5], DType::F32);
        let normalization = backbone.vision.normalization;
        pixels = step
            .graph
            .mix_pictures("mixed", pixels, partner, mix, normalization);
    }
    let masks = task.has_dropout().then(|| step.mask_inputs());
    let regularization = masks.map(|[sample_ids_b, stream_2]| Regularization {
        dropout: task.dropout,
        stochastic_depth: task.stochastic_depth,
        sample_ids_b,
        stream_2,
    });
    let features = vit::features(step.graph, backbone, pixels, regularization.as_ref());
    let logits = vit::classifier(step.graph, features, task.num_outputs());
    write_head_losses(step, logits, &task.heads, 0, task.mixing.is_on());
}

/// Splits the outputs of a linear layer among heads and adds their losses, starting with loss number `first_loss`.
pub(in crate::tasks) fn write_head_losses(
    step: &mut StepWriter<'_>,
    logits: ValueId,
    heads: &[Head],
    first_loss: usize,
    is_mixed: bool,
) {
    let mut first = 0;
    for (index, head) in heads.iter().enumerate() {
        let width = head.num_outputs();
        let own = step.graph.columns(logits, first, width);
        first += width;
        let sum = step.separable_loss(first_loss + index);
        let (name, names) = (&head.name, &head.endpoints);
        if let TargetKind::Class { .. } = head.kind {
            let smoothing = head.smoothing;
            let class_weights = head
                .weighs_smoothing()
                .then(|| step.graph.input(&names.class_weights, &[width], DType::F32));
            let mut add = |labels: &str, weights: &str| {
                let labels = step.rows_of_own_input(labels, &[], DType::I64);
                let weights = step.rows_of_own_input(weights, &[], DType::F32);
                match class_weights {
                    None => step
                        .graph
                        .cross_entropy_into(name, own, labels, weights, sum, smoothing),
                    Some(class_weights) => step.graph.weighted_cross_entropy_into(
                        name,
                        own,
                        labels,
                        weights,
                        class_weights,
                        sum,
                        smoothing,
                    ),
                }
            };
            add(&names.labels, &names.weights);
            // Cross-entropy is linear in its target, so a mixed target is two losses.
            if is_mixed {
                add(&names.partner_labels, &names.partner_weights);
            }
            continue;
        }
        let [targets, weights] = [&names.targets, &names.weights]
            .map(|name| step.rows_of_own_input(name, &[width], DType::F32));
        match head.kind {
            TargetKind::Number { .. } => {
                step.graph
                    .squared_error_into(name, own, targets, weights, sum);
            }
            TargetKind::Class { .. } | TargetKind::Classes { .. } => {
                step.graph
                    .binary_cross_entropy_into(name, own, targets, weights, sum);
            }
        }
    }
}

/// Writes the forward program. If the step's picture input has the same batch size, the program shares it.
pub(super) fn write_program(task: &ClassifyTask, graph: &mut Graph, batch: usize) {
    let size = task.image_size();
    let pixels = match graph.endpoint(PIXELS) {
        Some(value) if graph.shape(value).dims()[0] == batch => value,
        _ => graph.input("evaluated pixels", &[batch, size, size, 3], task.pixels),
    };
    graph.forward_program(PROGRAM, |graph| {
        graph.name_endpoint("pixels", pixels);
        let logits = graph.output("logits", &[batch, task.num_outputs()]);
        let features = vit::features(graph, &task.model.backbone, pixels, None);
        let own = vit::classifier(graph, features, task.num_outputs());
        graph.push_new(AddInto {}, vec![own], &[logits]);
    });
}
