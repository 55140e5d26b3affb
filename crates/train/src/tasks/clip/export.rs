//! A trained CLIP as a model folder that `transformers` loads.
//!
//! ```text
//! config.json, model.safetensors       CLIPModel.from_pretrained
//! tokenizer.json, tokenizer_config.json, preprocessor_config.json     AutoTokenizer, CLIPImageProcessor
//! head.safetensors, labels.json        the label head and what its outputs are called
//! holdall.json                         checksums of all of them
//! ```

use std::path::Path;

use holdall_data::config::LABEL;
use holdall_data::decode::PROCESSOR_FILE;
use holdall_models::folder::{Head, Values, write_folder};
use serde::{Deserialize, Serialize};

use super::ClipTask;
use crate::engine::step::Step;
use crate::error::TrainError;
use crate::export::model_files::{
    SHARD_BYTES, exported_tensors, read_beside, unsaved, write_beside,
};
use crate::run_folder::folder::write_whole;

/// `labels.json`: names of the label head's outputs, and the caption template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabelNames {
    /// In the order of the outputs.
    pub labels: Vec<String>,
    /// The target that the labels belong to: `label`, or a key of `data.targets`.
    #[serde(default = "usual_target")]
    pub target: String,
    /// Caption template of the training.
    pub caption: String,
}

fn usual_target() -> String {
    LABEL.to_owned()
}

const LABELS_FILE: &str = "labels.json";

impl LabelNames {
    /// Reads `labels.json`; `None` without that file.
    pub fn read(folder: &Path) -> Result<Option<LabelNames>, TrainError> {
        let hint = "expected {\"labels\": [...], \"caption\": \"...\"}, as training writes it";
        read_beside(folder, LABELS_FILE, hint)
    }
}

/// Writes the model folder.
pub(super) fn save(task: &ClipTask, step: &Step, folder: &Path) -> Result<(), TrainError> {
    let data = task.data();
    let saved = data.text.save(folder);
    saved.map_err(|cause| unsaved(&cause))?;
    write_whole(&folder.join(PROCESSOR_FILE), data.processor.as_bytes())?;
    let names = LabelNames {
        labels: data.labels.clone(),
        target: data.target.clone(),
        caption: data.caption_template.clone(),
    };
    write_beside(folder, LABELS_FILE, &names)?;
    let saved = save_weights(task, step, folder, Some(SHARD_BYTES));
    saved.map_err(|cause| unsaved(&cause))
}

/// Writes `config.json`, `model.safetensors` (in shards beyond `shard_bytes`) and the label head. An interrupted write leaves no
/// folder that looks complete.
pub fn save_weights(
    task: &ClipTask,
    step: &Step,
    folder: &Path,
    shard_bytes: Option<u64>,
) -> Result<(), TrainError> {
    let config = &task.model;
    let tensors = exported_tensors(step, config.tensors());
    let head = ["head.weight", "head.bias"].map(|name| step.exported_weight_called(name));
    let head = match head {
        [Some(weight), Some(bias)] => Some(Head {
            num_labels: bias.num_values(),
            weight: weight.read()?.into_owned(),
            bias: bias.read()?.into_owned(),
        }),
        _ => None,
    };
    write_folder(folder, config, &tensors, head.as_ref(), shard_bytes)?;
    Ok(())
}
