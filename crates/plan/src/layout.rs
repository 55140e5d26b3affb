//! From nodes to addresses.
//!
//! [`prepare`] does what does not depend on how many micro-batches keep their activations: lifetimes, sizes and
//! times of each program. [`Draft::pack`] then finds offsets, and [`Layout::plan`] puts regions
//! together for a given number of slots.

use std::collections::{HashMap, HashSet};

use holdall_graph::{Graph, Node, NodeView, Role, StorageId, Value, ValueId};
use serde::Serialize;

use crate::pack::{Item, Packing, align, liveness_peak, pack, pack_around};
use crate::program::{Instruction, Place, Program, Programs, Workspace};
use crate::recompute::{Policy, Rewritten, rewrite};
use crate::target::Target;

/// Bytes by what they are for; they add up to the arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    /// Parameters.
    pub weights: u64,
    /// Gradients of parameters.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// Everything between: what is kept for the backward pass, what passes through, and gaps.
    pub activations: u64,
    /// Pictures, tokens, labels, schedule.
    pub inputs: u64,
    /// Features of the whole effective batch, their gradients, loss sums.
    pub features: u64,
    /// Scratch of the widest instruction.
    pub workspace: u64,
}

impl Breakdown {
    /// The arena.
    pub fn total(&self) -> u64 {
        self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.inputs
            + self.features
            + self.workspace
    }
}

/// Programs of a step, as indices into a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    Features,
    KeptFeatures,
    Loss,
    KeptPullBack,
    PullBack,
    Update,
}

const PHASES: [(Phase, &str); 7] = [
    (Phase::Begin, "begin"),
    (Phase::Features, "features"),
    (Phase::KeptFeatures, "kept features"),
    (Phase::Loss, "loss"),
    (Phase::KeptPullBack, "kept pull-back"),
    (Phase::PullBack, "pull-back"),
    (Phase::Update, "update"),
];

/// What is alive within one program, beside what outlives it.
#[derive(Clone, Debug, Default)]
struct Locals {
    items: Vec<Item>,
    storages: Vec<StorageId>,
    /// Tensors of the slot that this program reads or writes.
    slot_items: Vec<(StorageId, Item)>,
    /// Index into `items` of each node's scratch.
    scratch: Vec<usize>,
    /// Most bytes alive at one time.
    bound: u64,
    /// The same, with one slot's tensors counted only while they are alive.
    bound_with_slot: u64,
    seconds: f64,
    largest_scratch: u64,
    packing_bytes: u64,
}

/// Sizes, lifetimes and times of a step under one policy; offsets are still open.
#[derive(Clone, Debug)]
pub struct Draft {
    rewritten: Rewritten,
    locals: Vec<Locals>,
    persistent: HashMap<StorageId, u64>,
    persistent_bytes: u64,
    gradients: HashMap<StorageId, u64>,
    gradient_bytes: u64,
    slot: HashMap<StorageId, u64>,
    slot_bytes: u64,
    by_role: HashMap<Role, u64>,
    alignment: u64,
    overhead_bytes: u64,
    one_part_in: u64,
    coupled: bool,
}

/// A draft with offsets.
#[derive(Clone, Debug)]
pub struct Layout {
    draft: Draft,
    packings: Vec<Packing>,
}

/// Everything a device needs to run a step, and everything a report needs to explain it.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// Storages and values that the programs speak of.
    pub graph: Graph,
    /// What runs.
    pub programs: Programs,
    /// Size of the one allocation.
    pub arena_bytes: u64,
    /// The same by purpose.
    pub breakdown: Breakdown,
    /// The arena and everything else the process holds.
    pub process_bytes: u64,
    /// No layout of these lifetimes could be smaller than this.
    pub bound_bytes: u64,
    /// How many micro-batches keep their activations between the passes.
    pub kept: usize,
    /// Whether features of the whole effective batch are needed before the backward pass.
    pub coupled: bool,
    /// What the product library allocates beside the arena, at most.
    pub packing_bytes: u64,
    persistent: HashMap<StorageId, u64>,
}

