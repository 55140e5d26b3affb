//! What a run says of itself: samples of its memory, verdicts on such logs, the files of its folder, and the page
//! that shows a run. No device.

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
