//! `y = x / |x|` over the last dimension. Backward: `dx = (dy - y (y . dy)) / |x|`.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Input `x`; outputs `y, inverse_norm`.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {}

/// Inputs `dy, y, inverse_norm`; output `dx`.
#[derive(Clone, Debug, PartialEq)]
pub struct NormalizeGrad {}

impl Graph {
    /// Appends a normalisation of rows to unit length, written to `y_nd` (rows of the features of the whole effective batch).
    pub fn normalize_into(&mut self, name: &str, x_nd: ValueId, y_nd: ValueId) {
        let (x, y) = (self.shape(x_nd), self.shape(y_nd));
        assert_eq!(
            (x.rows(), x.width()),
            (y.rows(), y.width()),
            "normalize {name}"
        );
        let inverse_n = self.statistic(&format!("{name}.inverse_norm"), &[x.rows()]);
        self.push_new(Normalize {}, vec![x_nd], &[y_nd, inverse_n]);
    }
}

impl Operation for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let dx = pass.target(node.inputs[0]);
        let inputs = vec![dy, node.outputs[0].value, node.outputs[1].value];
        pass.graph().push(NormalizeGrad {}, inputs, vec![dx]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(4)
    }

    fn skippable(&self, output: usize) -> bool {
        output == 1
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(NormalizeGrad, "normalize gradient", |_, node| node
    .element_wise(5));
