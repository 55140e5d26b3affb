//! What a run says of itself: a line per look at the memory, and what can be told from such lines. No device.

#![forbid(unsafe_code)]

pub mod analyze;
pub mod error;
pub mod hostile;
mod log;
pub mod memory_log;
mod words;

pub use error::TelemetryError;
