//! Submodels of a video-text model that transformers loads on its own, in folders beside the whole model:
//!
//! ```text
//! decoder/   BlenderbotForCausalLM; its `encoder_hidden_states` are the frame tokens after `frame_projection`
//! clip/      CLIPModel, for mean pooling with CLIP's text tower: a clip's feature is the mean of its frames' CLIP features
//! ```

use super::config::{Pooling, VideoTextConfig};
use crate::decoder::config::{BLENDERBOT_EPS, blenderbot_name};
use crate::model_config::ModelConfig;
use crate::tensor_list::TensorList;

/// A submodel in a subfolder.
#[derive(Debug, Clone, PartialEq)]
pub struct Submodel {
    /// Name of the subfolder.
    pub folder: &'static str,
    pub config: ModelConfig,
    /// Tensors of the submodel.
    pub tensors: Vec<PartTensor>,
}

/// A tensor of a submodel.
#[derive(Debug, Clone, PartialEq)]
pub struct PartTensor {
    /// Name in the submodel.
    pub name: String,
    /// Name in the whole model.
    pub whole_name: String,
    pub shape: Vec<usize>,
}

impl VideoTextConfig {
    /// The submodels that transformers loads on its own.
    pub fn parts(&self) -> Vec<Submodel> {
        let decoder = self.decoder.as_ref();
        // transformers' decoder has a fixed eps, whatever its config.json says.
        let decoder = decoder.filter(|decoder| decoder.eps == BLENDERBOT_EPS);
        let decoder = decoder.map(|decoder| {
            let mut list = TensorList(Vec::new());
            decoder.list(&mut list);
            let tensors = list.0.into_iter().map(|(whole_name, shape)| PartTensor {
                name: blenderbot_name(&whole_name),
                whole_name,
                shape,
            });
            Submodel {
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
            Submodel {
                folder: "clip",
                tensors: tensors.collect(),
                config: ModelConfig::Clip(clip),
            }
        });
        decoder.into_iter().chain(clip).collect()
    }
}
