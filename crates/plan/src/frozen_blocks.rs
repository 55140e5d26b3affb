//! Layers that are frozen up to the input. They have no backward pass, so recomputation policies ignore them.
//!
//! Values of frozen layers are never recomputed: the backward pass reads only the last of them, and they are as large as the
//! values that they would be recomputed from. The second forward pass of a micro-batch skips the frozen work that the first
//! pass has done.

use std::collections::HashSet;

use holdall_graph::{BlockId, Graph, Node, Role, Section, StorageId, ValueId, needs_gradients};

/// Forward nodes of a second pass: without nodes of frozen layers, unless the backward pass (which reads `needed`) or a loss
/// of the micro-batch depends on them. The results of the skipped nodes remain from the first pass.
pub(crate) fn second_pass(
    graph: &Graph,
    forward: &[Node],
    mut needed: HashSet<StorageId>,
) -> Vec<Node> {
    let is_trained = needs_gradients(graph, Section::Forward);
    let mut nodes = Vec::new();
    for node in forward.iter().rev() {
        let wanted = node.outputs.iter().any(|output| {
            let id = graph.value(output.value).storage;
            let is_result = graph.storage(id).role != Role::Activation;
            is_trained[id.0]
                || needed.contains(&id)
                || (is_result && !graph.is_left_by_first_pass(id))
        });
        if wanted {
            needed.extend(node.inputs.iter().map(|&input| graph.value(input).storage));
            nodes.push(node.clone());
        }
    }
    nodes.reverse();
    nodes
}

/// For each block, its index among the blocks with a backward pass; `None` if it is frozen. A block without forward nodes
/// counts as trained.
pub(crate) fn places_of_blocks(graph: &Graph) -> Vec<Option<usize>> {
    let mut is_forward = vec![false; graph.blocks().len()];
    let mut is_backward = is_forward.clone();
    for node in graph.nodes() {
        match (node.section, node.block) {
            (Section::Forward, Some(BlockId(block))) => is_forward[block] = true,
            (Section::Backward, Some(BlockId(block))) => is_backward[block] = true,
            _ => {}
        }
    }
    let mut place = 0;
    let places = is_forward.into_iter().zip(is_backward);
    places
        .map(|(is_forward, is_backward)| {
            let counts = is_backward || !is_forward;
            place += usize::from(counts);
            counts.then(|| place - 1)
        })
        .collect()
}

/// Number of blocks that recomputation policies cover: all except the frozen ones.
pub fn num_trained_blocks(graph: &Graph) -> usize {
    places_of_blocks(graph).into_iter().flatten().count()
}

/// For each storage, whether it is computed from frozen parameters and from no trained ones.
pub(crate) fn frozen_storages(graph: &Graph, forward: &[Node]) -> Vec<bool> {
    let is_trained = needs_gradients(graph, Section::Forward);
    let mut of_parameters: Vec<bool> = graph
        .storages()
        .iter()
        .map(|storage| storage.role == Role::Weight)
        .collect();
    for node in forward {
        let storage = |value: ValueId| graph.value(value).storage.0;
        if node
            .inputs
            .iter()
            .any(|&input| of_parameters[storage(input)])
        {
            for output in &node.outputs {
                of_parameters[storage(output.value)] = true;
            }
        }
    }
    let both = of_parameters.into_iter().zip(is_trained);
    both.map(|(of_parameters, is_trained)| of_parameters && !is_trained)
        .collect()
}

/// Index of a block as policies count it.
pub(crate) fn place_of(places: &[Option<usize>], block: Option<BlockId>) -> Option<BlockId> {
    block.and_then(|BlockId(block)| places[block]).map(BlockId)
}
