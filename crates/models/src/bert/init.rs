//! Random initialisation of BERT: one standard deviation for all matrices and tables, as its authors chose.

use super::PREFIX;
use super::config::BertConfig;
use crate::init::Start;
use crate::transformer::start_of_norm;

const SPREAD: f64 = 0.02;

/// Initial distribution of a parameter; `None` for an unknown name.
pub(crate) fn start_of(config: &BertConfig, name: &str) -> Option<Start> {
    let part = name.strip_prefix(PREFIX)?;
    match part {
        "embeddings.word_embeddings.weight"
        | "embeddings.position_embeddings.weight"
        | "embeddings.token_type_embeddings.weight" => Some(Start::Normal(SPREAD)),
        _ => {
            let norm = part.strip_prefix("embeddings.LayerNorm");
            let start = norm
                .and_then(start_of_norm)
                .or_else(|| config.blocks().start_of(name, 1.0))?;
            Some(match start {
                Start::Normal(_) => Start::Normal(SPREAD),
                other => other,
            })
        }
    }
}
