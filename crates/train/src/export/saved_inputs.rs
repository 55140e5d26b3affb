//! `inputs.json` in a model folder: the settings that turned files and rows into inputs. `eval` and `predict` read data with
//! them, so that a model sees clips, channels and masks as in training, wherever its folder is moved.
//!
//! ```text
//! data             keys of the config's `data` section, without paths and settings that only affect training
//! channel_files    files of one picture: NAME_0000.png, NAME_0001.png, ...
//! ```

use std::path::Path;

use holdall_data::config::Validation;
use holdall_data::loader::RowFormat;
use holdall_data::{DataConfig, segmentation};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::{
    MOST_CONFIG_BYTES, RunConfig, TaskName, changed_keys, is_within, tasks_that_read,
    warnings_of_unused_keys,
};
use crate::error::TrainError;
use crate::export::saved_model::SavedModel;
use crate::planning::planned_run::PlannedRun;
use crate::run_folder::folder::{failed, write_whole};

/// File name in a model folder.
pub const FILE_NAME: &str = "inputs.json";

/// Settings that turned files and rows into inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedInputs {
    pub data: DataConfig,
    /// Number of files per picture, if its channels are stored separately.
    #[serde(default = "one")]
    pub channel_files: usize,
}

fn one() -> usize {
    1
}

impl SavedInputs {
    /// The settings of a run.
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

    /// Writes the settings that differ from the defaults.
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

