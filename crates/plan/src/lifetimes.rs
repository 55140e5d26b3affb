//! Lifetimes, sizes and times of a step's programs: everything but the addresses.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use holdall_graph::{Graph, Node, NodeView, Role, StorageId};

use crate::host_state::{HostState, OnHost};
use crate::lanes::{Bundle, Lanes, pack_bundled};
use crate::layout::Layout;
use crate::pack::{Item, Spacing, liveness_peak};
use crate::program::Stage;
use crate::recompute::{LaneOrder, RecomputePolicy, Rewritten, rewrite};
use crate::shorter::Shorter;
use crate::target::Target;

/// Storages that are alive within one program only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locals {
    pub(crate) items: Vec<Item>,
    /// Items of a lane that runs side by side with others; they are packed together.
    pub(crate) bundles: Vec<Bundle>,
    pub(crate) storages: Vec<StorageId>,
    /// Tensors of the slot that this program reads or writes.
    pub(crate) slot_items: Vec<(StorageId, Item)>,
    /// Index into `items` of each node's scratch.
    pub(crate) scratch: Vec<usize>,
    /// Most bytes alive at one time.
    pub(crate) bound: u64,
    /// The same, including the tensors of one slot while they are alive.
    pub(crate) bound_with_slot: u64,
    pub(crate) seconds: f64,
    /// Time of each node, run alone.
    pub(crate) times: Vec<f64>,
    pub(crate) largest_scratch: u64,
    pub(crate) library_bytes: u64,
    pub(crate) replay_bytes: u64,
}

/// Sizes, lifetimes and times of a step under one policy, without offsets.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    pub(crate) rewritten: Arc<Rewritten>,
    pub(crate) locals: Vec<Locals>,
    pub(crate) outliving: Outliving,
    pub(crate) slot: HashMap<StorageId, u64>,
    pub(crate) slot_bytes: u64,
    pub(crate) spacing: Spacing,
    pub(crate) overhead_bytes: u64,
    pub(crate) page_bytes: u64,
    pub(crate) coupled: bool,
    /// Whether gradients are summed over several processes.
    pub(crate) reduces: bool,
    pub(crate) policy: RecomputePolicy,
    /// Programs over shorter texts, if [`Lifetimes::with_shorter`] was called.
    pub(crate) shorter: Vec<Shorter>,
}

/// Places of the storages that outlive programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outliving {
    pub(crate) persistent: HashMap<StorageId, u64>,
    pub(crate) persistent_bytes: u64,
    pub(crate) inputs: Range<u64>,
    pub(crate) landing: Option<u64>,
    pub(crate) gradients: HashMap<StorageId, u64>,
    pub(crate) gradient_bytes: u64,
    pub(crate) caches: HashMap<StorageId, u64>,
    pub(crate) cache_bytes: u64,
    /// Offsets in pinned host memory.
    pub(crate) on_host: HashMap<StorageId, u64>,
    pub(crate) host_bytes: u64,
    /// Bytes on the device by role.
    pub(crate) by_role: HashMap<Role, u64>,
}

impl Outliving {
    fn new(graph: &Graph, spacing: Spacing, has_landing: bool, on_host: &OnHost) -> Outliving {
        let mut places = Outliving::default();
        let on_host: HashSet<StorageId> = on_host.storages.iter().copied().collect();
        // Inputs come last and are contiguous, because they arrive together.
        for role in [
            Role::Gradient,
            Role::Cache,
            Role::Weight,
            Role::Optimizer,
            Role::Feature,
            Role::Input,
        ] {
            places.inputs = places.persistent_bytes..places.persistent_bytes;
            for (index, storage) in graph.storages().iter().enumerate() {
                if storage.role != role {
                    continue;
                }
                let id = StorageId(index);
                let bytes = spacing.occupied(storage.bytes());
                let (offsets, total) = match role {
                    _ if on_host.contains(&id) => (&mut places.on_host, &mut places.host_bytes),
                    Role::Gradient => (&mut places.gradients, &mut places.gradient_bytes),
                    Role::Cache => (&mut places.caches, &mut places.cache_bytes),
                    _ => (&mut places.persistent, &mut places.persistent_bytes),
                };
                offsets.insert(id, *total);
                *total += bytes;
                if !on_host.contains(&id) {
                    *places.by_role.entry(role).or_default() += bytes;
                }
            }
        }
        places.inputs.end = places.persistent_bytes;
        if has_landing {
            places.landing = Some(places.persistent_bytes);
            let bytes = places.inputs.end - places.inputs.start;
            places.persistent_bytes += bytes;
            *places.by_role.entry(Role::Input).or_default() += bytes;
        }
        places
    }
}

