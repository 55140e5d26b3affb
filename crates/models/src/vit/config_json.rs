//! config.json of vision transformers, read like transformers and written so that transformers loads it.

use serde_json::{Map, Value, json};

use super::config::{ClassifierConfig, Family, Problem, VisionConfig, VisionTransformerConfig};
use super::presets::defaults;
use crate::clip;
use crate::config_json::{Section, activation_name};
use crate::error::ModelError;

const PROBLEMS: [(&str, Problem); 3] = [
    ("single_label_classification", Problem::SingleLabel),
    ("multi_label_classification", Problem::MultiLabel),
    ("regression", Problem::Regression),
];

impl VisionConfig {
    pub(crate) fn read(
        section: &Section<'_>,
        defaults: &VisionConfig,
    ) -> Result<VisionConfig, ModelError> {
        Ok(VisionConfig {
            hidden_size: section.size("hidden_size", defaults.hidden_size)?,
            intermediate_size: section.size("intermediate_size", defaults.intermediate_size)?,
            num_layers: section.size("num_hidden_layers", defaults.num_layers)?,
            num_heads: section.size("num_attention_heads", defaults.num_heads)?,
            image_size: section.size("image_size", defaults.image_size)?,
            patch_size: section.size("patch_size", defaults.patch_size)?,
            num_channels: section.size("num_channels", defaults.num_channels)?,
            activation: section.activation(defaults.activation)?,
            layer_norm_eps: section.number("layer_norm_eps", defaults.layer_norm_eps)?,
            normalization: defaults.normalization,
        })
    }

    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let keys = [
            ("hidden_size", json!(self.hidden_size)),
            ("intermediate_size", json!(self.intermediate_size)),
            ("num_hidden_layers", json!(self.num_layers)),
            ("num_attention_heads", json!(self.num_heads)),
            ("image_size", json!(self.image_size)),
            ("patch_size", json!(self.patch_size)),
            ("num_channels", json!(self.num_channels)),
            ("hidden_act", json!(activation_name(self.activation))),
            ("layer_norm_eps", json!(self.layer_norm_eps)),
        ];
        let keys = keys.into_iter();
        keys.map(|(key, value)| (key.to_string(), value)).collect()
    }
}

impl VisionTransformerConfig {
    /// Reads a backbone. Training settings in the file, which Holdall takes from the run's config instead, become notes.
    pub(crate) fn read(
        family: Family,
        top: &Section<'_>,
        notes: &mut Vec<String>,
    ) -> Result<VisionTransformerConfig, ModelError> {
        if family == Family::Clip {
            let vision = match top.get("model_type") {
                Some(Value::String(name)) if name == "clip_vision_model" => {
                    clip::config_json::read_vision_section(top)?
                }
                _ => clip::config_json::read_vision(top)?,
            };
            return Ok(VisionTransformerConfig::of_clip(vision));
        }
        top.refuse_dropout("attention_probs_dropout_prob")?;
        for key in ["hidden_dropout_prob", "drop_path_rate"] {
            let rate = top.number(key, 0.0)?;
            if rate != 0.0 {
                notes.push(format!(
                    "{}: `{key}` is {rate}; it is not applied: dropout is a setting of the training",
                    top.file.display()
                ));
            }
        }
        let mut config = defaults(family);
        config.vision = VisionConfig::read(top, &config.vision)?;
        config.qkv_bias = top.flag("qkv_bias", true)?;
        if family == Family::Dinov2 {
            if top.flag("use_swiglu_ffn", false)? {
                let expected = "false (SwiGLU layers are not supported)";
                return Err(top.wrong("use_swiglu_ffn", expected, &Value::Bool(true)));
            }
            let ratio = top.size("mlp_ratio", 4)?;
            let mlp_width = config.vision.hidden_size.checked_mul(ratio);
            config.vision.intermediate_size = mlp_width
                .ok_or_else(|| top.wrong("mlp_ratio", "a ratio that fits", &json!(ratio)))?;
            config.layer_scale_init = top.number("layerscale_value", 1.0)?;
        }
        Ok(config)
    }
}

