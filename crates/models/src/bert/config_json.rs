//! config.json of BERTs, read like transformers and written so that transformers loads it.

use serde_json::{Map, Value, json};

use holdall_graph::ops::activation::Activation;

use super::PREFIX;
use super::config::BertConfig;
use crate::config_json::{Section, activation_name};
use crate::error::ModelError;

pub(crate) const MODEL_TYPE: &str = "bert";

impl BertConfig {
    /// Reads a BERT section or a BERT's whole config.json, without checking sizes.
    pub(crate) fn read(section: &Section<'_>) -> Result<BertConfig, ModelError> {
        let absolute = "\"absolute\" (other position embeddings are not supported)";
        match section.get("position_embedding_type") {
            None | Some(Value::Null) => {}
            Some(Value::String(name)) if name == "absolute" => {}
            Some(other) => return Err(section.wrong("position_embedding_type", absolute, other)),
        }
        if section.flag("is_decoder", false)? {
            let expected = "false: a text tower sees the whole text";
            return Err(section.wrong("is_decoder", expected, &Value::Bool(true)));
        }
        Ok(BertConfig {
            hidden_size: section.size("hidden_size", 768)?,
            intermediate_size: section.size("intermediate_size", 3072)?,
            num_layers: section.size("num_hidden_layers", 12)?,
            num_heads: section.size("num_attention_heads", 12)?,
            vocab_size: section.size("vocab_size", 30522)?,
            max_positions: section.size("max_position_embeddings", 512)?,
            num_types: section.size("type_vocab_size", 2)?,
            activation: section.activation(Activation::Gelu)?,
            layer_norm_eps: section.number("layer_norm_eps", 1e-12)?,
            hidden_dropout: section.number("hidden_dropout_prob", 0.1)?,
            attention_dropout: section.number("attention_probs_dropout_prob", 0.1)?,
        })
    }

    /// BERT's section of a config.json; as a file of its own, `BertModel` loads it.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let keys = [
            ("model_type", json!(MODEL_TYPE)),
            ("hidden_size", json!(self.hidden_size)),
            ("intermediate_size", json!(self.intermediate_size)),
            ("num_hidden_layers", json!(self.num_layers)),
            ("num_attention_heads", json!(self.num_heads)),
            ("vocab_size", json!(self.vocab_size)),
            ("max_position_embeddings", json!(self.max_positions)),
            ("type_vocab_size", json!(self.num_types)),
            ("hidden_act", json!(activation_name(self.activation))),
            ("layer_norm_eps", json!(self.layer_norm_eps)),
            ("hidden_dropout_prob", json!(self.hidden_dropout)),
            (
                "attention_probs_dropout_prob",
                json!(self.attention_dropout),
            ),
        ];
        let keys = keys.into_iter();
        keys.map(|(key, value)| (key.to_string(), value)).collect()
    }
}

/// Internal name of a tensor in a BERT folder: stored names may have the prefix `bert.`, and old files call the parameters
/// of norms `gamma` and `beta`.
pub(crate) fn full_name(stored: &str) -> String {
    let name = stored.strip_prefix("bert.").unwrap_or(stored);
    let modern = |old: &str, new: &str| Some(format!("{}{new}", name.strip_suffix(old)?));
    let name = modern("LayerNorm.gamma", "LayerNorm.weight")
        .or_else(|| modern("LayerNorm.beta", "LayerNorm.bias"))
        .unwrap_or_else(|| name.into());
    format!("{PREFIX}{name}")
}

/// Whether a tensor of a BERT folder is not used by the text tower: pooler, heads, and counters 0, 1, 2, ...
pub(crate) fn ignores(stored: &str) -> bool {
    let name = stored.strip_prefix("bert.").unwrap_or(stored);
    let heads = ["pooler.", "cls.", "classifier.", "qa_outputs."];
    name == "embeddings.position_ids" || heads.iter().any(|head| name.starts_with(head))
}
