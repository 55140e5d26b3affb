//! Costs of a node: arithmetic and memory traffic, from shapes alone.

use crate::{Graph, Node, Shape};

/// Work of one node. A device profile converts it to time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations in matrix products.
    pub product_flops: u64,
    /// Element-wise floating-point operations (an exponential counts as ten).
    pub element_flops: u64,
    /// Bytes read and written, each operand once.
    pub bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            product_flops: self.product_flops + other.product_flops,
            element_flops: self.element_flops + other.element_flops,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// A node with its graph, for cost rules and workspace sizes.
#[derive(Clone, Copy)]
pub struct NodeView<'g> {
    pub graph: &'g Graph,
    pub node: &'g Node,
}

impl<'g> NodeView<'g> {
    pub fn input(&self, index: usize) -> Shape {
        self.graph.value(self.node.inputs[index]).shape
    }

    pub fn output(&self, index: usize) -> Shape {
        self.graph.value(self.node.outputs[index].value).shape
    }

    /// Bytes of all operands: the traffic of an operation that reads and writes each element once.
    pub fn operand_bytes(&self) -> u64 {
        let outputs = self.node.outputs.iter().map(|output| output.value);
        self.node
            .inputs
            .iter()
            .copied()
            .chain(outputs)
            .map(|id| {
                let value = self.graph.value(id);
                let dtype = self.graph.storage(value.storage).dtype;
                value.shape.num_elements() as u64 * dtype.bytes() as u64
            })
            .sum()
    }

    /// Cost of an operation without products: its traffic, and `flops_per_element` for each element of the first output.
    pub fn element_wise(&self, flops_per_element: u64) -> Cost {
        Cost {
            product_flops: 0,
            element_flops: self.output(0).num_elements() as u64 * flops_per_element,
            bytes: self.operand_bytes(),
        }
    }
}
