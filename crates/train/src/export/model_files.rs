//! Writes a model folder, as a whole or not at all.

use std::fmt::Display;
use std::path::Path;

use holdall_files::{Checksum, write_whole_folder};
use holdall_models::folder::seal_folder;

use crate::engine::step::Step;
use crate::error::{TrainError, without_hint};
use crate::export::adapter_files;
use crate::export::saved_inputs::SavedInputs;
use crate::run_folder::folder::{FREE_SPACE, failed};

/// Shard size of `transformers`.
pub(crate) const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes the model and its preprocessing settings, with checksums of all files. Returns the checksum of `holdall.json`.
pub fn save_model(
    step: &Step,
    inputs: &SavedInputs,
    folder: &Path,
) -> Result<Checksum, TrainError> {
    let fill = |folder: &Path| {
        step.config().task.save(step, folder)?;
        inputs.write(folder)?;
        if let Some(lora) = &step.config().lora {
            adapter_files::save(step, lora, folder)?;
        }
        seal_folder(folder).map_err(|cause| unsaved(&cause))
    };
    write_whole_folder(folder, fill, |cause| failed(folder, "written")(cause))
}

/// Error for a model that could not be saved.
pub(crate) fn unsaved(cause: &dyn Display) -> TrainError {
    TrainError::File {
        found: without_hint(cause),
        hint: FREE_SPACE,
    }
}
