//! What can go wrong in a run.

mod diverged;

use std::fmt::Display;

use holdall_data::error::DataError;
use holdall_device::DeviceError;
use holdall_models::error::ModelError;
use holdall_onnx::OnnxError;
use holdall_plan::PlanError;
use holdall_processes::GroupError;

pub use self::diverged::{Diverged, StepNorm};

/// Why a run cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The model folder is not usable.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// The model is no ONNX file.
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    /// There is no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no such device, or no memory on it, or it failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The data is not usable.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Another process of the run was lost, or failed.
    #[error(transparent)]
    Processes(#[from] GroupError),
    /// Something that may not be left out does not fit the budget.
    #[error("{0}")]
    DoesNotFit(String),
    /// What is trained is not finite any more.
    #[error(transparent)]
    Diverged(#[from] Box<Diverged>),
    /// A file of the run cannot be read or written.
    #[error("{found}\nhint: {hint}")]
    File {
        /// The file, and what the system said.
        found: String,
        /// What helps.
        hint: &'static str,
    },
    /// A run that had begun cannot go on.
    #[error("{0}")]
    Run(String),
    /// The config cannot be read or contradicts itself.
    #[error("{0}")]
    Config(String),
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> TrainError {
        TrainError::Model(Box::new(error))
    }
}

/// What an error says, without the advice that it would come with elsewhere.
pub(crate) fn without_hint(error: &dyn Display) -> String {
    let text = error.to_string();
    text.split("\nhint: ").next().unwrap_or_default().to_owned()
}