impl ClassifierConfig {
    pub(crate) fn read(
        family: Family,
        top: &Section<'_>,
        notes: &mut Vec<String>,
    ) -> Result<ClassifierConfig, ModelError> {
        let config = ClassifierConfig {
            backbone: VisionTransformerConfig::read(family, top, notes)?,
            labels: read_labels(top)?,
            problem: read_problem(top)?,
        };
        config.validate(top.file)?;
        Ok(config)
    }

    /// Text of a config.json that `AutoModelForImageClassification.from_pretrained` loads.
    pub fn to_json(&self) -> String {
        let VisionTransformerConfig { family, vision, .. } = &self.backbone;
        let numbered = || self.labels.iter().enumerate();
        let id2label: Map<String, Value> = numbered()
            .map(|(id, label)| (id.to_string(), json!(label)))
            .collect();
        let label2id: Map<String, Value> = numbered()
            .map(|(id, label)| (label.clone(), json!(id)))
            .collect();
        let mut value = json!({
            "architectures": [family.classifier_architecture()],
            "model_type": family.model_type(),
            "dtype": "float32",
            "id2label": id2label,
            "label2id": label2id,
        });
        if let Some(problem) = self.problem {
            let mut names = PROBLEMS.iter();
            let name = names.find_map(|&(name, of)| (of == problem).then_some(name));
            value["problem_type"] = json!(name);
        }
        let mut sizes = vision.to_json();
        if *family == Family::Clip {
            sizes.insert("model_type".into(), json!("clip_vision_model"));
            value["vision_config"] = Value::Object(sizes);
            return format!("{value:#}\n");
        }
        sizes.insert("qkv_bias".into(), json!(self.backbone.qkv_bias));
        if *family == Family::Dinov2 {
            sizes.remove("intermediate_size");
            let ratio = vision.intermediate_size / vision.hidden_size;
            sizes.insert("mlp_ratio".into(), json!(ratio));
            sizes.insert(
                "layerscale_value".into(),
                json!(self.backbone.layer_scale_init),
            );
            // The mask token is for pretraining; a classifier does not read it.
            sizes.insert("use_mask_token".into(), json!(false));
        }
        for (key, size) in sizes {
            value[key] = size;
        }
        format!("{value:#}\n")
    }
}

impl Family {
    pub(crate) fn model_type(self) -> &'static str {
        match self {
            Family::Vit => "vit",
            Family::Deit => "deit",
            Family::Dinov2 => "dinov2",
            Family::Clip => "clip",
        }
    }
}

/// Names of the outputs: `id2label`, or `num_labels` unnamed ones; transformers' default is two.
fn read_labels(top: &Section<'_>) -> Result<Vec<String>, ModelError> {
    let unnamed = |count: usize| (0..count).map(|id| format!("LABEL_{id}")).collect();
    let Some(value) = top.get("id2label").filter(|value| !value.is_null()) else {
        let count = top.size("num_labels", 2)?;
        return match count {
            // A larger count would only fill the memory with names.
            1..=LARGEST_NUM_LABELS => Ok(unnamed(count)),
            _ => Err(top.wrong("num_labels", "1 to 1048576", &json!(count))),
        };
    };
    let expected = "an object from the numbers \"0\", \"1\", ... to names";
    let Value::Object(names) = value else {
        return Err(top.wrong("id2label", expected, value));
    };
    (0..names.len())
        .map(|id| {
            let name = names.get(&id.to_string()).and_then(Value::as_str);
            name.map(str::to_owned)
        })
        .collect::<Option<Vec<String>>>()
        .filter(|labels| !labels.is_empty())
        .ok_or_else(|| top.wrong("id2label", expected, value))
}

const LARGEST_NUM_LABELS: usize = crate::size_checks::LARGEST_SIZE;

fn read_problem(top: &Section<'_>) -> Result<Option<Problem>, ModelError> {
    let Some(value) = top.get("problem_type").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let known = PROBLEMS.iter().find(|(name, _)| value == name);
    let expected = || PROBLEMS.map(|(name, _)| format!("\"{name}\"")).join(" or ");
    match known {
        Some(&(_, problem)) => Ok(Some(problem)),
        None => Err(top.wrong("problem_type", &expected(), value)),
    }
}

/// Whether all labels have transformers' placeholder names for unnamed outputs.
pub(crate) fn is_unnamed(labels: &[String]) -> bool {
    labels
        .iter()
        .enumerate()
        .all(|(id, label)| *label == format!("LABEL_{id}"))
}
