//! What a model is worth: retrieval ranks, labels and numbers, from features and logits as they come.
//!
//! [`feature_file`] and [`pair_file`] read what any framework wrote, [`feature_gather`] takes what a model says batch by batch,
//! [`unique_captions`] finds equal ones; [`retrieval`] ranks. [`classification`], [`regression`], [`segmentation`] and [`captions`] score predictions.

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
