//! Files to batches: rows of a CSV, pictures, captions, labels, and the order in which a run sees them. No device.

#![forbid(unsafe_code)]

pub mod config;

pub use config::DataConfig;
