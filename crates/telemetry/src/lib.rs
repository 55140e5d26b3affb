//! What a run says of itself: a line per look at the memory, and what can be told from such lines. No device.

#![forbid(unsafe_code)]

pub mod error;
pub mod memory_log;

pub use error::TelemetryError;
