//! AdamW: which numbers move the weights.
//!
//! Matrices and embeddings decay; norms, biases and `logit_scale` do not. Learning rates are a short list: the
//! backbone's first, the heads' second, then those of patterns.

use holdall_graph::ops::update::{AdamW, AdamWParameter};
use holdall_graph::{Decay, Graph};
use serde::{Deserialize, Serialize};

/// The optimizer's fixed numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Decay of the first scalars.
    pub beta1: f64,
    /// Decay of the second scalars.
    pub beta2: f64,
    /// Added to the root of the second scalars.
    pub eps: f64,
    /// Decay of matrices and embeddings.
    pub weight_decay: f64,
    /// Bound on the global gradient norm; `null` for none.
    pub clip_norm: Option<f64>,
}

impl Default for OptimizerConfig {
    fn default() -> OptimizerConfig {
        OptimizerConfig {
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-6,
            weight_decay: 0.1,
            clip_norm: Some(1.0),
        }
    }
}

impl OptimizerConfig {
    /// The update of every trainable parameter, in the order of the graph.
    pub(crate) fn operation(&self, graph: &Graph) -> AdamW {
        AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            clip_norm: self.clip_norm,
            parameters: graph
                .parameters()
                .iter()
                .filter(|parameter| parameter.trainable)
                .map(|parameter| AdamWParameter {
                    weight_decay: match parameter.decay {
                        Decay::Yes => self.weight_decay,
                        Decay::No => 0.0,
                    },
                    rate: parameter.rate,
                    maximum: parameter.maximum,
                    copy: graph.parameter_copy(parameter).is_some(),
                })
                .collect(),
        }
    }

    /// Scalars of the step: inverse loss scale, bias corrections, learning rates.
    pub(crate) fn write_schedule(&self, scalars: &StepScalars<'_>, schedule: &mut [f32]) {
        let step = scalars.step as f64;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(step))) as f32;
        schedule[..SCHEDULE_START].copy_from_slice(&[
            (1.0 / scalars.loss_scale) as f32,
            correction(self.beta1),
            correction(self.beta2),
        ]);
        let rates = &mut schedule[SCHEDULE_START..];
        assert_eq!(rates.len(), scalars.rates.len(), "learning rates");
        for (to, &rate) in rates.iter_mut().zip(scalars.rates) {
            *to = rate as f32;
        }
    }
}

/// Entries of the schedule before the learning rates.
pub(crate) const SCHEDULE_START: usize = 3;

/// Learning rates that are always there: the backbone's and the heads'.
pub const FIXED_RATES: usize = 2;

/// The heads' place among the learning rates.
pub const HEAD_RATE: usize = 1;

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars<'a> {
    /// Counts updates, from 1.
    pub step: u64,
    /// Learning rates: the backbone's, the heads', then one per pattern.
    pub rates: &'a [f64],
    /// What losses were multiplied by.
    pub loss_scale: f64,
}
