//! Recomputation of activations in the backward pass.
//!
//! A forward value that a policy does not keep is recomputed right before the first backward node that reads it, from values
//! that are kept. The same nodes on the same operands give the same bits, so recomputation changes no value.

use std::collections::{HashMap, HashSet};

use holdall_graph::{
    BlockId, Graph, Node, Output, RecomputeRule, Role, Section, StorageId, Value, ValueId, Write,
};
use serde::{Deserialize, Serialize};

use crate::frozen_blocks::{frozen_storages, place_of, places_of_blocks, second_pass};
use crate::program::Stage;

/// Activations that one block keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Keep everything.
    None,
    /// Keep everything except norms and activation functions, which are recomputed without a product.
    Cheap,
    /// Keep only the block's inputs.
    Blocks,
}

/// A recomputation policy for every block: the first `recomputed_blocks` keep only their inputs, the others follow `rest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputePolicy {
    pub num_blocks: usize,
    /// Number of blocks, from the input on, that keep only their inputs.
    pub recomputed_blocks: usize,
    /// Policy of the other blocks and of all nodes outside of blocks.
    pub rest: Recompute,
    /// First block from which on everything is kept, whatever `rest` is.
    pub whole_from: Option<usize>,
    /// Number of consecutive blocks that keep only the inputs of the first one: the same work, fewer kept activations, and
    /// more memory during recomputation.
    pub group: usize,
    pub lanes: LaneOrder,
}

/// Order of the lanes of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LaneOrder {
    /// One after another: a lane may reuse the memory of the lane before it.
    #[default]
    #[serde(rename = "in turn")]
    InTurn,
    /// At the same time, each with its own memory: small products leave most of a GPU idle.
    #[serde(rename = "side by side")]
    SideBySide,
}

impl RecomputePolicy {
    /// One policy for all blocks.
    pub fn uniform(recompute: Recompute, num_blocks: usize) -> RecomputePolicy {
        let (recomputed_blocks, rest) = match recompute {
            Recompute::Blocks => (num_blocks, Recompute::Cheap),
            rest => (0, rest),
        };
        RecomputePolicy {
            num_blocks,
            recomputed_blocks,
            rest,
            whole_from: None,
            group: 1,
            lanes: LaneOrder::InTurn,
        }
    }

    /// The same policy with lanes in turn: recomputation does not depend on the lanes.
    pub(crate) fn in_turn(&self) -> RecomputePolicy {
        RecomputePolicy {
            lanes: LaneOrder::InTurn,
            ..*self
        }
    }

    fn of(&self, block: Option<BlockId>) -> Recompute {
        match block {
            Some(BlockId(index)) if index < self.recomputed_blocks => Recompute::Blocks,
            Some(BlockId(index)) if self.whole_from.is_some_and(|first| index >= first) => {
                Recompute::None
            }
            // Outside of blocks there are few norms: recomputing them under `none` would save almost nothing.
            _ => self.rest,
        }
    }

    /// Number of the group of blocks that is recomputed together.
    fn group_of(&self, block: Option<BlockId>) -> Option<usize> {
        block.map(|BlockId(index)| {
            if index < self.recomputed_blocks {
                index / self.group
            } else {
                // Each block beyond the groups is its own group.
                self.recomputed_blocks + index
            }
        })
    }

    /// Name in reports and JSON: `none`, `cheap`, `cheap 18/24`, `blocks`, `blocks 12/24`, or `blocks by 2`.
    pub fn label(&self) -> String {
        let num_blocks = self.num_blocks;
        let by = match self.group {
            1 => String::new(),
            group => format!(" by {group}"),
        };
        match (self.recomputed_blocks, self.rest, self.whole_from) {
            (0, Recompute::None, _) => "none".to_owned(),
            (0, _, Some(first)) if first < num_blocks => format!("cheap {first}/{num_blocks}"),
            (0, _, _) => "cheap".to_owned(),
            (blocks, _, _) if blocks == num_blocks => format!("blocks{by}"),
            (blocks, _, _) => format!("blocks {blocks}/{num_blocks}{by}"),
        }
    }
}

