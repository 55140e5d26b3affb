//! A planned program: operations with addresses. A device replays it without further decisions.

use holdall_graph::{DType, MemorySpace, Op, Shape, Write};

/// Location of an operand, in bytes from the start of the arena, or of the pinned host memory beside it.
///
/// Two offsets vary between runs of a program: the feature rows of the current micro-batch, and the slot of its activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub space: MemorySpace,
    /// First byte.
    pub offset: u64,
    /// Offset per micro-batch index.
    pub micro_stride: u64,
    /// Offset per slot index.
    pub slot_stride: u64,
    /// Extent in elements.
    pub shape: Shape,
    /// Strides in elements.
    pub strides: Shape,
    pub dtype: DType,
}

impl Place {
    /// The same memory as bytes.
    ///
    /// # Panics
    /// If the operand is not contiguous.
    pub fn as_bytes(&self) -> Place {
        assert_eq!(self.strides, self.shape.contiguous_strides(), "as a whole");
        let shape = Shape::new(&[self.shape.num_elements() * self.dtype.bytes()]);
        Place {
            strides: shape.contiguous_strides(),
            shape,
            dtype: DType::U8,
            ..*self
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// First byte in the arena.
    pub offset: u64,
    /// Offset per slot index.
    pub slot_stride: u64,
    pub bytes: u64,
}

/// One operation with addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    pub op: Op,
    /// Operands, in the operation's order.
    pub inputs: Vec<Place>,
    /// Results; `None` for a result that no operation reads, so that it need not be written.
    pub outputs: Vec<Option<(Place, Write)>>,
    pub workspace: Workspace,
    /// Consecutive instructions of different lanes may run at the same time; `None` waits for all instructions before it.
    pub lane: Option<usize>,
}

/// A list of instructions that runs as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Name in reports; forward programs are found by it.
    pub name: String,
    pub stage: Stage,
    /// In order; empty if the program does not run.
    pub instructions: Vec<Instruction>,
}

/// Index of a program in [`crate::StepPlan::programs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub usize);

/// Place of a program in a step: the stages of a step in their order, then programs outside of a step.
///
/// Slots are a stack: filled from 0 up by `KeptForward`, emptied from the last down by `KeptBackward`. Each slot's
/// transients use the memory of the slots above it, so another order corrupts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Once: sets loss sums to zero.
    Begin,
    /// Per micro-batch without a slot, if a loss needs the whole effective batch: forward, up to the features for that loss.
    FirstPass,
    /// Per micro-batch with a slot: forward, activations kept.
    KeptForward,
    /// Once: sets gradients to zero, and computes losses of the whole effective batch.
    Loss,
    /// Per micro-batch with a slot: backward.
    KeptBackward,
    /// Per micro-batch without a slot: forward and backward.
    ForwardBackward,
    /// Once, with several processes: sums gradients and losses over the processes.
    Reduce,
    /// Once: gradient norm and optimizer.
    Update,
    /// Outside of a step: refreshes the copies of weights that were written from outside.
    Refresh,
    /// Outside of a step: a forward program, by its index in the graph's list.
    Forward(usize),
}

/// Stages of every plan, before the forward programs.
const FIXED: [Stage; 9] = [
    Stage::Begin,
    Stage::FirstPass,
    Stage::KeptForward,
    Stage::Loss,
    Stage::KeptBackward,
    Stage::ForwardBackward,
    Stage::Reduce,
    Stage::Update,
    Stage::Refresh,
];

impl Stage {
    /// Every stage of a plan with this many forward programs, in order.
    pub fn all(num_forward_programs: usize) -> impl Iterator<Item = Stage> {
        let forward = (0..num_forward_programs).map(Stage::Forward);
        FIXED.into_iter().chain(forward)
    }

    /// Id of this stage's program: its index in [`Stage::all`].
    pub fn id(self) -> ProgramId {
        ProgramId(match self {
            Stage::Begin => 0,
            Stage::FirstPass => 1,
            Stage::KeptForward => 2,
            Stage::Loss => 3,
            Stage::KeptBackward => 4,
            Stage::ForwardBackward => 5,
            Stage::Reduce => 6,
            Stage::Update => 7,
            Stage::Refresh => 8,
            Stage::Forward(index) => FIXED.len() + index,
        })
    }

    /// Name in reports; forward programs have their own names.
    pub(crate) fn name(self, forward_programs: &[String]) -> String {
        let name = match self {
            Stage::Begin => "begin",
            Stage::FirstPass => "first pass",
            Stage::KeptForward => "kept forward",
            Stage::Loss => "loss",
            Stage::KeptBackward => "kept backward",
            Stage::ForwardBackward => "forward and backward",
            Stage::Reduce => "reduce",
            Stage::Update => "update",
            Stage::Refresh => "refresh",
            Stage::Forward(index) => &forward_programs[index],
        };
        name.to_owned()
    }

    /// Whether the stage reads or writes a slot.
    pub fn has_slot(self) -> bool {
        matches!(self, Stage::KeptForward | Stage::KeptBackward)
    }

    /// Whether the stage runs for one micro-batch at a time, and reads its inputs.
    pub fn is_per_micro_batch(self) -> bool {
        matches!(
            self,
            Stage::FirstPass | Stage::KeptForward | Stage::KeptBackward | Stage::ForwardBackward
        )
    }

    /// Whether the stage is not part of a step.
    pub fn is_beside_step(self) -> bool {
        matches!(self, Stage::Refresh | Stage::Forward(_))
    }
}

/// One run of a program within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub program: ProgramId,
    pub stage: Stage,
    /// Index of the micro-batch; 0 for programs that run once.
    pub micro_batch: usize,
    /// Slot of the activations, if the stage has one.
    pub slot: usize,
    /// Whether this is the last pass of a step whose gradients are summed over several processes: each gradient is final
    /// after its last writer.
    pub is_last: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_where_its_id_says() {
        let ids: Vec<usize> = Stage::all(3).map(|stage| stage.id().0).collect();
        assert_eq!(ids, (0..FIXED.len() + 3).collect::<Vec<_>>());
    }
}
