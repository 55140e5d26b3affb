//! What several processes do together: in place, and the identity when there is one process.

use crate::op::RecomputeRule;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Which exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Every process gets the rows of all.
    AllGather,
    /// Every process gets the sum.
    AllReduce,
}

/// Inputs and outputs are the same values, exchanged in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Which exchange.
    pub exchange: Exchange,
    /// How many processes take part.
    pub num_processes: usize,
}

impl Graph {
    /// Exchanges `values` in place among `num_processes`.
    pub fn collective(&mut self, exchange: Exchange, num_processes: usize, values: &[ValueId]) {
        let outputs = values.iter().copied().map(Output::overwrite).collect();
        self.push(
            Collective {
                exchange,
                num_processes,
            },
            values.to_vec(),
            outputs,
        );
    }
}

impl Operation for Collective {
    fn name(&self) -> &'static str {
        "collective"
    }

    /// In place, so the gradient is where it belongs already: every process computes the loss over all rows and takes
    /// the gradients of its own.
    fn backward(&self, _node: &Node, _pass: &mut Backward<'_>) {}

    fn cost(&self, node: NodeView<'_>) -> Cost {
        if self.num_processes == 1 {
            return Cost::default();
        }
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
