//! `y[b] = table`: the same rows for every sample, such as the learned queries of an attention pooling.
//!
//! Backward: `dtable += sum over b of dy[b]`.
//!
//! Legend: `b` samples, `n` rows of the table, `d` width.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::add_positions::sum_over_tokens;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Input `table_nd`; output `y_bnd`.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeat {}

/// Input `dy_bnd`; output `dtable_nd`, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct RepeatGrad {}

impl Graph {
    /// Appends a copy of a table's rows for every sample: `[batch, rows, width]`.
    pub fn repeat(&mut self, name: &str, table_nd: ValueId, batch: usize) -> ValueId {
        let table = self.shape(table_nd);
        let y_bnd = self.activation(name, &[batch, table.rows(), table.width()]);
        self.push_new(Repeat {}, vec![table_nd], &[y_bnd]);
        y_bnd
    }
}

impl Operation for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy_bnd) = pass.reached(node, 0) else {
            return;
        };
        let dtable_nd = pass.added(node.inputs[0]);
        pass.graph()
            .push(RepeatGrad {}, vec![dy_bnd], vec![dtable_nd]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(1)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

undifferentiated!(RepeatGrad, "repeat gradient", |_, node| sum_over_tokens(
    node
));
