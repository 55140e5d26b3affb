//! `y = activation(x W^T + b + low rank) + residual`, with `W` stored as `[outputs, inputs]`, the layout of Hugging Face.
//!
//! Backward, with `dz = dy * activation'(z)`:
//! `dx = dz W`, `dW += dz^T x`, `db += sum over rows of dz`, `dresidual = dy`.
//!
//! Adapters ([`crate::adapters`]) add `scale h B^T` to some of the columns, where `h = x A^T` is the output of another product:
//! `dh = scale dz B`, `dB += scale dz^T h`, over those columns of `dz`.
//!
//! Legend: `n` rows, `i` inputs, `o` outputs.

use std::ops::Range;

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::activation::{Activate, Activation};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Role, ValueId};

/// Forward. Inputs `x, W, [b], [h, B of each low-rank term], [residual]`; outputs `y` and, with an activation, `z` before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// The third input is a bias.
    pub bias: bool,
    /// The last input is added to the result.
    pub residual: bool,
    /// Applied to `x W^T + b`.
    pub activation: Option<Activation>,
    /// Outputs whose bias cannot change the loss, so that its gradient is zero: the keys of an attention, since a shift common to
    /// all keys does not change a softmax. A computed gradient would be rounding noise, which an optimizer that divides by the
    /// size of the gradient blows up.
    pub inert_bias: Range<usize>,
    /// Contributions of adapters, added before the activation.
    pub low_rank: Option<LowRank>,
}

/// `scale h B^T`, added to columns of a product; one term per adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// Factor of every term.
    pub scale: f64,
    /// Columns of each term: as many as its `B` has rows.
    pub columns: Vec<Range<usize>>,
}

impl Linear {
    /// For each low-rank term, its columns and the index of its `h` among the inputs; the next input is its `B`.
    pub fn low_rank_terms(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let columns = self.low_rank.iter().flat_map(|terms| terms.columns.iter());
        let first = 2 + usize::from(self.bias);
        columns
            .enumerate()
            .map(move |(index, columns)| (columns.clone(), first + 2 * index))
    }

    /// Factor of the low-rank terms.
    pub fn low_rank_scale(&self) -> f64 {
        self.low_rank.as_ref().map_or(1.0, |terms| terms.scale)
    }
}

/// `dx = scale dz W`, times `activation'(z')` of the layer before if that activation's backward is fused into the product. A fused
/// product is the last contribution to `dx`: earlier contributions are multiplied as well. Inputs `dz, W, [z']`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearInputGrad {
    /// The activation that produced `x`, if its backward is fused into this product.
    pub activation: Option<Activation>,
    /// 1, except for low-rank terms.
    pub scale: f64,
}

/// `dW += scale dz^T x`, `db += sum dz`. Inputs `dz, x`; outputs `[dW], [db]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearWeightGrad {
    /// The first output is the weight gradient; false for a frozen weight with a trainable bias.
    pub weight: bool,
    /// The last output is the bias gradient.
    pub bias: bool,
    /// Outputs whose bias gradient is zero.
    pub inert_bias: Range<usize>,
    /// 1, except for low-rank terms.
    pub scale: f64,
}

impl Graph {
    /// `x W^T + b`, and an optional residual.
    pub fn linear(
        &mut self,
        name: &str,
        x_ni: ValueId,
        weight_oi: ValueId,
        bias_o: Option<ValueId>,
        residual_no: Option<ValueId>,
    ) -> ValueId {
        self.linear_inert(name, [x_ni, weight_oi], bias_o, residual_no, 0..0)
    }

    /// `x W^T + b`, where the outputs `keys` are the keys of an attention.
    pub fn linear_with_keys(
        &mut self,
        name: &str,
        x_ni: ValueId,
        weight_oi: ValueId,
        bias_o: ValueId,
        keys: Range<usize>,
    ) -> ValueId {
        self.linear_inert(name, [x_ni, weight_oi], Some(bias_o), None, keys)
    }

