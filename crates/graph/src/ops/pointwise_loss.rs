//! `sum += sum over n and k of w[n, k] * loss(x[n, k], t[n, k])`: losses of one prediction and one target each, as a sum.
//!
//! Binary cross-entropy of a logit `z`, soft targets allowed: `max(z, 0) - z t + log(1 + exp(-|z|))`.
//! Squared error of a prediction `p`: `(p - t)^2`.
//!
//! Elements of weight zero (missing, or padding) do not count, whatever their target is. Backward:
//! `dz = seed * w * (sigmoid(z) - t)`, `dp = seed * w * 2 (p - t)`.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// For logits.
    BinaryCrossEntropy,
    /// For regression.
    SquaredError,
}

/// Forward. Inputs `predictions_nk, targets_nk, weights_nk`; the output is the loss sum, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseLoss {
    pub loss: Pointwise,
}

/// Inputs `seed, predictions_nk, targets_nk, weights_nk`; output `dpredictions_nk`.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseLossGrad {
    pub loss: Pointwise,
}

impl Graph {
    /// Adds the binary cross-entropy of each logit to `sum`. All operands may be column slices.
    pub fn binary_cross_entropy_into(
        &mut self,
        name: &str,
        logits_nc: ValueId,
        targets_nc: ValueId,
        weights_nc: ValueId,
        sum: ValueId,
    ) {
        let inputs = [logits_nc, targets_nc, weights_nc];
        self.pointwise_loss_into(name, Pointwise::BinaryCrossEntropy, inputs, sum);
    }

    /// Adds the squared error of each prediction to `sum`. All operands may be column slices.
    pub fn squared_error_into(
        &mut self,
        name: &str,
        predictions_nk: ValueId,
        targets_nk: ValueId,
        weights_nk: ValueId,
        sum: ValueId,
    ) {
        let inputs = [predictions_nk, targets_nk, weights_nk];
        self.pointwise_loss_into(name, Pointwise::SquaredError, inputs, sum);
    }

    fn pointwise_loss_into(
        &mut self,
        name: &str,
        loss: Pointwise,
        inputs: [ValueId; 3],
        sum: ValueId,
    ) {
        let shapes = inputs.map(|id| self.shape(id));
        let sizes = shapes.map(|shape| (shape.rows(), shape.width()));
        assert!(
            sizes.iter().all(|&size| size == sizes[0]),
            "{loss:?} {name}: predictions, targets and weights {shapes:?}"
        );
        self.push(
            PointwiseLoss { loss },
            inputs.to_vec(),
            vec![Output::accumulate(sum)],
        );
    }
}

impl Operation for PointwiseLoss {
    fn name(&self) -> &'static str {
        match self.loss {
            Pointwise::BinaryCrossEntropy => "binary cross-entropy",
            Pointwise::SquaredError => "squared error",
        }
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let dpredictions = pass.target(node.inputs[0]);
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs);
        let loss = self.loss;
        pass.graph()
            .push(PointwiseLossGrad { loss }, inputs, vec![dpredictions]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            product_flops: 0,
            element_flops: node.input(0).num_elements() as u64 * 24,
            bytes: node.operand_bytes(),
        }
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(PointwiseLossGrad, "pointwise loss gradient", |_, node| node
    .element_wise(14));
