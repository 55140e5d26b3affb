//! Architectures that Holdall trains, as recognised from a config.json.

use std::path::Path;

use serde_json::{Map, Value};

use crate::bert::config::BertConfig;
use crate::clip::config::ClipConfig;
use crate::config_json::{Section, read_object, shown};
use crate::decoder::config::DecoderConfig;
use crate::error::ModelError;
use crate::unet::config::UnetConfig;
use crate::video_text::config::VideoTextConfig;
use crate::vit::config::{ClassifierConfig, Family, VisionTransformerConfig};
use crate::{bert, decoder, unet, video_text};

/// Configuration of a model, by architecture.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelConfig {
    /// `CLIPModel`.
    Clip(ClipConfig),
    /// A vision transformer without a classifier: `ViTModel`, `DeiTModel`, `Dinov2Model`, `CLIPVisionModel`.
    Backbone(VisionTransformerConfig),
    /// A vision transformer with a classifier: `ViTForImageClassification` and the like.
    Classifier(ClassifierConfig),
    /// A U-Net in Holdall's format.
    Unet(UnetConfig),
    /// A BERT, of which only the encoder is used, as a text tower.
    Bert(BertConfig),
    /// A captioning decoder: `BlenderbotForCausalLM`.
    CaptionDecoder(DecoderConfig),
    /// A video-text model in Holdall's format.
    VideoText(VideoTextConfig),
}

/// Variant of [`ModelConfig`] for an architecture of transformers.
#[derive(Clone, Copy)]
enum ArchitectureKind {
    Clip,
    Backbone(Family),
    Classifier(Family),
    Unet,
    Bert,
    CaptionDecoder,
    VideoText,
}

/// `model_type`, a name in `architectures`, and the variant.
const ARCHITECTURES: [(&str, &str, ArchitectureKind); 21] = [
    ("clip", "CLIPModel", ArchitectureKind::Clip),
    (
        "clip",
        "CLIPForImageClassification",
        ArchitectureKind::Classifier(Family::Clip),
    ),
    (
        "clip_vision_model",
        "CLIPVisionModel",
        ArchitectureKind::Backbone(Family::Clip),
    ),
    (
        "clip_vision_model",
        "CLIPVisionModelWithProjection",
        ArchitectureKind::Backbone(Family::Clip),
    ),
    ("vit", "ViTModel", ArchitectureKind::Backbone(Family::Vit)),
    (
        "vit",
        "ViTForImageClassification",
        ArchitectureKind::Classifier(Family::Vit),
    ),
    (
        "deit",
        "DeiTModel",
        ArchitectureKind::Backbone(Family::Deit),
    ),
    (
        "deit",
        "DeiTForImageClassification",
        ArchitectureKind::Classifier(Family::Deit),
    ),
    // Only the backbone is read: its two classifiers are trained together, against a teacher.
    (
        "deit",
        "DeiTForImageClassificationWithTeacher",
        ArchitectureKind::Backbone(Family::Deit),
    ),
    (
        "dinov2",
        "Dinov2Model",
        ArchitectureKind::Backbone(Family::Dinov2),
    ),
    (
        "dinov2",
        "Dinov2ForImageClassification",
        ArchitectureKind::Classifier(Family::Dinov2),
    ),
    (unet::MODEL_TYPE, unet::ARCHITECTURE, ArchitectureKind::Unet),
    (bert::MODEL_TYPE, "BertModel", ArchitectureKind::Bert),
    (bert::MODEL_TYPE, "BertForMaskedLM", ArchitectureKind::Bert),
    (
        bert::MODEL_TYPE,
        "BertForPreTraining",
        ArchitectureKind::Bert,
    ),
    (
        decoder::MODEL_TYPE,
        decoder::ARCHITECTURE,
        ArchitectureKind::CaptionDecoder,
    ),
    (
        video_text::MODEL_TYPE,
        video_text::ARCHITECTURE,
        ArchitectureKind::VideoText,
    ),
    // A configuration saved without its model names no architecture; the type is sufficient.
    ("clip", "", ArchitectureKind::Clip),
    (unet::MODEL_TYPE, "", ArchitectureKind::Unet),
    (bert::MODEL_TYPE, "", ArchitectureKind::Bert),
    (video_text::MODEL_TYPE, "", ArchitectureKind::VideoText),
];

