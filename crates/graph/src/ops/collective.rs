//! What several processes do together: in place, and the identity when there is one process.

use std::ops::Range;

use crate::op::RecomputeRule;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// This process among those that compute a step together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Processes {
    /// Counted from 0.
    pub rank: usize,
    /// How many there are.
    pub count: usize,
}

impl Default for Processes {
    /// One process.
    fn default() -> Processes {
        Processes { rank: 0, count: 1 }
    }
}

impl Processes {
    /// Whether nobody else takes part.
    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// This process's part of rows that all processes have equal parts of.
    pub fn own(self, rows: usize) -> Range<usize> {
        let each = rows / self.count;
        self.rank * each..(self.rank + 1) * each
    }

    /// This process's share of samples that need not divide evenly: shares differ by one at most.
    pub fn share(self, samples: usize) -> Range<usize> {
        samples * self.rank / self.count..samples * (self.rank + 1) / self.count
    }
}

/// Which exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every process gets the rows of all; each has filled its part.
    AllGather,
    /// Every process gets the sum, added in the order of ranks.
    AllReduce,
    /// Every process gets each value from its owner: their ranks.
    FromOwners(Vec<usize>),
}

/// Inputs and outputs are the same values, exchanged in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Which exchange.
    pub exchange: Exchange,
    /// Who takes part.
    pub processes: Processes,
}

impl Graph {
    /// Exchanges `values` in place; nothing where there is one process.
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

    /// In place, so the gradient is where it belongs already: a loss over gathered rows gives every process the gradients of its
    /// own rows.
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
