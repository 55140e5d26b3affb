//! Cuts pictures into patches: `[b, height, width, c] -> [b, patches, c * p * p]`, so that the patch embedding is one product. Bytes
//! are normalised in the same pass: `(pixel / 255 - mean[c]) / std[c]`.
//!
//! Within a patch the order is channel, row, column: the order of Hugging Face's convolution weights, which need no permutation.
//! Pictures have no gradient.

use crate::op::{RecomputeRule, no_backward};
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Input `pixels_bhwc` (bytes, or floats that are already normalised); output `patches`.
#[derive(Clone, Debug, PartialEq)]
pub struct Patchify {
    /// Side of a patch in pixels.
    pub patch_size: usize,
    pub normalization: Normalization,
}

/// Mean and standard deviation of each channel, on a scale of 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    pub mean: [f32; 3],
    pub std: [f32; 3],
}

impl Graph {
    /// Appends the cut of three-channel pictures into patches.
    pub fn patchify(
        &mut self,
        name: &str,
        pixels_bhwc: ValueId,
        patch_size: usize,
        normalization: Normalization,
    ) -> ValueId {
        let shape = self.shape(pixels_bhwc);
        let [batch, height, width, channels] = shape.dims() else {
            panic!("patchify {name}: pixels {shape:?}, expected [batch, height, width, channels]");
        };
        assert!(
            *channels == 3 && height % patch_size == 0 && width % patch_size == 0,
            "patchify {name}: pixels {shape:?} in patches of {patch_size}"
        );
        assert_ne!(self.dtype(pixels_bhwc), DType::I64, "patchify {name}");
        let num_patches = (height / patch_size) * (width / patch_size);
        let patches = self.activation(
            name,
            &[*batch, num_patches, channels * patch_size * patch_size],
        );
        let op = Patchify {
            patch_size,
            normalization,
        };
        self.push_new(op, vec![pixels_bhwc], &[patches]);
        patches
    }
}

impl Operation for Patchify {
    fn name(&self) -> &'static str {
        "patchify"
    }

    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        no_backward(self, node);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(2)
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }
}
