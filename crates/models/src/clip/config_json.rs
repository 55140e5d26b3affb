//! Hugging Face's config.json for `CLIPModel`, read as transformers reads it and written so that it
//! loads there.
//!
//! Keys that are absent take transformers' defaults. Keys that Holdall has no use for are ignored,
//! as there, with one exception: attention dropout, which would change what training computes.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::config::{Activation, ClipConfig, Normalization, TextConfig, TextPooling, VisionConfig};
use crate::error::ModelError;

/// The `eos_token_id` by which Hugging Face recognises files that pool at the highest id.
pub(super) const EOS_OF_HIGHEST_ID: i64 = 2;

const MODEL_TYPE: &str = "clip";
const ARCHITECTURE: &str = "CLIPModel";
const ACTIVATIONS: [(&str, Activation); 2] = [
    ("quick_gelu", Activation::QuickGelu),
    ("gelu", Activation::Gelu),
];

impl ClipConfig {
    /// Reads the text of a config.json and checks its sizes. `file` is named in errors.
    pub fn from_json(json: &str, file: &Path) -> Result<ClipConfig, ModelError> {
        let value: Value = serde_json::from_str(json).map_err(|cause| ModelError::Json {
            file: file.into(),
            expected: "a JSON object",
            found: cause.to_string(),
        })?;
        let Value::Object(entries) = &value else {
            return Err(ModelError::Json {
                file: file.into(),
                expected: "a JSON object",
                found: shown(&value),
            });
        };
        check_architecture(entries, file)?;

        let top = Section {
            file,
            name: "",
            entries: Some(entries),
        };
        let config = ClipConfig {
            text: read_text(&top.tower("text_config", "text_config_dict")?)?,
            vision: read_vision(&top.tower("vision_config", "vision_config_dict")?)?,
            projection_dim: top.size("projection_dim", 512)?,
            logit_scale_init: top.number("logit_scale_init_value", 2.6592)?,
        };
        config.validate(file)?;
        Ok(config)
    }

    /// The text of a config.json that `CLIPModel.from_pretrained` loads.
    pub fn to_json(&self) -> String {
        let (text, vision) = (&self.text, &self.vision);
        let eos_token_id = match text.pooling {
            TextPooling::HighestId => EOS_OF_HIGHEST_ID,
            TextPooling::FirstEos(id) => id,
        };
        let value = json!({
            "architectures": [ARCHITECTURE],
            "model_type": MODEL_TYPE,
            "dtype": "float32",
            "projection_dim": self.projection_dim,
            "logit_scale_init_value": self.logit_scale_init,
            "text_config": {
                "model_type": "clip_text_model",
                "hidden_size": text.hidden_size,
                "intermediate_size": text.intermediate_size,
                "num_hidden_layers": text.num_layers,
                "num_attention_heads": text.num_heads,
                "vocab_size": text.vocab_size,
                "max_position_embeddings": text.max_positions,
                "hidden_act": activation_name(text.activation),
                "layer_norm_eps": text.layer_norm_eps,
                "projection_dim": self.projection_dim,
                "eos_token_id": eos_token_id,
                // The model does not use these two, and transformers' defaults for them lie
                // outside a small vocabulary, which it warns about.
                "bos_token_id": null,
                "pad_token_id": null,
            },
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": vision.hidden_size,
                "intermediate_size": vision.intermediate_size,
                "num_hidden_layers": vision.num_layers,
                "num_attention_heads": vision.num_heads,
                "image_size": vision.image_size,
                "patch_size": vision.patch_size,
                "num_channels": vision.num_channels,
                "hidden_act": activation_name(vision.activation),
                "layer_norm_eps": vision.layer_norm_eps,
                "projection_dim": self.projection_dim,
            },
        });
        format!("{value:#}\n")
    }
}

