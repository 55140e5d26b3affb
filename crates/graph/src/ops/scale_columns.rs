//! `y[n, d] = x[n, d] * gamma[d]`: the layer scale of DINOv2.
//!
//! Backward: `dx = dy * gamma`, `dgamma += sum over rows of dy x`, in an order that depends on shapes alone.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `x_nd, gamma_d`; output `y_nd`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleColumns {}

/// Inputs `dy_nd, x_nd, gamma_d`; outputs `[dgamma_d], [dx_nd]`; `dx` is in place on `dy`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleColumnsGrad {
    /// The first output is the gradient of gamma.
    pub gamma: bool,
    /// The last output is the gradient of x.
    pub x: bool,
}

impl Graph {
    /// Multiplies each column by its factor.
    pub fn scale_columns(&mut self, name: &str, x_nd: ValueId, gamma_d: ValueId) -> ValueId {
        let (x, gamma) = (self.shape(x_nd), self.shape(gamma_d));
        assert_eq!(
            gamma.num_elements(),
            x.width(),
            "scale columns {name}: x {x:?} against gamma {gamma:?}"
        );
        let y_nd = self.activation(name, x.dims());
        self.push_new(ScaleColumns {}, vec![x_nd, gamma_d], &[y_nd]);
        y_nd
    }
}

impl Operation for ScaleColumns {
    fn name(&self) -> &'static str {
        "scale columns"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let [x_nd, gamma_d] = [node.inputs[0], node.inputs[1]];
        let op = ScaleColumnsGrad {
            gamma: pass.wants(gamma_d),
            x: pass.wants(x_nd),
        };
        let wants_x = op.x;
        let mut outputs = Vec::new();
        if op.gamma {
            outputs.push(pass.target(gamma_d));
        }
        if wants_x {
            outputs.push(Output::overwrite(dy));
        }
        pass.graph().push(op, vec![dy, x_nd, gamma_d], outputs);
        if wants_x {
            pass.donate(x_nd, dy);
        }
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

undifferentiated!(ScaleColumnsGrad, "scale columns gradient", |_, node| Cost {
    product_flops: 0,
    element_flops: node.input(0).num_elements() as u64 * 3,
    bytes: node.operand_bytes(),
});
