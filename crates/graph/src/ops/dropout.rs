//! `y = x * mask / (1 - rate)`, with a mask that is a function of (seed, epoch, sample, layer, index within the sample).
//!
//! The mask depends neither on how a batch is split nor on the index of a sample in it, so a second forward pass draws the same mask,
//! and no mask is stored. Backward is the same operation on `dy`.
//!
//! ```text
//! key  = mix(mix(mix(mix(seed) ^ epoch) ^ sample) ^ layer)      mix: SplitMix64
//! mask = the upper 32 bits of mix(key ^ index) >= rate * 2^32   the same bits on every device
//! ```

use crate::op::RecomputeRule;
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, Output, ValueId};

/// Granularity of the dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropoutMode {
    /// Each element by itself.
    Element,
    /// All elements of a sample: stochastic depth.
    Sample,
}

/// Inputs `x_b..., sample_ids_b, stream_2`; output `y`, which may be `x`.
///
/// `sample_ids_b` are indices of samples in the data set, `stream_2` is `[seed, epoch]`. Both are inputs, so that a captured CUDA
/// graph can be replayed for another epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Dropout {
    /// Probability that an element or a sample is dropped.
    pub rate: f64,
    /// Random stream of this layer, different for each layer of a model.
    pub layer: u64,
    pub mode: DropoutMode,
}

/// SplitMix64: its output function, of `x + 2^64 / phi`.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Dropout {
    /// Hashes whose upper 32 bits are below this are dropped.
    pub fn threshold(&self) -> u32 {
        (self.rate * 4_294_967_296.0) as u32
    }

    /// Factor of the elements that are kept.
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate)
    }

    /// Seed of the masks of one sample.
    pub fn key(&self, [seed, epoch]: [i64; 2], sample: i64) -> u64 {
        let words = [epoch as u64, sample as u64, self.layer];
        words
            .iter()
            .fold(mix(seed as u64), |key, word| mix(key ^ word))
    }

    /// Whether the element at `index` of a sample is kept.
    #[inline(always)]
    pub fn keeps(key: u64, index: u64, threshold: u32) -> bool {
        (mix(key ^ index) >> 32) as u32 >= threshold
    }
}

impl Graph {
    /// Appends dropout of `x_b...`; the outermost dimension is the batch.
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

    /// In place on `dy`, which no later node reads.
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