/// Lifetimes, sizes and times of a graph under a policy.
pub fn prepare(graph: &Graph, policy: &Policy, target: &dyn Target) -> Draft {
    let rewritten = rewrite(graph, policy);
    let alignment = target.alignment();
    let mut persistent = HashMap::new();
    let mut gradients = HashMap::new();
    let mut by_role: HashMap<Role, u64> = HashMap::new();
    let (mut persistent_bytes, mut gradient_bytes) = (0, 0);
    for (index, storage) in rewritten.graph.storages().iter().enumerate() {
        let bytes = align(storage.bytes(), alignment);
        let (offsets, total) = match storage.role {
            Role::Activation => continue,
            Role::Gradient => (&mut gradients, &mut gradient_bytes),
            _ => (&mut persistent, &mut persistent_bytes),
        };
        offsets.insert(StorageId(index), *total);
        *total += bytes;
        *by_role.entry(storage.role).or_default() += bytes;
    }
    let mut slot = HashMap::new();
    let mut slot_bytes = 0;
    let mut kept: Vec<StorageId> = rewritten.kept.iter().copied().collect();
    kept.sort();
    for storage in kept {
        slot.insert(storage, slot_bytes);
        slot_bytes += align(rewritten.graph.storage(storage).bytes(), alignment);
    }
    let locals: Vec<Locals> = PHASES
        .iter()
        .map(|&(phase, _)| {
            let outside = match phase {
                Phase::KeptFeatures | Phase::KeptPullBack => &rewritten.kept,
                _ => &HashSet::new(),
            };
            locals_of(
                &rewritten.graph,
                &nodes_of(&rewritten, phase),
                outside,
                target,
                phase,
            )
        })
        .collect();
    let packing_bytes = locals.iter().map(|l| l.packing_bytes).max().unwrap_or(0);
    Draft {
        coupled: !rewritten.features.is_empty(),
        rewritten,
        locals,
        persistent,
        persistent_bytes,
        gradients,
        gradient_bytes,
        slot,
        slot_bytes,
        by_role,
        alignment,
        overhead_bytes: target.overhead_bytes(packing_bytes),
        one_part_in: target.one_part_of_arena_in(),
    }
}

fn nodes_of(rewritten: &Rewritten, phase: Phase) -> Vec<&Node> {
    match phase {
        Phase::Begin => rewritten.begin.iter().collect(),
        Phase::Features => rewritten.features.iter().collect(),
        Phase::KeptFeatures => rewritten.forward.iter().collect(),
        Phase::Loss => rewritten.loss.iter().collect(),
        Phase::KeptPullBack => rewritten.pull_back.iter().collect(),
        Phase::PullBack => rewritten
            .forward
            .iter()
            .chain(&rewritten.pull_back)
            .collect(),
        Phase::Update => rewritten.update.iter().collect(),
    }
}

