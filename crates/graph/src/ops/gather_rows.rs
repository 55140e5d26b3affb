//! `y[b] = x[b, index[b]]`: the class token, or the end token of a text. Backward: `dx[b, index[b]] += dy[b]`.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `x_btd, index_b`; output `y_b1d`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatherRows {}

/// Inputs `dy, index_b`; output `dx_btd`, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct ScatterRows {}

impl Graph {
    /// Appends a gather of one token of every sample.
    pub fn gather_rows(&mut self, name: &str, x_btd: ValueId, index_b: ValueId) -> ValueId {
        let (x, index) = (self.shape(x_btd), self.shape(index_b));
        assert_eq!(self.dtype(index_b), DType::I64, "gather rows {name}");
        let [batch, _, width] = *x.dims() else {
            panic!("gather rows {name}: x {x:?}, expected [batch, tokens, width]");
        };
        assert_eq!(
            index.num_elements(),
            batch,
            "gather rows {name}: x {x:?}, index {index:?}"
        );
        let y_b1d = self.activation(name, &[batch, 1, width]);
        self.push_new(GatherRows {}, vec![x_btd, index_b], &[y_b1d]);
        y_b1d
    }
}

impl Operation for GatherRows {
    fn name(&self) -> &'static str {
        "gather rows"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let dx = pass.added(node.inputs[0]);
        pass.graph()
            .push(ScatterRows {}, vec![dy, node.inputs[1]], vec![dx]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        rows(node, node.output(0))
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }
}

undifferentiated!(ScatterRows, "scatter rows", |_, node| rows(
    node,
    node.input(0)
));

fn rows(node: NodeView<'_>, moved: crate::Shape) -> Cost {
    Cost {
        product_flops: 0,
        element_flops: 0,
        bytes: 2 * moved.num_elements() as u64 * node.graph.compute().bytes() as u64,
    }
}