impl ModelConfig {
    /// Parses a config.json and checks its sizes; returns notes on settings that are ignored too. `file` is named in errors.
    pub fn from_json(json: &str, file: &Path) -> Result<(ModelConfig, Vec<String>), ModelError> {
        let entries = &read_object(json, file)?;
        let top = Section {
            file,
            name: "",
            entries: Some(entries),
        };
        let mut notes = Vec::new();
        let config = match kind_of(entries, file)? {
            ArchitectureKind::Clip => ModelConfig::Clip(ClipConfig::from_json(json, file)?),
            ArchitectureKind::Backbone(family) => {
                let config = VisionTransformerConfig::read(family, &top, &mut notes)?;
                config.validate(file)?;
                ModelConfig::Backbone(config)
            }
            ArchitectureKind::Classifier(family) => {
                ModelConfig::Classifier(ClassifierConfig::read(family, &top, &mut notes)?)
            }
            ArchitectureKind::Unet => ModelConfig::Unet(UnetConfig::read(&top)?),
            ArchitectureKind::Bert => {
                let config = BertConfig::read(&top)?;
                config.validate(file, "")?;
                ModelConfig::Bert(config)
            }
            ArchitectureKind::CaptionDecoder => {
                let config = DecoderConfig::read(&top)?;
                config.validate(file, "")?;
                ModelConfig::CaptionDecoder(config)
            }
            ArchitectureKind::VideoText => ModelConfig::VideoText(VideoTextConfig::read(&top)?),
        };
        Ok((config, notes))
    }

    /// Vision transformer that computes picture features, if the model has one.
    pub fn backbone(&self) -> Option<VisionTransformerConfig> {
        match self {
            ModelConfig::Clip(config) => Some(config.backbone()),
            ModelConfig::Backbone(config) => Some(config.clone()),
            ModelConfig::Classifier(config) => Some(config.backbone.clone()),
            ModelConfig::VideoText(config) => Some(config.backbone()),
            ModelConfig::Unet(_) | ModelConfig::Bert(_) | ModelConfig::CaptionDecoder(_) => None,
        }
    }

    /// Classifier, if the model has one.
    pub fn classifier(&self) -> Option<&ClassifierConfig> {
        match self {
            ModelConfig::Classifier(config) => Some(config),
            ModelConfig::Clip(_)
            | ModelConfig::Backbone(_)
            | ModelConfig::Unet(_)
            | ModelConfig::Bert(_)
            | ModelConfig::CaptionDecoder(_)
            | ModelConfig::VideoText(_) => None,
        }
    }

    /// Width of the space in which texts and images or clips are compared, if the model has one.
    pub fn projection_dim(&self) -> Option<usize> {
        match self {
            ModelConfig::Clip(config) => Some(config.projection_dim),
            ModelConfig::VideoText(config) => Some(config.projection_dim),
            ModelConfig::Backbone(_)
            | ModelConfig::Classifier(_)
            | ModelConfig::Unet(_)
            | ModelConfig::Bert(_)
            | ModelConfig::CaptionDecoder(_) => None,
        }
    }

