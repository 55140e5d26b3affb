//! Random initialisation of CLIP, with OpenAI's distributions.
//!
//! Hugging Face's differ: depth scales the input projections of attention instead of the output projections, patch positions
//! start five times smaller, and a small model learns many times slower (docs/decisions/0006).

use super::config::{ClipConfig, TextConfig};
use crate::error::ModelError;
use crate::init::Start;
use crate::transformer::start_of_norm;
use crate::vit;

/// Fills a parameter of a new label head on pretrained towers: small numbers, as in a linear layer, so that the head learns
/// before its gradients change the towers.
pub fn fill_new_head(
    config: &ClipConfig,
    seed: u64,
    name: &str,
    values: &mut [f32],
) -> Result<(), ModelError> {
    fill(config, seed, name, values)?;
    if name == "head.weight" {
        let gain = config.logit_scale_init.exp() as f32;
        values.iter_mut().for_each(|value| *value /= gain);
    }
    Ok(())
}

/// Fills a parameter of a model with random weights, by its name.
///
/// Rows of the label head have the length of the contrastive scale. Features have unit length: with smaller rows the label
/// loss's gradients would be negligible beside those of the contrastive loss.
pub fn fill(
    config: &ClipConfig,
    seed: u64,
    name: &str,
    values: &mut [f32],
) -> Result<(), ModelError> {
    let start = start_of(config, name).ok_or_else(|| ModelError::UnknownParameter {
        model: "CLIPModel",
        name: name.into(),
    })?;
    start.fill(seed, name, values);
    Ok(())
}

fn start_of(config: &ClipConfig, name: &str) -> Option<Start> {
    let scale = |width: usize| (width as f64).powf(-0.5);
    Some(match name {
        "logit_scale" => Start::Constant(config.logit_scale_init as f32),
        "head.weight" => {
            Start::Normal(config.logit_scale_init.exp() * scale(config.projection_dim))
        }
        "head.bias" => Start::Constant(0.0),
        "visual_projection.weight" => Start::Normal(scale(config.vision.hidden_size)),
        _ => {
            return start_of_text(&config.text, name)
                .or_else(|| vit::init::start_of(&config.backbone(), name));
        }
    })
}

/// Initial distribution of a parameter of the text tower and its projection; `None` for an unknown name.
pub(crate) fn start_of_text(text: &TextConfig, name: &str) -> Option<Start> {
    Some(match name {
        "text_projection.weight" => Start::Normal((text.hidden_size as f64).powf(-0.5)),
        "text_model.embeddings.token_embedding.weight" => Start::Normal(0.02),
        "text_model.embeddings.position_embedding.weight" => Start::Normal(0.01),
        _ => {
            let norm = name.strip_prefix("text_model.final_layer_norm");
            return norm
                .and_then(start_of_norm)
                .or_else(|| text.blocks().start_of(name, 1.0));
        }
    })
}
