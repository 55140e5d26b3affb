//! The last product of a language model and its cross-entropy in one, in tiles of rows: the logits of a batch are never stored.
//!
//! With `logits[n] = x[n] W^T` in f32, `lse = logsumexp(logits)`, `e` the smoothing and `w[n] = sample_weights[b] * token_weights[n]`:
//! `sum += sum over n of w[n] * (lse[n] - (1 - e) logits[n, label[n]] - e / V * sum over v of logits[n, v])`.
//!
//! Rows of weight zero and of negative label do not count, and a device may leave them out of its products; their `lse` is
//! undefined. The backward pass uses the `lse` of the forward pass and computes the logits once more:
//! `dlogits[n, v] = seed * w[n] * (exp(logits[n, v] - lse[n]) - (1 - e) [v = label[n]] - e / V)`,
//! `dx = dlogits W`, `dW += dlogits^T x`.
//!
//! Legend: `b` samples, `t` tokens, `n = b t` rows, `d` width, `v` vocabulary (`V` its size).

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, Output, Shape, ValueId};

/// Forward. Inputs `x_btd, weight_vd, labels_bt, token_weights_bt, sample_weights_b`; outputs the sum (added to), `lse_bt`.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabularyLoss {
    /// Label smoothing: share of the target that is spread over the vocabulary.
    pub smoothing: f64,
    /// Maximum number of rows whose logits are in memory at a time.
    pub tile: usize,
}

/// Inputs `seed, x_btd, weight_vd, labels_bt, token_weights_bt, sample_weights_b, lse_bt`; outputs `[dx_btd], [dweight_vd]`.
/// `dweight` is added to: the weight may also be the table of an embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabularyLossGrad {
    pub smoothing: f64,
    /// Maximum number of rows whose logits are in memory at a time.
    pub tile: usize,
    /// The first output is the gradient of `x`.
    pub x: bool,
    /// The last output is the gradient of the weight.
    pub weight: bool,
}

/// Bytes of a tile of logits in f32.
const TILE_BYTES: usize = 64 << 20;

/// Rows of a tile for a vocabulary of this size: enough for fast products, within 64 MiB of logits.
pub fn vocabulary_tile(vocabulary: usize) -> usize {
    let rows = TILE_BYTES / (4 * vocabulary.max(1));
    (rows / 64 * 64).max(64)
}

impl Graph {
    /// Adds the cross-entropy of `x W^T` against the labels of every token to `sum`.
    #[allow(clippy::too_many_arguments)] // the operands of a product and of a loss
    pub fn vocabulary_loss_into(
        &mut self,
        name: &str,
        x_btd: ValueId,
        weight_vd: ValueId,
        labels_bt: ValueId,
        token_weights_bt: ValueId,
        sample_weights_b: ValueId,
        sum: ValueId,
        smoothing: f64,
        tile: usize,
    ) {
        let [x, weight, labels] = [x_btd, weight_vd, labels_bt].map(|id| self.shape(id));
        let [token_weights, sample_weights] =
            [token_weights_bt, sample_weights_b].map(|id| self.shape(id).num_elements());
        let [batch, tokens, width] = *x.dims() else {
            panic!("vocabulary loss {name}: x {x:?}, expected [batch, tokens, width]");
        };
        assert_eq!(
            width,
            weight.width(),
            "vocabulary loss {name}: x {x:?} against weight {weight:?}"
        );
        assert_eq!(
            (labels.num_elements(), token_weights, sample_weights),
            (batch * tokens, batch * tokens, batch),
            "vocabulary loss {name}: labels {labels:?} and weights of x {x:?}"
        );
        assert_eq!(self.dtype(labels_bt), DType::I64, "vocabulary loss {name}");
        assert!(tile > 0, "vocabulary loss {name}: tiles of no rows");
        let dtype = self.dtype(x_btd);
        let weight_vd = self.weight_as(weight_vd, dtype);
        let lse_bt = self.statistic(&format!("{name}.lse"), &[batch, tokens]);
        self.push(
            VocabularyLoss { smoothing, tile },
            vec![
                x_btd,
                weight_vd,
                labels_bt,
                token_weights_bt,
                sample_weights_b,
            ],
            vec![Output::accumulate(sum), Output::overwrite(lse_bt)],
        );
    }
}

impl Operation for VocabularyLoss {
    fn name(&self) -> &'static str {
        "vocabulary loss"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let [x_btd, weight_vd] = [node.inputs[0], node.inputs[1]];
        let op = VocabularyLossGrad {
            smoothing: self.smoothing,
            tile: self.tile,
            x: pass.wants(x_btd),
            weight: pass.wants(weight_vd),
        };
        let mut outputs = Vec::new();
        if op.x {
            outputs.push(pass.target(x_btd));
        }
        if op.weight {
            outputs.push(pass.added(weight_vd));
        }
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs);
        inputs.push(node.outputs[1].value);
        pass.graph().push(op, inputs, outputs);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        logits(node, [node.input(0), node.input(1)], 1)
    }

    fn skippable(&self, output: usize) -> bool {
        output == 1
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(
    VocabularyLossGrad,
    "vocabulary loss gradient",
    |op, node| {
        let num_products = 1 + u64::from(op.x) + u64::from(op.weight);
        logits(node, [node.input(1), node.input(2)], num_products)
    }
);

fn logits(node: NodeView<'_>, [x, weight]: [Shape; 2], num_products: u64) -> Cost {
    let logits = (x.rows() * weight.rows()) as u64;
    Cost {
        product_flops: num_products * 2 * logits * x.width() as u64,
        element_flops: logits * 14,
        bytes: node.operand_bytes(),
    }
}
