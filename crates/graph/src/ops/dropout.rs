//! `y = x * mask / (1 - rate)`, with a mask that is a function of (seed, epoch, sample, layer, index within the sample).
//!
//! The mask depends neither on how a batch is split nor on where in it a sample lies, so a second forward pass sees the same
//! one, and no mask is stored. Backward is the same operation on `dy`.
//!
//! ```text
//! key  = mix(mix(mix(mix(seed) ^ epoch) ^ sample) ^ layer)      mix: SplitMix64
//! mask = the upper 32 bits of mix(key ^ index) >= rate * 2^32   the same bits on every device
//! ```

use crate::op::RecomputeRule;
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, Output, ValueId};

/// What is dropped as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropoutMode {
    /// Each number by itself.
    Element,
    /// All numbers of a sample: stochastic depth.
    Sample,
}

/// Inputs `x_b..., sample_ids_b, stream_2`; output `y`, which may be `x`.
///
/// `sample_ids_b` are the data set's numbers of the samples, `stream_2` is `[seed, epoch]`: data, so that a captured graph can
/// be replayed for another epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Share that is dropped.
    pub rate: f64,
    /// Tells the layers of a model apart.
    pub layer: u64,
    /// What is dropped as one.
    pub mode: DropoutMode,
}

/// SplitMix64's output function of `x + 2^64 / phi`.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Dropout {
    /// Numbers whose upper 32 bits are below this are dropped.
    pub fn threshold(&self) -> u32 {
        (self.rate * 4_294_967_296.0) as u32
    }

    /// Multiplies what is left.
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate)
    }

    /// What the masks of one sample are drawn from.
    pub fn key(&self, [seed, epoch]: [i64; 2], sample: i64) -> u64 {
        let words = [epoch as u64, sample as u64, self.layer];
        words
            .iter()
            .fold(mix(seed as u64), |key, word| mix(key ^ word))
    }

    /// Whether the number at `index` of a sample is left.
    #[inline(always)]
    pub fn keeps(key: u64, index: u64, threshold: u32) -> bool {
        (mix(key ^ index) >> 32) as u32 >= threshold
    }
}

impl Graph {
    /// Drops a share of `x_b...`; the outermost dimension is that of samples.
    pub fn dropout(
        &mut self,
        name: &str,
        x: ValueId,
        sample_ids_b: ValueId,
        stream_2: ValueId,
        op: Dropout,
    ) -> ValueId {
        let (shape, ids) = (self.shape(x), self.shape(sample_ids_b));
        assert!(
            (0.0..1.0).contains(&op.rate),
            "dropout {name}: rate {}, expected 0 or more and less than 1",
            op.rate
        );
        for indices in [sample_ids_b, stream_2] {
            assert_eq!(self.dtype(indices), DType::I64, "dropout {name}");
        }
        assert_eq!(
            (ids.num_elements(), self.shape(stream_2).num_elements()),
            (shape.dims()[0], 2),
            "dropout {name}: x {shape:?}, samples {ids:?}"
        );
        let dtype = self.dtype(x);
        let y = self.tensor(name, shape.dims(), dtype, crate::Role::Activation);
        self.push_new(op, vec![x, sample_ids_b, stream_2], &[y]);
        y
    }
}

impl Operation for Dropout {
    fn name(&self) -> &'static str {
        match self.mode {
            DropoutMode::Element => "dropout",
            DropoutMode::Sample => "stochastic depth",
        }
    }

    /// In place on `dy`, which nobody reads after that.
    fn backward(&self, node: &Node, pass: &mut Backward<'_>) {
        let Some(dy) = pass.reached(node, 0) else {
            return;
        };
        let inputs = vec![dy, node.inputs[1], node.inputs[2]];
        pass.graph()
            .push(self.clone(), inputs, vec![Output::overwrite(dy)]);
        pass.donate(node.inputs[0], dy);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(match self.mode {
            DropoutMode::Element => 12,
            DropoutMode::Sample => 1,
        })
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}
