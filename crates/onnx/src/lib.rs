//! Forward programs as ONNX files.
//!
//! ```text
//! graph: nodes over strided views of storages  ->  ONNX: nodes over whole tensors, each written once
//! ```
//!
//! A graph is written for [`BATCH`] samples, and wherever that number is part of a dimension, the file has a dynamic one. Weights keep
//! the names and shapes of the state dict; pictures are channels-first, as the world outside has them.
//!
//! [`Writer`] takes inputs, then the nodes of a graph, then outputs; [`Program::write`] adds the weights, one at a time. Which operation
//! becomes what is the table in `operations.rs`.

#![forbid(unsafe_code)]

mod file;
mod operations;
pub mod proto;
mod views;
mod writer;

pub use file::{OPSET, Program};
pub use writer::{PictureSize, Writer};

/// Samples that a graph is written for: a prime larger than any width, so that a dimension is divisible by it where it grows with the
/// batch, and nowhere else.
pub const BATCH: usize = 1_000_003;

/// Number format of weights and of what is computed. Inputs and outputs are f32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    Full,
    /// 16-bit IEEE floats; norms are computed in f32.
    Half,
}

impl Precision {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Precision::Full => 4,
            Precision::Half => 2,
        }
    }
}

/// Why a graph is not an ONNX file.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// An operation of training or of decoding with caches.
    #[error(
        "{operation}: has no ONNX counterpart here\nhint: encoders, classifiers, segmentation models and decoders without a cache are exported"
    )]
    Operation {
        /// Its name.
        operation: &'static str,
    },
    /// A part of a storage that no slice, reshape or concatenation of what was written there gives.
    #[error("{storage}: {found}")]
    View {
        /// The storage's name.
        storage: String,
        /// What is asked for.
        found: String,
    },
}
