//! Offloading: the part of a step's state that is in host memory instead of device memory.
//!
//! Only the update touches the moments, and the weights that products read through copies. A device with direct access to
//! pinned host memory updates them there, with the same numbers in the same order: only time and place change. Frozen weights
//! with copies are not touched at all.

use std::collections::HashSet;

use holdall_graph::{Graph, Role, Section, StorageId};
use serde::{Deserialize, Serialize};

use crate::pack::Spacing;

/// State in host memory; each level includes the levels before it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum HostState {
    #[default]
    #[serde(rename = "none")]
    Nothing,
    /// Frozen weights that are read through copies; costs no time.
    #[serde(rename = "frozen weights")]
    FrozenWeights,
    /// Also a quarter of the optimizer's state.
    #[serde(rename = "1/4 of the moments")]
    OneQuarter,
    /// Half of the optimizer's state.
    #[serde(rename = "2/4 of the moments")]
    TwoQuarters,
    /// Three quarters of the optimizer's state.
    #[serde(rename = "3/4 of the moments")]
    ThreeQuarters,
    /// All of the optimizer's state.
    #[serde(rename = "moments")]
    Moments,
    /// Also the trained weights that are read through copies.
    #[serde(rename = "moments and weights")]
    MomentsAndWeights,
}

impl HostState {
    /// All levels, the smallest first.
    pub const ALL: [HostState; 7] = [
        HostState::Nothing,
        HostState::FrozenWeights,
        HostState::OneQuarter,
        HostState::TwoQuarters,
        HostState::ThreeQuarters,
        HostState::Moments,
        HostState::MomentsAndWeights,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            HostState::Nothing => "none",
            HostState::FrozenWeights => "frozen weights",
            HostState::OneQuarter => "1/4 of the moments",
            HostState::TwoQuarters => "2/4 of the moments",
            HostState::ThreeQuarters => "3/4 of the moments",
            HostState::Moments => "moments",
            HostState::MomentsAndWeights => "moments and weights",
        }
    }

    /// Whether a step transfers any of the state.
    pub fn costs_time(self) -> bool {
        self > HostState::FrozenWeights
    }

    /// Quarters of the optimizer's state in host memory.
    fn quarters(self) -> u64 {
        match self {
            HostState::Nothing | HostState::FrozenWeights => 0,
            HostState::OneQuarter => 1,
            HostState::TwoQuarters => 2,
            HostState::ThreeQuarters => 3,
            HostState::Moments | HostState::MomentsAndWeights => 4,
        }
    }
}

/// The storages in host memory, and their sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnHost {
    pub(crate) storages: Vec<StorageId>,
    /// Total size, each storage aligned: the memory that the device saves.
    pub(crate) bytes: u64,
    /// Bytes that a step reads and writes.
    pub(crate) moved_bytes: u64,
}

impl OnHost {
    pub(crate) fn new(graph: &Graph, state: HostState, spacing: Spacing) -> OnHost {
        let mut found = OnHost::default();
        if state == HostState::Nothing {
            return found;
        }
        let bytes = |id: StorageId| spacing.occupied(graph.storage(id).bytes());
        let [frozen, trained] = weights_read_through_copies(graph);
        found.storages = frozen;
        found.bytes = found.storages.iter().map(|&id| bytes(id)).sum();
        let moments: Vec<StorageId> = storages(graph, Role::Optimizer).collect();
        let all: u64 = moments.iter().map(|&id| bytes(id)).sum();
        let mut moved: Vec<StorageId> = Vec::new();
        for id in moments {
            // Whole tensors, until the share is reached.
            if 4 * found.moved_bytes >= state.quarters() * all {
                break;
            }
            found.moved_bytes += bytes(id);
            moved.push(id);
        }
        if state == HostState::MomentsAndWeights {
            found.moved_bytes += trained.iter().map(|&id| bytes(id)).sum::<u64>();
            moved.extend(trained);
        }
        found.bytes += found.moved_bytes;
        found.storages.extend(moved);
        found
    }
}

fn storages(graph: &Graph, role: Role) -> impl Iterator<Item = StorageId> {
    let all = graph.storages().iter().enumerate();
    all.filter(move |(_, storage)| storage.role == role)
        .map(|(index, _)| StorageId(index))
}

/// Weight storages, frozen and trained, that only the update and the copying read.
fn weights_read_through_copies(graph: &Graph) -> [Vec<StorageId>; 2] {
    let mut copied = HashSet::new();
    let mut read = HashSet::new();
    for node in graph.nodes() {
        let inputs = node.inputs.iter().map(|&input| graph.value(input).storage);
        match node.section {
            Section::Refresh => copied.extend(inputs),
            Section::Update => {}
            _ => read.extend(inputs),
        }
    }
    let parameters = graph.parameters().iter();
    let is_trained: HashSet<StorageId> = parameters
        .filter(|parameter| parameter.trainable)
        .map(|parameter| graph.value(parameter.value).storage)
        .collect();
    let found = storages(graph, Role::Weight)
        .filter(|id| copied.contains(id) && !read.contains(id))
        .partition(|id| !is_trained.contains(id));
    found.into()
}
