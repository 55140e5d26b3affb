//! What the backward pass keeps and what it makes again.
//!
//! A value of the forward pass that a policy does not keep is made again right before the first backward
//! node that reads it, from values that are kept. The same nodes on the same operands give the same bits, so
//! recomputation changes no value.

use std::collections::{HashMap, HashSet};

use holdall_graph::{
    BlockId, EVALUATIONS, Graph, Node, Output, RecomputeRule, Role, Section, StorageId, Value,
    ValueId,
};
use serde::{Deserialize, Serialize};

/// What one block keeps for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompute {
    /// Everything.
    None,
    /// Everything but norms and activation functions, which are made again without a product.
    Cheap,
    /// Only what enters the block.
    Blocks,
}

/// A choice for every block: the first `blocks_again` blocks of each are run again whole, the rest as `rest` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// How many blocks, from the input on, keep only what enters them.
    pub blocks_again: usize,
    /// What the other blocks and everything outside blocks keep.
    pub rest: Recompute,
    /// From this block on everything is kept, whatever `rest` says.
    pub whole_from: usize,
    /// So many blocks in a row keep only what enters the first of them: the same work, less kept, more alive while they
    /// are run again.
    pub together: usize,
    /// Whether towers take turns.
    pub towers: Towers,
}

/// How lanes of a program run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Towers {
    /// One after the other: what one has used, the next one may use again.
    #[default]
    InTurn,
    /// Beside each other, each with memory of its own: small products leave most of a GPU idle.
    SideBySide,
}

impl Towers {
    /// For people and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Towers::InTurn => "in turn",
            Towers::SideBySide => "side by side",
        }
    }
}

impl Policy {
    /// One policy for all blocks.
    pub fn uniform(recompute: Recompute, num_blocks: usize) -> Policy {
        match recompute {
            Recompute::Blocks => Policy {
                blocks_again: num_blocks,
                rest: Recompute::Cheap,
                whole_from: usize::MAX,
                together: 1,
                towers: Towers::InTurn,
            },
            rest => Policy {
                blocks_again: 0,
                rest,
                whole_from: usize::MAX,
                together: 1,
                towers: Towers::InTurn,
            },
        }
    }

    fn of(&self, block: Option<BlockId>) -> Recompute {
        match block {
            Some(BlockId(index)) if index < self.blocks_again => Recompute::Blocks,
            Some(BlockId(index)) if index >= self.whole_from => Recompute::None,
            // Norms outside the blocks are few: making them again buys nothing under `none`.
            _ => self.rest,
        }
    }

    /// What is run again together with a block, as a number.
    fn group(&self, block: Option<BlockId>) -> Option<usize> {
        block.map(|BlockId(index)| match index < self.blocks_again {
            true => index / self.together,
            // Beyond all groups: each by itself.
            false => self.blocks_again + index,
        })
    }

    /// For people and JSON: `none`, `cheap`, `cheap 18/24`, `blocks`, `blocks 12/24`, or `blocks by 2`.
    pub fn label(&self, num_blocks: usize) -> String {
        let by = match self.together {
            1 => String::new(),
            together => format!(" by {together}"),
        };
        match (self.blocks_again, self.rest) {
            (0, Recompute::None) => "none".to_owned(),
            (0, _) if self.whole_from < num_blocks => {
                format!("cheap {}/{num_blocks}", self.whole_from)
            }
            (0, _) => "cheap".to_owned(),
            (again, _) if again == num_blocks => format!("blocks{by}"),
            (again, _) => format!("blocks {again}/{num_blocks}{by}"),
        }
    }
}

/// A step's nodes under a policy.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// Storages and values, with those of recomputed tensors.
    pub graph: Graph,
    /// Once: loss sums to zero.
    pub begin: Vec<Node>,
    /// Forward, only what the features need.
    pub features: Vec<Node>,
    /// Forward, complete.
    pub forward: Vec<Node>,
    /// Coupled losses.
    pub loss: Vec<Node>,
    /// Backward, with what it makes again.
    pub pull_back: Vec<Node>,
    /// Norm and optimizer.
    pub update: Vec<Node>,
    /// Forward programs of evaluation.
    pub evaluate: [Vec<Node>; EVALUATIONS],
    /// Copies of weights in the compute format.
    pub refresh: Vec<Node>,
    /// Activations that the forward pass leaves for the backward pass.
    pub kept: HashSet<StorageId>,
}