/// Indices of the regions: gradients, slots, caches, then one for each stage.
pub(crate) const GRADIENTS: usize = 0;
pub(crate) const SLOTS: usize = 1;
pub(crate) const CACHES: usize = 2;
pub(crate) const FIRST_PROGRAM: usize = 3;

/// Computes lifetimes, sizes and times of a graph under a policy.
pub fn lifetimes_of(graph: &Graph, policy: &RecomputePolicy, target: &dyn Target) -> Lifetimes {
    lifetimes_of_rewritten(Arc::new(rewrite(graph, policy)), policy, target)
}

/// Like [`lifetimes_of`], for nodes rewritten under this policy or one that differs only in its lanes.
pub(crate) fn lifetimes_of_rewritten(
    rewritten: Arc<Rewritten>,
    policy: &RecomputePolicy,
    target: &dyn Target,
) -> Lifetimes {
    let spacing = target.spacing();
    let has_landing = target.has_landing();
    let outliving = Outliving::new(&rewritten.graph, spacing, has_landing, &OnHost::default());
    let mut slot = HashMap::new();
    let mut slot_bytes = 0;
    let mut kept: Vec<StorageId> = rewritten.kept.iter().copied().collect();
    kept.sort();
    for storage in kept {
        slot.insert(storage, slot_bytes);
        slot_bytes += spacing.occupied(rewritten.graph.storage(storage).bytes());
    }
    let locals: Vec<Locals> = rewritten
        .stages()
        .map(|stage| {
            let outside = if stage.has_slot() {
                &rewritten.kept
            } else {
                &HashSet::new()
            };
            locals_of(
                &rewritten.graph,
                &rewritten.nodes(stage),
                outside,
                target,
                (stage, policy.lanes),
            )
        })
        .collect();
    let library_bytes = locals.iter().map(|l| l.library_bytes).max().unwrap_or(0);
    Lifetimes {
        coupled: !rewritten.first_pass.is_empty(),
        reduces: !rewritten.nodes(Stage::Reduce).is_empty(),
        policy: *policy,
        shorter: Vec::new(),
        locals,
        outliving,
        slot,
        slot_bytes,
        spacing,
        overhead_bytes: target.overhead_bytes(library_bytes)
            + target.shorter_bytes(rewritten.graph.shorter().len()),
        page_bytes: target.page_bytes(),
        rewritten,
    }
}

