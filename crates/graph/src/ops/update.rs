//! The optimizer: from gradients to new weights.
//!
//! With `norm = |all gradients|`, `c = min(1, clip / (norm + 1e-6)) / loss_scale`, the update of each parameter is PyTorch's AdamW:
//! `g = c * grad`, `p -= lr * decay * p`, `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
//! `p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)`, then `p = min(p, maximum)`.
//!
//! A gradient that is not finite leaves every weight and all optimizer state unchanged.
//!
//! Moments may be stored in fewer bits ([`MomentFormat`]); arithmetic is in the format of the weights, and weights are updated from
//! moments that are not rounded yet. Optionally keeps a running average of the weights: `a += (1 - decay) (p - a)`.

use crate::Cost;
use crate::op::undifferentiated;
use crate::ops::dropout::mix;

/// Inputs: every gradient. Output: `[norm, finite]`, the norm before unscaling, and 1 or 0.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientNorm {}

/// Storage format of the optimizer's moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MomentFormat {
    /// The format of the weights.
    #[default]
    F32,
    /// 16-bit brain floats, rounded up or down at random: rounding to nearest would lose, in every step, a decay of less than half
    /// a digit.
    Bf16,
    /// One byte per element: a code of the dynamic map, times the largest magnitude of its block.
    EightBit,
}

impl MomentFormat {
    /// Value of the option in the config.
    pub fn name(self) -> &'static str {
        match self {
            MomentFormat::F32 => "f32",
            MomentFormat::Bf16 => "bf16",
            MomentFormat::EightBit => "8bit",
        }
    }

    /// Bytes of both moments of a tensor.
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

/// Per-parameter settings of the update.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamWParameter {
    pub weight_decay: f64,
    /// Index of its learning rate in the schedule.
    pub rate: usize,
    /// Upper bound of the elements after the update.
    pub maximum: Option<f64>,
    /// Format of its moments. 8-bit moments add two outputs: one scale per [`MOMENT_BLOCK`] elements, for `m` and for `v`.
    pub moments: MomentFormat,
    /// The update also writes the weight's copy in the compute format: one more output.
    pub copy: bool,
}

/// Inputs: `schedule, norm`, then `gradient` of each parameter; outputs: `weight, m, v, [m scales, v scales], [copy], [average]` of
/// each parameter, updated in place.
///
/// `schedule` is `[inverse loss scale, 1 / (1 - b1^t), 1 / (1 - b2^t), rate 0, rate 1, ...]`. If moments are in bf16, its last entry is
/// the number of the step, which seeds the random bits.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Bound on the global norm; `None`: no clipping.
    pub clip_norm: Option<f64>,
    /// Decay of the running averages of the weights; `None`: no averages.
    pub average_decay: Option<f64>,
    pub parameters: Vec<AdamWParameter>,
}

impl AdamW {
    /// Whether any parameter has moments of this format.
    pub fn has(&self, format: MomentFormat) -> bool {
        self.parameters.iter().any(|one| one.moments == format)
    }

    /// Index of a parameter's weight among the outputs.
    pub fn first_output(&self, parameter: usize) -> usize {
        let before = self.parameters[..parameter].iter();
        let scales = |format| 2 * usize::from(format == MomentFormat::EightBit);
        let average = usize::from(self.average_decay.is_some());
        before
            .map(|one| 3 + scales(one.moments) + usize::from(one.copy) + average)
            .sum()
    }
}

/// Random bits for the moments of an element, `[m, v]`: the same on every device.
pub fn rounding_bits(key: u64, element: u64) -> [u16; 2] {
    let bits = mix(key ^ element);
    [(bits >> 48) as u16, (bits >> 32) as u16]
}

/// Seed of [`rounding_bits`] for one tensor and one step.
pub fn rounding_key(step_bits: u32, parameter: usize) -> u64 {
    mix((parameter as u64) << 32 | u64::from(step_bits))
}

/// Exchanges or combines weights and their averages. Inputs: none; outputs: `weight, average` of each parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightAverages {
    pub action: AverageAction,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AverageAction {
    /// Swaps the two, bit for bit.
    Exchange,
    /// The average becomes a copy of the weight.
    Restart,
    /// The average becomes `(1 - share) average + share weight`.
    Interpolate { share: f64 },
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
