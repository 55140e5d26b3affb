//! Export of forward programs to ONNX files.
//!
//! ```text
//! graph: nodes over strided views of storages  ->  ONNX: nodes over whole tensors, each written once
//! ```
//!
//! A graph is written for [`BATCH`] samples; where that number is a factor of a dimension, the file has a dynamic one. Weights keep
//! the names and shapes of the state dict; pictures are channels-first, as is usual outside Holdall.
//!
//! [`Writer`] takes inputs, then the nodes of a graph, then outputs; [`Program::write`] adds the weights, one at a time. The table of
//! operations and their translations is in `operations.rs`.

#![forbid(unsafe_code)]

mod file;
mod operations;
pub mod proto;
mod views;
mod writer;

pub use file::{OPSET, Program};
pub use writer::{PictureSize, Writer};

/// Batch size that a graph is written for: a prime larger than any width, so that a dimension is divisible by it exactly if the
/// dimension scales with the batch.
pub const BATCH: usize = 1_000_003;

/// Number format of weights and computation. Inputs and outputs are f32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    Full,
    /// 16-bit IEEE floats; norms are computed in f32.
    Half,
}

impl Precision {
    pub fn bytes(self) -> usize {
        match self {
            Precision::Full => 4,
            Precision::Half => 2,
        }
    }
}

/// Error of exporting a graph to ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// An operation of training or of decoding with caches.
    #[error(
        "{operation}: has no ONNX counterpart here\nhint: encoders, classifiers, segmentation models and decoders without a cache are exported"
    )]
    Operation {
        /// Name of the graph's operation.
        operation: &'static str,
    },
    /// A view of a storage that is no slice, reshape or concatenation of the tensors written to it.
    #[error("{storage}: {found}")]
    View {
        storage: String,
        /// Description of the view.
        found: String,
    },
}