fn check_architecture(entries: &Map<String, Value>, file: &Path) -> Result<(), ModelError> {
    let model_type = entries.get("model_type").unwrap_or(&Value::Null);
    let architectures = entries.get("architectures").unwrap_or(&Value::Null);
    let known = match architectures {
        // A configuration saved without its model names no architecture; the type says enough.
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

fn read_text(section: &Section) -> Result<TextConfig, ModelError> {
    section.refuse_dropout()?;
    Ok(TextConfig {
        hidden_size: section.size("hidden_size", 512)?,
        intermediate_size: section.size("intermediate_size", 2048)?,
        num_layers: section.size("num_hidden_layers", 12)?,
        num_heads: section.size("num_attention_heads", 8)?,
        vocab_size: section.size("vocab_size", 49408)?,
        max_positions: section.size("max_position_embeddings", 77)?,
        activation: section.activation()?,
        layer_norm_eps: section.number("layer_norm_eps", 1e-5)?,
        pooling: match section.token_id("eos_token_id", 49407)? {
            EOS_OF_HIGHEST_ID => TextPooling::HighestId,
            id => TextPooling::FirstEos(id),
        },
    })
}

fn read_vision(section: &Section) -> Result<VisionConfig, ModelError> {
    section.refuse_dropout()?;
    Ok(VisionConfig {
        hidden_size: section.size("hidden_size", 768)?,
        intermediate_size: section.size("intermediate_size", 3072)?,
        num_layers: section.size("num_hidden_layers", 12)?,
        num_heads: section.size("num_attention_heads", 12)?,
        image_size: section.size("image_size", 224)?,
        patch_size: section.size("patch_size", 32)?,
        num_channels: section.size("num_channels", 3)?,
        activation: section.activation()?,
        layer_norm_eps: section.number("layer_norm_eps", 1e-5)?,
        normalization: Normalization::CLIP,
    })
}

/// One object of the file. Its getters return the default where the key is absent; `null` is not
/// absent: transformers has no use for it in these keys either.
struct Section<'a> {
    file: &'a Path,
    name: &'static str,
    entries: Option<&'a Map<String, Value>>,
}

impl<'a> Section<'a> {
    /// The object that describes a tower. Files from before 2023 may repeat it under `old_name`;
    /// transformers completes that one with defaults and lets it win over every key of the other.
    fn tower(&self, name: &'static str, old_name: &'static str) -> Result<Section<'a>, ModelError> {
        let entry = |name| self.get(name).filter(|value| !value.is_null());
        let (name, value) = match entry(old_name) {
            Some(value) => (old_name, Some(value)),
            None => (name, entry(name)),
        };
        let entries = match value {
            None => None,
            Some(Value::Object(entries)) => Some(entries),
            Some(other) => return Err(self.wrong(name, "an object", other)),
        };
        Ok(Section {
            file: self.file,
            name,
            entries,
        })
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.entries?.get(key)
    }

    fn size(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(key, "a whole number", value))
    }

    fn token_id(&self, key: &str, default: i64) -> Result<i64, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_i64()
            .ok_or_else(|| self.wrong(key, "one token id", value))
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        value
            .as_f64()
            .ok_or_else(|| self.wrong(key, "a number", value))
    }

    fn activation(&self) -> Result<Activation, ModelError> {
        let Some(value) = self.get("hidden_act") else {
            return Ok(Activation::QuickGelu);
        };
        let known = ACTIVATIONS.iter().find(|(name, _)| value == name);
        known
            .map(|&(_, activation)| activation)
            .ok_or_else(|| ModelError::Activation {
                file: self.file.into(),
                key: self.key("hidden_act"),
                expected: ACTIVATIONS
                    .map(|(name, _)| format!("\"{name}\""))
                    .join(" or "),
                found: shown(value),
            })
    }

    fn refuse_dropout(&self) -> Result<(), ModelError> {
        match self.get("attention_dropout") {
            Some(value) if !value.is_null() && value.as_f64() != Some(0.0) => Err(self.wrong(
                "attention_dropout",
                "0.0 (dropout inside CLIP is not supported)",
                value,
            )),
            _ => Ok(()),
        }
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_string()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> ModelError {
        ModelError::Setting {
            file: self.file.into(),
            key: self.key(key),
            expected: expected.into(),
            found: shown(found),
        }
    }
}

fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::QuickGelu => "quick_gelu",
        Activation::Gelu => "gelu",
    }
}

/// A value as it stands in the file, short enough for a message.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}...", &text[..cut]),
        None => text,
    }
}
