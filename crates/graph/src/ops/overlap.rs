//! Dice and Tversky losses, exact under any split of the batch: first sums per sample, then one loss of the sums.
//!
//! For each class, over the pixels whose label is a class, with probability `p` and `g = 1` where the label is this class (else 0):
//! `TP = sum p g`, `P = sum p`, `G = sum g`. Then, with `FP = P - TP` and `FN = G - TP`,
//! `T = (TP + smooth) / (TP + alpha FP + beta FN + smooth)`, and the loss is the mean over classes of `1 - T`. Dice,
//! `(2 TP + s) / (P + G + s)`, is `alpha = beta = 1/2` with `smooth = s / 2`. Where the denominator is zero, `T` is 1.
//!
//! Backward, with `D` the denominator and `N` the numerator: `dT/dTP = 1 / D - (1 - alpha - beta) N / D^2`,
//! `dT/dP = -alpha N / D^2`, `dT/dG = -beta N / D^2`; then `dp = dTP g + dP` and through the sigmoid or the softmax.
//!
//! Legend: `n` samples of the micro-batch, `r` samples of the whole effective batch, `h` and `w` pixels, `k` classes (1 for a sigmoid).

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::conv2d::pictures;
use crate::ops::group_norm::each_input;
use crate::ops::pixel_loss::PixelLossKind;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, Output, ValueId};

/// Inputs `logits_nhwk, labels_nhw`; output `sums_n(3k)`: `TP, P, G` of class 0, then of class 1, and so on.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapSums {
    pub kind: PixelLossKind,
}

/// Inputs `dsums_n(3k), logits_nhwk, labels_nhw`; output `dlogits_nhwk`.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapSumsGrad {
    pub kind: PixelLossKind,
}

/// Pixels over which one overlap is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// All pixels of the effective batch: sums are added over samples first.
    Batch,
    /// The pixels of each sample: losses are added over samples.
    PerSample,
}

/// Inputs `sums_r(3k), sample_weights_r`; the output is the loss sum, which is added to. A weight of zero leaves a sample out.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapLoss {
    pub reduction: Reduction,
    /// Weight of false positives.
    pub alpha: f64,
    /// Weight of false negatives.
    pub beta: f64,
    /// Added to numerator and denominator.
    pub smooth: f64,
    /// First class that counts: 1 leaves out the background.
    pub first_class: usize,
}

/// Inputs `seed, sums_r(3k), sample_weights_r`; output `dsums_r(3k)`.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapLossGrad {
    pub forward: OverlapLoss,
}

impl Graph {
    /// Appends the sums `TP, P, G` of each sample. Labels are bytes with any three strides.
    pub fn overlap_sums(
        &mut self,
        name: &str,
        logits_nhwk: ValueId,
        labels_nhw: ValueId,
        kind: PixelLossKind,
    ) -> ValueId {
        self.check_labels(name, logits_nhwk, labels_nhw, kind);
        let [n, _, _, k] = pictures("overlap sums", name, self.shape(logits_nhwk));
        let sums = self.statistic(name, &[n, 3 * k]);
        self.push_new(OverlapSums { kind }, vec![logits_nhwk, labels_nhw], &[sums]);
        sums
    }

    /// Adds the overlap loss to `sum`.
    pub fn overlap_loss_into(
        &mut self,
        name: &str,
        sums: ValueId,
        sample_weights_r: ValueId,
        sum: ValueId,
        op: OverlapLoss,
    ) {
        let (shape, weights) = (self.shape(sums), self.shape(sample_weights_r));
        assert!(
            shape.width() % 3 == 0
                && 3 * op.first_class < shape.width()
                && shape.rows() == weights.num_elements(),
            "overlap loss {name}: sums {shape:?}, weights {weights:?}, classes from {} on",
            op.first_class
        );
        self.push(
            op,
            vec![sums, sample_weights_r],
            vec![Output::accumulate(sum)],
        );
    }
}

impl Operation for OverlapSums {
    fn name(&self) -> &'static str {
        "overlap sums"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dsums) = pass.reached(node, 0) else {
            return;
        };
        let dlogits = pass.target(node.inputs[0]);
        let mut inputs = vec![dsums];
        inputs.extend(&node.inputs);
        let kind = self.kind;
        pass.graph()
            .push(OverlapSumsGrad { kind }, inputs, vec![dlogits]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        each_input(node, 16)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(OverlapSumsGrad, "overlap sums gradient", |_, node| node
    .element_wise(20));

impl Operation for OverlapLoss {
    fn name(&self) -> &'static str {
        "overlap loss"
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(seed) = pass.reached(node, 0) else {
            return;
        };
        let dsums = pass.target(node.inputs[0]);
        let mut inputs = vec![seed];
        inputs.extend(&node.inputs);
        let forward = self.clone();
        pass.graph()
            .push(OverlapLossGrad { forward }, inputs, vec![dsums]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        each_input(node, 4)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        None
    }
}

undifferentiated!(OverlapLossGrad, "overlap loss gradient", |_, node| node
    .element_wise(6));
