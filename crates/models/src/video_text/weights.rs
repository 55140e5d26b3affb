//! Initial weights of a video-text model: from a CLIP folder, a BERT folder, a video-text folder, or random.
//!
//! ```text
//! text_model of a BERT                          the BERT folder
//! temporal layers on projected frames           the first layers and positions of CLIP's text tower, like CLIP4Clip
//! tensors of equal shape in the model folder    the model folder
//! everything else                               drawn at random
//! ```

use std::collections::HashMap;

use super::config::{Pooling, TemporalInput, TextTower, VideoTextConfig};
use super::init;
use super::pooling::{TEMPORAL_LAYERS, TEMPORAL_POSITIONS};
use crate::bert;
use crate::error::ModelError;
use crate::folder::ModelFolder;
use crate::model_config::ModelConfig;

const TEXT_LAYERS: &str = "text_model.encoder.layers";
const TEXT_POSITIONS: &str = "text_model.embeddings.position_embedding.weight";

/// Source of a parameter's initial values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A tensor of the model folder, or the first rows of one.
    Model(String),
    /// A tensor of the text model's folder.
    TextModel(String),
    /// Random numbers.
    Drawn,
}

/// Folders that a model is initialised from.
pub struct WeightSources<'a> {
    config: &'a VideoTextConfig,
    model: Option<&'a ModelFolder>,
    text_model: Option<&'a ModelFolder>,
    shapes: HashMap<String, Vec<usize>>,
    seed: u64,
}

impl<'a> WeightSources<'a> {
    /// `model` is a CLIP or a video-text folder, `text_model` a BERT folder; all other parameters are drawn by `seed`.
    pub fn new(
        config: &'a VideoTextConfig,
        model: Option<&'a ModelFolder>,
        text_model: Option<&'a ModelFolder>,
        seed: u64,
    ) -> Result<WeightSources<'a>, ModelError> {
        if let Some(folder) = model
            && !matches!(
                folder.config(),
                ModelConfig::Clip(_) | ModelConfig::VideoText(_)
            )
        {
            return Err(ModelError::Source {
                folder: folder.path().into(),
                expected: "a CLIPModel or a video-text model",
                found: folder.config().describe(),
            });
        }
        if let Some(folder) = text_model
            && !matches!(folder.config(), ModelConfig::Bert(_))
        {
            return Err(ModelError::Source {
                folder: folder.path().into(),
                expected: "a BERT",
                found: folder.config().describe(),
            });
        }
        Ok(WeightSources {
            config,
            model,
            text_model,
            shapes: config.tensors().into_iter().collect(),
            seed,
        })
    }

    /// Fills a parameter from its source.
    pub fn fill(&self, name: &str, values: &mut [f32]) -> Result<(), ModelError> {
        match (self.origin(name), self.model, self.text_model) {
            (Origin::Model(source), Some(folder), _) => read_first(folder, &source, values),
            (Origin::TextModel(source), _, Some(folder)) => folder.read_f32(&source, values),
            _ => init::fill(self.config, self.seed, name, values),
        }
    }

    /// Source of a parameter.
    pub fn origin(&self, name: &str) -> Origin {
        let Some(shape) = self.shapes.get(name).map(Vec::as_slice) else {
            return Origin::Drawn;
        };
        let shape_in = |folder: Option<&'a ModelFolder>, source: &str| {
            let tensor = folder.and_then(|folder| folder.tensor(source));
            tensor.map(|tensor| tensor.shape)
        };
        let is_bert = matches!(self.config.text, TextTower::Bert(_));
        if is_bert
            && name.starts_with(bert::PREFIX)
            && shape_in(self.text_model, name) == Some(shape)
        {
            return Origin::TextModel(name.into());
        }
        if shape_in(self.model, name) == Some(shape) {
            return Origin::Model(name.into());
        }
        let Some(source) = self.text_tower_source(name) else {
            return Origin::Drawn;
        };
        match shape_in(self.model, &source) {
            Some(found) if found == shape => Origin::Model(source),
            // The text tower has more positions than a clip has frames.
            Some(&[rows, width]) if source == TEXT_POSITIONS => match *shape {
                [frames, own_width] if frames <= rows && width == own_width => {
                    Origin::Model(source)
                }
                _ => Origin::Drawn,
            },
            _ => Origin::Drawn,
        }
    }

    /// Tensor of CLIP's text tower that initialises a tensor of the temporal transformer.
    fn text_tower_source(&self, name: &str) -> Option<String> {
        let Pooling::Temporal {
            heads,
            place: TemporalInput::Projected,
            ..
        } = self.config.pooling
        else {
            return None;
        };
        // Weights of a head are only meaningful in heads of the same width.
        let ModelConfig::Clip(clip) = self.model?.config() else {
            return None;
        };
        let width = self.config.projection_dim;
        if clip.text.hidden_size != width || clip.text.num_heads != heads {
            return None;
        }
        if name == TEMPORAL_POSITIONS {
            return Some(TEXT_POSITIONS.into());
        }
        let rest = name.strip_prefix(TEMPORAL_LAYERS)?;
        Some(format!("{TEXT_LAYERS}{rest}"))
    }

    /// For the log: sources of the weights, by the first part of the names.
    pub fn summary(&self) -> Vec<String> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, _) in self.config.tensors() {
            let path = |folder: Option<&ModelFolder>| {
                folder.map_or(String::new(), |folder| folder.path().display().to_string())
            };
            let from = match self.origin(&name) {
                Origin::Model(source) if source != name => {
                    format!("pretrained from the text tower of {}", path(self.model))
                }
                Origin::Model(_) => format!("pretrained from {}", path(self.model)),
                Origin::TextModel(_) => format!("pretrained from {}", path(self.text_model)),
                Origin::Drawn => "RANDOM".into(),
            };
            let module = name.split('.').next().unwrap_or(&name).to_string();
            if !found.contains(&(from.clone(), module.clone())) {
                found.push((from, module));
            }
        }
        let mut lines: Vec<(String, Vec<String>)> = Vec::new();
        for (from, module) in found {
            match lines.iter_mut().find(|(known, _)| *known == from) {
                Some((_, modules)) => modules.push(module),
                None => lines.push((from, vec![module])),
            }
        }
        let lines = lines.into_iter();
        lines
            .map(|(from, modules)| format!("Weights: {from} ({})", modules.join(", ")))
            .collect()
    }
}

/// Reads a tensor, or as many of its first rows as fit into `values`.
fn read_first(folder: &ModelFolder, name: &str, values: &mut [f32]) -> Result<(), ModelError> {
    let tensor = folder.tensor(name);
    let count = tensor.map_or(0, |tensor| tensor.shape.iter().product());
    if count <= values.len() {
        return folder.read_f32(name, values);
    }
    let mut all = vec![0.0; count];
    folder.read_f32(name, &mut all)?;
    values.copy_from_slice(&all[..values.len()]);
    Ok(())
}
