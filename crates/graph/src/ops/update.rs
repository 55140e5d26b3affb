//! From gradients to new weights.
//!
//! `norm = |all gradients|`, `c = min(1, clip / (norm + 1e-6)) / loss_scale` and per parameter, as PyTorch has it:
//! `g = c * grad`, `p -= lr * decay * p`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
//! `p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, then `p = min(p, maximum)`.
//!
//! A gradient that is not finite leaves every weight and all state as they were.
//!
//! Moments may lie in memory in fewer bits ([`MomentFormat`]); arithmetic is in the format of the weights, and weights are updated
//! from moments that are not rounded yet. A running average of the weights may be kept along: `a += (1 - decay) (p - a)`.

use crate::Cost;
use crate::op::undifferentiated;
use crate::ops::dropout::mix;

/// Inputs: every gradient. Output: `[norm, finite]`, the norm before unscaling and 1 or 0.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientNorm {}

/// How moments lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MomentFormat {
    /// In the format of the weights.
    #[default]
    F32,
    /// 16-bit brain floats, rounded up or down at random: rounded to the nearest, a decay of less than half a digit would be lost in
    /// every step.
    Bf16,
    /// One byte an element: a code of the dynamic map, times the largest magnitude of its block.
    EightBit,
}

impl MomentFormat {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            MomentFormat::F32 => "f32",
            MomentFormat::Bf16 => "bf16",
            MomentFormat::EightBit => "8bit",
        }
    }

    /// Bytes that both moments of a tensor take.
    pub fn bytes(self, num_elements: usize) -> u64 {
        let elements = num_elements as u64;
        match self {
            MomentFormat::F32 => 8 * elements,
            MomentFormat::Bf16 => 4 * elements,
            MomentFormat::EightBit => 2 * elements + 8 * elements.div_ceil(MOMENT_BLOCK as u64),
        }
    }
}

/// Elements of 8-bit moments that share a scale.
pub const MOMENT_BLOCK: usize = 256;

/// What sets one parameter's update apart.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWParameter {
    /// Weight decay coefficient.
    pub weight_decay: f64,
    /// Which learning rate of the schedule.
    pub rate: usize,
    /// Upper bound after the update.
    pub maximum: Option<f64>,
    /// How its moments lie in memory. 8-bit ones have two outputs more, a scale for each [`MOMENT_BLOCK`].
    pub moments: MomentFormat,
    /// The weight's copy in the compute format is written along: one output more.
    pub copy: bool,
}

/// Inputs: `schedule, norm`, then `gradient` of each parameter; outputs: `weight, m, v, [m scales, v scales], [copy], [average]` of
/// each, updated in place.
///
/// `schedule` is `[inverse loss scale, 1 / (1 - b1^t), 1 / (1 - b2^t), rate 0, rate 1, ...]`. Where moments are in bf16, its last entry is
/// the number of the step: random bits are a function of it.
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
    /// Decay of the running average of each weight, where there is one.
    pub average_decay: Option<f64>,
    /// One entry per parameter.
    pub parameters: Vec<AdamWParameter>,
}

impl AdamW {
    /// Whether a parameter's moments have this format.
    pub fn has(&self, format: MomentFormat) -> bool {
        self.parameters.iter().any(|one| one.moments == format)
    }

    /// Place of a parameter's weight among the outputs.
    pub fn first_output(&self, parameter: usize) -> usize {
        let before = self.parameters[..parameter].iter();
        let scales = |format| 2 * usize::from(format == MomentFormat::EightBit);
        let average = usize::from(self.average_decay.is_some());
        before
            .map(|one| 3 + scales(one.moments) + usize::from(one.copy) + average)
            .sum()
    }
}

/// Random bits for the moments of an element, those of `m` above those of `v`: the same wherever they are computed.
pub fn rounding_bits(key: u64, element: u64) -> [u16; 2] {
    let bits = mix(key ^ element);
    [(bits >> 48) as u16, (bits >> 32) as u16]
}

/// What [`rounding_bits`] of a tensor in a step are drawn from.
pub fn rounding_key(step_bits: u32, parameter: usize) -> u64 {
    mix((parameter as u64) << 32 | u64::from(step_bits))
}

/// What happens between weights and their averages. Inputs: none; outputs: `weight, average` of each parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightAverages {
    /// What happens.
    pub action: AverageAction,
}

/// What happens between weights and their averages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AverageAction {
    /// Each gets the other's place, bit for bit.
    Exchange,
    /// The average becomes the weight.
    Restart,
    /// The average becomes `(1 - share) average + share weight`.
    Interpolate {
        /// Of the weight.
        share: f64,
    },
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

undifferentiated!(WeightAverages, "weight averages", |_, node| {
    Cost {
        bytes: 2 * node.operand_bytes(),
        ..Cost::default()
    }
});
