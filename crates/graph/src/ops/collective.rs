//! Exchanges between processes: in place, and the identity in a run of one process.

use std::ops::Range;

use crate::op::RecomputeRule;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// The rank of this process and the number of processes that compute a step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Processes {
    pub rank: usize,
    pub count: usize,
}

impl Default for Processes {
    fn default() -> Processes {
        Processes { rank: 0, count: 1 }
    }
}

impl Processes {
    /// Whether this is the only process.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// Rows of this process, where `count` divides the rows evenly.
    pub fn own(self, rows: usize) -> Range<usize> {
        let each = rows / self.count;
        self.rank * each..(self.rank + 1) * each
    }

    /// Samples of this process, where `count` need not divide them evenly: shares differ by at most one.
    pub fn share(self, samples: usize) -> Range<usize> {
        samples * self.rank / self.count..samples * (self.rank + 1) / self.count
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every process gets the rows of all processes; each has filled its own.
    AllGather,
    /// Every process gets the sum over processes, added in order of rank.
    AllReduce,
    /// Every process gets each value from its owner: the ranks of the owners.
    FromOwners(Vec<usize>),
}

/// Inputs and outputs are the same values, exchanged in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    pub exchange: Exchange,
    pub processes: Processes,
}

impl Graph {
    /// Exchanges `values` in place; appends nothing in a run of one process.
    pub fn collective(&mut self, exchange: Exchange, processes: Processes, values: &[ValueId]) {
        if processes.is_alone() || values.is_empty() {
            return;
        }
        let outputs = values.iter().copied().map(Output::overwrite).collect();
        let op = Collective {
            exchange,
            processes,
        };
        self.push(op, values.to_vec(), outputs);
    }
}

impl Operation for Collective {
    fn name(&self) -> &'static str {
        "collective"
    }

    /// Empty, since the gradient is in place already: a loss over gathered rows gives every process the gradients of its own rows.
    fn backward(&self, _node: &Node, _pass: &mut Backward<'_>) {}

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            bytes: node.operand_bytes(),
            ..Cost::default()
        }
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}
