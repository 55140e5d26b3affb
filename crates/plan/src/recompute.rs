//! What the backward pass keeps and what it recomputes.
//!
//! A value of the forward pass that a policy does not keep is recomputed right before the first backward
//! node that reads it, from values that are kept. The same nodes on the same operands give the same bits, so
//! recomputation changes no value.

use std::collections::{HashMap, HashSet};

use holdall_graph::{
    BlockId, Graph, Node, Output, RecomputeRule, Role, Section, StorageId, Value, ValueId, Write,
};
use serde::{Deserialize, Serialize};

use crate::program::Stage;

/// What one block keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Everything.
    None,
    /// Everything but norms and activation functions, which are recomputed without a product.
    Cheap,
    /// Only what enters the block.
    Blocks,
}

/// A choice for every block: the first `recomputed_blocks` keep only what enters them, the rest as `rest` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecomputePolicy {
    /// Number of blocks in the graph.
    pub num_blocks: usize,
    /// How many blocks, from the input on, keep only what enters them.
    pub recomputed_blocks: usize,
    /// What the other blocks and everything outside blocks keep.
    pub rest: Recompute,
    /// From this block on everything is kept, whatever `rest` says; `None`: from no block on.
    pub whole_from: Option<usize>,
    /// Number of consecutive blocks that keep only what enters the first of them: the same work, less kept, more alive while
    /// they are recomputed.
    pub group: usize,
    /// Whether lanes take turns.
    pub lanes: LaneOrder,
}

/// How lanes of a program run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LaneOrder {
    /// One after the other: memory that one has used, the next one may use.
    #[default]
    #[serde(rename = "in turn")]
    InTurn,
    /// Beside each other, each with memory of its own: small products leave most of a GPU idle.
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

    fn of(&self, block: Option<BlockId>) -> Recompute {
        match block {
            Some(BlockId(index)) if index < self.recomputed_blocks => Recompute::Blocks,
            Some(BlockId(index)) if self.whole_from.is_some_and(|first| index >= first) => {
                Recompute::None
            }
            // Norms outside the blocks are few: recomputing them buys nothing under `none`.
            _ => self.rest,
        }
    }

    /// What is recomputed together with a block, as a number.
    fn group_of(&self, block: Option<BlockId>) -> Option<usize> {
        block.map(|BlockId(index)| match index < self.recomputed_blocks {
            true => index / self.group,
            // Beyond all groups: each by itself.
            false => self.recomputed_blocks + index,
        })
    }

    /// For people and JSON: `none`, `cheap`, `cheap 18/24`, `blocks`, `blocks 12/24`, or `blocks by 2`.
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
    /// Storages and values, with those of recomputed tensors.
    pub graph: Graph,
    /// Forward, only what the losses of the whole effective batch need.
    pub first_pass: Vec<Node>,
    /// Forward, complete.
    pub forward: Vec<Node>,
    /// Backward, with what it recomputes.
    pub backward: Vec<Node>,
    /// Activations that the forward pass leaves for the backward pass.
    pub kept: HashSet<StorageId>,
}

impl Rewritten {
    /// Every stage that there may be.
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
                let forward = self.forward.iter().filter(|node| !self.is_added_once(node));
                forward.chain(&self.backward).collect()
            }
            Stage::Update => section(Section::Update),
            Stage::Refresh => section(Section::Refresh),
            Stage::Forward(index) => section(Section::ForwardProgram(index)),
        }
    }

    /// Whether a node adds to what the first pass leaves: a second pass must not add it again.
    fn is_added_once(&self, node: &Node) -> bool {
        !node.outputs.is_empty()
            && node.outputs.iter().all(|output| {
                let storage = self.graph.value(output.value).storage;
                output.mode == Write::Accumulate && self.graph.is_left_by_first_pass(storage)
            })
    }
}

/// The step under a policy.
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
        for input in &mut node.inputs {
            *input = rewriter.available(*input, &mut backward);
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
    let kept = backward
        .iter()
        .flat_map(|node| &node.inputs)
        .map(|&input| graph.value(input).storage)
        .filter(|storage| produced.contains(storage))
        .collect();
    Rewritten {
        first_pass: first_pass(&graph, &forward),
        forward,
        backward,
        kept,
        graph,
    }
}

/// The nodes that what the first pass leaves depends on.
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

struct Rewriter<'p> {
    graph: Graph,
    policy: &'p RecomputePolicy,
    /// Activation -> its writers: index of the forward node, and which output. Several where each writes a part of it (a skip
    /// join).
    producers: HashMap<StorageId, Vec<(usize, usize)>>,
    forward: Vec<Node>,
    /// Activations that leave their block: what enters the next one is always kept.
    leaving: HashSet<StorageId>,
    /// Activation -> the storage that holds it when recomputed, and the forward nodes that have run again for it.
    recomputed: HashMap<StorageId, (StorageId, Vec<usize>)>,
}

