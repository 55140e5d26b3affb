//! Converts numbers to another format or copies them to another memory. Backward: the reverse cast.

use crate::op::RecomputeRule;
use crate::{Backward, Cost, DType, Graph, MemorySpace, Node, NodeView, Operation, Role, ValueId};

/// Input `x`; output `y`, of the same shape, in another format or memory space.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {}

impl Graph {
    /// `x` in another number format.
    pub fn cast(&mut self, name: &str, x: ValueId, dtype: DType) -> ValueId {
        let shape = self.shape(x);
        let y = self.tensor(name, shape.dims(), dtype, Role::Activation);
        self.push_new(Cast {}, vec![x], &[y]);
        y
    }

    /// Copies `x` to another memory.
    pub fn copy_to(&mut self, name: &str, x: ValueId, space: MemorySpace) -> ValueId {
        let dtype = self.dtype(x);
        let y = self.cast(name, x, dtype);
        let storage = self.value(y).storage;
        self.set_space(storage, space);
        y
    }
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let dx = pass.target(node.inputs[0]);
        pass.graph().push(Cast {}, vec![dy], vec![dx]);
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
