//! The tasks: each a folder, each an implementation of [`crate::task::Task`].

pub mod clip;

use crate::config::{RunConfig, TaskName};
use crate::error::TrainError;
use crate::prepare::Prepared;
use crate::saved_model::SavedModel;
use crate::setup::Setup;
use crate::site::Site;

/// Reads a run's data and opens its model.
pub(crate) fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    match config.task {
        TaskName::Clip => clip::prepare(config, site),
    }
}

/// Opens a model without data.
pub(crate) fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    match config.task {
        TaskName::Clip => clip::setup(config, site),
    }
}

/// Opens a trained model, whatever its task; reading what lies beside it takes at most so many bytes.
pub fn open_saved(name: &str, most_bytes: u64) -> Result<Box<dyn SavedModel>, TrainError> {
    Ok(Box::new(clip::SavedClip::open(name, most_bytes)?))
}