    fn linear_inert(
        &mut self,
        name: &str,
        [x_ni, weight_oi]: [ValueId; 2],
        bias_o: Option<ValueId>,
        residual_no: Option<ValueId>,
        inert_bias: Range<usize>,
    ) -> ValueId {
        let (low_rank, terms) = self.adapt_linear(name, x_ni, weight_oi);
        let y_no = self.linear_output(name, x_ni, weight_oi, bias_o);
        let (weight_oi, bias_o) = self.in_format_of(x_ni, weight_oi, bias_o);
        let mut inputs = vec![x_ni, weight_oi];
        inputs.extend(bias_o);
        inputs.extend(terms);
        inputs.extend(residual_no);
        if let Some(residual) = residual_no {
            let (found, expected) = (
                self.shape(residual).num_elements(),
                self.shape(y_no).num_elements(),
            );
            assert_eq!(found, expected, "linear {name}: residual and result differ");
        }
        let op = Linear {
            bias: bias_o.is_some(),
            residual: residual_no.is_some(),
            activation: None,
            inert_bias,
            low_rank,
        };
        self.push_new(op, inputs, &[y_no]);
        y_no
    }

    /// `x W^T + b`, written to a given value.
    pub fn linear_into(
        &mut self,
        x_ni: ValueId,
        weight_oi: ValueId,
        bias_o: ValueId,
        y_no: ValueId,
    ) {
        let name = self.storage(self.value(y_no).storage).name.clone();
        let (low_rank, terms) = self.adapt_linear(&name, x_ni, weight_oi);
        let op = Linear {
            bias: true,
            residual: false,
            activation: None,
            inert_bias: 0..0,
            low_rank,
        };
        let (weight_oi, bias_o) = self.in_format_of(x_ni, weight_oi, Some(bias_o));
        let mut inputs = vec![x_ni, weight_oi];
        inputs.extend(bias_o);
        inputs.extend(terms);
        self.push_new(op, inputs, &[y_no]);
    }

    /// Weight and bias in the number format of `x`, which is the format of the product.
    fn in_format_of(
        &mut self,
        x: ValueId,
        weight: ValueId,
        bias: Option<ValueId>,
    ) -> (ValueId, Option<ValueId>) {
        let dtype = self.dtype(x);
        let weight = self.weight_as(weight, dtype);
        (weight, bias.map(|bias| self.weight_as(bias, dtype)))
    }

    /// `activation(x W^T + b)`.
    pub fn linear_activated(
        &mut self,
        name: &str,
        x_ni: ValueId,
        weight_oi: ValueId,
        bias_o: ValueId,
        activation: Activation,
    ) -> ValueId {
        let (low_rank, terms) = self.adapt_linear(name, x_ni, weight_oi);
        let z_no = self.linear_output(&format!("{name}.z"), x_ni, weight_oi, Some(bias_o));
        let (dims, dtype) = (self.shape(z_no), self.dtype(x_ni));
        let y_no = self.tensor(name, dims.dims(), dtype, Role::Activation);
        let op = Linear {
            bias: true,
            residual: false,
            activation: Some(activation),
            inert_bias: 0..0,
            low_rank,
        };
        let (weight_oi, bias_o) = self.in_format_of(x_ni, weight_oi, Some(bias_o));
        let mut inputs = vec![x_ni, weight_oi];
        inputs.extend(bias_o);
        inputs.extend(terms);
        self.push_new(op, inputs, &[y_no, z_no]);
        y_no
    }

    fn linear_output(
        &mut self,
        name: &str,
        x_ni: ValueId,
        weight_oi: ValueId,
        bias_o: Option<ValueId>,
    ) -> ValueId {
        let (x, weight) = (self.shape(x_ni), self.shape(weight_oi));
        assert_eq!(
            x.width(),
            weight.width(),
            "linear {name}: x {x:?} against weight {weight:?}"
        );
        let outputs = weight.rows();
        if let Some(bias) = bias_o {
            let bias = self.shape(bias);
            assert_eq!(
                bias.num_elements(),
                outputs,
                "linear {name}: bias {bias:?} against weight {weight:?}"
            );
        }
        let mut dims = x.dims().to_vec();
        *dims.last_mut().expect("x has a width") = outputs;
        let dtype = self.dtype(x_ni);
        self.tensor(name, &dims, dtype, Role::Activation)
    }
}

