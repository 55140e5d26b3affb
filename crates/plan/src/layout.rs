//! Assigns addresses to lifetimes.
//!
//! [`crate::Lifetimes`] has the lifetimes of all tensors; transients are packed program by program. This module packs
//! programs, slots and gradients against each other for a given number of slots, and gives the operations their addresses.

use std::collections::HashMap;
use std::ops::Range;

use holdall_graph::{Graph, MemorySpace, Role, StorageId, Value, ValueId};
use serde::Serialize;

use crate::lifetimes::{CACHES, FIRST_PROGRAM, GRADIENTS, Lifetimes, SLOTS};
use crate::memory_map::MemoryMap;
use crate::pack::{Packing, pack};
use crate::program::{Instruction, Place, Program, ProgramId, Run, Stage, Workspace};
use crate::recompute::{LaneOrder, Rewritten};
use crate::shorter::{STAGES, ShorterPrograms};

/// Bytes of the arena by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// The rest: activations kept for the backward pass, transients, and gaps.
    pub activations: u64,
    /// Pictures, tokens, labels, schedule.
    pub inputs: u64,
    /// Features of the whole effective batch, their gradients, loss sums.
    pub features: u64,
    /// Scratch of the widest instruction.
    pub workspace: u64,
}

impl Breakdown {
    /// Size of the arena.
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

/// Lifetimes with offsets.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) lifetimes: Lifetimes,
    pub(crate) packings: Vec<Packing>,
}

/// The inputs in the arena.
#[derive(Clone, Debug)]
pub struct InputRegion {
    /// Byte range.
    pub range: Range<u64>,
    /// Offset of the landing area, where inputs arrive while a program runs; laid out like `range`.
    pub landing: Option<u64>,
}

/// A planned step: everything that a device needs to run it, and a report to explain it.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// Storages and values that the programs refer to.
    pub graph: Graph,
    /// One program per stage, in the order of [`Stage::all`], then the programs over shorter texts.
    pub programs: Vec<Program>,
    /// Programs for micro-batches with short texts, ascending by length.
    pub shorter: Vec<ShorterPrograms>,
    /// Size of the arena, which is a single allocation.
    pub arena_bytes: u64,
    /// The arena by purpose.
    pub breakdown: Breakdown,
    /// Total memory of the process, the arena included.
    pub process_bytes: u64,
    /// Lower bound of the arena for any layout of these lifetimes.
    pub bound_bytes: u64,
    /// Pinned host memory for offloaded state.
    pub host_bytes: u64,
    pub inputs: InputRegion,
    /// Micro-batches per step.
    pub accumulation: usize,
    /// Micro-batches that keep their activations between the passes.
    pub kept: usize,
    /// Whether a loss needs features of the whole effective batch before the backward pass.
    pub coupled: bool,
    /// Upper bound of the product library's memory beside the arena.
    pub library_bytes: u64,
    /// Map of the arena for reports.
    pub memory_map: MemoryMap,
    persistent: Placed,
}

/// First byte and memory space of each storage that outlives programs.
type Placed = HashMap<StorageId, (u64, MemorySpace)>;

impl Layout {
    /// Bytes of all slots, and of the programs' transients beyond the last slot. Slots fill from the first to the last and
    /// empty in reverse, so each slot's transients may use the memory of later slots.
    fn slots_bytes(&self, kept: usize) -> u64 {
        if kept == 0 {
            return 0;
        }
        let peak = |stage: Stage| self.packings[stage.id().0].peak_bytes;
        let widest = peak(Stage::KeptForward)
            .max(peak(Stage::KeptBackward))
            .max(self.lifetimes.slot_bytes);
        self.lifetimes.slot_bytes * (kept as u64 - 1) + widest
    }

    fn regions(&self, kept: usize, accumulation: usize) -> Packing {
        let items = self.lifetimes.regions(
            kept,
            accumulation,
            |stage| {
                if stage.has_slot() {
                    0
                } else {
                    self.packings[stage.id().0].peak_bytes
                }
            },
            self.slots_bytes(kept),
        );
        pack(&items, self.lifetimes.spacing)
    }

    /// Sizes and times of the layout.
    pub fn lifetimes(&self) -> &Lifetimes {
        &self.lifetimes
    }

    /// Size of the arena with `kept` slots.
    pub fn arena_bytes(&self, kept: usize, accumulation: usize) -> u64 {
        self.lifetimes.outliving.persistent_bytes + self.regions(kept, accumulation).peak_bytes
    }

    /// The arena by purpose.
    pub fn breakdown(&self, kept: usize, accumulation: usize) -> Breakdown {
        let role = |role| {
            self.lifetimes
                .outliving
                .by_role
                .get(&role)
                .copied()
                .unwrap_or(0)
        };
        let mut breakdown = Breakdown {
            weights: role(Role::Weight),
            gradients: role(Role::Gradient),
            optimizer: role(Role::Optimizer),
            inputs: role(Role::Input),
            features: role(Role::Feature),
            ..Breakdown::default()
        };
        let rest = self.arena_bytes(kept, accumulation) - breakdown.total();
        let backward = match kept {
            0 => Stage::ForwardBackward,
            _ => Stage::KeptBackward,
        };
        breakdown.workspace = self.lifetimes.local(backward).largest_scratch.min(rest);
        breakdown.activations = rest - breakdown.workspace;
        breakdown
    }