impl<'p> Rewriter<'p> {
    fn new(graph: Graph, forward: &[Node], policy: &'p RecomputePolicy) -> Rewriter<'p> {
        let mut producers: HashMap<StorageId, Vec<(usize, usize)>> = HashMap::new();
        let mut leaving = HashSet::new();
        for (index, node) in forward.iter().enumerate() {
            for &input in &node.inputs {
                let storage = graph.value(input).storage;
                for &(producer, _) in producers.get(&storage).into_iter().flatten() {
                    let producer: &Node = &forward[producer];
                    if policy.group_of(producer.block) != policy.group_of(node.block) {
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
            graph,
            policy,
            producers,
            forward: forward.to_vec(),
            leaving,
            recomputed: HashMap::new(),
        }
    }

    /// The value as the backward pass can read it; appends what has to run for it.
    fn available(&mut self, id: ValueId, nodes: &mut Vec<Node>) -> ValueId {
        let value = *self.graph.value(id);
        let Some(writers) = self.producers.get(&value.storage).cloned() else {
            return id;
        };
        // What one writer's rule keeps is there whole.
        if writers.iter().any(|&writer| self.is_kept(&value, writer)) {
            return id;
        }
        for &(producer, output) in &writers {
            let node = self.forward[producer].clone();
            let is_needed = overlap(&value, self.graph.value(node.outputs[output].value));
            let is_done = (self.recomputed.get(&value.storage))
                .is_some_and(|(_, done)| done.contains(&producer));
            if !is_needed || is_done {
                continue;
            }
            match node.op.rules().recompute() {
                Some(RecomputeRule::Derived { from, op, .. })
                    if self.policy.of(node.block) == Recompute::Cheap =>
                {
                    let source = self.available(node.outputs[from].value, nodes);
                    let target = self.twin(producer, node.outputs[output].value);
                    nodes.push(Node {
                        op: *op,
                        inputs: vec![source],
                        outputs: vec![Output::overwrite(target)],
                        section: Section::Backward,
                        block: node.block,
                        lane: node.lane,
                    });
                }
                _ => self.recompute(producer, nodes),
            }
        }
        let (storage, _) = self.recomputed[&value.storage];
        self.graph.add_value(Value { storage, ..value })
    }

    /// Whether a writer's policy keeps what it wrote.
    fn is_kept(&self, value: &Value, (producer, output): (usize, usize)) -> bool {
        let node = &self.forward[producer];
        // Kept, a copy for one use would no longer be one.
        if self.recomputed.contains_key(&value.storage) || self.graph.is_weight_copy(node) {
            return false;
        }
        match (self.policy.of(node.block), node.op.rules().recompute()) {
            (Recompute::None, _) | (Recompute::Cheap, None) => true,
            (Recompute::Blocks, _) => self.leaving.contains(&value.storage),
            (Recompute::Cheap, Some(RecomputeRule::SameNode)) => false,
            (
                Recompute::Cheap,
                Some(RecomputeRule::Derived {
                    output: derived, ..
                }),
            ) => output != derived,
        }
    }

    fn recompute(&mut self, producer: usize, nodes: &mut Vec<Node>) {
        let node = self.forward[producer].clone();
        let inputs = node
            .inputs
            .iter()
            .map(|&input| self.available(input, nodes))
            .collect();
        let outputs = node
            .outputs
            .iter()
            .map(|output| Output::overwrite(self.twin(producer, output.value)))
            .collect();
        nodes.push(Node {
            op: node.op.clone(),
            inputs,
            outputs,
            section: Section::Backward,
            block: node.block,
            lane: node.lane,
        });
    }

    /// A value like `id` in a storage of its own, for what a forward node recomputes.
    fn twin(&mut self, producer: usize, id: ValueId) -> ValueId {
        let value = *self.graph.value(id);
        let (storage, done) = match self.recomputed.get_mut(&value.storage) {
            Some((storage, done)) => (*storage, done),
            None => {
                let original = self.graph.storage(value.storage).clone();
                let storage = self.graph.add_storage(
                    format!("{} recomputed", original.name),
                    original.num_elements,
                    original.dtype,
                    Role::Activation,
                );
                let entry = self.recomputed.entry(value.storage);
                let (_, done) = entry.or_insert((storage, Vec::new()));
                (storage, done)
            }
        };
        done.push(producer);
        self.graph.add_value(Value { storage, ..value })
    }
}

/// Whether two views of a storage may have elements in common; views that are columns of the same rows do not where the columns
/// differ.
fn overlap(a: &Value, b: &Value) -> bool {
    let (Some(row), Some(other)) = (a.row_stride(), b.row_stride()) else {
        return true;
    };
    let columns = |value: &Value| {
        let first = value.offset % row;
        first..first + value.shape.width()
    };
    let (a, b) = (columns(a), columns(b));
    row != other || a.end > row || b.end > row || (a.start < b.end && b.start < a.end)
}
