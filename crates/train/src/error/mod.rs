//! Errors of a run.

mod diverged;

use std::fmt::Display;

use holdall_data::DataError;
use holdall_device::DeviceError;
use holdall_models::ModelError;
use holdall_onnx::OnnxError;
use holdall_plan::PlanError;
use holdall_processes::GroupError;

pub use self::diverged::{Diverged, StepNorm};

/// Reason why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error(transparent)]
    Model(Box<ModelError>),
    /// The model cannot be written or read as an ONNX file.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// No plan fits.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The device is missing, is out of memory, or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Data(#[from] DataError),
    /// Another process of the run failed or was lost.
    #[error(transparent)]
    Processes(#[from] GroupError),
    /// A required allocation does not fit the budget.
    #[error("{0}")]
    DoesNotFit(String),
    /// Losses, gradients, weights or features are not finite.
    #[error(transparent)]
    Diverged(#[from] Box<Diverged>),
    /// A file of the run cannot be read or written.
    #[error("{found}\nhint: {hint}")]
    File {
        /// The file and the error of the operating system.
        found: String,
        hint: &'static str,
    },
    /// A run that has started cannot continue.
    #[error("{0}")]
    Run(String),
    /// The config cannot be read, or contradicts itself.
    #[error("{0}")]
    Config(String),
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> TrainError {
        TrainError::Model(Box::new(error))
    }
}

/// Text of an error without its hint.
pub(crate) fn without_hint(error: &dyn Display) -> String {
    let text = error.to_string();
    text.split("\nhint: ").next().unwrap_or_default().to_owned()
}
