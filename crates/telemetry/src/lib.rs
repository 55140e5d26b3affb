//! What a run says of itself: a line per look at the memory, what can be told from such lines, and the page that
//! shows a run. No device.

#![forbid(unsafe_code)]

pub mod analyze;
pub mod error;
pub mod hostile;
mod log;
pub mod memory_log;
pub mod report;
pub mod run_files;
pub mod tensorboard;
pub mod words;

pub use error::TelemetryError;
