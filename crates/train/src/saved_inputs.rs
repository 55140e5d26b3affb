//! How files and rows became inputs: `inputs.json` in a model folder. `eval` and `predict` read data with it, so that a model sees
//! clips, channels and masks as it did in training, wherever its folder is taken.
//!
//! ```text
//! data             keys of the config's `data` section, but for paths and what only training does
//! channel_files    files of one picture: NAME_0000.png, NAME_0001.png, ...
//! ```

use std::path::Path;

use holdall_data::DataConfig;
use holdall_data::config::Validation;
use holdall_data::loader::RowFormat;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::RunConfig;
use crate::error::TrainError;
use crate::planned_run::PlannedRun;
use crate::run_folder::{failed, write_whole};
use crate::saved_model::SavedModel;

/// The file in a model folder.
pub const FILE_NAME: &str = "inputs.json";

/// How files and rows became inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInputs {
    /// Settings of the `data` section.
    pub data: DataConfig,
    /// Files that the channels of one picture are spread over.
    #[serde(default = "one")]
    pub channel_files: usize,
}

fn one() -> usize {
    1
}

impl SavedInputs {
    /// What a run's inputs are made with.
    pub(crate) fn of_run(planned: &PlannedRun) -> SavedInputs {
        let train = &planned.prepared.train;
        let channel_files = match planned.prepared.setup.rows {
            RowFormat::Pair(_) if !train.is_empty() => 1 + train.further_image_paths(0).count(),
            _ => 1,
        };
        SavedInputs {
            data: planned.config.data.of_inputs(),
            channel_files,
        }
    }

    /// Writes what differs from the defaults.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let keys = |data: &DataConfig| -> Map<String, Value> {
            let value = serde_json::to_value(data).expect("settings are plain data");
            value.as_object().cloned().unwrap_or_default()
        };
        let usual = keys(&DataConfig::default());
        let mut own = keys(&self.data);
        own.retain(|key, value| usual.get(key) != Some(value));
        let text = format!(
            "{:#}\n",
            json!({"data": own, "channel_files": self.channel_files})
        );
        write_whole(&folder.join(FILE_NAME), text.as_bytes())
    }

    /// Reads what lies in a model folder; `None` where nothing does.
    pub fn read(folder: &Path) -> Result<Option<SavedInputs>, TrainError> {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = std::fs::read_to_string(&path).map_err(failed(&path, "read"))?;
        let inputs: Result<SavedInputs, _> = serde_json::from_str(&text);
        let inputs = inputs.map_err(|cause| {
            TrainError::Config(format!(
                "{}: {cause}\nhint: expected what training writes there; without the file, data is read with the usual settings",
                path.display()
            ))
        })?;
        inputs.data.validate()?;
        Ok(Some(inputs))
    }
}

/// The settings that data is read with, `sets` over them: the run's own where `name` is the folder of a run, else those of its model folder.
pub fn config_of(
    name: &str,
    saved: &dyn SavedModel,
    sets: &[String],
) -> Result<RunConfig, TrainError> {
    let of_run = Path::new(name).join("config.yml");
    if of_run.is_file() {
        return RunConfig::load(Some(&of_run), sets);
    }
    match SavedInputs::read(saved.path())? {
        Some(inputs) => RunConfig::over_data(&inputs.data, sets),
        None => RunConfig::load(None, sets),
    }
}

/// Names other data than the run's: every sample of it, and paths start there unless `sets` says where.
pub fn take_data(config: &mut RunConfig, data: &Path, sets: &[String]) {
    let data_config = &mut config.data;
    data_config.train = Some(data.to_owned());
    data_config.validation = Validation::UNSPLIT;
    let sets_root = |set: &String| set.trim_start().starts_with("data.image_root");
    if !sets.iter().any(sets_root) {
        data_config.image_root = None;
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use holdall_data::config::{ShortClips, Stride};

    use super::*;

    #[test]
    fn what_shapes_an_input_is_kept_and_where_the_data_was_is_not() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(SavedInputs::read(folder.path()).unwrap(), None);
        let data = DataConfig {
            train: Some(PathBuf::from("/data/clips.csv")),
            image_root: Some(PathBuf::from("/data")),
            group: Some("study".to_owned()),
            num_videos: Some(3),
            stride: Stride::Every(2),
            short_clips: ShortClips::Mask,
            binarize: Some(128),
            classes: vec!["ground".to_owned(), "disc".to_owned()],
            ..DataConfig::default()
        };
        let written = SavedInputs {
            data: data.of_inputs(),
            channel_files: 3,
        };
        written.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert!(
            !text.contains("/data") && !text.contains("augment"),
            "{text}"
        );
        let read = SavedInputs::read(folder.path()).unwrap().unwrap();
        assert_eq!(read, written);
        assert_eq!(
            (read.data.train, read.data.stride),
            (None, Stride::Every(2))
        );
        // What the user types lies over it.
        let sets = ["data.stride=3".to_owned()];
        let config = RunConfig::over_data(&written.data, &sets).unwrap();
        assert_eq!(config.data.stride, Stride::Every(3));
        assert_eq!(config.data.group.as_deref(), Some("study"));
    }
}
