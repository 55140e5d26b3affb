//! The optimizer's numbers, as resolved from a config.

use holdall_graph::ops::update::MomentFormat;

/// Weights to evaluate and export.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Averaging {
    /// The weights of the last step.
    #[default]
    None,
    /// A moving average over the steps: after each, `average += (1 - decay) (weight - average)`.
    OverSteps {
        /// Share of the average that a step keeps.
        decay: f64,
    },
    /// An interpolation with the starting weights: `(1 - share) start + share weight`.
    WithStart {
        /// Share of the trained weights.
        share: f64,
    },
}

/// Constants of the optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// Decay of the first moments.
    pub beta1: f64,
    /// Decay of the second moments.
    pub beta2: f64,
    /// Constant added to the root of the second moments.
    pub eps: f64,
    /// Weight decay of matrices and embeddings.
    pub weight_decay: f64,
    /// Bound of the global gradient norm.
    pub clip_norm: Option<f64>,
    /// Memory format of the moments; small tensors and embeddings keep f32.
    pub moments: MomentFormat,
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
