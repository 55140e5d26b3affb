//! Captioning decoder: a causal transformer over the caption's tokens that attends to the tokens of all frames.
//!
//! ```text
//! x = embed_tokens[ids] + embed_positions
//! block: x += out(causal attention(qkv(norm(x))));  x += out(attention(q(norm(x)), kv(frame tokens)));  x += fc2(activation(fc1(norm(x))))
//! logits = lm_head(layer_norm(x))
//! ```
//!
//! Structure and names are those of transformers' `BlenderbotForCausalLM`. `states` processes all tokens of a caption at once, for
//! training; [`start`] and [`next`] decode one token at a time, with keys and values in caches.
//!
//! Legend: `b` samples, `t` tokens, `s` frame tokens, `d` width, `v` vocabulary, `r` rows of decoding (samples x beams), `l`
//! longest caption.

pub mod config;
mod config_json;
pub(crate) mod init;
mod layer;

pub(crate) use config_json::{ARCHITECTURE, MODEL_TYPE};

use holdall_graph::ops::fill::Fill;
use holdall_graph::{Decay, Graph, ValueId};

use crate::transformer::norm;
use config::DecoderConfig;
use layer::Layer;

/// Prefix of the decoder's tensor names.
pub(crate) const PREFIX: &str = "decoder";
pub(crate) const HEAD: &str = "lm_head.weight";

#[derive(Clone, Copy, Debug)]
pub struct CaptionInputs {
    /// Input ids: the begin token, then the caption; `[b, t]`.
    pub ids_bt: ValueId,
    /// Positions sorted by id, for devices whose embedding gradient needs it; `[b, t]`.
    pub order_bt: Option<ValueId>,
}

/// Key and value caches of decoding, for each layer.
#[derive(Clone, Copy, Debug)]
pub struct DecodingCaches<'a> {
    /// Caches of the caption so far, `[r, l, d]`.
    pub words: &'a [[ValueId; 2]],
    /// Caches of the frame tokens, `[b, s, d]`.
    pub frames: &'a [[ValueId; 2]],
    /// Number of valid frame tokens of each sample, `[b]`, where samples differ.
    pub frame_token_counts: Option<ValueId>,
}

/// Inputs of one decoding step.
#[derive(Clone, Copy, Debug)]
pub struct TokenInputs {
    /// Last token of every row, `[r]`.
    pub ids_r: ValueId,
    /// Position of that token in the caption, the same for all rows, `[1]`.
    pub position_1: ValueId,
    /// Row of the caches with keys and values of each earlier token, `[r, l]`.
    pub ancestors_rl: ValueId,
    /// Rows per sample, which are consecutive.
    pub beams: usize,
}

/// Writes the decoder over captions; returns the input of the head, `[b, t, d]`. Blocks are named `decoder.0`, `decoder.1` and so on.
pub(crate) fn states(
    graph: &mut Graph,
    config: &DecoderConfig,
    frame_tokens_bsd: ValueId,
    frame_token_counts: Option<ValueId>,
    captions: &CaptionInputs,
) -> ValueId {
    let tokens = graph.shape(captions.ids_bt).width();
    let all_positions = positions(graph, config);
    let positions_td = graph.rows(all_positions, 0, tokens);
    let words_vd = words(graph, config);
    let mut x_btd = graph.embedding(
        "decoder.tokens",
        captions.ids_bt,
        words_vd,
        positions_td,
        captions.order_bt,
    );
    for number in 0..config.layers {
        let layer = Layer::new(config, number);
        x_btd = graph.block(&format!("decoder.{number}"), |graph| {
            let x_btd = layer.attend_words(graph, x_btd);
            let kv = layer.frame_keys_and_values(graph, frame_tokens_bsd);
            let x_btd = layer.attend_frames(graph, x_btd, kv, frame_token_counts);
            layer.mlp(graph, x_btd)
        });
    }
    last_norm(graph, config, x_btd)
}

