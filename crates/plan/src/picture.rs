//! The plan as a picture: boxes over time and address.
//!
//! ```text
//! address
//!   ^   [ slot 1: what its tensors are, one by one ]
//!   |   [ slot 0: full, so one box                 ]
//!   |   [ weights                                                     ]
//!   +-----------------------------------------------------------------> moments: one per operation
//!     begin | features | kept features | loss | kept pull-back | ... | update | evaluate
//! ```
//!
//! Programs that run once per micro-batch are drawn once. Those that keep their activations are drawn for the last
//! slot: the fullest moment of the step, when every other slot is full.

use holdall_graph::{BlockId, Role, StorageId};

use crate::draft::nodes_of;
use crate::layout::Layout;
use crate::pack::Packing;
use crate::program::Phase;

/// Who has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tenant {
    /// A storage of the graph.
    Storage(StorageId),
    /// Scratch of the operation at this moment.
    Scratch(usize),
    /// All that another micro-batch keeps for the backward pass.
    Slot(usize),
    /// Where the next inputs arrive.
    Landing,
}

/// A place in the arena from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBox {
    /// Whose.
    pub tenant: Tenant,
    /// First byte.
    pub offset: u64,
    /// Size.
    pub bytes: u64,
    /// First moment of its life.
    pub first: usize,
    /// Last moment of its life.
    pub last: usize,
}

/// The moments of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which program.
    pub phase: Phase,
    /// Its first moment.
    pub first: usize,
    /// Its last moment.
    pub last: usize,
    /// How often it runs in a step; 0 beside the step.
    pub runs: usize,
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// In which program.
    pub phase: Phase,
    /// The operation's name.
    pub operation: &'static str,
    /// What it writes first.
    pub output: Option<StorageId>,
    /// The block that it belongs to.
    pub block: Option<BlockId>,
    /// Predicted time of one run.
    pub seconds: f64,
}

/// Everything that a drawing of the plan shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// Programs, from left to right.
    pub stretches: Vec<Stretch>,
    /// One per operation.
    pub moments: Vec<Moment>,
    /// What lies where, and when.
    pub boxes: Vec<PlacedBox>,
}

impl Picture {
    fn stretch(&self, phase: Phase) -> Option<&Stretch> {
        self.stretches.iter().find(|stretch| stretch.phase == phase)
    }
}

impl Layout {
    /// Draws the plan; `regions` are those that [`Layout::plan`] places programs by.
    pub(crate) fn picture(&self, kept: usize, accumulation: usize, regions: &Packing) -> Picture {
        let draft = &self.draft;
        let base = |index: usize| draft.persistent_bytes + regions.offsets[index];
        let mut picture = Picture::default();
        for phase in Phase::ALL {
            if draft.present(phase, kept, accumulation) {
                self.draw_moments(phase, draft.runs(phase, kept, accumulation), &mut picture);
            }
        }
        let last_slot = base(1) + draft.slot_bytes * kept.saturating_sub(1) as u64;
        for stretch in picture.stretches.clone() {
            let local_base = match stretch.phase.has_slot() {
                true => last_slot,
                false => base(2 + stretch.phase as usize),
            };
            self.draw_locals(&stretch, local_base, &mut picture.boxes);
        }
        self.draw_slots(kept, base(1), &mut picture);
        self.draw_outliving(base(0), &mut picture);
        picture.boxes.retain(|placed| placed.bytes > 0);
        picture
    }

    fn draw_moments(&self, phase: Phase, runs: usize, picture: &mut Picture) {
        let nodes = nodes_of(&self.draft.rewritten, phase);
        let Some(last) = nodes.len().checked_sub(1) else {
            return;
        };
        let first = picture.moments.len();
        picture.stretches.push(Stretch {
            phase,
            first,
            last: first + last,
            runs,
        });
        let graph = &self.draft.rewritten.graph;
        let times = &self.draft.local(phase).times;
        let moments = nodes.iter().zip(times).map(|(node, &seconds)| Moment {
            phase,
            operation: node.op.rules().name(),
            output: node
                .outputs
                .first()
                .map(|output| graph.value(output.value).storage),
            block: node.block,
            seconds,
        });
        picture.moments.extend(moments);
    }

    /// What does not outlive its program.
    fn draw_locals(&self, stretch: &Stretch, base: u64, boxes: &mut Vec<PlacedBox>) {
        let locals = self.draft.local(stretch.phase);
        let packing = &self.packings[stretch.phase as usize];
        let num_scratch = locals.scratch.len();
        for (index, (item, offset)) in locals.items.iter().zip(&packing.offsets).enumerate() {
            let tenant = match index.checked_sub(num_scratch) {
                Some(transient) => Tenant::Storage(locals.storages[transient]),
                None => Tenant::Scratch(stretch.first + item.start),
            };
            boxes.push(PlacedBox {
                tenant,
                offset: base + offset,
                bytes: item.bytes,
                first: stretch.first + item.start,
                last: stretch.first + item.end,
            });
        }
    }

    /// What waits for the backward pass: tensors of the last slot, and the other slots as a whole.
    fn draw_slots(&self, kept: usize, base: u64, picture: &mut Picture) {
        let draft = &self.draft;
        let passes = [Phase::KeptFeatures, Phase::KeptPullBack];
        let [Some(&forward), Some(&backward)] = passes.map(|phase| picture.stretch(phase)) else {
            return;
        };
        let ends = &draft.local(Phase::KeptPullBack).slot_items;
        for (storage, made) in &draft.local(Phase::KeptFeatures).slot_items {
            let end = ends.iter().find(|(other, _)| other == storage);
            picture.boxes.push(PlacedBox {
                tenant: Tenant::Storage(*storage),
                offset: base + draft.slot_bytes * (kept as u64 - 1) + draft.slot[storage],
                bytes: made.bytes,
                first: forward.first + made.start,
                last: end.map_or(forward.last, |(_, item)| backward.first + item.end),
            });
        }
        for slot in 0..kept - 1 {
            picture.boxes.push(PlacedBox {
                tenant: Tenant::Slot(slot),
                offset: base + draft.slot_bytes * slot as u64,
                bytes: draft.slot_bytes,
                first: forward.first,
                last: backward.last,
            });
        }
    }

    /// Weights, state, inputs, features and gradients.
    fn draw_outliving(&self, gradients_base: u64, picture: &mut Picture) {
        let draft = &self.draft;
        let whole = (0, picture.moments.len().saturating_sub(1));
        let from_loss = [Phase::Loss, Phase::Update].map(|phase| picture.stretch(phase));
        let from_loss = match from_loss {
            [Some(loss), Some(update)] => (loss.first, update.last),
            _ => whole,
        };
        for (index, storage) in draft.rewritten.graph.storages().iter().enumerate() {
            let id = StorageId(index);
            let (offset, (first, last)) = match storage.role {
                Role::Gradient => match draft.gradients.get(&id) {
                    Some(offset) => (gradients_base + offset, from_loss),
                    None => continue,
                },
                _ => match draft.persistent.get(&id) {
                    Some(&offset) => (offset, whole),
                    None => continue,
                },
            };
            picture.boxes.push(PlacedBox {
                tenant: Tenant::Storage(id),
                offset,
                bytes: storage.bytes(),
                first,
                last,
            });
        }
        if let Some(offset) = draft.landing {
            picture.boxes.push(PlacedBox {
                tenant: Tenant::Landing,
                offset,
                bytes: draft.inputs.end - draft.inputs.start,
                first: whole.0,
                last: whole.1,
            });
        }
    }
}
