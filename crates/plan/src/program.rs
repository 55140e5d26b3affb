//! A planned program: operations with addresses. A device replays it and decides nothing.

use holdall_graph::{DType, MemorySpace, Op, Shape, Write};

/// Where an operand is, in bytes from the start of the arena, or of the pinned host memory beside it.
///
/// Two things move between runs of one program: the rows of the features that belong to the micro-batch, and
/// the slot in which it keeps its activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// In which memory.
    pub space: MemorySpace,
    /// First byte.
    pub offset: u64,
    /// Added once per micro-batch index.
    pub micro_stride: u64,
    /// Added once per slot index.
    pub slot_stride: u64,
    /// Extent in elements.
    pub shape: Shape,
    /// Strides in elements.
    pub strides: Shape,
    /// Number format.
    pub dtype: DType,
}

impl Place {
    /// The same bytes, whatever their number format.
    ///
    /// # Panics
    /// If they do not lie one behind the other.
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

/// Scratch of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// First byte in the arena.
    pub offset: u64,
    /// Added once per slot index.
    pub slot_stride: u64,
    /// Size.
    pub bytes: u64,
}

/// One operation with addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// What to do.
    pub op: Op,
    /// Operands, in the operation's order.
    pub inputs: Vec<Place>,
    /// Results; `None` where nobody reads one, so that it need not be written.
    pub outputs: Vec<Option<(Place, Write)>>,
    /// Scratch.
    pub workspace: Workspace,
    /// Instructions of different lanes that follow each other may run beside each other; `None` waits for all before it.
    pub lane: Option<usize>,
}

/// A list of instructions that runs as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// For people and, of a forward program, what it is asked for by.
    pub name: String,
    /// When it runs.
    pub stage: Stage,
    /// In order; none where the program does not run.
    pub instructions: Vec<Instruction>,
}

/// Names a program of a plan: its place in [`crate::StepPlan::programs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProgramId(pub usize);

/// When a program runs: those of a step in their order, then those beside it.
///
/// Slots are a stack: filled from 0 up by `KeptForward`, emptied from the last down by `KeptBackward`. Each slot's
/// transients lie where the slots above it will be or have been, so another order corrupts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Once: loss sums to zero.
    Begin,
    /// Per micro-batch without a slot, where a loss needs the whole effective batch: forward, up to what it needs.
    FirstPass,
    /// Per micro-batch with a slot: forward, activations kept.
    KeptForward,
    /// Once: gradients to zero, losses of the whole effective batch.
    Loss,
    /// Per micro-batch with a slot: backward.
    KeptBackward,
    /// Per micro-batch without a slot: forward and backward.
    ForwardBackward,
    /// Once, where several processes take part: gradients and loss sums of all.
    Reduce,
    /// Once: norm and optimizer.
    Update,
    /// Beside the step: after weights were written from outside.
    Refresh,
    /// Beside the step: a forward program, by its place in the graph's list.
    Forward(usize),
}

/// Stages of every plan, whatever forward programs it has.
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

    /// The program of this stage: its place among [`Stage::all`].
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

    /// For people; a forward program has a name of its own.
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

    /// Runs into or out of a slot.
    pub fn has_slot(self) -> bool {
        matches!(self, Stage::KeptForward | Stage::KeptBackward)
    }

    /// Runs for one micro-batch at a time, and reads its inputs.
    pub fn is_per_micro_batch(self) -> bool {
        matches!(
            self,
            Stage::FirstPass | Stage::KeptForward | Stage::KeptBackward | Stage::ForwardBackward
        )
    }

    /// Not part of a step.
    pub fn is_beside_step(self) -> bool {
        matches!(self, Stage::Refresh | Stage::Forward(_))
    }
}

/// One run of a program within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which program.
    pub program: ProgramId,
    /// Its stage.
    pub stage: Stage,
    /// For which micro-batch; 0 where it runs once.
    pub micro_batch: usize,
    /// The slot that holds the activations, where it has one.
    pub slot: usize,
    /// The last pass of a step whose gradients are added over several processes: each is final once its last writer has run.
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
