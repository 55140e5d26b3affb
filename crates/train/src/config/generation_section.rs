//! The `generation:` and `evaluation:` sections: how captions are generated, and how many samples are captioned.

use serde::{Deserialize, Serialize};

pub use crate::generation::{
    EarlyStopping, Generation as GenerationSection, Method as GenerationMethod,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Samples that get a generated caption, drawn with `seed`; loss and ranks are over all samples.
    pub captions: usize,
    /// Seed of the draw of captioned samples.
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