/// Matrix of the head, `[v, d]`: its own, or the word embedding.
pub fn head_weight(graph: &mut Graph, config: &DecoderConfig) -> ValueId {
    if config.tied {
        words(graph, config)
    } else {
        graph.parameter(HEAD, &[config.vocab_size, config.width], Decay::Yes)
    }
}

/// Begins decoding: writes keys and values of the frame tokens of every layer to `caches`, each `[b, s, d]`.
pub fn start(
    graph: &mut Graph,
    config: &DecoderConfig,
    frame_tokens_bsd: ValueId,
    caches: &[[ValueId; 2]],
) {
    assert_eq!(caches.len(), config.layers, "caches for every layer");
    for (number, &cache) in caches.iter().enumerate() {
        Layer::new(config, number).fill_frame_caches(graph, frame_tokens_bsd, cache);
    }
}

/// Writes one decoding step; returns logits `[r, v]` in full precision.
pub fn next(
    graph: &mut Graph,
    config: &DecoderConfig,
    token: &TokenInputs,
    caches: &DecodingCaches<'_>,
) -> ValueId {
    let rows = graph.shape(token.ids_r).num_elements();
    let mut x_r1d = embed_next(graph, config, token);
    for number in 0..config.layers {
        let layer = Layer::new(config, number);
        x_r1d = layer.attend_cached_words(graph, x_r1d, token, caches.words[number]);
        let x_bnd = graph.reshape(x_r1d, &[rows / token.beams, token.beams, config.width]);
        let x_bnd = layer.attend_frames(
            graph,
            x_bnd,
            caches.frames[number],
            caches.frame_token_counts,
        );
        let x_bnd = layer.mlp(graph, x_bnd);
        x_r1d = graph.reshape(x_bnd, &[rows, 1, config.width]);
    }
    let x_r1d = last_norm(graph, config, x_r1d);
    let full = graph.full();
    let x_r1d = if graph.dtype(x_r1d) == full {
        x_r1d
    } else {
        graph.cast("decoder.state", x_r1d, full)
    };
    let weight = head_weight(graph, config);
    let x_rd = graph.reshape(x_r1d, &[rows, config.width]);
    graph.linear("logits", x_rd, weight, None, None)
}

/// `embed_tokens[ids] + embed_positions[position]` for a position that only the device knows: looks it up like a token id,
/// with zeros as the position table.
fn embed_next(graph: &mut Graph, config: &DecoderConfig, token: &TokenInputs) -> ValueId {
    let (rows, width) = (graph.shape(token.ids_r).num_elements(), config.width);
    let zeros_1d = graph.statistic("decoder.zeros", &[1, width]);
    graph.push_new(Fill { value: 0.0 }, Vec::new(), &[zeros_1d]);
    let table = positions(graph, config);
    let index = graph.reshape(token.position_1, &[1, 1]);
    let position_11d = graph.embedding("decoder.position", index, table, zeros_1d, None);
    let full = graph.full();
    let position_11d = if graph.dtype(position_11d) == full {
        position_11d
    } else {
        graph.cast("decoder.position in full", position_11d, full)
    };
    let position_1d = graph.reshape(position_11d, &[1, width]);
    let words_vd = words(graph, config);
    let ids_r1 = graph.reshape(token.ids_r, &[rows, 1]);
    graph.embedding("decoder.token", ids_r1, words_vd, position_1d, None)
}

fn words(graph: &mut Graph, config: &DecoderConfig) -> ValueId {
    let name = format!("{PREFIX}.embed_tokens.weight");
    graph.parameter(&name, &[config.vocab_size, config.width], Decay::Yes)
}

fn positions(graph: &mut Graph, config: &DecoderConfig) -> ValueId {
    let name = format!("{PREFIX}.embed_positions.weight");
    graph.parameter(&name, &[config.max_positions, config.width], Decay::Yes)
}

fn last_norm(graph: &mut Graph, config: &DecoderConfig, x: ValueId) -> ValueId {
    norm(graph, &format!("{PREFIX}.layer_norm"), x, config.eps)
}
