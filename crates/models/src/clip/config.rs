//! Sizes of a CLIP model: two transformers whose features share one space.
//!
//! ```text
//! image_features = visual_projection(post_layernorm(class token of the vision tower))
//! text_features  = text_projection(end token of final_layer_norm(the text tower))
//! logits         = exp(logit_scale) * text_features . image_features    (both normalised)
//! ```
//!
//! Names and defaults are those of Hugging Face's `CLIPModel`: [`ClipConfig::from_json`] reads its
//! config.json, [`ClipConfig::to_json`] writes one that it loads, and [`ClipConfig::tensors`] lists
//! its state dict.

use std::path::Path;

pub use holdall_graph::ops::activation::Activation;
pub use holdall_graph::ops::patchify::Normalization;

use super::config_json::EOS_OF_HIGHEST_ID;
use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, MOST_LAYERS, SizeChecks};
use crate::tensor_list::TensorList;
use crate::transformer::{Blocks, NormPlace};
pub use crate::vit::config::VisionConfig;
use crate::vit::config::{CLIP_BLOCKS, VisionTransformerConfig};

/// Position of the text tower whose state is the caption's feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextPooling {
    /// The first position of the caption's highest id. Hugging Face does this when `eos_token_id` is 2, as in OpenAI's
    /// released files, where 2 was wrong: the end token is the last of the vocabulary, and so the highest id.
    HighestId,
    /// The first position of this id.
    FirstEos(i64),
}

/// Sizes of the text tower.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_layers: usize,
    /// Attention heads, each `hidden_size / num_heads` wide.
    pub num_heads: usize,
    /// Rows of the token embedding.
    pub vocab_size: usize,
    /// Longest caption, in tokens.
    pub max_positions: usize,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f64,
    /// Position that is the caption's feature.
    pub pooling: TextPooling,
}

impl TextConfig {
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks {
            prefix: "text_model.encoder.layers".into(),
            names: &CLIP_BLOCKS,
            num_layers: self.num_layers,
            width: self.hidden_size,
            mlp_width: self.intermediate_size,
            num_heads: self.num_heads,
            activation: self.activation,
            eps: self.layer_norm_eps,
            norms: NormPlace::Before,
            causal: true,
            qkv_bias: true,
        }
    }
}

/// Sizes of a whole CLIP model.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipConfig {
    pub text: TextConfig,
    pub vision: VisionConfig,
    /// Width of the space in which captions and images are compared.
    pub projection_dim: usize,
    /// Initial `logit_scale` of random weights: the logarithm of the scale.
    pub logit_scale_init: f64,
}

impl ClipConfig {
    /// Checks that the sizes are valid. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        let (text, top) = (&self.text, SizeChecks { file, section: "" });
        let sizes = SizeChecks {
            file,
            section: "text_config.",
        };
        sizes.within("hidden_size", text.hidden_size, LARGEST_SIZE)?;
        sizes.within("intermediate_size", text.intermediate_size, LARGEST_SIZE)?;
        sizes.within("num_hidden_layers", text.num_layers, MOST_LAYERS)?;
        sizes.within("num_attention_heads", text.num_heads, LARGEST_SIZE)?;
        sizes.within("vocab_size", text.vocab_size, LARGEST_SIZE)?;
        sizes.within("max_position_embeddings", text.max_positions, LARGEST_SIZE)?;
        let heads = ("num_attention_heads", text.num_heads);
        sizes.multiple("hidden_size", text.hidden_size, heads)?;
        sizes.eps("layer_norm_eps", text.layer_norm_eps)?;
        self.vision.validate(file, "vision_config.")?;
        top.within("projection_dim", self.projection_dim, LARGEST_SIZE)?;
        if !self.logit_scale_init.is_finite() {
            let expected = "a finite number".into();
            return Err(top.wrong("logit_scale_init_value", expected, self.logit_scale_init));
        }
        if let TextPooling::FirstEos(id) = text.pooling {
            let in_vocabulary = usize::try_from(id).is_ok_and(|id| id < text.vocab_size);
            if id == EOS_OF_HIGHEST_ID || !in_vocabulary {
                // Hugging Face would pool at the first position without a warning: all captions would get the same feature.
                let expected = format!(
                    "an id below `vocab_size`, which is {}, or {} to pool at the highest id",
                    text.vocab_size, EOS_OF_HIGHEST_ID
                );
                return Err(sizes.wrong("eos_token_id", expected, id));
            }
        }
        top.all_tensors(&self.tensors())
    }

    /// The vision tower as a backbone.
    pub fn backbone(&self) -> VisionTransformerConfig {
        VisionTransformerConfig::of_clip(self.vision.clone())
    }

    /// Names and shapes of the tensors in the state dict of Hugging Face's `CLIPModel`, in its order. Meant for sizes that
    /// [`ClipConfig::validate`] accepts.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (text, vision) = (&self.text, &self.vision);
        let mut list = TensorList(Vec::new());

        list.add("logit_scale", &[]);
        list.add(
            "text_model.embeddings.token_embedding.weight",
            &[text.vocab_size, text.hidden_size],
        );
        list.add(
            "text_model.embeddings.position_embedding.weight",
            &[text.max_positions, text.hidden_size],
        );
        text.blocks().list(&mut list);
        list.add_weight_and_bias("text_model.final_layer_norm", &[text.hidden_size]);

        self.backbone().list(&mut list);
        list.add(
            "visual_projection.weight",
            &[self.projection_dim, vision.hidden_size],
        );
        list.add(
            "text_projection.weight",
            &[self.projection_dim, text.hidden_size],
        );
        list.0
    }
}
