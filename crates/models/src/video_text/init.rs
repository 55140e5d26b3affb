//! Random initialisation of a video-text model: towers like CLIP's or BERT's, and all other parts with matching distributions.

use super::config::{TextTower, VideoTextConfig};
use super::pooling::{ATTENTION_POOL, TEMPORAL_POSITIONS};
use super::{ARCHITECTURE, FRAME_POSITIONS, FRAME_PROJECTION, VIDEO_EMBEDDING};
use crate::error::ModelError;
use crate::init::Start;
use crate::transformer::start_of_norm;
use crate::{bert, clip, decoder, vit};

/// Standard deviation of frame positions and video embeddings.
fn place_spread(config: &VideoTextConfig) -> f64 {
    config.position_spread.unwrap_or(0.02)
}

const PATCH_POSITIONS: &str = "vision_model.embeddings.position_embedding.weight";

/// Fills a parameter of a model with random weights, by its name.
pub fn fill(
    config: &VideoTextConfig,
    seed: u64,
    name: &str,
    values: &mut [f32],
) -> Result<(), ModelError> {
    let start = start_of(config, name).ok_or_else(|| ModelError::UnknownParameter {
        model: ARCHITECTURE,
        name: name.into(),
    })?;
    start.fill(seed, name, values);
    Ok(())
}

/// Initial distribution of a parameter; `None` for an unknown name.
pub(crate) fn start_of(config: &VideoTextConfig, name: &str) -> Option<Start> {
    let scale = |width: usize| Start::Normal((width as f64).powf(-0.5));
    match name {
        "logit_scale" => return Some(Start::Constant(config.logit_scale_init as f32)),
        "visual_projection.weight" => return Some(scale(config.vision.hidden_size)),
        VIDEO_EMBEDDING if config.num_videos > 1 => {
            return Some(Start::Normal(place_spread(config)));
        }
        PATCH_POSITIONS if config.position_spread.is_some() => {
            return Some(Start::Normal(place_spread(config)));
        }
        FRAME_POSITIONS if config.frame_positions && config.decoder.is_some() => {
            return Some(Start::Normal(place_spread(config)));
        }
        TEMPORAL_POSITIONS if config.temporal_blocks().is_some() => {
            return Some(Start::Normal(place_spread(config)));
        }
        _ => {}
    }
    if let Some(part) = name.strip_prefix(ATTENTION_POOL) {
        return start_of_attention_pool(config, part.strip_prefix('.')?);
    }
    if let Some(kind) = name.strip_prefix(FRAME_PROJECTION) {
        config.decoder.as_ref()?;
        return match kind {
            ".weight" => Some(scale(config.vision.hidden_size)),
            ".bias" => Some(Start::Constant(0.0)),
            _ => None,
        };
    }
    let of_text = || match &config.text {
        TextTower::Clip(text) => clip::init::start_of_text(text, name),
        TextTower::Bert(text) if name == "text_projection.weight" => Some(scale(text.hidden_size)),
        TextTower::Bert(text) => bert::init::start_of(text, name),
    };
    of_text()
        .or_else(|| vit::init::start_of(&config.backbone(), name))
        .or_else(|| config.temporal_blocks()?.start_of(name, 1.0))
        .or_else(|| decoder::init::start_of(config.decoder.as_ref()?, name))
}

/// Queries differ from the start: with small ones all would attend alike, and learn alike.
fn start_of_attention_pool(config: &VideoTextConfig, part: &str) -> Option<Start> {
    if !matches!(config.pooling, super::config::Pooling::Attention { .. }) {
        return None;
    }
    match part {
        "queries" => return Some(Start::Normal(1.0)),
        "positions" => return Some(Start::Normal(place_spread(config))),
        _ => {}
    }
    if let Some(kind) = part.strip_prefix("norm") {
        return start_of_norm(kind);
    }
    let (module, kind) = part.split_once('.')?;
    if !["q_proj", "k_proj", "v_proj", "out_proj"].contains(&module) {
        return None;
    }
    match kind {
        "weight" => Some(Start::Normal((config.vision.hidden_size as f64).powf(-0.5))),
        "bias" => Some(Start::Constant(0.0)),
        _ => None,
    }
}
