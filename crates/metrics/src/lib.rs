//! Metrics from features and logits: retrieval ranks, classification, regression, segmentation, captions.
//!
//! [`features`] reads the files of any framework, collects a model's features batch by batch and merges equal captions;
//! [`retrieval`] ranks. [`classification`], [`regression`], [`segmentation`] and [`captions`]
//! score predictions.

#![deny(unsafe_code)]

pub mod captions;
pub mod classification;
pub mod contrastive;
mod error;
pub mod features;
pub mod hostile;
pub mod regression;
pub mod retrieval;
pub mod segmentation;
mod side;

pub use error::InputError;
