//! Opening a model: a checked folder, or a preset with random weights.

use std::path::Path;

use holdall_data::decode::ImageProcessor;
use holdall_graph::ops::patchify::Normalization;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;

use crate::error::TrainError;
use crate::planning::setup::Weights;

/// A model of one vision tower or more, with the preprocessing of its pictures.
pub(super) struct OpenedModel<Config> {
    /// Sizes, and the mean and deviation that normalise pictures.
    pub config: Config,
    pub weights: Weights,
    pub processor: ImageProcessor,
}

/// Opens a model folder and checks that its weights are complete.
pub(super) fn open_folder(path: &Path) -> Result<ModelFolder, TrainError> {
    let folder = ModelFolder::open(path)?;
    folder.check()?;
    Ok(folder)
}

/// The mean and deviation that a model's graph normalises pictures with.
pub(super) fn normalization_of(processor: &ImageProcessor) -> Normalization {
    Normalization {
        mean: processor.mean,
        std: processor.std,
    }
}

/// Error for a model's name that is neither a folder, nor cached, nor one of the presets.
pub(super) fn no_such_model(name: &str, presets: &str) -> TrainError {
    TrainError::Config(format!(
        "model `{name}`: expected a folder with config.json and model.safetensors, a name in the local Hugging Face cache, or a \
         preset; found none\nhint: presets are {presets}{}",
        hub_cache::hint_for(name)
    ))
}
