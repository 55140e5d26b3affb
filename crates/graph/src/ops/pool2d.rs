//! `y[n, i, j, c] = max (or mean) over k, l < size of x[n, i size + k, j size + l, c]`.
//!
//! Windows do not overlap. Backward: the first maximum in row order gets all of `dy`; a mean gives each pixel an equal share.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::conv2d::pictures;
use crate::ops::group_norm::each_input;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Reduction of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    Max,
    Average,
}

/// Forward. Input `x_nhwc`; output `y_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool2d {
    pub kind: Pool,
    /// Side of a window, and the stride.
    pub size: usize,
}

/// Inputs `dy_nhwc` and, for a maximum, `x_nhwc`; output `dx_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool2dGrad {
    pub kind: Pool,
    /// Side of a window, and the stride.
    pub size: usize,
}

impl Graph {
    /// Pooling in windows of `size` x `size` pixels.
    pub fn pool2d(&mut self, name: &str, x_nhwc: ValueId, kind: Pool, size: usize) -> ValueId {
        let x = self.shape(x_nhwc);
        let [n, height, width, channels] = pictures("pool2d", name, x);
        assert!(
            size > 0 && height % size == 0 && width % size == 0,
            "pool2d {name}: x {x:?} in windows of {size}"
        );
        let y_nhwc = self.activation(name, &[n, height / size, width / size, channels]);
        self.push_new(Pool2d { kind, size }, vec![x_nhwc], &[y_nhwc]);
        y_nhwc
    }
}

impl Operation for Pool2d {
    fn name(&self) -> &'static str {
        match self.kind {
            Pool::Max => "max pooling",
            Pool::Average => "average pooling",
        }
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let x = node.inputs[0];
        let dx = pass.target(x);
        let inputs = match self.kind {
            Pool::Max => vec![dy, x],
            Pool::Average => vec![dy],
        };
        let Pool2d { kind, size } = *self;
        pass.graph()
            .push(Pool2dGrad { kind, size }, inputs, vec![dx]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        each_input(node, 1)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

undifferentiated!(Pool2dGrad, "pooling gradient", |_, node| node
    .element_wise(2));