fn locals_of(
    graph: &Graph,
    nodes: &[&Node],
    outside: &HashSet<StorageId>,
    target: &dyn Target,
    phase: Phase,
) -> Locals {
    let mut locals = Locals::default();
    let read = storages_read(graph, nodes);
    let mut spans: HashMap<StorageId, (usize, usize)> = HashMap::new();
    for (moment, node) in nodes.iter().enumerate() {
        let outputs = node.outputs.iter().enumerate();
        let written = outputs.map(|(index, output)| {
            let skippable = node.op.rules().skippable(index);
            (output.value, skippable)
        });
        let used = node.inputs.iter().map(|&input| (input, false));
        for (id, skippable) in used.chain(written) {
            let storage = graph.value(id).storage;
            if graph.storage(storage).role != Role::Activation {
                continue;
            }
            if !skippable || read.contains(&storage) || outside.contains(&storage) {
                spans.entry(storage).or_insert((moment, moment)).1 = moment;
            }
        }
        let view = NodeView { graph, node };
        locals.seconds += target.seconds(view);
        locals.packing_bytes = locals.packing_bytes.max(target.packing_bytes(view));
        let scratch = target.workspace_bytes(view);
        locals.largest_scratch = locals.largest_scratch.max(scratch);
        locals.scratch.push(locals.items.len());
        locals.items.push(Item {
            bytes: scratch,
            start: moment,
            end: moment,
        });
    }
    let last = nodes.len().saturating_sub(1);
    let mut spans: Vec<_> = spans.into_iter().collect();
    spans.sort();
    let num_scratch = locals.items.len();
    for (storage, (start, end)) in spans {
        let bytes = graph.storage(storage).bytes();
        if outside.contains(&storage) {
            // Kept tensors stay to the end of the forward pass, and are there from the start of the backward pass.
            let (start, end) = match phase {
                Phase::KeptFeatures => (start, last),
                _ => (0, end),
            };
            let item = Item { bytes, start, end };
            locals.slot_items.push((storage, item));
        } else {
            locals.items.push(Item { bytes, start, end });
            locals.storages.push(storage);
        }
    }
    debug_assert_eq!(num_scratch, nodes.len());
    let alignment = target.alignment();
    locals.bound = liveness_peak(&locals.items, alignment);
    let mut with_slot = locals.items.clone();
    with_slot.extend(locals.slot_items.iter().map(|&(_, item)| item));
    locals.bound_with_slot = liveness_peak(&with_slot, alignment);
    locals
}

fn storages_read(graph: &Graph, nodes: &[&Node]) -> HashSet<StorageId> {
    nodes
        .iter()
        .flat_map(|node| &node.inputs)
        .map(|&input| graph.value(input).storage)
        .collect()
}

impl Draft {
    fn local(&self, phase: Phase) -> &Locals {
        &self.locals[phase as usize]
    }

    /// Which programs run when `kept` of `accumulation` micro-batches keep their activations.
    fn runs(&self, phase: Phase, kept: usize, accumulation: usize) -> usize {
        match phase {
            Phase::Begin | Phase::Loss | Phase::Update => 1,
            Phase::Features if self.coupled => accumulation - kept,
            Phase::Features => 0,
            Phase::KeptFeatures | Phase::KeptPullBack => kept,
            Phase::PullBack => accumulation - kept,
        }
    }

    /// Programs that must have room: those that run, and the forward program for evaluation.
    fn present(&self, phase: Phase, kept: usize, accumulation: usize) -> bool {
        self.runs(phase, kept, accumulation) > 0 || (phase == Phase::Features && self.coupled)
    }

    /// Predicted time of a step.
    pub fn seconds(&self, kept: usize, accumulation: usize) -> f64 {
        PHASES
            .iter()
            .map(|&(phase, _)| {
                self.runs(phase, kept, accumulation) as f64 * self.local(phase).seconds
            })
            .sum()
    }

    /// Regions over phases: gradients, slots, and each program's transients of the given size.
    fn regions(
        &self,
        kept: usize,
        accumulation: usize,
        size: impl Fn(Phase) -> u64,
        slots_bytes: u64,
    ) -> Vec<Item> {
        let mut items = vec![
            Item {
                bytes: self.gradient_bytes,
                start: Phase::Loss as usize,
                end: Phase::Update as usize,
            },
            Item {
                bytes: slots_bytes,
                start: Phase::KeptFeatures as usize,
                end: Phase::KeptPullBack as usize,
            },
        ];
        for &(phase, _) in &PHASES {
            let bytes = if self.present(phase, kept, accumulation) {
                size(phase)
            } else {
                0
            };
            items.push(Item {
                bytes,
                start: phase as usize,
                end: phase as usize,
            });
        }
        items
    }

