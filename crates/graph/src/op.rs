//! The operations, as one closed set: a device that lacks one does not compile.

use crate::ops;
use crate::{Backward, Cost, Node, NodeView};

/// What the planner and the backward pass ask of an operation.
pub trait Operation {
    /// For people: reports and errors.
    fn name(&self) -> &'static str;

    /// Appends the nodes that carry the gradients of the outputs to the inputs.
    fn backward(&self, node: &Node, _pass: &mut Backward<'_>) {
        panic!(
            "{} has no backward rule: it reached the backward pass with inputs {:?}",
            self.name(),
            node.inputs
        );
    }

    /// Arithmetic and traffic.
    fn cost(&self, node: NodeView<'_>) -> Cost;

    /// Whether the kernel can leave an output unwritten where nobody reads it.
    fn skippable(&self, _output: usize) -> bool {
        false
    }

    /// How an output can be had again without repeating a product. `None`: only by keeping it.
    fn cheap_again(&self) -> Option<CheapAgain> {
        None
    }
}

/// How [`Operation::cheap_again`] recovers outputs.
#[derive(Clone, Debug, PartialEq)]
pub enum CheapAgain {
    /// Run the same node again: it holds no product.
    SameNode,
    /// Output `output` is this operation of output `from`.
    Derived {
        /// Which output is recovered.
        output: usize,
        /// From which (kept) output.
        from: usize,
        /// By which operation.
        op: Box<Op>,
    },
}

macro_rules! operations {
    ($($variant:ident in $module:ident),* $(,)?) => {
        /// An operation with its attributes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)] // each variant is documented at the struct it wraps
        pub enum Op {
            $($variant(ops::$module::$variant)),*
        }

        impl Op {
            /// The rules of this operation.
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
    Embedding in embedding,
    EmbeddingGrad in embedding,
    Patchify in patchify,
    ClassToken in class_token,
    ClassTokenGrad in class_token,
    GatherRows in gather_rows,
    ScatterRows in gather_rows,
    Normalize in normalize,
    NormalizeGrad in normalize,
    CrossEntropy in cross_entropy,
    CrossEntropyGrad in cross_entropy,
    Contrastive in contrastive,
    ContrastiveGrad in contrastive,
    Fill in fill,
    Add in add,
    AddInto in add,
    Cast in cast,
    Collective in collective,
    GradientNorm in update,
    AdamW in update,
}