/// A step's nodes under a policy.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The graph, extended by storages and values of recomputed tensors.
    pub graph: Graph,
    /// Forward nodes that the losses of the whole effective batch depend on.
    pub first_pass: Vec<Node>,
    /// All forward nodes.
    pub forward: Vec<Node>,
    /// Forward nodes of a micro-batch after its first pass: without nodes of frozen layers that only the first pass needed.
    pub second_pass: Vec<Node>,
    /// Backward nodes, with the recomputation.
    pub backward: Vec<Node>,
    /// Activations that the forward pass keeps for the backward pass.
    pub kept: HashSet<StorageId>,
}

impl Rewritten {
    /// All stages.
    pub(crate) fn stages(&self) -> impl Iterator<Item = Stage> + use<> {
        Stage::all(self.graph.forward_programs().len())
    }

    /// The nodes of a stage's program.
    pub fn nodes(&self, stage: Stage) -> Vec<&Node> {
        let section = |wanted: Section| {
            let nodes = self.graph.nodes().iter();
            nodes.filter(|node| node.section == wanted).collect()
        };
        match stage {
            Stage::Begin => section(Section::Begin),
            Stage::FirstPass => self.first_pass.iter().collect(),
            Stage::KeptForward => self.forward.iter().collect(),
            Stage::Loss => section(Section::Loss),
            Stage::KeptBackward => self.backward.iter().collect(),
            Stage::ForwardBackward => {
                let forward = self.second_pass.iter();
                let forward = forward.filter(|node| !self.is_added_once(node));
                forward.chain(&self.backward).collect()
            }
            Stage::Reduce => section(Section::Reduce),
            Stage::Update => section(Section::Update),
            Stage::Refresh => section(Section::Refresh),
            Stage::Forward(index) => section(Section::ForwardProgram(index)),
        }
    }

    /// Whether a node adds to a storage that the first pass leaves: a second pass must not add again.
    fn is_added_once(&self, node: &Node) -> bool {
        !node.outputs.is_empty()
            && node.outputs.iter().all(|output| {
                let storage = self.graph.value(output.value).storage;
                output.mode == Write::Accumulate && self.graph.is_left_by_first_pass(storage)
            })
    }
}

/// Rewrites a step under a policy.
pub fn rewrite(graph: &Graph, policy: &RecomputePolicy) -> Rewritten {
    let section = |wanted: Section| -> Vec<Node> {
        let nodes = graph.nodes().iter();
        nodes
            .filter(|node| node.section == wanted)
            .cloned()
            .collect()
    };
    let forward = section(Section::Forward);
    let mut rewriter = Rewriter::new(graph.clone(), &forward, policy);
    let mut backward = Vec::new();
    for mut node in section(Section::Backward) {
        let reader = node.block;
        for input in &mut node.inputs {
            *input = rewriter.available(*input, reader, &mut backward);
        }
        backward.push(node);
    }
    let graph = rewriter.graph;
    let produced: HashSet<StorageId> = forward
        .iter()
        .flat_map(|node| &node.outputs)
        .map(|output| graph.value(output.value).storage)
        .filter(|&storage| graph.storage(storage).role == Role::Activation)
        .collect();
    let read: HashSet<StorageId> = backward
        .iter()
        .flat_map(|node| &node.inputs)
        .map(|&input| graph.value(input).storage)
        .collect();
    let kept = read.intersection(&produced).copied().collect();
    Rewritten {
        first_pass: first_pass(&graph, &forward),
        second_pass: second_pass(&graph, &forward, read),
        forward,
        backward,
        kept,
        graph,
    }
}

/// Forward nodes that the storages left by the first pass depend on.
fn first_pass(graph: &Graph, forward: &[Node]) -> Vec<Node> {
    let mut needed: HashSet<StorageId> = HashSet::new();
    let mut nodes = Vec::new();
    for node in forward.iter().rev() {
        let wanted = node.outputs.iter().any(|output| {
            let storage = graph.value(output.value).storage;
            graph.is_left_by_first_pass(storage) || needed.contains(&storage)
        });
        if wanted {
            needed.extend(node.inputs.iter().map(|&input| graph.value(input).storage));
            nodes.push(node.clone());
        }
    }
    nodes.reverse();
    nodes
}

/// Index of a forward node, and index of its output.
type Producer = (usize, usize);