fn locals_of(
    graph: &Graph,
    nodes: &[&Node],
    outside: &HashSet<StorageId>,
    target: &dyn Target,
    (stage, order): (Stage, LaneOrder),
) -> Locals {
    let mut locals = Locals::default();
    if !nodes.is_empty() {
        locals.replay_bytes = target.replay_program_bytes();
    }
    let mut lanes = Lanes::new(nodes, order);
    let read = storages_read(graph, nodes);
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; graph.storages().len()];
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
            if !skippable || read[storage.0] || outside.contains(&storage) {
                spans[storage.0].get_or_insert((moment, moment)).1 = moment;
                lanes.used(storage, moment);
            }
        }
        let view = NodeView { graph, node };
        let seconds = target.seconds(view);
        lanes.takes(moment, seconds, target.busy(view));
        locals.times.push(seconds);
        locals.library_bytes = locals.library_bytes.max(target.library_bytes(view));
        locals.replay_bytes += target.replay_bytes(view);
        let scratch = target.workspace_bytes(view);
        locals.largest_scratch = locals.largest_scratch.max(scratch);
        locals.scratch.push(locals.items.len());
        lanes.scratch(moment, locals.items.len());
        locals.items.push(Item {
            bytes: scratch,
            start: moment,
            end: moment,
        });
    }
    locals.seconds = lanes.seconds();
    let last = nodes.len().saturating_sub(1);
    let num_scratch = locals.items.len();
    let spans = spans.into_iter().enumerate();
    let spans = spans.filter_map(|(index, span)| Some((StorageId(index), span?)));
    for (storage, span) in spans {
        let (start, end) = lanes.widened(storage, span);
        let bytes = graph.storage(storage).bytes();
        if outside.contains(&storage) {
            // Kept tensors live to the end of the forward pass, and from the start of the backward pass.
            let (start, end) = match stage {
                Stage::KeptForward => (start, last),
                _ => (0, end),
            };
            let item = Item { bytes, start, end };
            locals.slot_items.push((storage, item));
        } else {
            lanes.transient(storage, locals.items.len());
            locals.items.push(Item { bytes, start, end });
            locals.storages.push(storage);
        }
    }
    locals.bundles = lanes.bundles();
    debug_assert_eq!(num_scratch, nodes.len());
    let spacing = target.spacing();
    let items = Bundle::outermost(&locals.bundles, &locals.items, |members| {
        liveness_peak(members, spacing)
    });
    locals.bound = liveness_peak(&items, spacing);
    let mut with_slot = items;
    with_slot.extend(locals.slot_items.iter().map(|&(_, item)| item));
    locals.bound_with_slot = liveness_peak(&with_slot, spacing);
    locals
}

/// For each storage, whether a node reads it.
fn storages_read(graph: &Graph, nodes: &[&Node]) -> Vec<bool> {
    let mut read = vec![false; graph.storages().len()];
    for &input in nodes.iter().flat_map(|node| &node.inputs) {
        read[graph.value(input).storage.0] = true;
    }
    read
}

impl Lifetimes {
    pub(crate) fn local(&self, stage: Stage) -> &Locals {
        &self.locals[stage.id().0]
    }

    /// Runs of a program in a step in which `kept` of `accumulation` micro-batches keep their activations.
    pub(crate) fn runs(&self, stage: Stage, kept: usize, accumulation: usize) -> usize {
        match stage {
            Stage::Begin | Stage::Loss | Stage::Update => 1,
            Stage::Reduce => usize::from(self.reduces),
            Stage::FirstPass if self.coupled => accumulation - kept,
            Stage::FirstPass => 0,
            Stage::KeptForward | Stage::KeptBackward => kept,
            Stage::ForwardBackward => accumulation - kept,
            Stage::Refresh | Stage::Forward(_) => 0,
        }
    }

    /// Whether a program needs memory: it runs in a step, or outside of steps.
    pub(crate) fn present(&self, stage: Stage, kept: usize, accumulation: usize) -> bool {
        stage.is_beside_step() || self.runs(stage, kept, accumulation) > 0
    }

    /// Moves some of the state to host memory.
    pub fn with_host_state(mut self, state: HostState, target: &dyn Target) -> Lifetimes {
        let graph = &self.rewritten.graph;
        let on_host = OnHost::new(graph, state, self.spacing);
        self.overhead_bytes += target.pinned_bytes(on_host.bytes);
        let has_landing = self.outliving.landing.is_some();
        self.outliving = Outliving::new(graph, self.spacing, has_landing, &on_host);
        self
    }