    /// Bytes that no layout can do without.
    pub fn bound_bytes(&self, kept: usize, accumulation: usize) -> u64 {
        let others = self.slot_bytes * kept.saturating_sub(1) as u64;
        let items = self.regions(
            kept,
            accumulation,
            |phase| match phase {
                Phase::KeptFeatures | Phase::KeptPullBack => self.local(phase).bound_with_slot,
                Phase::Loss if kept > 0 => self.local(phase).bound + self.slot_bytes,
                _ => self.local(phase).bound,
            },
            others,
        );
        self.persistent_bytes + liveness_peak(&items, self.alignment)
    }

    /// Whether features of the whole effective batch are needed before the backward pass.
    pub fn is_coupled(&self) -> bool {
        self.coupled
    }

    /// The whole process around an arena of that size.
    pub fn process_bytes(&self, arena_bytes: u64) -> u64 {
        arena_bytes + arena_bytes / self.one_part_in + self.overhead_bytes
    }

    /// Finds offsets.
    pub fn pack(self) -> Layout {
        let packings = self
            .locals
            .iter()
            .map(|locals| {
                let fixed: Vec<(u64, Item)> = locals
                    .slot_items
                    .iter()
                    .map(|&(storage, item)| (self.slot[&storage], item))
                    .collect();
                pack_around(&fixed, &locals.items, self.alignment)
            })
            .collect();
        Layout {
            draft: self,
            packings,
        }
    }
}

impl Layout {
    /// All slots, and beyond the last one what its programs need beside it. Slots fill from the first to the
    /// last and empty the other way round, so each slot's transients may lie where later slots will be or have been.
    fn slots_bytes(&self, kept: usize) -> u64 {
        if kept == 0 {
            return 0;
        }
        let peak = |phase: Phase| self.packings[phase as usize].peak_bytes;
        let widest = peak(Phase::KeptFeatures)
            .max(peak(Phase::KeptPullBack))
            .max(self.draft.slot_bytes);
        self.draft.slot_bytes * (kept as u64 - 1) + widest
    }

    fn regions(&self, kept: usize, accumulation: usize) -> Packing {
        let items = self.draft.regions(
            kept,
            accumulation,
            |phase| match phase {
                Phase::KeptFeatures | Phase::KeptPullBack => 0,
                _ => self.packings[phase as usize].peak_bytes,
            },
            self.slots_bytes(kept),
        );
        pack(&items, self.draft.alignment)
    }

    /// The sizes and times that the layout was made from.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// Size of the arena with `kept` slots.
    pub fn arena_bytes(&self, kept: usize, accumulation: usize) -> u64 {
        self.draft.persistent_bytes + self.regions(kept, accumulation).peak_bytes
    }

    /// The arena by purpose.
    pub fn breakdown(&self, kept: usize, accumulation: usize) -> Breakdown {
        let role = |role| self.draft.by_role.get(&role).copied().unwrap_or(0);
        let mut breakdown = Breakdown {
            weights: role(Role::Weight),
            gradients: role(Role::Gradient),
            optimizer: role(Role::Optimizer),
            inputs: role(Role::Input),
            features: role(Role::Feature),
            ..Breakdown::default()
        };
        let rest = self.arena_bytes(kept, accumulation) - breakdown.total();
        let backward = if kept > 0 {
            Phase::KeptPullBack
        } else {
            Phase::PullBack
        };
        breakdown.workspace = self.draft.local(backward).largest_scratch.min(rest);
        breakdown.activations = rest - breakdown.workspace;
        breakdown
    }

