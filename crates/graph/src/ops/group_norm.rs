//! `y = activation((x - mean) * rstd * gamma + beta [+ residual])`, with mean and `rstd = 1 / sqrt(variance + eps)` of each group
//! of channels over all pixels of a sample. Instance norm is the case of one channel per group.
//!
//! The statistics have a node of their own: they are tiny and kept, and `y` is recomputed from them in one pass over `x`.
//!
//! Backward, with `h = (x - mean) * rstd`, `z` the input of the activation (recomputed from `x`), `g = dy * activation'(z)` and
//! means over the group: `dgamma += sum g h`, `dbeta += sum g`, `dx = rstd * (g gamma - mean(g gamma) - h * mean(g gamma h))`,
//! `dresidual = g`.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `c` channels, `g` groups.

use crate::op::{RecomputeRule, no_backward, undifferentiated};
use crate::ops::activation::Activation;
use crate::ops::conv2d::pictures;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Input `x_nhwc`; outputs `mean_ng, rstd_ng`, in full precision.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupStatistics {
    /// Number of groups of neighbouring channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f64,
}

/// Inputs `x_nhwc, mean_ng, rstd_ng, gamma_c, beta_c, [residual_nhwc]`; output `y_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNorm {
    /// Number of groups of neighbouring channels.
    pub groups: usize,
    /// Applied last.
    pub activation: Option<Activation>,
}

/// Inputs: `dy, x, mean, rstd, gamma, beta, [residual]`. Outputs: those of `dgamma, dbeta, dx, dresidual` whose flag is set.
///
/// `dx` or `dresidual` may be in place on `dy`, not both.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNormGrad {
    /// Number of groups of neighbouring channels.
    pub groups: usize,
    /// Activation of the forward pass.
    pub activation: Option<Activation>,
    pub gamma: bool,
    pub beta: bool,
    pub x: bool,
    pub residual: bool,
}

/// Operands and settings of a group norm.
struct Norm {
    x_nhwc: ValueId,
    gamma_c: ValueId,
    beta_c: ValueId,
    groups: usize,
    eps: f64,
    activation: Option<Activation>,
    residual_nhwc: Option<ValueId>,
}

impl Graph {
    /// Appends a group norm with an optional residual and an optional activation.
    #[allow(clippy::too_many_arguments)] // what a norm has; names at the call would be one struct more
    pub fn group_norm(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        gamma_c: ValueId,
        beta_c: ValueId,
        groups: usize,
        eps: f64,
        activation: Option<Activation>,
        residual_nhwc: Option<ValueId>,
    ) -> ValueId {
        let shape = self.shape(x_nhwc);
        let y_nhwc = self.activation(name, shape.dims());
        self.group_norm_into(
            name,
            x_nhwc,
            gamma_c,
            beta_c,
            groups,
            eps,
            activation,
            residual_nhwc,
            y_nhwc,
        );
        y_nhwc
    }

    /// Like [`Graph::group_norm`], written to a given value: the first channels of a skip join, for example.
    #[allow(clippy::too_many_arguments)] // as above
    pub fn group_norm_into(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        gamma_c: ValueId,
        beta_c: ValueId,
        groups: usize,
        eps: f64,
        activation: Option<Activation>,
        residual_nhwc: Option<ValueId>,
        y_nhwc: ValueId,
    ) {
        let norm = Norm {
            x_nhwc,
            gamma_c,
            beta_c,
            groups,
            eps,
            activation,
            residual_nhwc,
        };
        self.push_group_norm(name, norm, y_nhwc);
    }

