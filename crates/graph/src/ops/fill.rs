//! Sets every element to one number.

use crate::{Cost, NodeView, Operation};

/// Output: any contiguous value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// The number.
    pub value: f64,
}

impl Operation for Fill {
    fn name(&self) -> &'static str {
        "fill"
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            bytes: node.operand_bytes(),
            ..Cost::default()
        }
    }
}
