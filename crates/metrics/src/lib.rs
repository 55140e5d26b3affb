//! What a model is worth: retrieval ranks and label accuracy, from features as they come.

#![forbid(unsafe_code)]

pub mod exact;
pub mod features;
pub mod labels;
pub mod pairs;
pub mod retrieval;
