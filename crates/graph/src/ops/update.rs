//! From gradients to new weights.
//!
//! `norm = |all gradients|`, `c = min(1, clip / (norm + 1e-6)) / loss_scale` and per parameter, as PyTorch has it:
//! `g = c * grad`, `p -= lr * decay * p`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
//! `p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, then `p = min(p, maximum)`.
//!
//! A gradient that is not finite leaves every weight and all state as they were.

use crate::Cost;
use crate::op::undifferentiated;

/// Inputs: every gradient. Output: `[norm, finite]`, the norm before unscaling and 1 or 0.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientNorm {}

/// What sets one parameter's update apart.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWParameter {
    /// Weight decay coefficient.
    pub weight_decay: f64,
    /// Which learning rate of the schedule.
    pub rate: usize,
    /// Upper bound after the update.
    pub maximum: Option<f64>,
    /// The weight's copy in the compute format is written along: one output more.
    pub copy: bool,
}

/// Inputs: `schedule, norm`, then `gradient` of each parameter; outputs: `weight, m, v, [copy]` of each, updated in place.
/// `schedule` is `[inverse loss scale, 1 / (1 - b1^t), 1 / (1 - b2^t), rate 0, rate 1, ...]`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Bound on the global norm; `None` leaves gradients as they are.
    pub clip_norm: Option<f64>,
    /// One entry per parameter.
    pub parameters: Vec<AdamWParameter>,
}

undifferentiated!(GradientNorm, "gradient norm", |_, node| {
    Cost {
        bytes: node.operand_bytes(),
        ..Cost::default()
    }
});

undifferentiated!(AdamW, "adamw", |_, node| {
    Cost {
        // Weights and both moments are read as well as written.
        bytes: 2 * node.operand_bytes(),
        ..Cost::default()
    }
});
