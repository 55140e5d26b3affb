//! Writes a model folder, as a whole or not at all.

use std::fmt::Display;
use std::path::Path;

use holdall_files::{Checksum, write_whole_folder};
use holdall_models::folder::{NamedTensor, seal_folder};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::MOST_CONFIG_BYTES;
use crate::engine::step::{Step, Stored};
use crate::error::{TrainError, without_hint};
use crate::export::adapter_files;
use crate::export::saved_inputs::SavedInputs;
use crate::run_folder::folder::{FREE_SPACE, failed, write_whole};

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

/// A tensor of the model's state dict, as training holds it.
///
/// # Panics
/// If the step's graph has no parameter of that name: tests compare the names of every model.
pub(crate) fn exported<'a>(step: &'a Step, name: &str) -> Stored<'a> {
    let found = step.exported_weight_called(name);
    found.unwrap_or_else(|| panic!("the graph has no parameter {name}"))
}

/// Tensors of the model's state dict, by name and shape.
pub(crate) fn exported_tensors(
    step: &Step,
    tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> Vec<NamedTensor<Stored<'_>>> {
    let tensors = tensors.into_iter();
    tensors
        .map(|(name, shape)| {
            let values = exported(step, &name);
            (name, shape, values)
        })
        .collect()
}

/// Reads a JSON file that lies beside the weights; `None` without it. `hint` says what it should hold.
pub(crate) fn read_beside<T: DeserializeOwned>(
    folder: &Path,
    file: &str,
    hint: &str,
) -> Result<Option<T>, TrainError> {
    let path = folder.join(file);
    if !path.exists() {
        return Ok(None);
    }
    let text = holdall_files::read_regular(&path, MOST_CONFIG_BYTES);
    let text = text.map_err(failed(&path, "read"))?;
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|cause| TrainError::Config(format!("{}: {cause}\nhint: {hint}", path.display())))
}

/// Writes a JSON file beside the weights.
pub(crate) fn write_beside<T: Serialize>(
    folder: &Path,
    file: &str,
    contents: &T,
) -> Result<(), TrainError> {
    let text = format!("{:#}\n", serde_json::json!(contents));
    write_whole(&folder.join(file), text.as_bytes())
}

/// Error for a model that could not be saved.
pub(crate) fn unsaved(cause: &dyn Display) -> TrainError {
    TrainError::File {
        found: without_hint(cause),
        hint: FREE_SPACE,
    }
}
