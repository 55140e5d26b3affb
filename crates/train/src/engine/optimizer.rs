//! AdamW: which numbers move the weights.
//!
//! Matrices and embeddings decay; norms, biases and `logit_scale` do not. Learning rates are a short list: the
//! backbone's first, the heads' second, then those of patterns.
//!
//! Moments in 8 bits are for matrices: tensors of fewer than 4,096 elements and embeddings have theirs in f32, as in bitsandbytes.

use std::collections::HashSet;

pub use holdall_graph::ops::update::MomentFormat;
use holdall_graph::ops::update::{AdamW, AdamWParameter};
use holdall_graph::{Decay, Graph, Parameter, Role, Storage, StorageId};

pub use crate::config::{Averaging, OptimizerConfig};

/// A tensor of the optimizer's state of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// First moments: numbers, or codes.
    FirstMoment,
    /// Second moments: numbers, or codes.
    SecondMoment,
    /// The largest magnitude of each block of first moments, which codes are relative to.
    FirstScales,
    /// The same of second moments.
    SecondScales,
    /// The average of the weight.
    Average,
}

impl StatePart {
    /// Every part, in the order of the update's outputs.
    pub const ALL: [StatePart; 5] = [
        StatePart::FirstMoment,
        StatePart::SecondMoment,
        StatePart::FirstScales,
        StatePart::SecondScales,
        StatePart::Average,
    ];

    /// The parts that moments of a format have, in the order of the update's outputs.
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

    /// The endpoint of a parameter's part.
    pub(crate) fn endpoint(self, parameter: &str) -> String {
        format!("{parameter}.{}", self.name())
    }

    /// The tensor of a checkpoint.
    pub fn checkpoint_name(self, parameter: &str) -> String {
        format!("optimizer.{}.{parameter}", self.name())
    }
}

/// Tensors of fewer elements keep their moments in f32: they are biases and norms, where an error weighs most and bytes least.
const LEAST_EIGHT_BIT: usize = 4096;

/// What a setting that changes numbers would save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saving {
    /// For people.
    pub what: &'static str,
    /// The key and the value to write in a config.
    pub setting: [&'static str; 2],
    /// Bytes of the arena, all else equal.
    pub bytes: u64,
}

/// What state and gradients in fewer bits would save in a step with moments of a format, largest first.
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

/// How the moments of a parameter lie in memory where `asked` was asked for.
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

/// Bytes that the moments of all trained parameters would take in a format.
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
    /// The update of every trainable parameter, in the order of the graph.
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

    /// Entries of the schedule of a step with so many learning rates.
    pub(crate) fn num_scalars(&self, num_rates: usize) -> usize {
        SCHEDULE_START + num_rates + usize::from(self.moments == MomentFormat::Bf16)
    }

    /// Scalars of the step: inverse loss scale, bias corrections, learning rates; for random rounding the step's number.
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
