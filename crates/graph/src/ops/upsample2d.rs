//! Upsampling of pictures to `factor` times their height and width.
//!
//! Nearest: `y[n, i, j, c] = x[n, i / factor, j / factor, c]`. Bilinear: pixel `i` of `y` lies at `(i + 1/2) / factor - 1/2` of `x`,
//! clamped to the first and last pixel (PyTorch's `align_corners=False`). Backward: each pixel of `x` sums its contributions, in order
//! of rows and columns.

use crate::op::{RecomputeRule, undifferentiated};
use crate::ops::conv2d::pictures;
use crate::ops::group_norm::each_input;
use crate::{Backward, Cost, Graph, Node, NodeView, Operation, ValueId};

/// Interpolation between pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upsampling {
    /// The nearest pixel.
    Nearest,
    /// A mean of the four pixels around, weighted by distance.
    Bilinear,
}

/// Forward. Input `x_nhwc`; output `y_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Upsample2d {
    /// Pixels of `y` for each pixel of `x`, in both directions.
    pub factor: usize,
    pub mode: Upsampling,
}

/// Input `dy_nhwc`; output `dx_nhwc`.
#[derive(Clone, Debug, PartialEq)]
pub struct Upsample2dGrad {
    pub factor: usize,
    pub mode: Upsampling,
}

impl Graph {
    /// Appends an upsampling to `factor` times the height and width.
    pub fn upsample2d(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        factor: usize,
        mode: Upsampling,
    ) -> ValueId {
        let [n, height, width, channels] = pictures("upsample2d", name, self.shape(x_nhwc));
        let y_nhwc = self.activation(name, &[n, height * factor, width * factor, channels]);
        self.upsample2d_into(name, x_nhwc, factor, mode, y_nhwc);
        y_nhwc
    }

    /// Like [`Graph::upsample2d`], written to a given value.
    pub fn upsample2d_into(
        &mut self,
        name: &str,
        x_nhwc: ValueId,
        factor: usize,
        mode: Upsampling,
        y_nhwc: ValueId,
    ) {
        let (x, y) = (self.shape(x_nhwc), self.shape(y_nhwc));
        let [n, height, width, channels] = pictures("upsample2d", name, x);
        assert!(factor > 0, "upsample2d {name}: by {factor}");
        assert_eq!(
            y.dims(),
            [n, height * factor, width * factor, channels],
            "upsample2d {name}: x {x:?} by {factor}"
        );
        self.push_new(Upsample2d { factor, mode }, vec![x_nhwc], &[y_nhwc]);
    }
}

impl Operation for Upsample2d {
    fn name(&self) -> &'static str {
        match self.mode {
            Upsampling::Nearest => "nearest upsampling",
            Upsampling::Bilinear => "bilinear upsampling",
        }
    }

    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let dx = pass.target(node.inputs[0]);
        let Upsample2d { factor, mode } = *self;
        pass.graph()
            .push(Upsample2dGrad { factor, mode }, vec![dy], vec![dx]);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(match self.mode {
            Upsampling::Nearest => 1,
            Upsampling::Bilinear => 8,
        })
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}

undifferentiated!(Upsample2dGrad, "upsampling gradient", |op, node| {
    each_input(
        node,
        match op.mode {
            Upsampling::Nearest => 1,
            Upsampling::Bilinear => 8,
        },
    )
});
