//! Parts of a video-text model that transformers loads by themselves, in folders beside the whole:
//!
//! ```text
//! decoder/   BlenderbotForCausalLM; its `encoder_hidden_states` are the frame tokens behind `frame_projection`
//! clip/      CLIPModel, where a clip's feature is the mean of CLIP's features of its frames and the text tower is CLIP's
//! ```

use super::config::{Pooling, VideoTextConfig};
use crate::decoder::config::{BLENDERBOT_EPS, blenderbot_name};
use crate::model_config::ModelConfig;
use crate::tensor_list::TensorList;

/// A folder within the model's.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Its name.
    pub folder: &'static str,
    /// What it is.
    pub config: ModelConfig,
    /// Of each of its tensors, the name there, the name in the whole model, and the shape.
    pub tensors: Vec<PartTensor>,
}

/// A tensor of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct PartTensor {
    /// Its name in the part.
    pub name: String,
    /// Its name in the whole model.
    pub whole_name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
}

impl VideoTextConfig {
    /// The parts that transformers loads by themselves.
    pub fn parts(&self) -> Vec<Part> {
        let decoder = self.decoder.as_ref();
        // transformers' decoder has one eps, whatever its config.json says.
        let decoder = decoder.filter(|decoder| decoder.eps == BLENDERBOT_EPS);
        let decoder = decoder.map(|decoder| {
            let mut list = TensorList(Vec::new());
            decoder.list(&mut list);
            let tensors = list.0.into_iter().map(|(whole_name, shape)| PartTensor {
                name: blenderbot_name(&whole_name),
                whole_name,
                shape,
            });
            Part {
                folder: "decoder",
                config: ModelConfig::CaptionDecoder(decoder.clone()),
                tensors: tensors.collect(),
            }
        });
        let is_clip = self.pooling == Pooling::Mean && self.num_videos == 1;
        let clip = self.clip().filter(|_| is_clip).map(|clip| {
            let tensors = clip.tensors().into_iter().map(|(name, shape)| PartTensor {
                whole_name: name.clone(),
                name,
                shape,
            });
            Part {
                folder: "clip",
                tensors: tensors.collect(),
                config: ModelConfig::Clip(clip),
            }
        });
        decoder.into_iter().chain(clip).collect()
    }
}
