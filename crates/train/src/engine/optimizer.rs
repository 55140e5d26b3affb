//! AdamW: the settings of the update, and the format of its state.
//!
//! Matrices and embeddings decay; norms, biases and `logit_scale` do not. Learning rates are a short list: the backbone's
//! first, the heads' second, then one per pattern.
//!
//! 8-bit moments are for matrices: tensors of fewer than 4,096 elements and embeddings keep f32 moments, as in bitsandbytes.

use std::collections::HashSet;

pub use holdall_graph::ops::update::MomentFormat;
use holdall_graph::ops::update::{AdamW, AdamWParameter};
use holdall_graph::{Decay, Graph, Parameter, Role, Storage, StorageId};

pub use crate::config::{Averaging, OptimizerConfig};

/// A kind of tensor in a parameter's optimizer state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// First moments: numbers, or 8-bit codes.
    FirstMoment,
    /// Second moments: numbers, or 8-bit codes.
    SecondMoment,
    /// The largest magnitude of each block of first moments, which scales the codes.
    FirstScales,
    /// The same for second moments.
    SecondScales,
    /// Average of the weight.
    Average,
}

impl StatePart {
    /// All parts, in the order of the update's outputs.
    pub const ALL: [StatePart; 5] = [
        StatePart::FirstMoment,
        StatePart::SecondMoment,
        StatePart::FirstScales,
        StatePart::SecondScales,
        StatePart::Average,
    ];

    /// Parts of the moments in a format, in the order of the update's outputs.
    pub(crate) fn of_moments(format: MomentFormat) -> &'static [StatePart] {
        match format {
            MomentFormat::F32 | MomentFormat::Bf16 => &Self::ALL[..2],
            MomentFormat::EightBit => &Self::ALL[..4],
        }
    }

    fn name(self) -> &'static str {
        match self {
            StatePart::FirstMoment => "m",
            StatePart::SecondMoment => "v",
            StatePart::FirstScales => "m.absmax",
            StatePart::SecondScales => "v.absmax",
            StatePart::Average => "average",
        }
    }

    /// Name of the endpoint of a parameter's part.
    pub(crate) fn endpoint(self, parameter: &str) -> String {
        format!("{parameter}.{}", self.name())
    }

    /// Tensor name in a checkpoint.
    pub fn checkpoint_name(self, parameter: &str) -> String {
        format!("optimizer.{}.{parameter}", self.name())
    }
}

/// Smallest tensor with 8-bit moments. Smaller tensors are biases and norms, where errors matter most and bytes least.
const LEAST_EIGHT_BIT: usize = 4096;

/// Memory that a setting would save; the setting changes the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    /// Description for the user.
    pub what: &'static str,
    /// Config key and value.
    pub setting: [&'static str; 2],
    /// Saved bytes of the arena, with all else equal.
    pub bytes: u64,
}

/// Savings by state and gradients in fewer bits, compared with moments of a format, largest first.
pub fn savings(graph: &Graph, moments: MomentFormat) -> Vec<Saving> {
    let state_bytes = moment_bytes(graph, moments);
    let state = |what, format: MomentFormat| Saving {
        what,
        setting: ["train.optimizer_state", format.name()],
        bytes: state_bytes.saturating_sub(moment_bytes(graph, format)),
    };
    let gradient_bytes = |graph: &Graph| -> u64 {
        let storages = graph.storages().iter();
        let gradients = storages.filter(|storage| storage.role == Role::Gradient);
        gradients.map(Storage::bytes).sum()
    };
    let mut rounded = graph.clone();
    rounded.round_gradients();
    let mut savings = vec![
        state("8-bit optimizer state", MomentFormat::EightBit),
        state("bf16 optimizer state", MomentFormat::Bf16),
        Saving {
            what: "bf16 gradients",
            setting: ["train.gradients", "bf16"],
            bytes: gradient_bytes(graph) - gradient_bytes(&rounded),
        },
    ];
    savings.retain(|saving| saving.bytes > 0);
    savings
}

/// Format of a parameter's moments if the config sets `asked`.
fn moments_of(
    graph: &Graph,
    embeddings: &HashSet<StorageId>,
    parameter: &Parameter,
    asked: MomentFormat,
) -> MomentFormat {
    let value = graph.value(parameter.value);
    let is_small = value.shape.num_elements() < LEAST_EIGHT_BIT;
    match asked {
        MomentFormat::EightBit if is_small || embeddings.contains(&value.storage) => {
            MomentFormat::F32
        }
        asked => asked,
    }
}

/// Bytes of the moments of all trained parameters in a format.
pub fn moment_bytes(graph: &Graph, format: MomentFormat) -> u64 {
    let embeddings = graph.embeddings();
    let trained = graph.parameters().iter().filter(|one| one.trainable);
    trained
        .map(|parameter| {
            let format = moments_of(graph, &embeddings, parameter, format);
            format.bytes(graph.shape(parameter.value).num_elements())
        })
        .sum()
}

impl OptimizerConfig {
    /// The update of all trainable parameters, in the order of the graph.
    pub(crate) fn operation(&self, graph: &Graph) -> AdamW {
        let embeddings = graph.embeddings();
        AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            clip_norm: self.clip_norm,
            average_decay: match self.averaging {
                Averaging::OverSteps { decay } => Some(decay),
                Averaging::None | Averaging::WithStart { .. } => None,
            },
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
                    moments: moments_of(graph, &embeddings, parameter, self.moments),
                    copy: graph.parameter_copy(parameter).is_some(),
                })
                .collect(),
        }
    }

    /// Length of the schedule input of a step with so many learning rates.
    pub(crate) fn num_scalars(&self, num_rates: usize) -> usize {
        SCHEDULE_START + num_rates + usize::from(self.moments == MomentFormat::Bf16)
    }

    /// Writes the scalars of a step: inverse loss scale, bias corrections, learning rates; for random rounding also the step
    /// number.
    pub(crate) fn write_schedule(&self, scalars: &StepScalars<'_>, schedule: &mut [f32]) {
        let step = scalars.step as f64;
        let correction = |beta: f64| (1.0 / (1.0 - beta.powf(step))) as f32;
        schedule[..SCHEDULE_START].copy_from_slice(&[
            (1.0 / scalars.loss_scale) as f32,
            correction(self.beta1),
            correction(self.beta2),
        ]);
        let num_rates = scalars.rates.len();
        assert_eq!(
            schedule.len(),
            self.num_scalars(num_rates),
            "learning rates"
        );
        let (rates, rest) = schedule[SCHEDULE_START..].split_at_mut(num_rates);
        rest.fill(step as f32);
        for (to, &rate) in rates.iter_mut().zip(scalars.rates) {
            *to = rate as f32;
        }
    }
}

/// Scalars before the learning rates.
pub(crate) const SCHEDULE_START: usize = 3;

/// Learning rates of every run: the backbone's and the heads'.
pub const FIXED_RATES: usize = 2;

/// Index of the heads' learning rate.
pub const HEAD_RATE: usize = 1;

/// Scalars that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars<'a> {
    /// Number of the update, from 1.
    pub step: u64,
    /// Learning rates: the backbone's, the heads', then one per pattern.
    pub rates: &'a [f64],
    /// Factor that the losses were multiplied by.
    pub loss_scale: f64,
}
