//! From a config to a video-text run before its plan: clips, tokens, the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdall_data::samples::Samples;
use holdall_data::target::{Target, TargetKind};
use holdall_data::text::TextEncoder;
use holdall_files::{counted, thousands};
use holdall_models::config::TextPooling;
use holdall_models::video_text::config::TextTower;
use regex::Regex;

use super::opened_model::{OpenedModel, StartingPoint, open_model};
use super::super::classify::{self, Head};
use super::{TokenizedTexts, VideoTextData, VideoTextTask};
use crate::config::{RunConfig, SameText};
use crate::error::TrainError;
use crate::prepare::Prepared;
use crate::setup::{Setup, resolve_budget, room_to_open};
use crate::site::Site;

/// What the caption loss counts where the config does not say.
const USUAL_CAPTION_WEIGHT: f64 = 0.5;

/// Names of losses that heads may not have.
const RESERVED_NAMES: [&str; 2] = ["contrastive", "caption"];

/// Opens the model without data: `labels` and `tokens` are what the config says.
pub fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let opened = open_model(config)?;
    let target = config.labels.map(|labels| Target {
        name: "label".to_owned(),
        kind: TargetKind::Class {
            names: (0..labels).map(|label| format!("label {label}")).collect(),
        },
    });
    let mut heads: Vec<Head> = target.iter().map(Head::new).collect();
    weigh_label(config, &mut heads);
    let tokens = config.tokens.unwrap_or(opened.model.max_text_tokens());
    let mut notes = Vec::new();
    let processor = opened.processor.clone();
    let task = task(config, site, opened, heads, tokens, &mut notes)?;
    Setup::new(config, site, Arc::new(task), processor, notes)
}

/// A head for `label` is weighed as CLIP's; others are under `losses: targets:`.
fn weigh_label(config: &RunConfig, heads: &mut [Head]) {
    for head in heads.iter_mut().filter(|head| head.name == "label") {
        if !config.losses.targets.contains_key("label") {
            head.weight = config.losses.label;
        }
    }
}

/// What is computed.
fn task(
    config: &RunConfig,
    site: Site<'_>,
    opened: OpenedModel,
    heads: Vec<Head>,
    tokens: usize,
    notes: &mut Vec<String>,
) -> Result<VideoTextTask, TrainError> {
    let OpenedModel {
        model,
        weights,
        processor,
        ..
    } = opened;
    if config.data.mixing.is_on() || config.train.stochastic_depth > 0.0 {
        return Err(TrainError::Config(
            "task video-text: expected neither `data.mixing` nor `train.stochastic_depth`: a text belongs to one clip, and towers \
             are trained whole\nhint: leave them out"
                .to_owned(),
        ));
    }
    let positions = model.max_text_tokens();
    if tokens == 0 || tokens > positions {
        return Err(TrainError::Config(format!(
            "tokens: {tokens}, expected 1 to {positions}, the text tower's positions\nhint: leave `tokens` out"
        )));
    }
    if !weights.is_random() {
        notes.push(processor.describe());
    }
    let dropout = dropout(config, &model.text, notes)?;
    Ok(VideoTextTask {
        num_text_tokens: tokens,
        contrastive_weight: config.losses.contrastive,
        caption_weight: config.losses.caption.unwrap_or(USUAL_CAPTION_WEIGHT),
        caption_smoothing: config.losses.caption_smoothing,
        same_text: config.video_text.same_text,
        sorted_ids: site.wants_sorted_ids(),
        dropout,
        seed: config.seed,
        generation: config.generation.clone(),
        evaluation: config.evaluation.clone(),
        weights: Some(Arc::new(weights)),
        ..VideoTextTask::new(model, heads)
    })
}

/// What a BERT folder asks for, or the config says.
fn dropout(
    config: &RunConfig,
    text: &TextTower,
    notes: &mut Vec<String>,
) -> Result<f64, TrainError> {
    let asked = config.train.dropout;
    match text {
        TextTower::Clip(_) if asked > 0.0 => Err(TrainError::Config(
            "train.dropout: expected none beside CLIP's text tower, which is trained without\n\
             hint: leave it out; a BERT (`video_text: {text_model: FOLDER}`) has what its folder asks for"
                .to_owned(),
        )),
        TextTower::Clip(_) => Ok(0.0),
        TextTower::Bert(bert) => {
            let dropout = match asked > 0.0 {
                true => asked,
                false => bert.hidden_dropout,
            };
            if bert.attention_dropout > 0.0 {
                notes.push(format!(
                    "Dropout of attention: not applied (the text model's folder asks for {})",
                    bert.attention_dropout
                ));
            }
            if dropout > 0.0 {
                notes.push(format!("Dropout of the text tower: {dropout}"));
            }
            Ok(dropout)
        }
    }
}

/// Reads the data, opens the model, finds or trains the tokenizers.
pub fn prepare(_config: &RunConfig, _site: Site<'_>) -> Result<Prepared, TrainError> {
    Err(TrainError::Config("no clips yet".to_owned()))
}
