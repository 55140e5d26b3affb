//! `sum += sum over n of w[n] * (logsumexp(logits[n]) - target[n] . logits[n])`: a separable loss, as a sum.
//!
//! `target` is `1 - smoothing` at the label and `smoothing / C` spread over all C classes, as PyTorch has it.
//! Rows of weight zero (padding) and of negative label (ignored) count nothing. The count is data: the step knows it
//! before it starts, and divides once through the seed. Backward:
//! `dlogits = seed * w[n] * (softmax - target)`.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `logits_nc, labels_n, weights_n`; output the sum, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Share of the target that is spread over all classes.
    pub smoothing: f64,
}

/// Inputs `seed, logits_nc, labels_n, weights_n`; output `dlogits_nc`.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyGrad {
    /// Share of the target that is spread over all classes.
    pub smoothing: f64,
}

impl Graph {
    /// Adds the cross-entropy of each row to `sum`.
    pub fn cross_entropy_into(
        &mut self,
        name: &str,
        logits_nc: ValueId,
        labels_n: ValueId,
        weights_n: ValueId,
        sum: ValueId,
        smoothing: f64,
    ) {
        let (logits, labels) = (self.shape(logits_nc), self.shape(labels_n));
        assert_eq!(
            (logits.rows(), logits.rows()),
            (labels.num_elements(), self.shape(weights_n).num_elements()),
            "cross-entropy {name}: logits {logits:?}, labels {labels:?}"
        );
        self.push(
            CrossEntropy { smoothing },
            vec![logits_nc, labels_n, weights_n],
            vec![Output::accumulate(sum)],
        );
    }
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let dlogits = pass.target(node.inputs[0]);
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs);
        let smoothing = self.smoothing;
        pass.graph()
            .push(CrossEntropyGrad { smoothing }, inputs, vec![dlogits]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        Cost {
            product_flops: 0,
            element_flops: node.input(0).num_elements() as u64 * 12,
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

undifferentiated!(CrossEntropyGrad, "cross-entropy gradient", |_, node| node
    .element_wise(14));
