//! The operations, as one closed enum: a device that does not implement one of them does not compile.

use crate::ops;
use crate::{Backward, Cost, Node, NodeView};

/// Rules of an operation for the planner and the backward pass. No rule has a default: every operation states all of them.
pub trait Operation {
    /// For people: reports and errors.
    fn name(&self) -> &'static str;

    /// Appends the nodes that carry the gradients of the outputs to the inputs; panics by `no_backward` where there is no rule.
    fn backward(&self, node: &Node, pass: &mut Backward<'_>);

    fn cost(&self, node: NodeView<'_>) -> Cost;

    /// Whether the kernel can leave an output unwritten if no node reads it.
    fn skippable(&self, output: usize) -> bool;

    /// How an output can be recomputed without repeating a product. `None`: it has to be kept in memory.
    fn recompute(&self) -> Option<RecomputeRule>;

    /// Whether each of several processes computes its own share of the result: their results add up to one.
    fn is_shared_by_processes(&self) -> bool {
        false
    }
}

/// How an output is recomputed in the backward pass.
#[derive(Clone, Debug, PartialEq)]
pub enum RecomputeRule {
    /// Run the same node again: it holds no product.
    SameNode,
    /// Output `output` is computed from output `from` by one operation.
    Derived {
        output: usize,
        /// The output that is kept.
        from: usize,
        op: Box<Op>,
    },
}

/// Panics for an operation without a backward rule.
pub(crate) fn no_backward(operation: &dyn Operation, node: &Node) -> ! {
    panic!(
        "{} has no backward rule: it reached the backward pass with inputs {:?}",
        operation.name(),
        node.inputs
    );
}

/// Implements [`crate::Operation`] for an operation of the backward pass or of the update: it is not differentiated, all its
/// outputs are written, and none is recomputed.
macro_rules! undifferentiated {
    ($operation:ident, $name:literal, |$op:pat_param, $node:ident| $cost:expr) => {
        impl crate::Operation for $operation {
            fn name(&self) -> &'static str {
                $name
            }

            fn backward(&self, node: &crate::Node, _pass: &mut crate::Backward<'_>) {
                crate::op::no_backward(self, node);
            }

            fn cost(&self, $node: crate::NodeView<'_>) -> crate::Cost {
                let $op = self;
                $cost
            }

            fn skippable(&self, _output: usize) -> bool {
                false
            }

            fn recompute(&self) -> Option<crate::op::RecomputeRule> {
                None
            }
        }
    };
}
pub(crate) use undifferentiated;

macro_rules! operations {
    ($($variant:ident in $module:ident),* $(,)?) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op {
            $($variant(ops::$module::$variant)),*
        }

        impl Op {
            /// Every variant's name, for tests that must not leave one out.
            pub const VARIANTS: &'static [&'static str] = &[$(stringify!($variant)),*];

            pub fn variant(&self) -> &'static str {
                match self {
                    $(Op::$variant(_) => stringify!($variant)),*
                }
            }

            pub fn rules(&self) -> &dyn Operation {
                match self {
                    $(Op::$variant(operation) => operation),*
                }
            }
        }

        $(impl From<ops::$module::$variant> for Op {
            fn from(operation: ops::$module::$variant) -> Op {
                Op::$variant(operation)
            }
        })*
    };
}

operations! {
    Linear in linear,
    LinearInputGrad in linear,
    LinearWeightGrad in linear,
    Activate in activation,
    ActivateGrad in activation,
    LayerNorm in layer_norm,
    LayerNormGrad in layer_norm,
    Attention in attention,
    AttentionGrad in attention,
    CachedAttention in cached_attention,
    TopTokens in top_tokens,
    Embedding in embedding,
    EmbeddingGrad in embedding,
    AddPositions in add_positions,
    AddPositionsGrad in add_positions,
    Repeat in repeat,
    RepeatGrad in repeat,
    MixPictures in mix_pictures,
    Patchify in patchify,
    ClassToken in class_token,
    ClassTokenGrad in class_token,
    GatherRows in gather_rows,
    ScatterRows in gather_rows,
    MeanTokens in mean_tokens,
    MeanTokensGrad in mean_tokens,
    ScaleColumns in scale_columns,
    ScaleColumnsGrad in scale_columns,
    Dropout in dropout,
    Normalize in normalize,
    NormalizeGrad in normalize,
    CrossEntropy in cross_entropy,
    CrossEntropyGrad in cross_entropy,
    VocabularyLoss in vocabulary_loss,
    VocabularyLossGrad in vocabulary_loss,
    PointwiseLoss in pointwise_loss,
    PointwiseLossGrad in pointwise_loss,
    Contrastive in contrastive,
    ContrastiveGrad in contrastive,
    Conv2d in conv2d,
    Conv2dInputGrad in conv2d,
    Conv2dWeightGrad in conv2d,
    TransposedConv2d in conv2d,
    TransposedConv2dInputGrad in conv2d,
    TransposedConv2dWeightGrad in conv2d,
    GroupStatistics in group_norm,
    GroupNorm in group_norm,
    GroupNormGrad in group_norm,
    Pool2d in pool2d,
    Pool2dGrad in pool2d,
    Upsample2d in upsample2d,
    Upsample2dGrad in upsample2d,
    NormalizePixels in normalize_pixels,
    PixelLoss in pixel_loss,
    PixelLossGrad in pixel_loss,
    OverlapSums in overlap,
    OverlapSumsGrad in overlap,
    OverlapLoss in overlap,
    OverlapLossGrad in overlap,
    Fill in fill,
    Add in add,
    AddInto in add,
    AddRounded in add,
    Cast in cast,
    Collective in collective,
    GradientNorm in update,
    AdamW in update,
    WeightAverages in update,
}
