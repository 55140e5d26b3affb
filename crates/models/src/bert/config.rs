//! Sizes of a BERT. Names and defaults are those of Hugging Face's `BertModel`.

use std::path::Path;

use holdall_graph::ops::activation::Activation;

use super::PREFIX;
use crate::error::ModelError;
use crate::size_checks::{LARGEST_SIZE, MOST_LAYERS, SizeChecks};
use crate::tensor_list::TensorList;
use crate::transformer::{BlockNames, Blocks, NormPlace};

/// Sizes of a BERT without pooler and heads.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_layers: usize,
    /// Attention heads, each `hidden_size / num_heads` wide.
    pub num_heads: usize,
    /// Rows of the word embedding.
    pub vocab_size: usize,
    /// Longest text, in tokens.
    pub max_positions: usize,
    /// Rows of the token type embedding, of which the first is used.
    pub num_types: usize,
    /// Nonlinearity of the MLP.
    pub activation: Activation,
    /// Added to the variance in every layer norm.
    pub layer_norm_eps: f64,
    /// Dropout rate of the embedded tokens and of the outputs of attention and MLP, in training.
    pub hidden_dropout: f64,
    /// Dropout rate of attention probabilities, in training.
    pub attention_dropout: f64,
}

const BERT_BLOCKS: BlockNames = BlockNames {
    norm1: "attention.output.LayerNorm",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    norm2: "output.LayerNorm",
    mlp_in: "intermediate.dense",
    mlp_out: "output.dense",
    layer_scales: None,
};

impl BertConfig {
    pub(crate) fn blocks(&self) -> Blocks {
        Blocks {
            prefix: format!("{PREFIX}encoder.layer"),
            names: &BERT_BLOCKS,
            num_layers: self.num_layers,
            width: self.hidden_size,
            mlp_width: self.intermediate_size,
            num_heads: self.num_heads,
            activation: self.activation,
            eps: self.layer_norm_eps,
            norms: NormPlace::After,
            causal: false,
            qkv_bias: true,
        }
    }

    /// Names and shapes of all tensors, with the names of a video-text model's text tower.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut list = TensorList(Vec::new());
        self.list(&mut list);
        list.0
    }

    pub(crate) fn list(&self, list: &mut TensorList) {
        let width = self.hidden_size;
        let tables = [
            ("word_embeddings", self.vocab_size),
            ("position_embeddings", self.max_positions),
            ("token_type_embeddings", self.num_types),
        ];
        for (part, rows) in tables {
            list.add(&format!("{PREFIX}embeddings.{part}.weight"), &[rows, width]);
        }
        list.add_weight_and_bias(&format!("{PREFIX}embeddings.LayerNorm"), &[width]);
        self.blocks().list(list);
    }

    /// Checks that the sizes are valid; `section` is the prefix of their keys in `file`.
    pub(crate) fn validate(&self, file: &Path, section: &str) -> Result<(), ModelError> {
        let sizes = SizeChecks { file, section };
        sizes.within("hidden_size", self.hidden_size, LARGEST_SIZE)?;
        sizes.within("intermediate_size", self.intermediate_size, LARGEST_SIZE)?;
        sizes.within("num_hidden_layers", self.num_layers, MOST_LAYERS)?;
        sizes.within("num_attention_heads", self.num_heads, LARGEST_SIZE)?;
        sizes.within("vocab_size", self.vocab_size, LARGEST_SIZE)?;
        sizes.within("max_position_embeddings", self.max_positions, LARGEST_SIZE)?;
        sizes.within("type_vocab_size", self.num_types, LARGEST_SIZE)?;
        let heads = ("num_attention_heads", self.num_heads);
        sizes.multiple("hidden_size", self.hidden_size, heads)?;
        sizes.eps("layer_norm_eps", self.layer_norm_eps)?;
        let rates = [
            ("hidden_dropout_prob", self.hidden_dropout),
            ("attention_probs_dropout_prob", self.attention_dropout),
        ];
        for (key, rate) in rates {
            if !(0.0..1.0).contains(&rate) {
                return Err(sizes.wrong(key, "0 to less than 1".into(), rate));
            }
        }
        sizes.all_tensors(&self.tensors())
    }
}
