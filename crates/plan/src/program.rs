//! A planned program: operations with addresses. A device replays it and decides nothing.

use holdall_graph::{DType, EVALUATIONS, Op, Shape, Write};

/// Where an operand is, in bytes from the start of the arena.
///
/// Two things move between runs of one program: the rows of the features that belong to the micro-batch, and
/// the slot in which it keeps its activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// For people.
    pub name: &'static str,
    /// In order.
    pub instructions: Vec<Instruction>,
}

/// Names a program: in the order in which they run in a step, then those beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Once: loss sums to zero.
    Begin,
    /// Per micro-batch without a slot: forward.
    Features,
    /// Per micro-batch with a slot: forward, activations kept.
    KeptFeatures,
    /// Once: gradients to zero, coupled losses.
    Loss,
    /// Per micro-batch with a slot: backward.
    KeptPullBack,
    /// Per micro-batch without a slot: forward again and backward.
    PullBack,
    /// Once: norm and optimizer.
    Update,
    /// Evaluation of the first tower.
    EvaluateFirst,
    /// Evaluation of the second tower.
    EvaluateSecond,
    /// After weights were written from outside.
    Refresh,
}

impl Phase {
    /// Every one of them.
    pub const ALL: [Phase; 10] = [
        Phase::Begin,
        Phase::Features,
        Phase::KeptFeatures,
        Phase::Loss,
        Phase::KeptPullBack,
        Phase::PullBack,
        Phase::Update,
        Phase::EvaluateFirst,
        Phase::EvaluateSecond,
        Phase::Refresh,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Begin => "begin",
            Phase::Features => "features",
            Phase::KeptFeatures => "kept features",
            Phase::Loss => "loss",
            Phase::KeptPullBack => "kept pull-back",
            Phase::PullBack => "pull-back",
            Phase::Update => "update",
            Phase::EvaluateFirst => "evaluate first tower",
            Phase::EvaluateSecond => "evaluate second tower",
            Phase::Refresh => "refresh",
        }
    }

    /// Runs into or out of a slot.
    pub fn has_slot(self) -> bool {
        matches!(self, Phase::KeptFeatures | Phase::KeptPullBack)
    }
}

/// The programs of a step, in the order in which they run.
///
/// Slots are a stack: filled from 0 up by `kept_features`, emptied from the last down by `kept_pull_back`. Each
/// slot's transients lie where the slots above it will be or have been, so another order corrupts them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Programs {
    /// Once: loss sums to zero.
    pub begin: Program,
    /// Forward only, nothing kept: the first pass of micro-batches without a slot, and every evaluation.
    pub features: Program,
    /// Forward into a slot.
    pub kept_features: Program,
    /// Once: gradients to zero, coupled losses.
    pub loss: Program,
    /// Backward out of a slot.
    pub kept_pull_back: Program,
    /// Forward again and backward.
    pub pull_back: Program,
    /// Once: norm and optimizer.
    pub update: Program,
    /// Evaluation's forward programs, tower by tower: outside the step.
    pub evaluate: [Program; EVALUATIONS],
    /// After weights were written from outside: their copies in the compute format.
    pub refresh: Program,
}

impl std::ops::Index<Phase> for Programs {
    type Output = Program;

    fn index(&self, phase: Phase) -> &Program {
        match phase {
            Phase::Begin => &self.begin,
            Phase::Features => &self.features,
            Phase::KeptFeatures => &self.kept_features,
            Phase::Loss => &self.loss,
            Phase::KeptPullBack => &self.kept_pull_back,
            Phase::PullBack => &self.pull_back,
            Phase::Update => &self.update,
            Phase::EvaluateFirst => &self.evaluate[0],
            Phase::EvaluateSecond => &self.evaluate[1],
            Phase::Refresh => &self.refresh,
        }
    }
}

impl Programs {
    /// Every program.
    pub fn all(&self) -> [&Program; Phase::ALL.len()] {
        Phase::ALL.map(|phase| &self[phase])
    }
}
