//! `y = (value / largest - mean[c]) / std[c]`, of 8-bit or of little-endian 16-bit numbers.
//!
//! Input that is float already is copied as it is. The result is a view whose pixels lie a multiple of eight channels apart, as
//! tensor cores read them; padding channels are zero. Pictures have no gradient.

use crate::op::{RecomputeRule, no_backward};
use crate::ops::conv2d::pictures;
use crate::{Backward, Cost, DType, Graph, Node, NodeView, Operation, ValueId};

/// Bits per channel of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PixelDepth {
    Eight,
    /// Two bytes, little-endian.
    Sixteen,
}

impl PixelDepth {
    /// Bytes per channel.
    pub fn bytes(self) -> usize {
        match self {
            PixelDepth::Eight => 1,
            PixelDepth::Sixteen => 2,
        }
    }

    /// Number that stands for 1.0.
    pub fn largest(self) -> f64 {
        match self {
            PixelDepth::Eight => 255.0,
            PixelDepth::Sixteen => 65_535.0,
        }
    }
}

/// The distance between pixels, in channels, is a multiple of this.
pub const CHANNEL_STEP: usize = 8;

/// Input `pixels` (bytes `[n, h, w, c * bytes]`, with any stride between samples, or floats `[n, h, w, c]`); output
/// `[n, h, w, c]` and its padding channels: all channels of its storage.
#[derive(Clone, Debug, PartialEq)]
pub struct NormalizePixels {
    pub depth: PixelDepth,
    /// Subtracted from each channel after division by the largest number.
    pub mean: Vec<f64>,
    /// Divides each channel.
    pub std: Vec<f64>,
}

impl NormalizePixels {
    /// `[factor, shift]` of a channel: a byte or 16-bit number becomes `value * factor + shift`.
    pub fn factor_and_shift(&self, channel: usize) -> [f64; 2] {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        [1.0 / (self.depth.largest() * std), -mean / std]
    }
}

impl Graph {
    /// Pixels as floats: `[n, h, w, c]`, with pixels a multiple of eight channels apart.
    pub fn normalize_pixels(
        &mut self,
        name: &str,
        pixels: ValueId,
        depth: PixelDepth,
        mean: &[f64],
        std: &[f64],
    ) -> ValueId {
        let shape = self.shape(pixels);
        let [n, height, width, across] = pictures("normalize pixels", name, shape);
        let bytes = match self.dtype(pixels) {
            DType::U8 => depth.bytes(),
            DType::I64 => panic!("normalize pixels {name}: expected bytes or floats, found I64"),
            DType::F64 | DType::F32 | DType::Bf16 | DType::F16 => 1,
        };
        let channels = mean.len();
        assert!(
            channels == std.len() && across == channels * bytes,
            "normalize pixels {name}: pixels {shape:?} of {bytes} bytes a channel, {channels} means, {} deviations",
            std.len()
        );
        let padded = channels.next_multiple_of(CHANNEL_STEP);
        let y_nhwp = self.activation(name, &[n, height, width, padded]);
        let op = NormalizePixels {
            depth,
            mean: mean.to_vec(),
            std: std.to_vec(),
        };
        self.push_new(op, vec![pixels], &[y_nhwp]);
        self.columns(y_nhwp, 0, channels)
    }
}

impl Operation for NormalizePixels {
    fn name(&self) -> &'static str {
        "normalize pixels"
    }

    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        no_backward(self, node);
    }

    fn cost(&self, node: NodeView<'_>) -> Cost {
        node.element_wise(2)
    }

    fn skippable(&self, _output: usize) -> bool {
        false
    }

    fn recompute(&self) -> Option<RecomputeRule> {
        Some(RecomputeRule::SameNode)
    }
}
