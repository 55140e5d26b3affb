//! What a CLIP model is, in numbers: two transformers that meet in one space.
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
use crate::tensor_list::{TensorList, count_values};
use crate::transformer::{BlockNames, Blocks};

/// No width, vocabulary or image side of a real model comes near this; a config beyond it is broken.
const LARGEST_SIZE: usize = 1 << 20;
const MOST_LAYERS: usize = 1 << 10;
const MOST_PARAMETERS: usize = 1 << 40;

/// Which position of the text tower becomes the caption's feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextPooling {
    /// The first position that holds the highest id of the caption. Hugging Face does this when
    /// `eos_token_id` is 2, as in OpenAI's released files, because 2 was wrong there: the end
    /// token of their vocabulary is its last, and so the highest.
    HighestId,
    /// The first position that holds this id.
    FirstEos(i64),
}

/// The text tower.
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
    /// Which position is the caption's feature.
    pub pooling: TextPooling,
}

/// The vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_layers: usize,
    /// Attention heads, each `hidden_size / num_heads` wide.
    pub num_heads: usize,
    /// Side of the square input, in pixels.
    pub image_size: usize,
    /// Side of a square patch, in pixels.
    pub patch_size: usize,
    /// Colour channels of the input.
    pub num_channels: usize,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f64,
    /// What bytes of pictures become. Not in config.json: `preprocessor_config.json` beside it says so.
    pub normalization: Normalization,
}

const BLOCK_NAMES: BlockNames = BlockNames {
    norm1: "layer_norm1",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    attention_output: "self_attn.out_proj",
    norm2: "layer_norm2",
    mlp_in: "mlp.fc1",
    mlp_out: "mlp.fc2",
};

impl TextConfig {
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks {
            prefix: "text_model.encoder.layers".into(),
            names: &BLOCK_NAMES,
            num_layers: self.num_layers,
            width: self.hidden_size,
            mlp_width: self.intermediate_size,
            num_heads: self.num_heads,
            activation: self.activation,
            eps: self.layer_norm_eps,
            causal: true,
            qkv_bias: true,
        }
    }
}

impl VisionConfig {
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks {
            prefix: "vision_model.encoder.layers".into(),
            names: &BLOCK_NAMES,
            num_layers: self.num_layers,
            width: self.hidden_size,
            mlp_width: self.intermediate_size,
            num_heads: self.num_heads,
            activation: self.activation,
            eps: self.layer_norm_eps,
            causal: false,
            qkv_bias: true,
        }
    }

    /// Positions of the tower: a grid of patches and the class token.
    pub fn num_positions(&self) -> usize {
        let patches_per_side = self.image_size / self.patch_size;
        patches_per_side * patches_per_side + 1
    }
}

/// A whole CLIP model.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipConfig {
    /// The text tower.
    pub text: TextConfig,
    /// The vision tower.
    pub vision: VisionConfig,
    /// Width of the space in which captions and images are compared.
    pub projection_dim: usize,
    /// Where `logit_scale` starts when weights are random: the logarithm of the scale.
    pub logit_scale_init: f64,
}