    /// Adds the programs over shorter texts, which are not needed to choose a plan.
    pub(crate) fn with_shorter(mut self, target: &dyn Target) -> Lifetimes {
        let graphs = self.rewritten.graph.shorter().iter();
        self.shorter = graphs
            .filter_map(|shorter| Shorter::new(&self.rewritten, shorter, &self.policy, target))
            .collect();
        self
    }

    /// Predicted time of a step.
    pub fn seconds(&self, kept: usize, accumulation: usize) -> f64 {
        let stages = self.rewritten.stages();
        stages
            .map(|stage| self.runs(stage, kept, accumulation) as f64 * self.local(stage).seconds)
            .sum()
    }

    /// Regions of the arena: gradients, slots, caches, and from [`FIRST_PROGRAM`] on the transients of each program, of the
    /// given size.
    pub(crate) fn regions(
        &self,
        kept: usize,
        accumulation: usize,
        size: impl Fn(Stage) -> u64,
        slots_bytes: u64,
    ) -> Vec<Item> {
        let from_to = |bytes: u64, first: Stage, last: Stage| Item {
            bytes,
            start: first.id().0,
            end: last.id().0,
        };
        let last_forward = self.rewritten.graph.forward_programs().len().max(1) - 1;
        let forward = [Stage::Forward(0), Stage::Forward(last_forward)];
        let mut items = vec![
            from_to(self.outliving.gradient_bytes, Stage::Loss, Stage::Update),
            from_to(slots_bytes, Stage::KeptForward, Stage::KeptBackward),
            from_to(self.outliving.cache_bytes, forward[0], forward[1]),
        ];
        items.extend(self.rewritten.stages().map(|stage| {
            let bytes = if self.present(stage, kept, accumulation) {
                size(stage)
            } else {
                0
            };
            from_to(bytes, stage, stage)
        }));
        items
    }

    /// Lower bound of the arena for any layout.
    pub fn bound_bytes(&self, kept: usize, accumulation: usize) -> u64 {
        let others = self.slot_bytes * kept.saturating_sub(1) as u64;
        let items = self.regions(
            kept,
            accumulation,
            |stage| match stage {
                Stage::KeptForward | Stage::KeptBackward => self.local(stage).bound_with_slot,
                Stage::Loss if kept > 0 => self.local(stage).bound + self.slot_bytes,
                _ => self.local(stage).bound,
            },
            others,
        );
        self.outliving.persistent_bytes + liveness_peak(&items, self.spacing)
    }

    /// Whether a loss needs features of the whole effective batch before the backward pass.
    pub fn is_coupled(&self) -> bool {
        self.coupled
    }

    /// Memory of the process with an arena of this size.
    pub fn process_bytes(&self, arena_bytes: u64, kept: usize, accumulation: usize) -> u64 {
        let replays = self.rewritten.stages().map(|stage| {
            // A program with a slot is captured once per slot.
            let times = if stage.has_slot() {
                kept as u64
            } else {
                u64::from(self.present(stage, kept, accumulation))
            };
            // With several processes, the last pass is captured once more, with gradients that are exchanged meanwhile.
            let last = if kept == accumulation {
                Stage::KeptBackward
            } else {
                Stage::ForwardBackward
            };
            let times = times + u64::from(self.reduces && stage == last);
            // Programs that depend on the length of texts are captured for each length.
            let lengths = if stage.is_per_micro_batch() {
                1 + self.rewritten.graph.shorter().len() as u64
            } else {
                1
            };
            times * lengths * self.local(stage).replay_bytes
        });
        let beside = self.overhead_bytes + replays.sum::<u64>();
        arena_bytes.next_multiple_of(self.page_bytes) + beside
    }

    /// Packs the transients of every program.
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
                pack_bundled(&fixed, &locals.items, &locals.bundles, self.spacing)
            })
            .collect();
        Layout {
            lifetimes: self,
            packings,
        }
    }
}
