//! What a run says of itself, for people: [`report`] is one HTML file of curves, memory and predictions.
//!
//! Nothing here knows how a run is trained: the files of its folder are all that is read.

#![forbid(unsafe_code)]

pub mod report;
