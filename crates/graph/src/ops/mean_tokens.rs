//! `y[b] = mean over t >= first of x[b, t]`: the pooling of a model without a class token.
//!
//! Tokens are summed in order. Backward: `dx[b, t] = dy[b] / (tokens - first)` for `t >= first`, zero before.
//!
//! With lengths, the mean and its gradient cover the tokens `first..first + lengths[b]` alone: clips differ in their number of
//! frames. A sample of no tokens has a mean of zero and no gradient; a length beyond the last token is clamped.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Forward. Inputs `x_btd, [lengths_b]`; output `y_b1d`.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanTokens {
    /// First token of the mean: class and distillation tokens come before it.
    pub first: usize,
}

/// Inputs `dy_b1d, [lengths_b]`; output `dx_btd`.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanTokensGrad {
    /// First token with a gradient.
    pub first: usize,
}

impl Graph {
    /// Mean of every sample's tokens from `first` on, all of them or the first `lengths_b`: `[batch, 1, width]`.
    pub fn mean_tokens(
        &mut self,
        name: &str,
        x_btd: ValueId,
        first: usize,
        lengths_b: Option<ValueId>,
    ) -> ValueId {
        let x = self.shape(x_btd);
        let [batch, tokens, width] = *x.dims() else {
            panic!("mean of tokens {name}: x {x:?}, expected [batch, tokens, width]");
        };
        assert!(
            first < tokens,
            "mean of tokens {name}: from token {first} on of {tokens}"
        );
        if let Some(lengths_b) = lengths_b {
            assert_eq!(
                (self.dtype(lengths_b), self.shape(lengths_b).num_elements()),
                (DType::I64, batch),
                "mean of tokens {name}: lengths of x {x:?}"
            );
        }
        let y_b1d = self.activation(name, &[batch, 1, width]);
        let mut inputs = vec![x_btd];
        inputs.extend(lengths_b);
        self.push_new(MeanTokens { first }, inputs, &[y_b1d]);
        y_b1d
    }
}

impl Operation for MeanTokens {
    fn name(&self) -> &'static str {
        "mean of tokens"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let dx = pass.target(node.inputs[0]);
        let mut inputs = vec![dy];
        inputs.extend(&node.inputs[1..]);
        let first = self.first;
        pass.graph()
            .push(MeanTokensGrad { first }, inputs, vec![dx]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            product_flops: 0,
            element_flops: node.input(0).num_elements() as u64,
            bytes: node.operand_bytes(),
        }
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None // its input is as large as all tokens, and would have to be kept instead
    }
}

undifferentiated!(MeanTokensGrad, "mean of tokens gradient", |_, node| node
    .element_wise(1));
