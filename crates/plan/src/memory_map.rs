//! A map of the plan: boxes over time and address.
//!
//! ```text
//! address
//!   ^   [ slot 1: its tensors, one by one ]
//!   |   [ slot 0: full, as one box                 ]
//!   |   [ weights                                                     ]
//!   +-----------------------------------------------------------------> operations: one per operation
//!     begin | first pass | kept forward | loss | kept backward | ... | update | forward programs
//! ```
//!
//! Programs that run once per micro-batch are drawn once. Those that keep their activations are drawn for the last
//! slot: the fullest moment of the step, when every other slot is full.

use holdall_graph::{BlockId, Role, StorageId};

use crate::layout::Layout;
use crate::lifetimes::{CACHES, FIRST_PROGRAM, GRADIENTS, SLOTS};
use crate::pack::Packing;
use crate::program::Stage;

/// Contents of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// A storage of the graph.
    Storage(StorageId),
    /// Scratch of the operation at this moment.
    Scratch(usize),
    /// All activations that another micro-batch keeps for the backward pass.
    Slot(usize),
    /// The area where the next inputs arrive.
    Landing,
}

/// A range of addresses over a range of moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBox {
    pub tenant: Tenant,
    pub offset: u64,
    pub bytes: u64,
    pub first: usize,
    pub last: usize,
}

/// The operations of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedProgram {
    pub stage: Stage,
    pub first: usize,
    pub last: usize,
    /// Runs per step; 0 for a program outside of steps.
    pub runs: usize,
}

/// The operation at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MappedOperation {
    pub stage: Stage,
    pub operation: &'static str,
    /// First output.
    pub output: Option<StorageId>,
    pub block: Option<BlockId>,
    /// Predicted time of one run.
    pub seconds: f64,
}

/// The data of a drawing of the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryMap {
    /// Programs, from left to right.
    pub programs: Vec<MappedProgram>,
    /// One entry per moment.
    pub operations: Vec<MappedOperation>,
    pub boxes: Vec<PlacedBox>,
}

impl MemoryMap {
    fn program(&self, stage: Stage) -> Option<&MappedProgram> {
        self.programs.iter().find(|program| program.stage == stage)
    }
}

impl Layout {
    /// Draws the plan; `regions` are the regions that [`Layout::plan`] places.
    pub(crate) fn memory_map(
        &self,
        kept: usize,
        accumulation: usize,
        regions: &Packing,
    ) -> MemoryMap {
        let lifetimes = &self.lifetimes;
        let base = |index: usize| lifetimes.outliving.persistent_bytes + regions.offsets[index];
        let mut map = MemoryMap::default();
        for stage in lifetimes.rewritten.stages() {
            if lifetimes.present(stage, kept, accumulation) {
                self.draw_operations(stage, lifetimes.runs(stage, kept, accumulation), &mut map);
            }
        }
        let last_slot = base(SLOTS) + lifetimes.slot_bytes * kept.saturating_sub(1) as u64;
        for program in map.programs.clone() {
            let local_base = if program.stage.has_slot() {
                last_slot
            } else {
                base(FIRST_PROGRAM + program.stage.id().0)
            };
            self.draw_locals(&program, local_base, &mut map.boxes);
        }
        self.draw_slots(kept, base(SLOTS), &mut map);
        self.draw_outliving([base(GRADIENTS), base(CACHES)], &mut map);
        map.boxes.retain(|placed| placed.bytes > 0);
        map
    }

    fn draw_operations(&self, stage: Stage, runs: usize, map: &mut MemoryMap) {
        let nodes = self.lifetimes.rewritten.nodes(stage);
        let Some(last) = nodes.len().checked_sub(1) else {
            return;
        };
        let first = map.operations.len();
        map.programs.push(MappedProgram {
            stage,
            first,
            last: first + last,
            runs,
        });
        let graph = &self.lifetimes.rewritten.graph;
        let times = &self.lifetimes.local(stage).times;
        let operations = nodes
            .iter()
            .zip(times)
            .map(|(node, &seconds)| MappedOperation {
                stage,
                operation: node.op.rules().name(),
                output: node
                    .outputs
                    .first()
                    .map(|output| graph.value(output.value).storage),
                block: node.block,
                seconds,
            });
        map.operations.extend(operations);
    }

