//! `sum += sum over n of w[n] * (logsumexp(logits[n]) - target[n] . logits[n])`: a separable loss, as a sum.
//!
//! `target` is `1 - smoothing` at the label plus `smoothing / C` at each of the C classes, as in PyTorch. Rows of weight zero (padding) and
//! of negative label (ignored) do not count. The number of rows that count is known before the step starts: the step divides once,
//! through the seed. Backward:
//! `dlogits = seed * w[n] * (softmax - target)`.
//!
//! With class weights `v[c]`, as in `F.cross_entropy(weight=v, label_smoothing=e)`, `target[c]` is weighted by `v[c]`:
//! a row with label `y` adds `w[n] * ((1 - e) v[y] (lse - logits[y]) + e / C * sum over c of v[c] (lse - logits[c]))`, and
//! `dlogits[c] = seed * w[n] * ((1 - e) v[y] (softmax[c] - [c = y]) + e / C * (V softmax[c] - v[c]))`, where `V` is the sum of the
//! class weights. Class weights are not part of `w`.

use crate::op::{RecomputeRule, undifferentiated};
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Forward. Inputs `logits_nc, labels_n, weights_n, [class_weights_c]`; the output is the loss sum, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropy {
    /// Label smoothing: share of the target that is spread over all classes.
    pub smoothing: f64,
}

/// Inputs `seed, logits_nc, labels_n, weights_n, [class_weights_c]`; output `dlogits_nc`.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossEntropyGrad {
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
        let inputs = vec![logits_nc, labels_n, weights_n];
        self.push_cross_entropy(name, inputs, sum, smoothing);
    }

    /// Like [`Graph::cross_entropy_into`], with class weights. Class weights are constants: they get no gradient.
    #[allow(clippy::too_many_arguments)] // the arguments of `cross_entropy_into` and the class weights
    pub fn weighted_cross_entropy_into(
        &mut self,
        name: &str,
        logits_nc: ValueId,
        labels_n: ValueId,
        weights_n: ValueId,
        class_weights_c: ValueId,
        sum: ValueId,
        smoothing: f64,
    ) {
        let (logits, class_weights) = (self.shape(logits_nc), self.shape(class_weights_c));
        assert_eq!(
            logits.width(),
            class_weights.num_elements(),
            "cross-entropy {name}: logits {logits:?}, class weights {class_weights:?}"
        );
        let inputs = vec![logits_nc, labels_n, weights_n, class_weights_c];
        self.push_cross_entropy(name, inputs, sum, smoothing);
    }

    fn push_cross_entropy(
        &mut self,
        name: &str,
        inputs: Vec<ValueId>,
        sum: ValueId,
        smoothing: f64,
    ) {
        let [logits, labels, weights] = [0, 1, 2].map(|index| self.shape(inputs[index]));
        assert_eq!(
            (logits.rows(), logits.rows()),
            (labels.num_elements(), weights.num_elements()),
            "cross-entropy {name}: logits {logits:?}, labels {labels:?}"
        );
        let outputs = vec![Output::accumulate(sum)];
        self.push(CrossEntropy { smoothing }, inputs, outputs);
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
