//! Graph of CLIP's training step.

use holdall_graph::{DType, Decay};
use holdall_models::clip::{self, ClipInputs};

use super::batch::{END, IDS, LABEL_WEIGHTS, LABELS, LENGTHS, ORDER, PIXELS};
use super::{CONTRASTIVE, ClipTask, LABEL};
use crate::engine::step_graph::StepWriter;

/// Picture and caption features of the whole effective batch.
pub(super) const FEATURES: [&str; 2] = ["image features", "text features"];

pub(super) fn write_forward(task: &ClipTask, step: &mut StepWriter<'_>) {
    let (model, batch) = (&task.model, step.batch);
    let size = model.vision.image_size;
    let inputs = ClipInputs {
        pixels: step.input(PIXELS, &[size, size, 3], task.pixels),
        ids: step.input(IDS, &[task.num_tokens], DType::I64),
        end: step.input(END, &[], DType::I64),
        lengths: step.input(LENGTHS, &[], DType::I64),
        order: task
            .sorted_ids
            .then(|| step.input(ORDER, &[task.num_tokens], DType::I64)),
    };
    let dims = [batch, model.projection_dim];
    let features = ["image", "text"].map(|name| step.graph.statistic(name, &dims));
    let [image, text] = features;
    clip::vision(step.graph, model, inputs.pixels, image);
    clip::text(step.graph, model, &inputs.text(), text);
    for (name, own) in FEATURES.into_iter().zip(features) {
        step.leave(name, own);
    }
    let heads = clip::heads(step.graph, model, task.num_labels);
    if let Some([weight, bias]) = heads.label {
        let logits = step.graph.linear("head", image, weight, Some(bias), None);
        let labels = step.rows_of_own_input(LABELS, &[], DType::I64);
        let weights = step.rows_of_own_input(LABEL_WEIGHTS, &[], DType::F32);
        let sum = step.separable_loss(LABEL);
        step.graph
            .cross_entropy_into("head", logits, labels, weights, sum, task.label_smoothing);
    }
}

pub(super) fn write_coupled_losses(task: &ClipTask, step: &mut StepWriter<'_>) {
    let features = FEATURES.map(|name| {
        let value = step.graph.endpoint(name);
        value.expect("left by the forward pass")
    });
    let weights = step.sample_weights();
    // The forward pass declares the same parameter; the name identifies its storage.
    let logit_scale = step.graph.parameter("logit_scale", &[], Decay::No);
    let sum = step.coupled_loss(CONTRASTIVE);
    let tile = task.contrastive_tile;
    step.graph
        .contrastive_into(features, weights, logit_scale, sum, tile);
}
