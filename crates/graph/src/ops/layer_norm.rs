//! `y = (x - mean) * rstd * gamma + beta` over the last dimension, `rstd = 1 / sqrt(variance + eps)`.
//!
//! Backward, with `h = (x - mean) * rstd` and `g = dy * gamma`:
//! `dx = rstd * (g - mean(g) - h * mean(g h))`, `dgamma += sum dy h`, `dbeta += sum dy`.

use crate::op::{RecomputeRule, no_backward};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `x, gamma, beta`; outputs `y, mean, rstd`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f64,
}

/// Inputs `dy, x, gamma, mean, rstd`; outputs `dgamma, dbeta, [dx]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNormGrad {}

impl Graph {
    /// Appends a layer norm over the last dimension; `x` may be a strided matrix.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x_nd: ValueId,
        gamma_d: ValueId,
        beta_d: ValueId,
        eps: f64,
    ) -> ValueId {
        let x = self.shape(x_nd);
        for parameter in [gamma_d, beta_d] {
            let shape = self.shape(parameter);
            assert_eq!(
                shape.num_elements(),
                x.width(),
                "layer norm {name}: x {x:?} against parameter {shape:?}"
            );
        }
        let y_nd = self.activation(name, x.dims());
        let mean_n = self.statistic(&format!("{name}.mean"), &[x.rows()]);
        let rstd_n = self.statistic(&format!("{name}.rstd"), &[x.rows()]);
        self.push_new(
            LayerNorm { eps },
            vec![x_nd, gamma_d, beta_d],
            &[y_nd, mean_n, rstd_n],
        );
        y_nd
    }
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer norm"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let (x, gamma, beta) = (node.inputs[0], node.inputs[1], node.inputs[2]);
        let (mean, rstd) = (node.outputs[1].value, node.outputs[2].value);
        // No node reads the gradients of a frozen norm: they are not written.
        let mut outputs = Vec::new();
        for parameter in [gamma, beta] {
            outputs.push(if pass.wants(parameter) {
                pass.target(parameter)
            } else {
                let shape = pass.graph().shape(parameter);
                let scrap = pass.graph().statistic("frozen norm.grad", shape.dims());
                crate::Output::overwrite(scrap)
            });
        }
        if pass.wants(x) {
            outputs.push(pass.target(x));
        }
        pass.graph()
            .push(LayerNormGrad {}, vec![dy, x, gamma, mean, rstd], outputs);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(8)
    }

    fn skippable(&self, output: usize) -> bool {
        output > 0
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

impl Operation for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer norm gradient"
    }

    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        no_backward(self, node);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            product_flops: 0,
            element_flops: node.input(0).num_elements() as u64 * 14,
            bytes: node.operand_bytes(),
        }
    }

    fn skippable(&self, output: usize) -> bool {
        output < 2
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}