    /// Assigns addresses to everything.
    pub fn plan(&self, kept: usize, accumulation: usize) -> StepPlan {
        let lifetimes = &self.lifetimes;
        let regions = self.regions(kept, accumulation);
        let base = |index: usize| lifetimes.outliving.persistent_bytes + regions.offsets[index];
        let on_device = |offset: u64| (offset, MemorySpace::Device);
        let persistent = lifetimes.outliving.persistent.iter();
        let mut placed: Placed = persistent
            .map(|(&storage, &offset)| (storage, on_device(offset)))
            .collect();
        let on_host = lifetimes.outliving.on_host.iter();
        placed.extend(on_host.map(|(&id, &offset)| (id, (offset, MemorySpace::PinnedHost))));
        placed.extend(
            lifetimes
                .outliving
                .gradients
                .iter()
                .map(|(&storage, offset)| (storage, on_device(base(GRADIENTS) + offset))),
        );
        let caches = lifetimes.outliving.caches.iter();
        placed.extend(caches.map(|(&id, offset)| (id, on_device(base(CACHES) + offset))));
        let graph = &lifetimes.rewritten.graph;
        let instructions = |stage: Stage, of: Nodes<'_>| {
            let (local_base, slot_stride) = if stage.has_slot() {
                (base(SLOTS), lifetimes.slot_bytes)
            } else {
                (base(FIRST_PROGRAM + stage.id().0), 0)
            };
            if !lifetimes.present(stage, kept, accumulation) {
                Vec::new()
            } else {
                self.instructions(stage, of, &placed, local_base, slot_stride)
            }
        };
        let full = Nodes {
            rewritten: &lifetimes.rewritten,
            twins: None,
        };
        let build = |stage: Stage| Program {
            name: stage.name(graph.forward_programs()),
            stage,
            instructions: instructions(stage, full),
        };
        let mut programs: Vec<Program> = lifetimes.rewritten.stages().map(build).collect();
        let mut shorter = Vec::new();
        for step in &lifetimes.shorter {
            shorter.push(ShorterPrograms {
                length: step.length,
                graph: step.rewritten.graph.clone(),
                first: programs.len(),
            });
            let of = Nodes {
                rewritten: &step.rewritten,
                twins: Some(&step.twins),
            };
            programs.extend(STAGES.map(|stage| Program {
                name: format!("{}, length {}", stage.name(&[]), step.length),
                stage,
                instructions: instructions(stage, of),
            }));
        }
        let arena_bytes = self.arena_bytes(kept, accumulation);
        StepPlan {
            graph: graph.clone(),
            programs,
            shorter,
            arena_bytes,
            breakdown: self.breakdown(kept, accumulation),
            process_bytes: lifetimes.process_bytes(arena_bytes, kept, accumulation),
            bound_bytes: lifetimes.bound_bytes(kept, accumulation),
            host_bytes: lifetimes.outliving.host_bytes,
            inputs: InputRegion {
                range: lifetimes.outliving.inputs.clone(),
                landing: lifetimes.outliving.landing,
            },
            accumulation,
            kept,
            coupled: lifetimes.coupled,
            library_bytes: lifetimes
                .locals
                .iter()
                .map(|locals| locals.library_bytes)
                .max()
                .unwrap_or(0),
            memory_map: self.memory_map(kept, accumulation, &regions),
            persistent: placed,
        }
    }

    fn instructions(
        &self,
        stage: Stage,
        of: Nodes<'_>,
        placed: &Placed,
        local_base: u64,
        local_stride: u64,
    ) -> Vec<Instruction> {
        let lifetimes = &self.lifetimes;
        let graph = &of.rewritten.graph;
        let locals = lifetimes.local(stage);
        let packing = &self.packings[stage.id().0];
        let num_scratch = locals.scratch.len();
        let transient = locals.storages.iter().enumerate();
        let mut local: HashMap<StorageId, u64> = transient
            .map(|(index, &storage)| (storage, packing.offsets[num_scratch + index]))
            .collect();
        let kept = locals.slot_items.iter();
        local.extend(kept.map(|(storage, _)| (*storage, lifetimes.slot[storage])));
        let place = |id: ValueId| -> Option<Place> {
            let value = *graph.value(id);
            let storage = of
                .twins
                .map_or(value.storage, |twins| twins[&value.storage]);
            let (place, slot_stride) = match placed.get(&storage) {
                Some(&place) => (place, 0),
                None => {
                    let offset = local_base + local.get(&storage)?;
                    ((offset, MemorySpace::Device), local_stride)
                }
            };
            Some(address(graph, &value, place, slot_stride))
        };
        let nodes = of.rewritten.nodes(stage);
        nodes
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
                    lane: match lifetimes.policy.lanes {
                        LaneOrder::InTurn => None,
                        LaneOrder::SideBySide => node.lane,
                    },
                }
            })
            .collect()
    }
}

