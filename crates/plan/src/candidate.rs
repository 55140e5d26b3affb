//! Choices of the planner about a step, and their costs.

use holdall_graph::{Copies, Graph};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use crate::host_state::HostState;
use crate::layout::Breakdown;
use crate::recompute::RecomputePolicy;

/// The planner's choices that change the graph of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Copies of the weights in a narrower format, for products.
    pub copies: Copies,
}

/// Writes the graph of a step.
pub type Build<'a> = &'a (dyn Fn(&StepShape) -> Graph + Sync);

/// Everything that the planner decides about a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Micro-batches that keep their activations between the passes.
    pub kept_micro_batches: usize,
    /// Recomputation policy, with groups and lanes.
    pub recompute: RecomputePolicy,
    /// Copies of the weights in a narrower format, for products.
    pub weight_copies: WeightCopies,
    /// State in host memory.
    pub host_state: HostState,
}

/// Copies of the weights in the format of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightCopies {
    /// No copies: the weights have that format.
    #[serde(rename = "none")]
    None,
    /// A permanent copy.
    #[serde(rename = "resident")]
    Resident,
    /// A copy of each matrix for each use.
    #[serde(rename = "per use")]
    PerUse,
}

impl WeightCopies {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            WeightCopies::None => "none",
            WeightCopies::Resident => "resident",
            WeightCopies::PerUse => "per use",
        }
    }
}

impl Choice {
    /// The part of the choice that the graph depends on.
    pub fn shape(&self) -> StepShape {
        StepShape {
            batch_size: self.batch_size,
            gradient_accumulation: self.gradient_accumulation,
            copies: match self.weight_copies {
                WeightCopies::PerUse => Copies::PerUse,
                WeightCopies::None | WeightCopies::Resident => Copies::Resident,
            },
        }
    }

    /// Key of the layout: choices that differ only in the number of kept micro-batches share a layout.
    pub(crate) fn layout(&self) -> Choice {
        Choice {
            kept_micro_batches: 0,
            ..*self
        }
    }

    /// Key of the kind of choice: any number of kept micro-batches, and any state in host memory.
    pub(crate) fn kind(&self) -> Choice {
        Choice {
            host_state: HostState::Nothing,
            ..self.layout()
        }
    }
}

/// A choice with its predicted or measured cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub choice: Choice,
    /// Whether a loss needs the whole effective batch, so that micro-batches without kept activations run forward twice.
    pub is_coupled: bool,
    pub precision: &'static str,
    pub optimizer_state: &'static str,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Total memory of the process.
    pub process_bytes: u64,
    /// State in pinned host memory.
    pub host_bytes: u64,
    /// The arena by purpose.
    pub breakdown: Breakdown,
    /// Time of a step, predicted or measured.
    pub step_ms: f64,
    /// Whether the time was measured on the device.
    pub measured: bool,
}

impl Serialize for Candidate {
    /// Serialises to a flat object, with values in words.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let choice = &self.choice;
        let mut fields = serializer.serialize_struct("Candidate", 15)?;
        fields.serialize_field("batch_size", &choice.batch_size)?;
        fields.serialize_field("gradient_accumulation", &choice.gradient_accumulation)?;
        fields.serialize_field("recompute", &choice.recompute.label())?;
        fields.serialize_field("kept_micro_batches", &choice.kept_micro_batches)?;
        fields.serialize_field("lanes", &choice.recompute.lanes)?;
        fields.serialize_field("weight_copies", &choice.weight_copies)?;
        fields.serialize_field("host_state", &choice.host_state)?;
        fields.serialize_field("precision", self.precision)?;
        fields.serialize_field("optimizer_state", self.optimizer_state)?;
        fields.serialize_field("arena_bytes", &self.arena_bytes)?;
        fields.serialize_field("process_bytes", &self.process_bytes)?;
        fields.serialize_field("host_bytes", &self.host_bytes)?;
        fields.serialize_field("breakdown", &self.breakdown)?;
        fields.serialize_field("step_ms", &self.step_ms)?;
        fields.serialize_field("measured", &self.measured)?;
        fields.end()
    }
}
