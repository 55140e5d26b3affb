//! Hugging Face's config.json for `CLIPModel`, read like transformers and written so that transformers loads it.
//!
//! Absent keys take transformers' defaults. Unknown keys are ignored, with one exception: attention dropout, which would
//! change the training.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::config::{Activation, ClipConfig, TextConfig, TextPooling, VisionConfig};
use super::presets;
use crate::config_json::{Section, activation_name, read_object, shown};
use crate::error::ModelError;

/// `eos_token_id` in files that pool at the highest id.
pub(super) const EOS_OF_HIGHEST_ID: i64 = 2;

const MODEL_TYPE: &str = "clip";
pub(crate) const TEXT_MODEL_TYPE: &str = "clip_text_model";
const ARCHITECTURE: &str = "CLIPModel";

impl ClipConfig {
    /// Parses a config.json and checks its sizes. `file` is named in errors.
    pub fn from_json(json: &str, file: &Path) -> Result<ClipConfig, ModelError> {
        let entries = &read_object(json, file)?;
        check_architecture(entries, file)?;

        let top = Section {
            file,
            name: "",
            entries: Some(entries),
        };
        let config = ClipConfig {
            text: read_text(&top.nested("text_config", "text_config_dict")?)?,
            vision: read_vision(&top)?,
            projection_dim: top.size("projection_dim", 512)?,
            logit_scale_init: top.number("logit_scale_init_value", 2.6592)?,
        };
        config.validate(file)?;
        Ok(config)
    }

    /// Text of a config.json that `CLIPModel.from_pretrained` loads.
    pub fn to_json(&self) -> String {
        let mut vision_config = self.vision.to_json();
        vision_config.insert("model_type".into(), json!("clip_vision_model"));
        vision_config.insert("projection_dim".into(), json!(self.projection_dim));
        let value = json!({
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "dtype": "float32",
            "projection_dim": self.projection_dim,
            "logit_scale_init_value": self.logit_scale_init,
            "text_config": text_to_json(&self.text, self.projection_dim),
            "vision_config": vision_config,
        });
        format!("{value:#}\n")
    }
}

/// The text tower's section of a config.json.
pub(crate) fn text_to_json(text: &TextConfig, projection_dim: usize) -> Value {
    let eos_token_id = match text.pooling {
        TextPooling::HighestId => EOS_OF_HIGHEST_ID,
        TextPooling::FirstEos(id) => id,
    };
    json!({
        "model_type": TEXT_MODEL_TYPE,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.num_layers,
        "num_attention_heads": text.num_heads,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.max_positions,
        "hidden_act": activation_name(text.activation),
        "layer_norm_eps": text.layer_norm_eps,
        "projection_dim": projection_dim,
        "eos_token_id": eos_token_id,
        // The model does not use these two, and transformers warns about its defaults for them, which exceed a small vocabulary.
        "bos_token_id": null,
        "pad_token_id": null,
    })
}

/// Reads the vision tower's section of the file.
pub(crate) fn read_vision(top: &Section<'_>) -> Result<VisionConfig, ModelError> {
    read_vision_section(&top.nested("vision_config", "vision_config_dict")?)
}

pub(crate) fn read_vision_section(section: &Section<'_>) -> Result<VisionConfig, ModelError> {
    section.refuse_dropout("attention_dropout")?;
    VisionConfig::read(section, &presets::base(32).vision)
}

fn check_architecture(entries: &Map<String, Value>, file: &Path) -> Result<(), ModelError> {
    let model_type = entries.get("model_type").unwrap_or(&Value::Null);
    let architectures = entries.get("architectures").unwrap_or(&Value::Null);
    let known = match architectures {
        // A configuration saved without its model names no architecture; the type is sufficient.
        Value::Null => true,
        Value::Array(names) => names.iter().any(|name| name == ARCHITECTURE),
        _ => false,
    };
    if model_type == MODEL_TYPE && known {
        return Ok(());
    }
    Err(ModelError::Architecture {
        file: file.into(),
        expected: format!("\"{MODEL_TYPE}\" and [\"{ARCHITECTURE}\"]"),
        found: format!("{} and {}", shown(model_type), shown(architectures)),
    })
}

pub(crate) fn read_text(section: &Section) -> Result<TextConfig, ModelError> {
    section.refuse_dropout("attention_dropout")?;
    Ok(TextConfig {
        hidden_size: section.size("hidden_size", 512)?,
        intermediate_size: section.size("intermediate_size", 2048)?,
        num_layers: section.size("num_hidden_layers", 12)?,
        num_heads: section.size("num_attention_heads", 8)?,
        vocab_size: section.size("vocab_size", 49408)?,
        max_positions: section.size("max_position_embeddings", 77)?,
        activation: section.activation(Activation::QuickGelu)?,
        layer_norm_eps: section.number("layer_norm_eps", 1e-5)?,
        pooling: match section.token_id("eos_token_id", 49407)? {
            EOS_OF_HIGHEST_ID => TextPooling::HighestId,
            id => TextPooling::FirstEos(id),
        },
    })
}
