//! Where the weights of a video-text model come from: a CLIP folder, a BERT folder, a video-text folder, or nowhere.
//!
//! ```text
//! text_model of a BERT                      the BERT folder
//! temporal layers on projected frames       the first layers and positions of CLIP's text tower, as CLIP4Clip starts them
//! what the model folder has in this shape   the model folder
//! everything else                           drawn at random
//! ```

use super::config::{Place, Pooling, TextTower, VideoTextConfig};
use super::init;
use super::pooling::{TEMPORAL_LAYERS, TEMPORAL_POSITIONS};
use crate::bert;
use crate::error::ModelError;
use crate::folder::ModelFolder;
use crate::model_config::ModelConfig;

const TEXT_LAYERS: &str = "text_model.encoder.layers";
const TEXT_POSITIONS: &str = "text_model.embeddings.position_embedding.weight";

/// What a parameter starts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A tensor of the model folder, or the first rows of one.
    Model(String),
    /// A tensor of the text model's folder.
    TextModel(String),
    /// Random numbers.
    Drawn,
}

/// Folders that a model starts from.
pub struct WeightSources<'a> {
    config: &'a VideoTextConfig,
    model: Option<&'a ModelFolder>,
    text_model: Option<&'a ModelFolder>,
    shapes: std::collections::HashMap<String, Vec<usize>>,
    seed: u64,
}

impl<'a> WeightSources<'a> {
    /// `model` is a CLIP or a video-text folder, `text_model` a BERT folder; what neither has is drawn by `seed`.
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

    /// Fills a parameter.
    pub fn fill(&self, name: &str, values: &mut [f32]) -> Result<(), ModelError> {
        match (self.origin(name), self.model, self.text_model) {
            (Origin::Model(source), Some(folder), _) => read_first(folder, &source, values),
            (Origin::TextModel(source), _, Some(folder)) => folder.read_f32(&source, values),
            _ => init::fill(self.config, self.seed, name, values),
        }
    }

    /// Where a parameter comes from.
    pub fn origin(&self, name: &str) -> Origin {
        let Some(shape) = self.shapes.get(name) else {
            return Origin::Drawn;
        };
        let has = |folder: Option<&ModelFolder>, source: &str| {
            let tensor = folder.and_then(|folder| folder.tensor(source));
            tensor.is_some_and(|tensor| tensor.shape == shape)
        };
        let is_bert = matches!(self.config.text, TextTower::Bert(_));
        if is_bert && name.starts_with(bert::PREFIX) && has(self.text_model, name) {
            return Origin::TextModel(name.into());
        }
        if has(self.model, name) {
            return Origin::Model(name.into());
        }
        if let Some(source) = self.text_tower_source(name) {
            if has(self.model, &source) {
                return Origin::Model(source);
            }
            // Positions of as many frames as there are, of all positions of the text tower.
            let tensor = self.model.and_then(|folder| folder.tensor(&source));
            let rows = tensor.map(|tensor| (tensor.shape.first().copied(), tensor.shape.get(1)));
            if source == TEXT_POSITIONS
                && rows.is_some_and(|(rows, width)| {
                    rows >= shape.first().copied() && width == shape.get(1)
                })
            {
                return Origin::Model(source);
            }
        }
        Origin::Drawn
    }

    /// The tensor of CLIP's text tower that one of the temporal transformer starts as.
    fn text_tower_source(&self, name: &str) -> Option<String> {
        let Pooling::Temporal {
            heads,
            place: Place::Projected,
            ..
        } = self.config.pooling
        else {
            return None;
        };
        // Weights of a head mean something in heads of the same width.
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

    /// For the log: what comes from where, by the first part of the names.
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

/// Reads a tensor, or as many of its first rows as there is room for.
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
