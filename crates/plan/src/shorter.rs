//! Programs of a step over shorter texts, at the addresses of the full ones.
//!
//! The same nodes over fewer tokens need no more bytes than the full ones, in the same order. So each of their tensors takes
//! the place of its full twin: nothing is packed again, the arena is the same, and micro-batches of different lengths may
//! follow each other, or keep their activations at the same time.

use std::collections::HashMap;

use holdall_graph::{Graph, NodeView, Role, StorageId};

use crate::program::Stage;
use crate::recompute::{RecomputePolicy, Rewritten, rewrite};
use crate::target::Target;

/// Stages that depend on the length of a micro-batch's texts.
pub(crate) const STAGES: [Stage; 4] = [
    Stage::FirstPass,
    Stage::KeptForward,
    Stage::KeptBackward,
    Stage::ForwardBackward,
];

/// A step over shorter texts.
#[derive(Clone, Debug)]
pub(crate) struct Shorter {
    pub(crate) length: usize,
    pub(crate) rewritten: Rewritten,
    /// Storage of the shorter step -> its twin in the full step.
    pub(crate) twins: HashMap<StorageId, StorageId>,
}

impl Shorter {
    /// A shorter step under the policy of the full one; `None` if a kernel needs more scratch or more replay memory for fewer tokens.
    ///
    /// # Panics
    /// If its nodes are not those of the full step.
    pub(crate) fn new(
        full: &Rewritten,
        (length, graph): &(usize, Graph),
        policy: &RecomputePolicy,
        target: &dyn Target,
    ) -> Option<Shorter> {
        let rewritten = rewrite(graph, policy);
        let mut twins = HashMap::new();
        for stage in STAGES {
            let (nodes, full_nodes) = (rewritten.nodes(stage), full.nodes(stage));
            assert_eq!(
                nodes.len(),
                full_nodes.len(),
                "operations of a step of length {length}, and of the full one"
            );
            for (node, full_node) in nodes.into_iter().zip(full_nodes) {
                let (name, full_name) = (node.op.rules().name(), full_node.op.rules().name());
                assert_eq!(name, full_name, "a step of length {length}");
                let outputs = |node: &holdall_graph::Node| {
                    let outputs: Vec<_> = node.outputs.iter().map(|one| one.value).collect();
                    outputs
                };
                let operands = node.inputs.iter().copied().chain(outputs(node));
                let full_operands = full_node.inputs.iter().copied().chain(outputs(full_node));
                for (own, of_full) in operands.zip(full_operands) {
                    let own = rewritten.graph.value(own).storage;
                    let of_full = full.graph.value(of_full).storage;
                    let known = *twins.entry(own).or_insert(of_full);
                    assert_eq!(known, of_full, "operands of {name}, length {length}");
                }
                let [view, full_view] =
                    [(&rewritten, node), (full, full_node)].map(|(of, node)| {
                        let graph = &of.graph;
                        NodeView { graph, node }
                    });
                if target.workspace_bytes(view) > target.workspace_bytes(full_view)
                    || target.replay_bytes(view) > target.replay_bytes(full_view)
                    || target.library_bytes(view) > target.library_bytes(full_view)
                {
                    return None;
                }
            }
        }
        for (&own, &of_full) in &twins {
            let (own, of_full) = (rewritten.graph.storage(own), full.graph.storage(of_full));
            let may_shrink = matches!(of_full.role, Role::Activation | Role::Input);
            assert!(
                own.bytes() == of_full.bytes() || may_shrink && own.bytes() < of_full.bytes(),
                "{}: {} bytes at length {length}, {} at the full one",
                of_full.name,
                own.bytes(),
                of_full.bytes()
            );
        }
        Some(Shorter {
            length: *length,
            rewritten,
            twins,
        })
    }
}

/// Programs of a plan for texts up to a length.
#[derive(Clone, Debug)]
pub struct ShorterPrograms {
    /// Length in tokens.
    pub length: usize,
    /// Values that the programs refer to.
    pub(crate) graph: Graph,
    /// Index of the first of its programs in the plan, in the order of `STAGES`.
    pub(crate) first: usize,
}
