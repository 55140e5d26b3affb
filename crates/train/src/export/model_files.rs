//! A model on disk: a folder that is whole or not there.

use std::fmt::Display;
use std::path::Path;

use holdall_files::{Checksum, write_whole_folder};
use holdall_models::folder::seal_folder;

use crate::engine::step::Step;
use crate::error::{TrainError, without_hint};
use crate::export::adapter_files;
use crate::export::saved_inputs::SavedInputs;
use crate::run_folder::folder::{FREE_SPACE, failed};

/// Shards as large as `transformers` makes them.
pub(crate) const SHARD_BYTES: u64 = 5_000_000_000;

/// Writes the model and how its inputs are made, with checksums of all files. Returns that of its `holdall.json`.
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

/// What could not be saved, and what helps.
pub(crate) fn unsaved(cause: &dyn Display) -> TrainError {
    TrainError::File {
        found: without_hint(cause),
        hint: FREE_SPACE,
    }
}