impl Operation for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy_no) = pass.reached(node, 0) else {
            return;
        };
        if let Some(activation) = self.activation {
            pass.through_activation(activation, dy_no, node.outputs[1].value);
        }
        self.low_rank_backward(node, dy_no, pass);
        let (x_ni, weight_oi) = (node.inputs[0], node.inputs[1]);
        let op = LinearWeightGrad {
            weight: pass.wants(weight_oi),
            bias: self.bias && pass.wants(node.inputs[2]),
            inert_bias: self.inert_bias.clone(),
            scale: 1.0,
        };
        let mut outputs = Vec::new();
        if op.weight {
            outputs.push(pass.target(weight_oi));
        }
        if op.bias {
            outputs.push(pass.target(node.inputs[2]));
        }
        if !outputs.is_empty() {
            pass.graph().push(op, vec![dy_no, x_ni], outputs);
        }
        if pass.wants(x_ni) {
            let dx_ni = pass.target(x_ni);
            pass.graph().push(
                LinearInputGrad {
                    activation: None,
                    scale: 1.0,
                },
                vec![dy_no, weight_oi],
                vec![dx_ni],
            );
        }
        if self.residual {
            let residual_no = node.inputs[node.inputs.len() - 1];
            if pass.wants(residual_no) {
                pass.donate(residual_no, dy_no);
            }
        }
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        let activation = if self.activation.is_some() { 12 } else { 0 };
        let terms = self.low_rank_terms().map(|(columns, h)| {
            let h = node.input(h);
            (h.num_elements() * columns.len(), h.rows() * columns.len())
        });
        // Low-rank terms read and write the result of the product once more.
        let (multiply_adds, again) =
            terms.fold((0, 0), |sum, term| (sum.0 + term.0, sum.1 + term.1));
        let mut cost = product(
            node,
            node.input(0).num_elements() * node.input(1).rows() + multiply_adds,
            activation + 2,
        );
        cost.bytes += 2 * (again * node.graph.compute().bytes()) as u64;
        cost
    }

    fn skippable(&self, output: usize) -> bool {
        output == 1
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        self.activation.map(|activation| RecomputeRule::Derived {
            output: 0,
            from: 1,
            op: Box::new(Activate { activation }.into()),
        })
    }
}

impl Linear {
    /// Runs before the residual gets `dy` as its gradient, since other contributions may then be added to it.
    fn low_rank_backward(&self, node: &Node, dz_no: ValueId, pass: &mut Backward<'_>) {
        let scale = self.low_rank_scale();
        for (columns, h) in self.low_rank_terms() {
            let (h_nr, b_or) = (node.inputs[h], node.inputs[h + 1]);
            let own = pass.graph().columns(dz_no, columns.start, columns.len());
            if pass.wants(b_or) {
                let op = LinearWeightGrad {
                    weight: true,
                    bias: false,
                    inert_bias: 0..0,
                    scale,
                };
                let db_or = pass.target(b_or);
                pass.graph().push(op, vec![own, h_nr], vec![db_or]);
            }
            if pass.wants(h_nr) {
                let op = LinearInputGrad {
                    activation: None,
                    scale,
                };
                let dh_nr = pass.target(h_nr);
                pass.graph().push(op, vec![own, b_or], vec![dh_nr]);
            }
        }
    }
}

undifferentiated!(LinearInputGrad, "linear input gradient", |op, node| {
    let activation = if op.activation.is_some() { 16 } else { 0 };
    product(
        node,
        node.input(0).num_elements() * node.input(1).width(),
        activation,
    )
});

undifferentiated!(LinearWeightGrad, "linear weight gradient", |op, node| {
    let multiply_adds = if op.weight {
        node.input(0).num_elements() * node.input(1).width()
    } else {
        0
    };
    product(node, multiply_adds, 0)
});

fn product(node: NodeView<'_>, multiply_adds: usize, flops_per_element: u64) -> Cost {
    Cost {
        product_flops: 2 * multiply_adds as u64,
        element_flops: node.output(0).num_elements() as u64 * flops_per_element,
        bytes: node.operand_bytes(),
    }
}
