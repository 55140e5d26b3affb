//! BERT as a text tower: bidirectional, with norms after attention and MLP, read at the class token.
//!
//! ```text
//! x = norm(word[ids] + position + type[0]);  blocks over the valid tokens;  the first token of the last block
//! ```
//!
//! Texts are one segment each, so every token is of type 0. BERT's pooler and pretraining heads are not used. Tokens past a
//! text's length are not attended to and not read.
//!
//! Legend: `b` samples, `t` tokens, `d` width.

pub mod config;
mod config_json;
pub(crate) mod init;

pub(crate) use config_json::{MODEL_TYPE, full_name, ignores};

use holdall_graph::ops::dropout::DropoutMode;
use holdall_graph::{Decay, Graph, ValueId};

use crate::clip::TextInputs;
use crate::transformer::{Regularization, Use, norm};
use crate::vit;
use config::BertConfig;

/// Prefix of BERT's tensor names in a video-text model.
pub(crate) const PREFIX: &str = "text_model.";

/// Writes the tower; returns the class token `[b, 1, d]`. Blocks are named `text.0`, `text.1` and so on.
pub(crate) fn class_token(
    graph: &mut Graph,
    config: &BertConfig,
    inputs: &TextInputs,
    regularization: Option<&Regularization>,
) -> ValueId {
    let width = config.hidden_size;
    let table = |graph: &mut Graph, part: &str, rows: usize| {
        let name = format!("{PREFIX}embeddings.{part}.weight");
        graph.parameter(&name, &[rows, width], Decay::Yes)
    };
    let words_vd = table(graph, "word_embeddings", config.vocab_size);
    let all_positions = table(graph, "position_embeddings", config.max_positions);
    let types = table(graph, "token_type_embeddings", config.num_types);
    let tokens = graph.shape(inputs.ids).width();
    let positions_td = graph.rows(all_positions, 0, tokens);
    let x_btd = graph.embedding(
        "text.tokens",
        inputs.ids,
        words_vd,
        positions_td,
        inputs.order,
    );
    let first_type = graph.rows(types, 0, 1);
    let x_btd = graph.add_positions("text.typed", x_btd, first_type, tokens);
    let name = format!("{PREFIX}embeddings.LayerNorm");
    let mut x_btd = norm(graph, &name, x_btd, config.layer_norm_eps);
    if let Some(regularization) = regularization {
        let (rate, mode) = (regularization.dropout, DropoutMode::Element);
        x_btd = regularization.drop(graph, "text.dropout", x_btd, rate, 0, mode);
    }
    let mut class_token = vit::CLASS_TOKEN;
    class_token.lengths_b = Some(inputs.lengths);
    let usage = Use {
        one_token: Some(class_token),
        key_lengths_b: Some(inputs.lengths),
        regularization,
        attention_dropout: config.attention_dropout,
    };
    config.blocks().write(graph, "text", x_btd, &usage)
}