impl ClipConfig {
    /// Checks that the numbers describe a model that can exist. `file` is named in the error.
    pub fn validate(&self, file: &Path) -> Result<(), ModelError> {
        let wrong = |key: &str, expected: String, found: String| ModelError::Setting {
            file: file.into(),
            key: key.into(),
            expected,
            found,
        };
        let (text, vision) = (&self.text, &self.vision);
        for (key, size, largest) in [
            ("text_config.hidden_size", text.hidden_size, LARGEST_SIZE),
            (
                "text_config.intermediate_size",
                text.intermediate_size,
                LARGEST_SIZE,
            ),
            (
                "text_config.num_hidden_layers",
                text.num_layers,
                MOST_LAYERS,
            ),
            (
                "text_config.num_attention_heads",
                text.num_heads,
                LARGEST_SIZE,
            ),
            ("text_config.vocab_size", text.vocab_size, LARGEST_SIZE),
            (
                "text_config.max_position_embeddings",
                text.max_positions,
                LARGEST_SIZE,
            ),
            (
                "vision_config.hidden_size",
                vision.hidden_size,
                LARGEST_SIZE,
            ),
            (
                "vision_config.intermediate_size",
                vision.intermediate_size,
                LARGEST_SIZE,
            ),
            (
                "vision_config.num_hidden_layers",
                vision.num_layers,
                MOST_LAYERS,
            ),
            (
                "vision_config.num_attention_heads",
                vision.num_heads,
                LARGEST_SIZE,
            ),
            ("vision_config.image_size", vision.image_size, LARGEST_SIZE),
            ("vision_config.patch_size", vision.patch_size, LARGEST_SIZE),
            (
                "vision_config.num_channels",
                vision.num_channels,
                LARGEST_SIZE,
            ),
            ("projection_dim", self.projection_dim, LARGEST_SIZE),
        ] {
            if size == 0 || size > largest {
                return Err(wrong(key, format!("1 to {largest}"), size.to_string()));
            }
        }
        for (key, size, part_key, part) in [
            (
                "text_config.hidden_size",
                text.hidden_size,
                "num_attention_heads",
                text.num_heads,
            ),
            (
                "vision_config.hidden_size",
                vision.hidden_size,
                "num_attention_heads",
                vision.num_heads,
            ),
            (
                "vision_config.image_size",
                vision.image_size,
                "patch_size",
                vision.patch_size,
            ),
        ] {
            if size % part != 0 {
                let expected = format!("a multiple of `{part_key}`, which is {part}");
                return Err(wrong(key, expected, size.to_string()));
            }
        }
        for (key, eps) in [
            ("text_config.layer_norm_eps", text.layer_norm_eps),
            ("vision_config.layer_norm_eps", vision.layer_norm_eps),
        ] {
            if !(eps > 0.0 && eps < 1.0) {
                return Err(wrong(
                    key,
                    "a number between 0 and 1".into(),
                    eps.to_string(),
                ));
            }
        }
        if !self.logit_scale_init.is_finite() {
            let found = self.logit_scale_init.to_string();
            return Err(wrong(
                "logit_scale_init_value",
                "a finite number".into(),
                found,
            ));
        }
        if let TextPooling::FirstEos(id) = text.pooling {
            let in_vocabulary = usize::try_from(id).is_ok_and(|id| id < text.vocab_size);
            if id == EOS_OF_HIGHEST_ID || !in_vocabulary {
                // Hugging Face would pool at the first token without a word: every caption alike.
                let expected = format!(
                    "an id below `vocab_size`, which is {}, or {} to pool at the highest id",
                    text.vocab_size, EOS_OF_HIGHEST_ID
                );
                return Err(wrong("text_config.eos_token_id", expected, id.to_string()));
            }
        }
        if count_values(&self.tensors()).is_none_or(|count| count > MOST_PARAMETERS) {
            let found = "sizes that multiply to more".to_string();
            return Err(wrong(
                "all tensors together",
                format!("at most {MOST_PARAMETERS} values"),
                found,
            ));
        }
        Ok(())
    }

    /// Name and shape of every tensor in the state dict of Hugging Face's `CLIPModel`, in its
    /// order. Meant for sizes that [`ClipConfig::validate`] accepts.
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

        let patch = [
            vision.hidden_size,
            vision.num_channels,
            vision.patch_size,
            vision.patch_size,
        ];
        let positions = [vision.num_positions(), vision.hidden_size];
        list.add(
            "vision_model.embeddings.class_embedding",
            &[vision.hidden_size],
        );
        list.add("vision_model.embeddings.patch_embedding.weight", &patch);
        list.add(
            "vision_model.embeddings.position_embedding.weight",
            &positions,
        );
        // The misspelling is Hugging Face's, and every released checkpoint carries it.
        list.add_weight_and_bias("vision_model.pre_layrnorm", &[vision.hidden_size]);
        vision.blocks().list(&mut list);
        list.add_weight_and_bias("vision_model.post_layernorm", &[vision.hidden_size]);

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
