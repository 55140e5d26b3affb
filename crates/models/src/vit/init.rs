//! Random initialisation of vision transformers, with OpenAI's distributions for CLIP (docs/decisions/0006): a small model learns
//! faster from them than from transformers' single standard deviation.

use super::CLASSIFIER;
use super::config::{ClassifierConfig, VisionTransformerConfig};
use crate::error::ModelError;
use crate::init::Start;
use crate::transformer::start_of_norm;

/// Small, like transformers' value: features are normalised, so logits start near zero, and gradients reach the backbone
/// from the first step.
const CLASSIFIER_SPREAD: f64 = 0.02;

/// Fills a parameter of a model with random weights, or of a new classifier on a pretrained backbone.
pub fn fill(
    config: &ClassifierConfig,
    seed: u64,
    name: &str,
    values: &mut [f32],
) -> Result<(), ModelError> {
    let start = match name.strip_prefix(CLASSIFIER) {
        Some(".weight") => Some(Start::Normal(CLASSIFIER_SPREAD)),
        Some(".bias") => Some(Start::Constant(0.0)),
        _ => start_of(&config.backbone, name),
    };
    let start = start.ok_or_else(|| ModelError::UnknownParameter {
        model: config.backbone.family.classifier_architecture(),
        name: name.into(),
    })?;
    start.fill(seed, name, values);
    Ok(())
}

/// Initial distribution of a parameter of the backbone; `None` for an unknown name.
pub(crate) fn start_of(config: &VisionTransformerConfig, name: &str) -> Option<Start> {
    let (names, vision) = (config.family.names(), &config.vision);
    let part = name.strip_prefix(names.prefix)?;
    let scale = (vision.hidden_size as f64).powf(-0.5);
    if names.tokens.contains(&part) || part == names.positions {
        return Some(Start::Normal(scale));
    }
    match part.strip_prefix(names.patches) {
        Some(".weight") => {
            let inputs = vision.num_channels * vision.patch_size * vision.patch_size;
            return Some(Start::Normal((3.0 * inputs as f64).powf(-0.5)));
        }
        Some(".bias") if config.has_patch_bias() => return Some(Start::Constant(0.0)),
        _ => {}
    }
    let norms = [names.pre_norm, Some(names.last_norm)];
    let mut norms = norms.into_iter().flatten();
    norms
        .find_map(|norm| start_of_norm(part.strip_prefix(norm)?))
        .or_else(|| config.blocks().start_of(name, config.layer_scale_init))
}
