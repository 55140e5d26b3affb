//! Random initialisation of a decoder: like CLIP's text tower, with three sums per block into the residual stream instead of two.

use super::config::DecoderConfig;
use super::layer::{FRAMES, FRAMES_NORM, MLP_IN, MLP_NORM, MLP_OUT, WORDS, WORDS_NORM};
use super::{HEAD, PREFIX};
use crate::init::Start;
use crate::transformer::start_of_norm;

/// Initial distribution of a parameter of the decoder; `None` for an unknown name.
pub(crate) fn start_of(config: &DecoderConfig, name: &str) -> Option<Start> {
    if name == HEAD && !config.tied {
        return Some(Start::Normal(0.02));
    }
    let part = name.strip_prefix(PREFIX)?.strip_prefix('.')?;
    match part {
        "embed_tokens.weight" => return Some(Start::Normal(0.02)),
        "embed_positions.weight" => return Some(Start::Normal(0.01)),
        _ => {}
    }
    if let Some(kind) = part.strip_prefix("layer_norm") {
        return start_of_norm(kind);
    }
    let (layer, part) = part.strip_prefix("layers.")?.split_once('.')?;
    if layer.parse::<usize>().ok()? >= config.layers {
        return None;
    }
    let norms = [WORDS_NORM, FRAMES_NORM, MLP_NORM];
    let mut norms = norms.iter();
    if let Some(start) = norms.find_map(|norm| start_of_norm(part.strip_prefix(norm)?)) {
        return Some(start);
    }
    let width = config.width as f64;
    let scale = width.powf(-0.5);
    let depth = (3.0 * config.layers as f64).powf(-0.5);
    let (module, kind) = part.rsplit_once('.')?;
    let std = match module.split_once('.') {
        Some((WORDS | FRAMES, "q_proj" | "k_proj" | "v_proj")) => scale,
        Some((WORDS | FRAMES, "out_proj")) => scale * depth,
        None if module == MLP_OUT => scale * depth,
        None if module == MLP_IN => (2.0 * width).powf(-0.5),
        _ => return None,
    };
    match kind {
        "weight" => Some(Start::Normal(std)),
        "bias" => Some(Start::Constant(0.0)),
        _ => None,
    }
}