/// Nodes that get addresses; `twins` are the storages of the full step whose places they use, if they have none of their own.
#[derive(Clone, Copy)]
struct Nodes<'a> {
    rewritten: &'a Rewritten,
    twins: Option<&'a HashMap<StorageId, StorageId>>,
}

fn address(
    graph: &Graph,
    value: &Value,
    (offset, space): (u64, MemorySpace),
    slot_stride: u64,
) -> Place {
    let dtype = graph.storage(value.storage).dtype;
    let bytes = dtype.bytes() as u64;
    Place {
        space,
        offset: offset + value.offset as u64 * bytes,
        micro_stride: value.micro_stride as u64 * bytes,
        slot_stride,
        shape: value.shape,
        strides: value.strides,
        dtype,
    }
}

impl StepPlan {
    /// A copy without the memory map, for running.
    pub fn without_memory_map(&self) -> StepPlan {
        StepPlan {
            graph: self.graph.clone(),
            programs: self.programs.clone(),
            shorter: self.shorter.clone(),
            inputs: self.inputs.clone(),
            persistent: self.persistent.clone(),
            memory_map: MemoryMap::default(),
            ..*self
        }
    }

    pub fn program(&self, stage: Stage) -> &Program {
        &self.programs[stage.id().0]
    }

    /// The forward program with this name.
    pub fn forward_program(&self, name: &str) -> Option<ProgramId> {
        let mut names = self.graph.forward_programs().iter();
        let index = names.position(|one| one == name)?;
        Some(Stage::Forward(index).id())
    }

    /// The runs of a step up to the update, in their order.
    pub fn passes(&self) -> impl Iterator<Item = Run> + use<> {
        let (kept, all) = (self.kept, self.accumulation);
        let first_pass = if self.coupled { all } else { kept };
        let run = |stage: Stage, micro_batch: usize, slot: usize| Run {
            program: stage.id(),
            stage,
            micro_batch,
            slot,
            is_last: false,
        };
        let once = move |stage: Stage| std::iter::once(run(stage, 0, 0));
        let kept_forward = (0..kept).map(move |micro| run(Stage::KeptForward, micro, micro));
        let kept_backward = (0..kept).rev();
        let reduces = !self.program(Stage::Reduce).instructions.is_empty();
        let last = if kept == all { 0 } else { all - 1 };
        let marked = move |one: Run| Run {
            is_last: reduces && one.micro_batch == last,
            ..one
        };
        once(Stage::Begin)
            .chain((kept..first_pass).map(move |micro| run(Stage::FirstPass, micro, 0)))
            .chain(kept_forward)
            .chain(once(Stage::Loss))
            .chain(kept_backward.map(move |micro| {
                if kept == all {
                    marked(run(Stage::KeptBackward, micro, micro))
                } else {
                    run(Stage::KeptBackward, micro, micro)
                }
            }))
            .chain((kept..all).map(move |micro| marked(run(Stage::ForwardBackward, micro, 0))))
            .chain(reduces.then(|| run(Stage::Reduce, 0, 0)))
    }

    /// Place of an endpoint; `None` if the graph does not have it.
    pub fn endpoint(&self, name: &str) -> Option<Place> {
        self.graph.endpoint(name).map(|value| self.place(value))
    }

    /// The shortest programs for texts of a length; `None` for the full ones.
    pub fn shorter_for(&self, length: usize) -> Option<&ShorterPrograms> {
        self.shorter.iter().find(|one| one.length >= length)
    }

    /// The program of a stage, over shorter texts if the stage depends on their length.
    pub fn program_of(&self, stage: Stage, shorter: Option<&ShorterPrograms>) -> ProgramId {
        let place = STAGES.iter().position(|&one| one == stage);
        match (shorter, place) {
            (Some(shorter), Some(place)) => ProgramId(shorter.first + place),
            _ => stage.id(),
        }
    }

    /// Place of an endpoint for programs over shorter texts.
    pub fn endpoint_of(&self, name: &str, shorter: Option<&ShorterPrograms>) -> Option<Place> {
        let full = self.graph.endpoint(name)?;
        let Some(shorter) = shorter else {
            return Some(self.place(full));
        };
        let value = shorter.graph.value(shorter.graph.endpoint(name)?);
        let offset = self.persistent[&self.graph.value(full).storage];
        Some(address(&shorter.graph, value, offset, 0))
    }

    /// Place of a value that outlives programs: weights, gradients, state, inputs, features, caches.
    pub fn place(&self, id: ValueId) -> Place {
        self.place_of(self.graph.value(id))
    }

    /// Like [`StepPlan::place`] for a value that is not (or not yet) part of the graph.
    pub fn place_of(&self, value: &Value) -> Place {
        let offset = self.persistent[&value.storage];
        address(&self.graph, value, offset, 0)
    }
}
