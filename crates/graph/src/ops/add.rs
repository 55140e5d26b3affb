//! `y = a + b`, and `y += x` for gradients with several contributions.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Inputs `a, b`; output `y`.
#[derive(Clone, Debug, PartialEq)]
pub struct Add {}

/// Input `x`; output `y`, overwritten or added to.
#[derive(Clone, Debug, PartialEq)]
pub struct AddInto {}

/// Input `x` in f32; output `y` in bf16, overwritten or added to. The sum is rounded once, to the nearest.
#[derive(Clone, Debug, PartialEq)]
pub struct AddRounded {}

impl Graph {
    /// Sum of two values of one shape. To add to the result of a product, its residual input saves a pass over memory.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let (left, right) = (self.shape(a), self.shape(b));
        assert_eq!(left, right, "add {name}: {left:?} and {right:?}");
        let y = self.activation(name, left.dims());
        self.push_new(Add {}, vec![a, b], &[y]);
        y
    }
}

impl Operation for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        // Contributions are copied before dy is donated: no later node may read it.
        if pass.wants(node.inputs[1]) {
            let target = pass.target(node.inputs[1]);
            pass.graph().push(AddInto {}, vec![dy], vec![target]);
        }
        if pass.wants(node.inputs[0]) {
            pass.donate(node.inputs[0], dy);
        }
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(1)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(AddInto, "add into", |_, node| node.element_wise(1));

undifferentiated!(AddRounded, "add rounded", |_, node| node.element_wise(1));
