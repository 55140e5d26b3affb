//! Graph of the video-text training step: clips and texts to features, captions to their loss.

use holdall_graph::{DType, ValueId};
use holdall_models::video_text::config::TextTower;
use holdall_models::video_text::{self, CaptionInputs, FrameCounts, TextInputs};
use holdall_models::vit::{self, Regularization};

use super::super::classify;
use super::batch::{
    CAPTION_IDS, CAPTION_LABELS, CAPTION_ORDER, FRAME_COUNTS, FRAME_TOKEN_COUNTS, GROUPS, SHARES,
    TEXT_END, TEXT_IDS, TEXT_LENGTHS, TEXT_ORDER, TOKEN_WEIGHTS,
};
use super::{CAPTION, CONTRASTIVE, VideoTextTask};
use crate::config::SameText;
use crate::engine::step_graph::StepWriter;

/// Clip and text features of the whole effective batch.
pub(super) const FEATURES: [&str; 2] = ["video features", "text features"];

pub(super) fn write_forward(task: &VideoTextTask, step: &mut StepWriter<'_>) {
    let (model, batch) = (&task.model, step.batch);
    let clips = task.clips(|name, dims, dtype| step.input(name, dims, dtype));
    let counts = task.masks_frames.then(|| FrameCounts {
        frames: step.input(FRAME_COUNTS, &[], DType::I64),
        tokens: step.input(FRAME_TOKEN_COUNTS, &[], DType::I64),
    });
    let text_inputs = text_inputs(task, step);
    let masks = task.drops().then(|| step.mask_inputs());
    let regularization = masks.map(|[sample_ids_b, stream_2]| Regularization {
        dropout: task.dropout,
        stochastic_depth: 0.0,
        sample_ids_b,
        stream_2,
    });
    let captions = task.decoder().map(|_| caption_inputs(task, step));

    let dims = [batch, model.projection_dim];
    let features = ["video", "text"].map(|name| step.graph.statistic(name, &dims));
    let [video, text] = features;
    let frame_tokens = video_text::video(step.graph, model, clips, counts, video);
    let states = captions.as_ref().map(|captions| {
        let frame_tokens = frame_tokens.expect("a model with a decoder has frame tokens");
        let inputs = &captions.inputs;
        video_text::caption_states(step.graph, model, frame_tokens, counts, inputs)
    });
    let regularization = regularization.as_ref();
    video_text::text(step.graph, model, &text_inputs, text, regularization);
    for (name, own) in FEATURES.into_iter().zip(features) {
        step.leave(name, own);
    }
    // Declares the parameter; the coupled loss refers to it by name.
    video_text::logit_scale(step.graph);
    if let (Some(captions), Some(states)) = (captions, states) {
        write_caption_loss(task, step, &captions, states);
    }
    if !task.heads.is_empty() {
        let logits = vit::classifier(step.graph, video, task.num_outputs());
        classify::write_head_losses(step, logits, &task.heads, task.first_head(), false);
    }
}

fn text_inputs(task: &VideoTextTask, step: &mut StepWriter<'_>) -> TextInputs {
    let tokens = task.num_text_tokens.min(step.length.unwrap_or(usize::MAX));
    let is_clip = matches!(task.model.text, TextTower::Clip(_));
    TextInputs {
        ids: step.input(TEXT_IDS, &[tokens], DType::I64),
        lengths: step.input(TEXT_LENGTHS, &[], DType::I64),
        end: is_clip.then(|| step.input(TEXT_END, &[], DType::I64)),
        order: task
            .sorted_ids
            .then(|| step.input(TEXT_ORDER, &[tokens], DType::I64)),
    }
}

struct Captions {
    inputs: CaptionInputs,
    labels_bt: ValueId,
    token_weights_bt: ValueId,
}

fn caption_inputs(task: &VideoTextTask, step: &mut StepWriter<'_>) -> Captions {
    let tokens = task
        .num_caption_tokens
        .min(step.length.unwrap_or(usize::MAX));
    Captions {
        inputs: CaptionInputs {
            ids_bt: step.input(CAPTION_IDS, &[tokens], DType::I64),
            order_bt: task
                .sorted_ids
                .then(|| step.input(CAPTION_ORDER, &[tokens], DType::I64)),
        },
        labels_bt: step.input(CAPTION_LABELS, &[tokens], DType::I64),
        token_weights_bt: step.input(TOKEN_WEIGHTS, &[tokens], DType::F32),
    }
}

fn write_caption_loss(
    task: &VideoTextTask,
    step: &mut StepWriter<'_>,
    captions: &Captions,
    states_btd: ValueId,
) {
    let all_weights = step.sample_weights();
    let sample_weights = step.micro_rows(all_weights);
    let weight_vd = video_text::head_weight(step.graph, &task.model);
    let sum = step.separable_loss(CAPTION);
    step.graph.vocabulary_loss_into(
        "caption",
        states_btd,
        weight_vd,
        captions.labels_bt,
        captions.token_weights_bt,
        sample_weights,
        sum,
        task.loss.caption_smoothing,
        task.loss.vocabulary_tile,
    );
}

pub(super) fn write_coupled_losses(task: &VideoTextTask, step: &mut StepWriter<'_>) {
    let features = FEATURES.map(|name| {
        let value = step.graph.endpoint(name);
        value.expect("left by the forward pass")
    });
    let weights = step.sample_weights();
    let logit_scale = video_text::logit_scale(step.graph);
    let sum = step.coupled_loss(CONTRASTIVE);
    let tile = task.loss.contrastive_tile;
    match task.loss.same_text {
        SameText::Negative => {
            step.graph
                .contrastive_into(features, weights, logit_scale, sum, tile);
        }
        SameText::Positive => {
            let groups = step.whole_input(GROUPS, &[], DType::I64);
            let shares = step.whole_input(SHARES, &[], DType::F32);
            step.graph.contrastive_groups_into(
                features,
                weights,
                groups,
                shares,
                logit_scale,
                sum,
                tile,
            );
        }
    }
}
