//! The `generation:` and `evaluation:` sections: how captions are generated, and how much is evaluated.

use serde::{Deserialize, Serialize};

pub use crate::generation::{
    EarlyStopping, Generation as GenerationSection, Method as GenerationMethod,
};

/// How much is evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Samples that get a caption, drawn with the seed; the loss and the ranks are over all of them.
    pub captions: usize,
    /// Seed of which samples get one.
    pub seed: u64,
}

impl Default for EvaluationSection {
    fn default() -> EvaluationSection {
        EvaluationSection {
            captions: 512,
            seed: 0,
        }
    }
}
