//! Mixup and CutMix of pictures, normalised: `(mixed / 255 - mean[c]) / std[c]`.
//!
//! `mixed` is the partner's pixel within the box of the sample, and `lambda * own + (1 - lambda) * partner` elsewhere. With a
//! `lambda` of 1 and an empty box, the result is bitwise equal to normalisation by `patchify`. Pictures have no gradient.

use crate::op::{RecomputeRule, no_backward};
use crate::ops::patchify::Normalization;
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Inputs `pixels_bhwc, partner_bhwc, mix_b5`; output the mixed pictures, in full precision.
///
/// `mix_b5` is `[lambda, y0, x0, y1, x1]` of each sample: rows `y0..y1` and columns `x0..x1` come from the partner.
#[derive(Clone, Debug, PartialEq)]
pub struct MixPictures {
    pub normalization: Normalization,
}

impl Graph {
    /// Mixes each picture with its partner; [`Graph::patchify`] cuts the result.
    pub fn mix_pictures(
        &mut self,
        name: &str,
        pixels_bhwc: ValueId,
        partner_bhwc: ValueId,
        mix_b5: ValueId,
        normalization: Normalization,
    ) -> ValueId {
        let [shape, partner, mix] = [pixels_bhwc, partner_bhwc, mix_b5].map(|id| self.shape(id));
        let formats = [pixels_bhwc, partner_bhwc].map(|id| self.dtype(id));
        assert_eq!(formats, [DType::U8; 2], "mix pictures {name}");
        assert!(
            shape.dims().len() == 4 && shape.width() == 3 && shape == partner,
            "mix pictures {name}: pixels {shape:?}, partners {partner:?}"
        );
        assert_eq!(mix.dims(), [shape.dims()[0], 5], "mix pictures {name}");
        let mixed_bhwc = self.statistic(name, shape.dims());
        self.push_new(
            MixPictures { normalization },
            vec![pixels_bhwc, partner_bhwc, mix_b5],
            &[mixed_bhwc],
        );
        mixed_bhwc
    }
}

impl Operation for MixPictures {
    fn name(&self) -> &'static str {
        "mix pictures"
    }

    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        no_backward(self, node);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(5)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}
