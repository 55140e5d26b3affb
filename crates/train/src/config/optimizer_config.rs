//! The optimizer's numbers, as resolved from a config.

use holdall_graph::ops::update::MomentFormat;

/// Which weights are evaluated and exported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Averaging {
    /// Those of the last step.
    #[default]
    None,
    /// An average over the steps: after each, `average += (1 - decay) (weight - average)`.
    OverSteps {
        /// What stays of the average in a step.
        decay: f64,
    },
    /// `(1 - share) start + share weight`, with the weights that the run began with.
    WithStart {
        /// Of the trained weights.
        share: f64,
    },
}

/// The optimizer's fixed numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// Decay of the first moments.
    pub beta1: f64,
    /// Decay of the second moments.
    pub beta2: f64,
    /// Added to the root of the second moments.
    pub eps: f64,
    /// Decay of matrices and embeddings.
    pub weight_decay: f64,
    /// Bound on the global gradient norm; `None` for none.
    pub clip_norm: Option<f64>,
    /// How moments lie in memory, those of small tensors and embeddings aside.
    pub moments: MomentFormat,
    /// Which weights are evaluated and exported.
    pub averaging: Averaging,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-6,
            weight_decay: 0.1,
            clip_norm: Some(1.0),
            moments: MomentFormat::F32,
            averaging: Averaging::None,
        }
    }
}