    /// Draws the storages that live within one program.
    fn draw_locals(&self, program: &MappedProgram, base: u64, boxes: &mut Vec<PlacedBox>) {
        let locals = self.lifetimes.local(program.stage);
        let packing = &self.packings[program.stage.id().0];
        let num_scratch = locals.scratch.len();
        for (index, (item, offset)) in locals.items.iter().zip(&packing.offsets).enumerate() {
            let tenant = match index.checked_sub(num_scratch) {
                Some(transient) => Tenant::Storage(locals.storages[transient]),
                None => Tenant::Scratch(program.first + item.start),
            };
            boxes.push(PlacedBox {
                tenant,
                offset: base + offset,
                bytes: item.bytes,
                first: program.first + item.start,
                last: program.first + item.end,
            });
        }
    }

    /// Draws the kept activations: tensors of the last slot, and each other slot as a whole.
    fn draw_slots(&self, kept: usize, base: u64, map: &mut MemoryMap) {
        let lifetimes = &self.lifetimes;
        let passes = [Stage::KeptForward, Stage::KeptBackward];
        let [Some(&forward), Some(&backward)] = passes.map(|stage| map.program(stage)) else {
            return;
        };
        let ends = &lifetimes.local(Stage::KeptBackward).slot_items;
        for (storage, made) in &lifetimes.local(Stage::KeptForward).slot_items {
            let end = ends.iter().find(|(other, _)| other == storage);
            map.boxes.push(PlacedBox {
                tenant: Tenant::Storage(*storage),
                offset: base + lifetimes.slot_bytes * (kept as u64 - 1) + lifetimes.slot[storage],
                bytes: made.bytes,
                first: forward.first + made.start,
                last: end.map_or(forward.last, |(_, item)| backward.first + item.end),
            });
        }
        for slot in 0..kept - 1 {
            map.boxes.push(PlacedBox {
                tenant: Tenant::Slot(slot),
                offset: base + lifetimes.slot_bytes * slot as u64,
                bytes: lifetimes.slot_bytes,
                first: forward.first,
                last: backward.last,
            });
        }
    }

    /// Draws weights, state, inputs, features, gradients and caches.
    fn draw_outliving(&self, [gradients_base, caches_base]: [u64; 2], map: &mut MemoryMap) {
        let lifetimes = &self.lifetimes;
        let whole = (0, map.operations.len().saturating_sub(1));
        let from_loss = [Stage::Loss, Stage::Update].map(|stage| map.program(stage));
        let from_loss = match from_loss {
            [Some(loss), Some(update)] => (loss.first, update.last),
            _ => whole,
        };
        let first_forward = map.program(Stage::Forward(0));
        let from_first_forward = (first_forward.map_or(0, |one| one.first), whole.1);
        for (index, storage) in lifetimes.rewritten.graph.storages().iter().enumerate() {
            let id = StorageId(index);
            let (offset, (first, last)) = match storage.role {
                Role::Gradient => match lifetimes.outliving.gradients.get(&id) {
                    Some(offset) => (gradients_base + offset, from_loss),
                    None => continue,
                },
                Role::Cache => match lifetimes.outliving.caches.get(&id) {
                    Some(offset) => (caches_base + offset, from_first_forward),
                    None => continue,
                },
                _ => match lifetimes.outliving.persistent.get(&id) {
                    Some(&offset) => (offset, whole),
                    None => continue,
                },
            };
            map.boxes.push(PlacedBox {
                tenant: Tenant::Storage(id),
                offset,
                bytes: storage.bytes(),
                first,
                last,
            });
        }
        if let Some(offset) = lifetimes.outliving.landing {
            map.boxes.push(PlacedBox {
                tenant: Tenant::Landing,
                offset,
                bytes: lifetimes.outliving.inputs.end - lifetimes.outliving.inputs.start,
                first: whole.0,
                last: whole.1,
            });
        }
    }
}
