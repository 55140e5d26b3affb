//! Telemetry of a run: its memory log, the analysis of memory logs, the files of a run's folder, and the HTML report. Needs no
//! device.

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
