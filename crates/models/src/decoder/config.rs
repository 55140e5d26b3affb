//! Sizes of a captioning decoder.

use std::path::Path;

use holdall_graph::ops::activation::Activation;

use super::layer::{FRAMES, FRAMES_NORM, MLP_IN, MLP_NORM, MLP_OUT, WORDS, WORDS_NORM};
use super::{HEAD, PREFIX};
use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, MOST_LAYERS, SizeChecks};
use crate::tensor_list::TensorList;

/// Default eps of `nn.LayerNorm`: transformers' decoder uses it and does not read another from its config.json.
pub const BLENDERBOT_EPS: f64 = 1e-5;

/// Sizes of a captioning decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads, each `width / heads` wide.
    pub heads: usize,
    /// Width inside the MLP.
    pub inner: usize,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Longest caption, in tokens.
    pub max_positions: usize,
    /// Whether the head shares the word embedding's weight.
    pub tied: bool,
    /// Added to the variance in every layer norm.
    pub eps: f64,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Id of the token that captions begin with.
    pub bos: i64,
    /// Id of the token that captions end with.
    pub eos: i64,
    /// Id of the padding after the end.
    pub pad: i64,
}

impl DecoderConfig {
    /// The usual sizes for a vocabulary: 6 layers, 512 wide, 8 heads, inner 1,024, an untied head.
    pub fn new(
        vocab_size: usize,
        max_positions: usize,
        [bos, eos, pad]: [i64; 3],
    ) -> DecoderConfig {
        DecoderConfig {
            layers: 6,
            width: 512,
            heads: 8,
            inner: 1024,
            vocab_size,
            max_positions,
            tied: false,
            eps: BLENDERBOT_EPS,
            activation: Activation::Gelu,
            bos,
            eos,
            pad,
        }
    }

    /// Names and shapes of the tensors in `BlenderbotForCausalLM`'s state dict; a tied head has no tensor of its own.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut list = TensorList(Vec::new());
        self.list(&mut list);
        let tensors = list.0.into_iter();
        tensors
            .map(|(name, shape)| (blenderbot_name(&name), shape))
            .collect()
    }

    /// Appends all tensors, with their names in a video-text model.
    pub(crate) fn list(&self, list: &mut TensorList) {
        let (width, inner) = (self.width, self.inner);
        let tables = [
            ("embed_tokens", self.vocab_size),
            ("embed_positions", self.max_positions),
        ];
        for (part, rows) in tables {
            list.add(&format!("{PREFIX}.{part}.weight"), &[rows, width]);
        }
        for layer in 0..self.layers {
            let name = |part: &str| format!("{PREFIX}.layers.{layer}.{part}");
            for (attention, norm) in [(WORDS, WORDS_NORM), (FRAMES, FRAMES_NORM)] {
                for part in ["k_proj", "v_proj", "q_proj", "out_proj"] {
                    let name = name(&format!("{attention}.{part}"));
                    list.add_weight_and_bias(&name, &[width, width]);
                }
                list.add_weight_and_bias(&name(norm), &[width]);
            }
            list.add_weight_and_bias(&name(MLP_IN), &[inner, width]);
            list.add_weight_and_bias(&name(MLP_OUT), &[width, inner]);
            list.add_weight_and_bias(&name(MLP_NORM), &[width]);
        }
        list.add_weight_and_bias(&format!("{PREFIX}.layer_norm"), &[width]);
        if !self.tied {
            list.add(HEAD, &[self.vocab_size, width]);
        }
    }

    /// Checks that the sizes are valid; `section` is the prefix of their keys in `file`.
    pub(crate) fn validate(&self, file: &Path, section: &str) -> Result<(), ModelError> {
        let sizes = SizeChecks { file, section };
        sizes.within("decoder_layers", self.layers, MOST_LAYERS)?;
        sizes.within("d_model", self.width, LARGEST_SIZE)?;
        sizes.within("decoder_attention_heads", self.heads, LARGEST_SIZE)?;
        sizes.within("decoder_ffn_dim", self.inner, LARGEST_SIZE)?;
        sizes.within("vocab_size", self.vocab_size, LARGEST_SIZE)?;
        sizes.within("max_position_embeddings", self.max_positions, LARGEST_SIZE)?;
        let heads = ("decoder_attention_heads", self.heads);
        sizes.multiple("d_model", self.width, heads)?;
        sizes.eps("layer_norm_eps", self.eps)?;
        let ids = [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("pad_token_id", self.pad),
        ];
        for (key, id) in ids {
            if !usize::try_from(id).is_ok_and(|id| id < self.vocab_size) {
                let expected = format!("an id below `vocab_size`, which is {}", self.vocab_size);
                return Err(sizes.wrong(key, expected, id));
            }
        }
        sizes.all_tensors(&self.tensors())
    }
}

/// Name of a decoder tensor in transformers' `BlenderbotForCausalLM`.
pub(crate) fn blenderbot_name(name: &str) -> String {
    match name {
        HEAD => name.into(),
        _ => format!("model.{name}"),
    }
}