    /// Addresses for everything.
    pub fn plan(&self, kept: usize, accumulation: usize) -> StepPlan {
        let draft = &self.draft;
        let regions = self.regions(kept, accumulation);
        let base = |index: usize| draft.persistent_bytes + regions.offsets[index];
        let mut placed = draft.persistent.clone();
        placed.extend(
            draft
                .gradients
                .iter()
                .map(|(&storage, offset)| (storage, base(0) + offset)),
        );
        let build = |phase: Phase| -> Program {
            if !draft.present(phase, kept, accumulation) {
                return Program::default();
            }
            match phase {
                Phase::KeptFeatures | Phase::KeptPullBack => {
                    self.program(phase, &placed, base(1), draft.slot_bytes)
                }
                _ => self.program(phase, &placed, base(2 + phase as usize), 0),
            }
        };
        let programs = Programs {
            begin: build(Phase::Begin),
            features: build(Phase::Features),
            kept_features: build(Phase::KeptFeatures),
            loss: build(Phase::Loss),
            kept_pull_back: build(Phase::KeptPullBack),
            pull_back: build(Phase::PullBack),
            update: build(Phase::Update),
        };
        let arena_bytes = self.arena_bytes(kept, accumulation);
        StepPlan {
            graph: draft.rewritten.graph.clone(),
            programs,
            arena_bytes,
            breakdown: self.breakdown(kept, accumulation),
            process_bytes: draft.process_bytes(arena_bytes),
            bound_bytes: draft.bound_bytes(kept, accumulation),
            kept,
            coupled: draft.coupled,
            packing_bytes: draft
                .locals
                .iter()
                .map(|locals| locals.packing_bytes)
                .max()
                .unwrap_or(0),
            persistent: placed,
        }
    }

    fn program(
        &self,
        phase: Phase,
        placed: &HashMap<StorageId, u64>,
        local_base: u64,
        local_stride: u64,
    ) -> Program {
        let draft = &self.draft;
        let graph = &draft.rewritten.graph;
        let locals = draft.local(phase);
        let packing = &self.packings[phase as usize];
        let num_scratch = locals.scratch.len();
        let transient = locals.storages.iter().enumerate();
        let mut local: HashMap<StorageId, u64> = transient
            .map(|(index, &storage)| (storage, packing.offsets[num_scratch + index]))
            .collect();
        let kept = locals.slot_items.iter();
        local.extend(kept.map(|(storage, _)| (*storage, draft.slot[storage])));
        let place = |id: ValueId| -> Option<Place> {
            let value = *graph.value(id);
            let (offset, slot_stride) = if let Some(&offset) = placed.get(&value.storage) {
                (offset, 0)
            } else {
                (local_base + local.get(&value.storage)?, local_stride)
            };
            Some(address(graph, &value, offset, slot_stride))
        };
        let instructions = nodes_of(&draft.rewritten, phase)
            .iter()
            .enumerate()
            .map(|(moment, node)| {
                let scratch = locals.scratch[moment];
                Instruction {
                    op: node.op.clone(),
                    inputs: node
                        .inputs
                        .iter()
                        .map(|&id| place(id).expect("an input is read, so it has a place"))
                        .collect(),
                    outputs: node
                        .outputs
                        .iter()
                        .map(|output| place(output.value).map(|place| (place, output.mode)))
                        .collect(),
                    workspace: Workspace {
                        offset: local_base + packing.offsets[scratch],
                        slot_stride: local_stride,
                        bytes: locals.items[scratch].bytes,
                    },
                }
            })
            .collect();
        Program {
            name: PHASES[phase as usize].1,
            instructions,
        }
    }
}

fn address(graph: &Graph, value: &Value, offset: u64, slot_stride: u64) -> Place {
    let dtype = graph.storage(value.storage).dtype;
    let bytes = dtype.bytes() as u64;
    Place {
        offset: offset + value.offset as u64 * bytes,
        micro_stride: value.micro_stride as u64 * bytes,
        slot_stride,
        shape: value.shape,
        strides: value.strides,
        dtype,
    }
}

impl StepPlan {
    /// Where a value that outlives programs is: weights, gradients, state, inputs, features.
    pub fn place(&self, id: ValueId) -> Place {
        self.place_of(self.graph.value(id))
    }

    /// The same for a value that is not (or not yet) part of the graph.
    pub fn place_of(&self, value: &Value) -> Place {
        let offset = self.persistent[&value.storage];
        address(&self.graph, value, offset, 0)
    }
}
