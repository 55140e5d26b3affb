//! `sum += sum over pixels of sample_weight[n] * class_weight[label] * (1 - p)^focal * -log p`, `p` the probability of the true class.
//!
//! Sigmoid: one logit for two classes. Softmax: one logit per class. A pixel whose label is not a class does not count; 255 marks
//! such pixels: ignored, padding, outside of the field of view. Without `focal` the factor is 1, and the loss is (binary)
//! cross-entropy.
//!
//! Backward, with `q = 1 - p`, times seed and weights. Sigmoid, with `s = 1` for the true class 1 and -1 otherwise:
//! `dz = -s q^focal (focal p (-log p) + q)`. Softmax: `dz[j] = (p[j] - [j is true]) q^focal (1 + focal p (-log p) / q)`.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `k` classes.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::conv2d::pictures;
use crate::ops::group_norm::each_input;
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, Output, ValueId};

/// How logits become probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PixelLossKind {
    /// One logit: class 1 versus class 0.
    Sigmoid,
    /// One logit per class.
    Softmax,
}

impl PixelLossKind {
    /// Number of classes for this number of logits.
    pub fn num_classes(self, num_logits: usize) -> usize {
        match self {
            PixelLossKind::Sigmoid => 2,
            PixelLossKind::Softmax => num_logits,
        }
    }
}

/// Forward. Inputs `logits_nhwk, labels_nhw, class_weights, sample_weights_n`; the output is the loss sum, which is added to.
#[derive(Clone, Debug, PartialEq)]
pub struct PixelLoss {
    pub kind: PixelLossKind,
    /// Exponent of the focal factor.
    pub focal: Option<f64>,
}

/// Inputs `seed, logits_nhwk, labels_nhw, class_weights, sample_weights_n`; output `dlogits_nhwk`.
#[derive(Clone, Debug, PartialEq)]
pub struct PixelLossGrad {
    pub kind: PixelLossKind,
    pub focal: Option<f64>,
}

impl Graph {
    /// Adds the loss of every pixel to `sum`. Labels are bytes with any three strides.
    #[allow(clippy::too_many_arguments)] // four operands, a sum and two settings
    pub fn pixel_loss_into(
        &mut self,
        name: &str,
        logits_nhwk: ValueId,
        labels_nhw: ValueId,
        class_weights: ValueId,
        sample_weights_n: ValueId,
        sum: ValueId,
        kind: PixelLossKind,
        focal: Option<f64>,
    ) {
        let logits = self.shape(logits_nhwk);
        self.check_labels(name, logits_nhwk, labels_nhw, kind);
        let [n, _, _, num_logits] = pictures("pixel loss", name, logits);
        let counts = [class_weights, sample_weights_n].map(|id| self.shape(id).num_elements());
        assert_eq!(
            counts,
            [kind.num_classes(num_logits), n],
            "pixel loss {name}: class weights and sample weights for logits {logits:?}"
        );
        // An exponent of zero is a factor of one.
        let focal = focal.filter(|&focal| focal != 0.0);
        assert!(
            focal.is_none_or(|focal| focal > 0.0 && focal.is_finite()),
            "pixel loss {name}: focal {focal:?}"
        );
        self.push(
            PixelLoss { kind, focal },
            vec![logits_nhwk, labels_nhw, class_weights, sample_weights_n],
            vec![Output::accumulate(sum)],
        );
    }

    pub(super) fn check_labels(
        &self,
        name: &str,
        logits_nhwk: ValueId,
        labels_nhw: ValueId,
        kind: PixelLossKind,
    ) {
        let (logits, labels) = (self.shape(logits_nhwk), self.shape(labels_nhw));
        let [n, height, width, num_logits] = pictures("pixel loss", name, logits);
        assert_eq!(self.dtype(labels_nhw), DType::U8, "{name}: labels");
        assert_eq!(
            labels.dims(),
            [n, height, width],
            "{name}: labels for logits {logits:?}"
        );
        assert!(
            match kind {
                PixelLossKind::Sigmoid => num_logits == 1,
                PixelLossKind::Softmax => (1..255).contains(&num_logits),
            },
            "{name}: {kind:?} of logits {logits:?}"
        );
    }
}

impl Operation for PixelLoss {
    fn name(&self) -> &'static str {
        match self.kind {
            PixelLossKind::Sigmoid => "pixel binary cross-entropy",
            PixelLossKind::Softmax => "pixel cross-entropy",
        }
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let dlogits = pass.target(node.inputs[0]);
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs);
        let PixelLoss { kind, focal } = *self;
        pass.graph()
            .push(PixelLossGrad { kind, focal }, inputs, vec![dlogits]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        each_input(node, 24)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(PixelLossGrad, "pixel loss gradient", |_, node| node
    .element_wise(20));