    fn push_group_norm(&mut self, name: &str, norm: Norm, y_nhwc: ValueId) {
        let x = self.shape(norm.x_nhwc);
        let [samples, _, _, channels] = pictures("group norm", name, x);
        let groups = norm.groups;
        assert!(
            groups > 0 && channels % groups == 0,
            "group norm {name}: {channels} channels in {groups} groups"
        );
        for parameter in [norm.gamma_c, norm.beta_c] {
            let shape = self.shape(parameter);
            assert_eq!(
                shape.num_elements(),
                channels,
                "group norm {name}: x {x:?} against parameter {shape:?}"
            );
        }
        for other in norm.residual_nhwc.into_iter().chain([y_nhwc]) {
            let shape = self.shape(other);
            assert_eq!(shape, x, "group norm {name}: x {x:?} against {shape:?}");
        }
        let mean_ng = self.statistic(&format!("{name}.mean"), &[samples, groups]);
        let rstd_ng = self.statistic(&format!("{name}.rstd"), &[samples, groups]);
        let statistics = GroupStatistics {
            groups,
            eps: norm.eps,
        };
        self.push_new(statistics, vec![norm.x_nhwc], &[mean_ng, rstd_ng]);
        let mut inputs = vec![norm.x_nhwc, mean_ng, rstd_ng, norm.gamma_c, norm.beta_c];
        inputs.extend(norm.residual_nhwc);
        let op = GroupNorm {
            groups,
            activation: norm.activation,
        };
        self.push_new(op, inputs, &[y_nhwc]);
    }
}

impl Operation for GroupStatistics {
    fn name(&self) -> &'static str {
        "group statistics"
    }

    /// Never called: [`GroupNormGrad`] includes the gradient through the statistics.
    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        no_backward(self, node);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        each_input(node, 3)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None // two numbers per group are kept; to recompute them, x would be read twice more
    }
}

impl Operation for GroupNorm {
    fn name(&self) -> &'static str {
        "group norm"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let (x, gamma, beta) = (node.inputs[0], node.inputs[3], node.inputs[4]);
        let residual = node.inputs.get(5).copied();
        let op = GroupNormGrad {
            groups: self.groups,
            activation: self.activation,
            gamma: pass.wants(gamma),
            beta: pass.wants(beta),
            x: pass.wants(x),
            residual: residual.is_some_and(|residual| pass.wants(residual)),
        };
        let mut outputs = Vec::new();
        for (parameter, wanted) in [(gamma, op.gamma), (beta, op.beta)] {
            if wanted {
                outputs.push(pass.target(parameter));
            }
        }
        // The last of dx and dresidual is written in place on dy, if dy can be donated.
        let wanted_x = op.x.then_some(x);
        let wanted_residual = residual.filter(|_| op.residual);
        let heir = wanted_residual.or(wanted_x);
        let heir = heir.filter(|&heir| pass.takes_over(heir, dy));
        for wanted in wanted_x.into_iter().chain(wanted_residual) {
            outputs.push(if heir == Some(wanted) {
                Output::overwrite(dy)
            } else {
                pass.target(wanted)
            });
        }
        let mut inputs = vec![dy];
        inputs.extend(&node.inputs);
        pass.graph().push(op, inputs, outputs);
        if let Some(heir) = heir {
            pass.donate(heir, dy);
        }
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(match self.activation {
            Some(Activation::Gelu | Activation::QuickGelu) => 14,
            Some(Activation::Relu | Activation::LeakyRelu) | None => 4,
        })
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

// dy and x are read twice: for the sums, then for dx.
undifferentiated!(GroupNormGrad, "group norm gradient", |_, node| {
    let cost = each_input(node, 16);
    let x = node.graph.value(node.node.inputs[1]);
    let bytes = node.graph.storage(x.storage).dtype.bytes() as u64;
    Cost {
        bytes: cost.bytes + 2 * x.shape.num_elements() as u64 * bytes,
        ..cost
    }
});

/// Cost of `flops` for each element of the first input.
pub(super) fn each_input(node: NodeView<'_>, flops: u64) -> Cost {
    Cost {
        product_flops: 0,
        element_flops: node.input(0).num_elements() as u64 * flops,
        bytes: node.operand_bytes(),
    }
}