    /// Reads the settings of a model folder; `None` if it has none.
    pub fn read(folder: &Path) -> Result<Option<SavedInputs>, TrainError> {
        let path = folder.join(FILE_NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = holdall_files::read_regular(&path, MOST_CONFIG_BYTES);
        let text = text.map_err(failed(&path, "read"))?;
        let inputs: Result<SavedInputs, _> = serde_json::from_slice(&text);
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

/// The config to read data with, `sets` merged over it: that of the run if `name` is a run folder, otherwise that of the
/// model folder.
pub fn config_of(
    name: &str,
    saved: &dyn SavedModel,
    sets: &[String],
) -> Result<RunConfig, TrainError> {
    let of_run = Path::new(name).join("config.yml");
    let mut config = if of_run.is_file() {
        RunConfig::load(Some(&of_run), sets)?
    } else {
        match SavedInputs::read(saved.path())? {
            Some(inputs) => RunConfig::over_data(&inputs.data, sets)?,
            None => RunConfig::load(None, sets)?,
        }
    };
    if config.data.group.as_deref() == Some("none") {
        (config.data.group, config.data.num_videos) = (None, None);
    }
    Ok(config)
}

/// Replaces the run's data by all samples of `data`. Paths are then relative to `data`, unless `sets` changes that or `data`
/// is the run's own file. Image and mask subfolders are kept only for the run's own data, or where they fit. Returns a note
/// on the base of the paths of the run's own file.
pub fn take_data(config: &mut RunConfig, data: &Path, sets: &[String]) -> Option<String> {
    let is_set = |key: &str| sets.iter().any(|set| set.trim_start().starts_with(key));
    let data_config = &mut config.data;
    let is_own = data_config
        .train
        .as_deref()
        .is_some_and(|own| is_same_file(own, data));
    if !is_own && !is_set("data.image_root") {
        data_config.image_root = None;
    }
    data_config.train = Some(data.to_owned());
    let is_layout_set =
        is_set("data.image_subdir") || is_set("data.label_subdir") || is_set("data={");
    if !is_own && !is_layout_set && !segmentation::is_set(data_config).unwrap_or(false) {
        data_config.image_subdir = None;
        data_config.label_subdir = None;
    }
    data_config.validation = Validation::UNSPLIT;
    let root = data_config
        .image_root
        .as_deref()
        .filter(|_| is_own && !is_set("data.image_root"));
    root.map(|root| format!("Paths start at {}, as in training", root.display()))
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// The command that reads the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// `holdall eval` on the run's own data.
    Eval,
    /// `holdall eval` on other data.
    EvalOfData,
    /// `holdall predict` on a table.
    Predict,
    /// `holdall predict` on pictures, clips or folders of them.
    PredictFiles,
}

impl Reader {
    fn command(self) -> &'static str {
        match self {
            Reader::Eval | Reader::EvalOfData => "holdall eval",
            Reader::Predict | Reader::PredictFiles => "holdall predict",
        }
    }

    /// Reason why a key has no effect for this command, if it has none.
    fn leaves_unread(self, key: &str, task: TaskName) -> Option<&'static str> {
        let is_any_of = |keys: &[&str]| keys.iter().any(|section| is_within(key, section));
        let is_predict = matches!(self, Reader::Predict | Reader::PredictFiles);
        let is_read_beside_data = match self {
            Reader::Predict | Reader::PredictFiles => false,
            // The seed decides which rows of the run's own data are held out.
            Reader::Eval => is_any_of(&["seed", "evaluation"]),
            Reader::EvalOfData => is_any_of(&["evaluation"]),
        };
        if !is_within(key, "data") && !is_read_beside_data {
            return Some("it is no key of the data section");
        }
        if is_any_of(ONLY_TRAINING) {
            return Some("only training reads it");
        }
        if is_predict && is_any_of(UNREAD_BY_PREDICT) {
            return Some("predictions need no truth and no split");
        }
        if self == Reader::PredictFiles && is_any_of(OF_TABLES) {
            return Some("files are named, and no table");
        }
        if self != Reader::Eval && is_within(key, "data.train") {
            return Some("the data is named behind the model");
        }
        let is_of_task = tasks_that_read(key).is_none_or(|tasks| tasks.contains(&task));
        (!is_of_task).then_some("the model's task does not read it")
    }
}

/// Keys of the data section that do not matter for a trained model: stored in its folder, or used in training only.
const ONLY_TRAINING: &[&str] = &[
    "data.start",
    "data.tokenizer",
    "data.image_size",
    "data.patch",
    "data.foreground",
    "data.augment",
    "data.pair_augment",
    "data.mixing",
    "data.decode",
    "data.replaced_pictures",
    "data.picture_check",
];

/// Keys about the columns and rows of a table.
const OF_TABLES: &[&str] = &[
    "data.image_root",
    "data.image",
    "data.video",
    "data.mask",
    "data.separator",
    "data.group",
    "data.num_videos",
];

/// Keys about the ground truth, and about the selection of samples.
const UNREAD_BY_PREDICT: &[&str] = &[
    "data.validation",
    "data.caption",
    "data.label",
    "data.targets",
    "data.bad_pictures",
    "data.max_skipped",
    "data.unseen_labels",
];

/// Warnings for keys that `sets` names, and that the data or another key of the config switches off.
pub fn warnings_of_sets(config: &RunConfig, sets: &[String], task: TaskName) -> Vec<String> {
    let named = |warning: &String| {
        let starts = |set: &String| {
            let key = set.split(['=', '{']).next().unwrap_or_default().trim();
            warning.starts_with(&format!("warning: {key}"))
        };
        sets.iter().any(starts)
    };
    let mut warnings = warnings_of_unused_keys(config, task);
    warnings.retain(named);
    warnings
}

/// Refuses `--set` keys without effect for this command.
pub fn check_sets(sets: &[String], task: TaskName, reader: Reader) -> Result<(), TrainError> {
    for set in sets {
        // An invalid `--set` is reported when it is merged into the config.
        let Ok(alone) = RunConfig::load(None, std::slice::from_ref(set)) else {
            continue;
        };
        let is_column = matches!(alone.data.validation, Validation::Column { .. });
        for key in changed_keys(&alone) {
            let is_split = is_within(&key, "data.validation") && !is_column;
            let why = if reader == Reader::EvalOfData && is_split {
                Some(
                    "every row of the named data counts; `--part` and {column: NAME} choose a side",
                )
            } else {
                reader.leaves_unread(&key, task)
            };
            if let Some(why) = why {
                return Err(TrainError::Config(format!(
                    "--set {set}: expected a key of the data section that {} reads, found {key}: {why}\nhint: leave it out",
                    reader.command()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use holdall_data::config::{ShortClips, Stride};

    use super::*;

    #[test]
    fn keys_that_a_command_does_not_read_are_refused() {
        let check = |set: &str, task, reader| {
            let checked = check_sets(&[set.to_owned()], task, reader);
            checked.map_err(|error| error.to_string())
        };
        use TaskName::{Classify, Segment, VideoText};
        for (set, task, reader, why) in [
            ("data.image_size=32", Segment, Reader::Eval, "only training"),
            ("data.patch=32", Segment, Reader::Predict, "only training"),
            (
                "data.stride=2",
                Classify,
                Reader::Predict,
                "the model's task",
            ),
            (
                "data.binarize=128",
                Classify,
                Reader::Eval,
                "the model's task",
            ),
            (
                "data={mixing: {mixup: 0.5}}",
                Classify,
                Reader::Eval,
                "data.mixing.mixup",
            ),
            (
                "data.train=nope.csv",
                Classify,
                Reader::Predict,
                "behind the model",
            ),
            ("data.caption=text", Classify, Reader::Predict, "no truth"),
            (
                "train.epochs=3",
                Classify,
                Reader::Eval,
                "no key of the data section",
            ),
        ] {
            let error = check(set, task, reader).unwrap_err();
            assert!(
                error.contains(why) && error.contains("hint: "),
                "{set}: {error}"
            );
        }
        for (set, task, reader) in [
            ("data.stride=2", VideoText, Reader::Predict),
            ("data.binarize=128", Segment, Reader::Predict),
            ("data.image=photo", Classify, Reader::Predict),
            ("data.train=other.csv", Classify, Reader::Eval),
            ("evaluation.captions=2", VideoText, Reader::EvalOfData),
        ] {
            assert_eq!(check(set, task, reader), Ok(()), "{set}");
        }
    }

    #[test]
    fn other_data_has_its_own_root_and_folders() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let split = ["alike/train/fotos", "alike/train/zeich"];
        for name in ["own/fotos", "own/zeich", "other/images"]
            .into_iter()
            .chain(split)
        {
            std::fs::create_dir_all(place(name)).unwrap();
        }
        let taken = |data: &str, sets: &[String]| {
            let mut config = RunConfig::default();
            config.data.train = Some(place("own"));
            config.data.image_root = Some(place("elsewhere"));
            config.data.image_subdir = Some(PathBuf::from("fotos"));
            config.data.label_subdir = Some(PathBuf::from("zeich"));
            let note = take_data(&mut config, &place(data), sets);
            assert_eq!(note.is_some(), data == "own");
            let data = config.data;
            (data.image_root.is_some(), data.image_subdir.is_some())
        };
        assert_eq!(taken("own", &[]), (true, true));
        assert_eq!(taken("../", &[]), (false, false));
        assert_eq!(taken("other", &[]), (false, false));
        assert_eq!(taken("alike", &[]), (false, true));
        let sets = ["data.image_subdir=fotos".to_owned()];
        assert_eq!(taken("other", &sets), (false, true));
    }

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
        // `--set` is merged over the saved settings.
        let sets = ["data.stride=3".to_owned()];
        let config = RunConfig::over_data(&written.data, &sets).unwrap();
        assert_eq!(config.data.stride, Stride::Every(3));
        assert_eq!(config.data.group.as_deref(), Some("study"));
    }
}
