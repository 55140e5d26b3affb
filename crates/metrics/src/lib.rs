//! Metrics from features and logits: retrieval ranks, classification, regression, segmentation, captions.
//!
//! [`feature_file`] and [`pair_file`] read the files of any framework, [`feature_gather`] collects a model's features batch by batch,
//! [`unique_captions`] merges equal captions; [`retrieval`] ranks. [`classification`], [`regression`], [`segmentation`] and [`captions`]
//! score predictions.

#![deny(unsafe_code)]

pub mod captions;
pub mod classification;
pub mod contrastive;
pub mod error;
pub mod exact_dot;
pub mod feature_file;
pub mod feature_gather;
pub mod features;
pub mod hostile;
pub mod labels;
#[allow(unsafe_code, reason = "memory maps")]
mod mapped_file;
mod npy_header;
pub mod pair_file;
pub mod pairs;
pub mod regression;
pub mod retrieval;
mod safetensors_header;
pub mod segmentation;
pub mod unique_captions;

pub use error::InputError;