/// Applies a policy to a graph.
pub fn rewrite(graph: &Graph, policy: &Policy) -> Rewritten {
    let section = |wanted: Section| -> Vec<Node> {
        graph
            .nodes()
            .iter()
            .filter(|node| node.section == wanted)
            .cloned()
            .collect()
    };
    let forward = section(Section::Features);
    let mut rewriter = Rewriter::new(graph.clone(), &forward, policy);
    let mut pull_back = Vec::new();
    for mut node in section(Section::PullBack) {
        for input in &mut node.inputs {
            *input = rewriter.available(*input, &mut pull_back);
        }
        pull_back.push(node);
    }
    let graph = rewriter.graph;
    let produced: HashSet<StorageId> = forward
        .iter()
        .flat_map(|node| &node.outputs)
        .map(|output| graph.value(output.value).storage)
        .filter(|&storage| graph.storage(storage).role == Role::Activation)
        .collect();
    let kept = pull_back
        .iter()
        .flat_map(|node| &node.inputs)
        .map(|&input| graph.value(input).storage)
        .filter(|storage| produced.contains(storage))
        .collect();
    Rewritten {
        begin: section(Section::Begin),
        features: only_features(&graph, &forward),
        loss: section(Section::Loss),
        update: section(Section::Update),
        evaluate: std::array::from_fn(|index| section(Section::Evaluate(index))),
        refresh: section(Section::Refresh),
        forward,
        pull_back,
        kept,
        graph,
    }
}

/// The nodes that features (rows of the whole effective batch) depend on.
fn only_features(graph: &Graph, forward: &[Node]) -> Vec<Node> {
    let mut needed: HashSet<StorageId> = HashSet::new();
    let mut nodes = Vec::new();
    for node in forward.iter().rev() {
        let wanted = node.outputs.iter().any(|output| {
            let value = graph.value(output.value);
            value.micro_stride > 0 || needed.contains(&value.storage)
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
    policy: &'p Policy,
    /// Activation -> index of its forward node and which output it is.
    producers: HashMap<StorageId, (usize, usize)>,
    forward: Vec<Node>,
    /// Activations that leave their block: what enters the next one is always kept.
    leaving: HashSet<StorageId>,
    /// Activation -> the storage that holds it when made again.
    again: HashMap<StorageId, StorageId>,
}

impl<'p> Rewriter<'p> {
    fn new(graph: Graph, forward: &[Node], policy: &'p Policy) -> Rewriter<'p> {
        let mut producers = HashMap::new();
        let mut leaving = HashSet::new();
        for (index, node) in forward.iter().enumerate() {
            for &input in &node.inputs {
                let storage = graph.value(input).storage;
                if let Some(&(producer, _)) = producers.get(&storage) {
                    let producer: &Node = &forward[producer];
                    if policy.group(producer.block) != policy.group(node.block) {
                        leaving.insert(storage);
                    }
                }
            }
            for (output_index, output) in node.outputs.iter().enumerate() {
                let storage = graph.value(output.value).storage;
                if graph.storage(storage).role == Role::Activation {
                    producers.insert(storage, (index, output_index));
                }
            }
        }
        Rewriter {
            graph,
            policy,
            producers,
            forward: forward.to_vec(),
            leaving,
            again: HashMap::new(),
        }
    }

    /// The value as the backward pass can read it; appends what has to run for it.
    fn available(&mut self, id: ValueId, nodes: &mut Vec<Node>) -> ValueId {
        let value = *self.graph.value(id);
        let Some(&(producer, output)) = self.producers.get(&value.storage) else {
            return id;
        };
        let node = self.forward[producer].clone();
        let storage = match self.again.get(&value.storage) {
            Some(&storage) => storage,
            // Kept, a copy for one use would no longer be one.
            None if self.graph.is_weight_copy(&node) => {
                self.run_again(&node, nodes);
                self.again[&value.storage]
            }
            None => match (self.policy.of(node.block), node.op.rules().recompute()) {
                (Recompute::None, _) | (Recompute::Cheap, None) => return id,
                (Recompute::Blocks, _) if self.leaving.contains(&value.storage) => return id,
                (Recompute::Blocks, _) | (Recompute::Cheap, Some(RecomputeRule::SameNode)) => {
                    self.run_again(&node, nodes);
                    self.again[&value.storage]
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
                    let source = self.available(node.outputs[from].value, nodes);
                    let target = self.twin(node.outputs[output].value);
                    nodes.push(Node {
                        op: *op,
                        inputs: vec![source],
                        outputs: vec![Output::overwrite(target)],
                        section: Section::PullBack,
                        block: node.block,
                        lane: node.lane,
                    });
                    self.again[&value.storage]
                }
            },
        };
        self.graph.add_value(Value { storage, ..value })
    }

    fn run_again(&mut self, node: &Node, nodes: &mut Vec<Node>) {
        let inputs = node
            .inputs
            .iter()
            .map(|&input| self.available(input, nodes))
            .collect();
        let outputs = node
            .outputs
            .iter()
            .map(|output| Output::overwrite(self.twin(output.value)))
            .collect();
        nodes.push(Node {
            op: node.op.clone(),
            inputs,
            outputs,
            section: Section::PullBack,
            block: node.block,
            lane: node.lane,
        });
    }

    /// A value like `id` in a storage of its own, for the tensor made again.
    fn twin(&mut self, id: ValueId) -> ValueId {
        let value = *self.graph.value(id);
        let original = self.graph.storage(value.storage).clone();
        let storage = self.graph.add_storage(
            format!("{} again", original.name),
            original.num_elements,
            original.dtype,
            Role::Activation,
        );
        self.again.insert(value.storage, storage);
        self.graph.add_value(Value { storage, ..value })
    }
}
