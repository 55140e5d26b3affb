//! config.json of a decoder, with the keys of transformers' `BlenderbotForCausalLM`.

use serde_json::{Map, Value, json};

use holdall_graph::ops::activation::Activation;

use super::config::{BLENDERBOT_EPS, DecoderConfig};
use crate::config_json::{Section, activation_name};
use crate::error::ModelError;

pub(crate) const MODEL_TYPE: &str = "blenderbot";
pub(crate) const ARCHITECTURE: &str = "BlenderbotForCausalLM";

impl DecoderConfig {
    /// Reads a decoder section or a decoder's whole config.json, without checking sizes.
    pub(crate) fn read(section: &Section<'_>) -> Result<DecoderConfig, ModelError> {
        if section.flag("scale_embedding", false)? {
            let expected = "false (scaled word embeddings are not supported)";
            return Err(section.wrong("scale_embedding", expected, &Value::Bool(true)));
        }
        Ok(DecoderConfig {
            layers: section.size("decoder_layers", 24)?,
            width: section.size("d_model", 2560)?,
            heads: section.size("decoder_attention_heads", 32)?,
            inner: section.size("decoder_ffn_dim", 10240)?,
            vocab_size: section.size("vocab_size", 8008)?,
            max_positions: section.size("max_position_embeddings", 128)?,
            tied: section.flag("tie_word_embeddings", true)?,
            eps: section.number("layer_norm_eps", BLENDERBOT_EPS)?,
            activation: section.activation_of("activation_function", Activation::Gelu)?,
            bos: section.token_id("bos_token_id", 1)?,
            eos: section.token_id("eos_token_id", 2)?,
            pad: section.token_id("pad_token_id", 0)?,
        })
    }

    /// The decoder's section of a config.json.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let keys = [
            ("model_type", json!(MODEL_TYPE)),
            ("d_model", json!(self.width)),
            ("decoder_layers", json!(self.layers)),
            ("decoder_attention_heads", json!(self.heads)),
            ("decoder_ffn_dim", json!(self.inner)),
            ("vocab_size", json!(self.vocab_size)),
            ("max_position_embeddings", json!(self.max_positions)),
            ("tie_word_embeddings", json!(self.tied)),
            (
                "activation_function",
                json!(activation_name(self.activation)),
            ),
            ("layer_norm_eps", json!(self.eps)),
            ("bos_token_id", json!(self.bos)),
            ("eos_token_id", json!(self.eos)),
            ("pad_token_id", json!(self.pad)),
        ];
        let keys = keys.into_iter();
        keys.map(|(key, value)| (key.to_string(), value)).collect()
    }

    /// Text of a config.json that `BlenderbotForCausalLM.from_pretrained` loads.
    pub(crate) fn to_blenderbot_json(&self) -> String {
        let mut value = Value::Object(self.to_json());
        let more = json!({
            "architectures": [ARCHITECTURE],
            "dtype": "float32",
            "is_decoder": true,
            "is_encoder_decoder": false,
            "add_cross_attention": true,
            "decoder_start_token_id": self.bos,
            // transformers sizes the decoder's caches by the encoder's keys.
            "encoder_layers": self.layers,
            "encoder_attention_heads": self.heads,
            "encoder_ffn_dim": self.inner,
            "scale_embedding": false,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "activation_dropout": 0.0,
            // transformers' defaults for these would change the generated captions.
            "encoder_no_repeat_ngram_size": 0,
            "forced_eos_token_id": null,
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut value, more) {
            all.extend(more);
        }
        format!("{value:#}\n")
    }
}
