//! A trained classifier as a model folder that `transformers` loads.
//!
//! ```text
//! config.json, model.safetensors     AutoModelForImageClassification.from_pretrained
//! preprocessor_config.json           AutoImageProcessor
//! targets.json                       which outputs belong to which head
//! holdall.json                       checksums of all of them
//! ```

use std::borrow::Cow;
use std::io;
use std::path::Path;

use holdall_data::decode::PROCESSOR_FILE;
use holdall_data::samples::{Target, TargetKind};
use holdall_models::folder::{NamedTensor, Values, write_folder};
use holdall_models::vit::config::{ClassifierConfig, Problem};
use serde::{Deserialize, Serialize};

use super::{CLASSIFIER, ClassifyTask, Head, heads};
use crate::engine::step::{Step, Stored};
use crate::error::TrainError;
use crate::export::model_files::{SHARD_BYTES, exported, read_beside, unsaved, write_beside};
use crate::run_folder::folder::write_whole;

/// Names and labels of the heads of a saved classifier.
const TARGETS_FILE: &str = "targets.json";

/// A head on disk.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
enum SavedTarget {
    /// One label per picture.
    Class { name: String, labels: Vec<String> },
    /// Several labels per picture.
    Classes { name: String, labels: Vec<String> },
    /// A number, in the unit of the training data.
    Number { name: String },
}

/// A tensor as training holds it, or rescaled for saving.
enum Tensor<'a> {
    Stored(Stored<'a>),
    Owned(Vec<f32>),
}

impl Values for Tensor<'_> {
    fn num_values(&self) -> usize {
        match self {
            Tensor::Stored(stored) => stored.num_values(),
            Tensor::Owned(values) => values.len(),
        }
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        match self {
            Tensor::Stored(stored) => stored.values(),
            Tensor::Owned(values) => Ok(Cow::Borrowed(values)),
        }
    }
}

/// Writes the model folder.
pub(super) fn save(task: &ClassifyTask, step: &Step, folder: &Path) -> Result<(), TrainError> {
    write_whole(&folder.join(PROCESSOR_FILE), task.processor.as_bytes())?;
    save_targets(&task.heads, folder)?;
    let mut tensors: Vec<NamedTensor<Tensor<'_>>> = Vec::new();
    for (name, shape) in task.model.tensors() {
        let stored = exported(step, &name);
        let tensor = if CLASSIFIER.contains(&name.as_str()) {
            let mut values = stored.read()?.into_owned();
            heads::restore(&task.heads, &name, &mut values);
            Tensor::Owned(values)
        } else {
            Tensor::Stored(stored)
        };
        tensors.push((name, shape, tensor));
    }
    let saved = write_folder(folder, &task.model, &tensors, None, Some(SHARD_BYTES));
    saved.map_err(|cause| unsaved(&cause))
}

/// Writes `targets.json`.
pub(in crate::tasks) fn save_targets(heads: &[Head], folder: &Path) -> Result<(), TrainError> {
    let targets: Vec<SavedTarget> = heads
        .iter()
        .map(|head| {
            let (name, labels) = (head.name.clone(), head.kind.names().to_vec());
            match head.kind {
                TargetKind::Class { .. } => SavedTarget::Class { name, labels },
                TargetKind::Classes { .. } => SavedTarget::Classes { name, labels },
                TargetKind::Number { .. } => SavedTarget::Number { name },
            }
        })
        .collect();
    write_beside(folder, TARGETS_FILE, &targets)
}

/// The heads of a model folder: from `targets.json`, else from `config.json`.
pub(super) fn read_targets(
    folder: &Path,
    config: &ClassifierConfig,
) -> Result<Vec<Target>, TrainError> {
    let Some(targets) = saved_targets(folder)? else {
        return Ok(targets_of_config(config));
    };
    let outputs: usize = targets
        .iter()
        .map(|target| target.kind.names().len().max(1))
        .sum();
    if outputs != config.labels.len() {
        return Err(TrainError::Config(format!(
            "{}: heads with {outputs} outputs, expected {}, those of config.json\nhint: both files belong to one model; \
             restore them together",
            folder.join(TARGETS_FILE).display(),
            config.labels.len()
        )));
    }
    Ok(targets)
}

/// The heads in `targets.json`; `None` without that file.
pub(in crate::tasks) fn saved_targets(folder: &Path) -> Result<Option<Vec<Target>>, TrainError> {
    let hint = "expected what training writes there; without the file, config.json says what the outputs are";
    let saved: Option<Vec<SavedTarget>> = read_beside(folder, TARGETS_FILE, hint)?;
    let Some(saved) = saved else {
        return Ok(None);
    };
    let targets = saved.into_iter().map(|target| match target {
        SavedTarget::Class { name, labels } => Target {
            name,
            kind: TargetKind::Class { names: labels },
        },
        SavedTarget::Classes { name, labels } => Target {
            name,
            kind: TargetKind::Classes { names: labels },
        },
        SavedTarget::Number { name } => Target {
            name,
            kind: AS_IT_IS,
        },
    });
    Ok(Some(targets.collect()))
}

/// A number that a saved model outputs in the unit of the data: nothing to rescale.
const AS_IT_IS: TargetKind = TargetKind::Number {
    mean: 0.0,
    std: 1.0,
};

fn targets_of_config(config: &ClassifierConfig) -> Vec<Target> {
    let names = config.labels.clone();
    let label = |kind: TargetKind| {
        vec![Target {
            name: "label".to_owned(),
            kind,
        }]
    };
    match config.problem {
        Some(Problem::Regression) => names
            .into_iter()
            .map(|name| Target {
                name,
                kind: AS_IT_IS,
            })
            .collect(),
        Some(Problem::MultiLabel) => label(TargetKind::Classes { names }),
        Some(Problem::SingleLabel) | None => label(TargetKind::Class { names }),
    }
}