    /// Description for messages.
    pub fn describe(&self) -> String {
        match self {
            ModelConfig::Clip(_) => "CLIPModel".into(),
            ModelConfig::Backbone(config) => {
                format!(
                    "a {} model without a classifier",
                    config.family.model_type()
                )
            }
            ModelConfig::Classifier(config) => {
                config.backbone.family.classifier_architecture().into()
            }
            ModelConfig::Unet(_) => "a U-Net".into(),
            ModelConfig::Bert(_) => "a BERT".into(),
            ModelConfig::CaptionDecoder(_) => "a captioning decoder".into(),
            ModelConfig::VideoText(_) => "a video-text model".into(),
        }
    }

    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        match self {
            ModelConfig::Clip(config) => config.validate(file),
            ModelConfig::Backbone(config) => config.validate(file),
            ModelConfig::Classifier(config) => config.validate(file),
            ModelConfig::Unet(config) => config.validate(file),
            ModelConfig::Bert(config) => config.validate(file, ""),
            ModelConfig::CaptionDecoder(config) => config.validate(file, ""),
            ModelConfig::VideoText(config) => config.validate(file),
        }
    }

    /// Text of a config.json that transformers' `from_pretrained` loads, or docs/scripts/unet.py and video_text.py. A backbone or BERT
    /// alone is read, but never written: it is saved as part of the trained model. `file` is named in the error.
    pub fn to_json(&self, file: &Path) -> Result<String, ModelError> {
        match self {
            ModelConfig::Clip(config) => Ok(config.to_json()),
            ModelConfig::Classifier(config) => Ok(config.to_json()),
            ModelConfig::Unet(config) => Ok(config.to_json()),
            ModelConfig::CaptionDecoder(config) => Ok(config.to_blenderbot_json()),
            ModelConfig::VideoText(config) => Ok(config.to_json()),
            ModelConfig::Backbone(_) | ModelConfig::Bert(_) => Err(ModelError::Architecture {
                file: file.into(),
                expected: "a CLIPModel or a classifier".into(),
                found: self.describe(),
            }),
        }
    }

    /// Names and shapes of the state dict's tensors.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        match self {
            ModelConfig::Clip(config) => config.tensors(),
            ModelConfig::Backbone(config) => config.tensors(),
            ModelConfig::Classifier(config) => config.tensors(),
            ModelConfig::Unet(config) => config.tensors(),
            ModelConfig::Bert(config) => config.tensors(),
            ModelConfig::CaptionDecoder(config) => config.tensors(),
            ModelConfig::VideoText(config) => config.tensors(),
        }
    }

    /// Internal name of a stored tensor: a backbone saved by itself has names without the family's prefix.
    pub(crate) fn full_name(&self, stored: &str, prefix_is_stored: bool) -> String {
        match self {
            ModelConfig::Backbone(config) if !prefix_is_stored => config.name(stored),
            ModelConfig::Bert(_) => bert::full_name(stored),
            _ => stored.to_string(),
        }
    }

    /// Prefix of tensor names that stored names may lack.
    pub(crate) fn prefix(&self) -> Option<&'static str> {
        match self {
            ModelConfig::Backbone(config) => Some(config.family.names().prefix),
            ModelConfig::Clip(_)
            | ModelConfig::Classifier(_)
            | ModelConfig::Unet(_)
            | ModelConfig::Bert(_)
            | ModelConfig::CaptionDecoder(_)
            | ModelConfig::VideoText(_) => None,
        }
    }

    /// Whether a tensor in released models is not used here.
    pub(crate) fn ignores(&self, name: &str) -> bool {
        let (family, has_classifier) = match self {
            // Counters 0, 1, 2, ... that older versions of transformers saved with the weights.
            ModelConfig::Clip(_) => {
                return [
                    "text_model.embeddings.position_ids",
                    "vision_model.embeddings.position_ids",
                ]
                .contains(&name);
            }
            ModelConfig::Backbone(config) => (config.family, false),
            ModelConfig::Classifier(config) => (config.backbone.family, true),
            ModelConfig::Bert(_) => return bert::ignores(name),
            ModelConfig::Unet(_) | ModelConfig::CaptionDecoder(_) | ModelConfig::VideoText(_) => {
                return false;
            }
        };
        let inner = name.strip_prefix(family.names().prefix).unwrap_or(name);
        let heads = ["classifier.", "cls_classifier.", "distillation_classifier."];
        inner.starts_with("pooler.")
            || inner == "embeddings.mask_token"
            || inner == "embeddings.position_ids"
            || inner == "visual_projection.weight"
            || !has_classifier && heads.iter().any(|head| inner.starts_with(head))
    }
}

impl From<&ClipConfig> for ModelConfig {
    fn from(config: &ClipConfig) -> ModelConfig {
        ModelConfig::Clip(config.clone())
    }
}

impl From<&ClassifierConfig> for ModelConfig {
    fn from(config: &ClassifierConfig) -> ModelConfig {
        ModelConfig::Classifier(config.clone())
    }
}

impl From<&VideoTextConfig> for ModelConfig {
    fn from(config: &VideoTextConfig) -> ModelConfig {
        ModelConfig::VideoText(config.clone())
    }
}

impl From<&UnetConfig> for ModelConfig {
    fn from(config: &UnetConfig) -> ModelConfig {
        ModelConfig::Unet(config.clone())
    }
}

fn kind_of(entries: &Map<String, Value>, file: &Path) -> Result<ArchitectureKind, ModelError> {
    let model_type = entries.get("model_type").unwrap_or(&Value::Null);
    let architectures = entries.get("architectures").unwrap_or(&Value::Null);
    let named = |name: &str| match architectures {
        Value::Null => name.is_empty(),
        Value::Array(names) => names.iter().any(|found| found == name),
        _ => false,
    };
    let mut known = ARCHITECTURES.iter();
    if let Some(&(_, _, kind)) = known.find(|(of, name, _)| model_type == of && named(name)) {
        return Ok(kind);
    }
    let names = ARCHITECTURES.iter().map(|&(_, name, _)| name);
    let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    Err(ModelError::Architecture {
        file: file.into(),
        expected: format!("one of {}", names.join(", ")),
        found: format!("{} and {}", shown(model_type), shown(architectures)),
    })
}