struct Rewriter<'p> {
    graph: Graph,
    policy: &'p RecomputePolicy,
    /// Activation -> its writers: one node, or several that each write a part of the columns (a join without copies).
    producers: HashMap<StorageId, Vec<Producer>>,
    forward: Vec<Node>,
    /// Activations that another block reads: inputs of a block are always kept.
    leaving: HashSet<StorageId>,
    /// For each storage, whether only frozen layers compute it.
    frozen: Vec<bool>,
    /// For each block, its index among the blocks that policies cover.
    places: Vec<Option<usize>>,
    /// Activation -> the storage of its recomputed value.
    recomputed: HashMap<StorageId, StorageId>,
    /// The same for columns of a join, once for each block that reads them: parts of a join are read again in the backward
    /// pass of the block that wrote them, and a single recomputed join would stay alive until then.
    recomputed_columns: HashMap<(StorageId, Columns, Option<BlockId>), ValueId>,
}

/// First column and number of columns of a view, and the width of its storage's rows.
type Columns = [usize; 3];

impl<'p> Rewriter<'p> {
    fn new(graph: Graph, forward: &[Node], policy: &'p RecomputePolicy) -> Rewriter<'p> {
        let mut producers: HashMap<StorageId, Vec<Producer>> = HashMap::new();
        let mut leaving = HashSet::new();
        let places = places_of_blocks(&graph);
        let place = |block: Option<BlockId>| place_of(&places, block);
        for (index, node) in forward.iter().enumerate() {
            for &input in &node.inputs {
                let storage = graph.value(input).storage;
                for &(producer, _) in producers.get(&storage).into_iter().flatten() {
                    let producer: &Node = &forward[producer];
                    if policy.group_of(place(producer.block)) != policy.group_of(place(node.block))
                    {
                        leaving.insert(storage);
                    }
                }
            }
            for (output_index, output) in node.outputs.iter().enumerate() {
                let storage = graph.value(output.value).storage;
                if graph.storage(storage).role == Role::Activation {
                    let writers = producers.entry(storage).or_default();
                    writers.push((index, output_index));
                }
            }
        }
        Rewriter {
            frozen: frozen_storages(&graph, forward),
            places,
            graph,
            policy,
            producers,
            forward: forward.to_vec(),
            leaving,
            recomputed: HashMap::new(),
            recomputed_columns: HashMap::new(),
        }
    }

    /// The value as a backward node of block `reader` can read it; appends the nodes that recompute it.
    fn available(
        &mut self,
        id: ValueId,
        reader: Option<BlockId>,
        nodes: &mut Vec<Node>,
    ) -> ValueId {
        let value = *self.graph.value(id);
        let (producer, output) = match self.producers.get(&value.storage).map(Vec::as_slice) {
            None => return id,
            Some(&[producer]) => producer,
            Some(_) => return self.available_of_join(id, reader, nodes),
        };
        let node = self.forward[producer].clone();
        let storage = match self.recomputed.get(&value.storage) {
            Some(&storage) => storage,
            // A weight copy is made for one use, so it is never kept.
            None if self.graph.is_weight_copy(&node) => {
                self.recompute(&node, reader, nodes);
                self.recomputed[&value.storage]
            }
            None if self.frozen[value.storage.0] && !self.is_from_inputs(&node) => return id,
            None => match (self.policy_of(&node), node.op.rules().recompute()) {
                (Recompute::None, _) | (Recompute::Cheap, None) => return id,
                (Recompute::Blocks, _) if self.leaving.contains(&value.storage) => return id,
                (Recompute::Blocks, _) | (Recompute::Cheap, Some(RecomputeRule::SameNode)) => {
                    self.recompute(&node, reader, nodes);
                    self.recomputed[&value.storage]
                }
                (
                    Recompute::Cheap,
                    Some(RecomputeRule::Derived {
                        output: derived,
                        from,
                        op,
                    }),
                ) => {
                    if output != derived {
                        return id;
                    }
                    let source = self.available(node.outputs[from].value, reader, nodes);
                    let target = self.twin(node.outputs[output].value);
                    nodes.push(Node {
                        op: *op,
                        ..again(&node, vec![source], vec![Output::overwrite(target)])
                    });
                    self.recomputed[&value.storage]
                }
            },
        };
        self.graph.add_value(Value { storage, ..value })
    }

    fn policy_of(&self, node: &Node) -> Recompute {
        self.policy.of(place_of(&self.places, node.block))
    }

    /// Whether a node reads only inputs and weights, so that recomputing it needs no kept activation.
    fn is_from_inputs(&self, node: &Node) -> bool {
        let mut inputs = node.inputs.iter();
        inputs.all(|&input| {
            let storage = self.graph.value(input).storage;
            self.graph.storage(storage).role != Role::Activation
        })
    }

    fn recompute(&mut self, node: &Node, reader: Option<BlockId>, nodes: &mut Vec<Node>) {
        let inputs = self.all_available(&node.inputs, reader, nodes);
        let outputs = node
            .outputs
            .iter()
            .map(|output| Output::overwrite(self.twin(output.value)))
            .collect();
        nodes.push(again(node, inputs, outputs));
    }

    fn all_available(
        &mut self,
        values: &[ValueId],
        reader: Option<BlockId>,
        nodes: &mut Vec<Node>,
    ) -> Vec<ValueId> {
        let values = values.iter();
        values
            .map(|&value| self.available(value, reader, nodes))
            .collect()
    }

    /// Columns of a join: the whole join if it is kept, otherwise exactly these columns, recomputed into a storage of their
    /// own.
    fn available_of_join(
        &mut self,
        id: ValueId,
        reader: Option<BlockId>,
        nodes: &mut Vec<Node>,
    ) -> ValueId {
        let value = *self.graph.value(id);
        let writers = self.producers[&value.storage].clone();
        let is_kept = writers.iter().any(|&(producer, _)| {
            let node = &self.forward[producer];
            let again = node.op.rules().recompute() == Some(RecomputeRule::SameNode)
                && node.outputs.len() == 1;
            match self.policy_of(node) {
                Recompute::None => true,
                Recompute::Cheap => !again,
                Recompute::Blocks => self.leaving.contains(&value.storage) || !again,
            }
        });
        let columns = |value: &Value| {
            let wide = value.row_stride()?;
            let first = value.offset % wide;
            (first + value.shape.width() <= wide).then_some([first, value.shape.width(), wide])
        };
        let Some(wanted @ [first, width, wide]) = columns(&value).filter(|_| !is_kept) else {
            return id;
        };
        let rows = |value: &Value| value.shape.dims()[..value.shape.dims().len() - 1].to_vec();
        // A writer that also writes other columns would need more room than the recomputed storage has.
        let mut parts = Vec::new();
        for &(producer, _) in &writers {
            let output = *self.graph.value(self.forward[producer].outputs[0].value);
            match columns(&output) {
                Some([start, count, same]) if same == wide && rows(&output) == rows(&value) => {
                    if start >= first && start + count <= first + width {
                        parts.push((producer, output, start - first));
                    } else if start < first + width && first < start + count {
                        return id;
                    }
                }
                _ => return id,
            }
        }
        let key = (value.storage, wanted, reader);
        if let Some(&known) = self.recomputed_columns.get(&key) {
            return known;
        }
        let original = self.graph.storage(value.storage).clone();
        let storage = self.graph.add_storage(
            format!("{} recomputed", original.name),
            value.shape.num_elements(),
            original.dtype,
            Role::Activation,
        );
        let whole = Value::whole(storage, value.shape);
        for (producer, output, start) in parts {
            let node = self.forward[producer].clone();
            let inputs = self.all_available(&node.inputs, reader, nodes);
            let part = self.graph.add_value(Value {
                offset: start,
                shape: output.shape,
                ..whole
            });
            nodes.push(again(&node, inputs, vec![Output::overwrite(part)]));
        }
        let available = self.graph.add_value(whole);
        self.recomputed_columns.insert(key, available);
        available
    }

    /// A value like `id` in a new storage, for the recomputed tensor.
    fn twin(&mut self, id: ValueId) -> ValueId {
        let value = *self.graph.value(id);
        let original = self.graph.storage(value.storage).clone();
        let storage = self.graph.add_storage(
            format!("{} recomputed", original.name),
            original.num_elements,
            original.dtype,
            Role::Activation,
        );
        self.recomputed.insert(value.storage, storage);
        self.graph.add_value(Value { storage, ..value })
    }
}

/// A forward node as a node of the backward pass.
fn again(node: &Node, inputs: Vec<ValueId>, outputs: Vec<Output>) -> Node {
    Node {
        op: node.op.clone(),
        inputs,
        outputs,
        section: Section::Backward,
        block: node.block,
        lane: node.lane,
    }
}
