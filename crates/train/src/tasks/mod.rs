//! The tasks, one folder and one [`crate::engine::task::Task`] each, and the choice of a run's task.

mod block_loss;
pub mod classify;
pub mod clip;
pub mod generation;
mod opened_model;
mod ranking;
pub mod segment;
pub mod video_text;

use std::path::{Path, PathBuf};

use holdall_data::DataConfig;
use holdall_data::config::TargetConfig;
use holdall_data::samples::{EvidenceKind, evidence};
use holdall_data::table::{self, Table, find};
use holdall_models::clip::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache::{self, ModelName};
use holdall_models::model_config::ModelConfig;
use holdall_models::unet::config::UnetConfig;
use holdall_models::video_text::config::VideoTextConfig;
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_onnx::Precision;
use holdall_processes::Group;
use serde::{Deserialize, Serialize};

use crate::config::{
    AUTO_MODEL, ClassWeights, Losses, RunConfig, Sampling, TaskName, warnings_of_unused_keys,
};
use crate::engine::task::Task;
use crate::error::TrainError;
use crate::export::onnx::OnnxFile;
use crate::export::saved_model::{SavedModel, resolve};
use crate::planning::prepare::Prepared;
use crate::planning::processes::from_first;
use crate::planning::setup::Setup;
use crate::planning::site::Site;

/// Default model of every task but segmentation.
const USUAL_CLIP: &str = "openai/clip-vit-base-patch32";

/// Default model of segmentation.
const USUAL_UNET: &str = "unet";

/// A task, and the reason for it if the config does not name one.
#[derive(Serialize, Deserialize)]
pub struct Decision {
    pub task: TaskName,
    /// Log line with the reason.
    pub note: Option<String>,
}

/// Chooses the task: the config's `task:`; else the one that fits the data; without data, the one that fits the model.
pub fn decide(config: &RunConfig) -> Result<Decision, TrainError> {
    if let Some(task) = config.task {
        return Ok(Decision { task, note: None });
    }
    if config.data.train.is_none() {
        let task = of_model(&config.model);
        return Ok(Decision { task, note: None });
    }
    of_data(&config.data)
}

/// The task that fits the data.
pub fn of_data(data: &DataConfig) -> Result<Decision, TrainError> {
    let found = evidence(data)?;
    let task = match found.kind {
        EvidenceKind::Captions => TaskName::Clip,
        EvidenceKind::Labels => TaskName::Classify,
        EvidenceKind::Masks => TaskName::Segment,
        EvidenceKind::Clips => TaskName::VideoText,
    };
    let note = format!("Task: {} ({})", task.name(), found.reason);
    Ok(Decision {
        task,
        note: Some(note),
    })
}

/// The model that a task trains: `model:`, or the task's default.
fn model_name(config: &RunConfig, task: TaskName) -> &str {
    match (config.model.as_str(), task) {
        (AUTO_MODEL, TaskName::Segment) => USUAL_UNET,
        (AUTO_MODEL, TaskName::Clip | TaskName::Classify | TaskName::VideoText) => USUAL_CLIP,
        (name, _) => name,
    }
}

/// The model of a run from before configs recorded it: the default of that time. `None` leaves the model as it is.
pub fn model_of_older_run(begun: &RunConfig) -> Option<&'static str> {
    if begun.model != USUAL_CLIP {
        return None;
    }
    match begun.task {
        Some(TaskName::Segment) => Some(USUAL_UNET),
        Some(TaskName::VideoText) if hub_cache::find(USUAL_CLIP).is_none() => Some("video-text"),
        _ => None,
    }
}

/// The config with its `model:` resolved.
fn with_model(config: &RunConfig, task: TaskName) -> Result<RunConfig, TrainError> {
    let model = model_name(config, task).to_owned();
    if config.random_weights && Path::new(&model).exists() {
        return Err(TrainError::Config(format!(
            "random_weights: true, expected a preset or a name of the hub beside it; {model} is there, with weights\n\
             hint: leave one of the two out"
        )));
    }
    Ok(RunConfig {
        model,
        ..config.clone()
    })
}

/// The folder with the weights of a model: the folder itself, or its snapshot in the local Hugging Face cache.
fn weights_folder(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Some(path.to_owned());
    }
    hub_cache::find(name)
}

/// The weights folder that a run starts from; `None` means random weights.
fn starting_folder(config: &RunConfig) -> Option<PathBuf> {
    weights_folder(&config.model).filter(|_| !config.random_weights)
}

/// Whether the run's model is a Hugging Face name whose weights are not in the local cache.
pub(crate) fn lacks_weights(config: &RunConfig) -> bool {
    let is_of_hub = ModelName::parse(&config.model).is_some();
    is_of_hub && !config.random_weights && weights_folder(&config.model).is_none()
}

/// Refuses a pretrained model's name without its weights: the run would silently train from random ones.
pub(crate) fn check_weights(asked: &RunConfig, resolved: &RunConfig) -> Result<(), TrainError> {
    if !lacks_weights(resolved) {
        return Ok(());
    }
    let name = &resolved.model;
    let (what, small) = if asked.model == AUTO_MODEL {
        let small = match resolved.task {
            Some(TaskName::Classify) => "vit-demo",
            Some(TaskName::VideoText) => "video-text-small",
            _ => "small",
        };
        let small = format!("; --model {small} is a small model without pretrained weights");
        (
            format!("no model is named, and the usual one is {name}"),
            small,
        )
    } else {
        (format!("model `{name}`"), String::new())
    };
    Err(TrainError::Config(format!(
        "{what}: expected its pretrained weights in the local Hugging Face cache, found none\n\
         hint: holdall model get {name} downloads them; --random-weights begins from random ones{small}"
    )))
}

/// The task of a model by its `config.json`, or by its preset.
fn of_model(name: &str) -> TaskName {
    let found = weights_folder(name);
    let opened = found.and_then(|path| ModelFolder::open(&path).ok());
    match opened.as_ref().map(ModelFolder::config) {
        Some(ModelConfig::Clip(_)) => TaskName::Clip,
        Some(ModelConfig::Backbone(_) | ModelConfig::Classifier(_)) => TaskName::Classify,
        Some(ModelConfig::Unet(_)) => TaskName::Segment,
        Some(ModelConfig::VideoText(_)) => TaskName::VideoText,
        // Parts of a video-text model; neither is trained alone.
        Some(ModelConfig::Bert(_) | ModelConfig::CaptionDecoder(_)) => TaskName::VideoText,
        None if ClipConfig::preset(name).is_some() => TaskName::Clip,
        None if VisionTransformerConfig::preset(name).is_some() => TaskName::Classify,
        None if UnetConfig::preset(name).is_some() => TaskName::Segment,
        None if VideoTextConfig::preset(name).is_some() => TaskName::VideoText,
        None => TaskName::Clip,
    }
}

pub(crate) fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let Decision { task, note } = site.listed(|| decide(config))?;
    check_class_weights(config, task)?;
    let config = &with_model(config, task)?;
    let mut prepared = match task {
        TaskName::Clip => clip::prepare(config, site)?,
        TaskName::Classify => classify::prepare(config, site)?,
        TaskName::Segment => segment::prepare(config, site)?,
        TaskName::VideoText => video_text::prepare(config, site)?,
    };
    let is_unlabelled = prepared.train.balanced_target().is_none();
    if config.train.sampling == Sampling::Balanced && is_unlabelled {
        prepared.notes.push(
            "warning: train.sampling: `balanced` has no effect: the samples have no labels"
                .to_owned(),
        );
    }
    let unused = warnings_of_unused_keys(config, task);
    prepared.notes.splice(0..0, note.into_iter().chain(unused));
    Ok(prepared)
}

/// Opens the run's model without its data.
pub(crate) fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    let task = decide(config)?.task;
    let unused = warnings_of_unused_keys(config, task);
    let config = &with_model(config, task)?;
    let mut setup = match task {
        TaskName::Clip => clip::setup(config, site),
        TaskName::Classify => classify::setup(config, site),
        TaskName::Segment => segment::setup(config, site),
        TaskName::VideoText => video_text::setup(config, site),
    }?;
    setup.notes.splice(0..0, unused);
    Ok(setup)
}

/// Refuses `class_weights` as numbers except for segmentation: the order of classes is known to the config only for masks.
fn check_class_weights(config: &RunConfig, task: TaskName) -> Result<(), TrainError> {
    match (&config.losses.class_weights, task) {
        (ClassWeights::Each(_), TaskName::Clip | TaskName::Classify | TaskName::VideoText) => {
            Err(TrainError::Config(format!(
                "losses.class_weights: numbers, expected none or balanced for `task: {}`\n\
                 hint: `losses: {{class_weights: balanced}}` weighs classes by their inverse frequency",
                task.name()
            )))
        }
        _ => Ok(()),
    }
}

/// Warnings for those of `keys` in `losses:` that differ from their defaults, for data without labels.
fn warnings_without_labels(config: &RunConfig, keys: &[&str]) -> Vec<String> {
    let (losses, usual) = (&config.losses, Losses::default());
    let known = [
        ("label", losses.label != usual.label),
        (
            "label_smoothing",
            losses.label_smoothing != usual.label_smoothing,
        ),
        ("class_weights", losses.class_weights != usual.class_weights),
    ];
    let set = known
        .into_iter()
        .filter(|(key, is_set)| *is_set && keys.contains(key));
    set.map(|(key, _)| {
        format!(
            "warning: losses.{key}: no effect, the data has no such labels\nhint: `data: {{label: COLUMN}}` says where they are"
        )
    })
    .collect()
}

/// A trained model of any task.
pub enum Saved {
    Clip(clip::SavedClip),
    Classify(classify::SavedClassifier),
    Segment(segment::SavedSegmenter),
    VideoText(Box<video_text::SavedVideoText>),
}

impl Saved {
    /// Opens a trained model of any task. Reading the files beside the weights, such as the tokenizer, may take up to
    /// `most_bytes`.
    pub fn open(name: &str, most_bytes: u64) -> Result<Saved, TrainError> {
        let path = resolve(name)?;
        Ok(match of_model(&path.to_string_lossy()) {
            TaskName::Clip => Saved::Clip(clip::SavedClip::open(name, most_bytes)?),
            TaskName::Classify => Saved::Classify(classify::SavedClassifier::open(name)?),
            TaskName::Segment => Saved::Segment(segment::SavedSegmenter::open(name)?),
            TaskName::VideoText => {
                let saved = video_text::SavedVideoText::open(name, most_bytes)?;
                Saved::VideoText(Box::new(saved))
            }
        })
    }

    /// Sets tiled and mirrored prediction; an error for models other than segmentation.
    pub fn set_tiles(&mut self, tiles: Option<usize>, mirror: bool) -> Result<(), TrainError> {
        match self {
            Saved::Segment(saved) => saved.set_tiles(tiles, mirror),
            _ if tiles.is_some() || mirror => {
                let option = if mirror { "--mirror" } else { "--tiles" };
                Err(TrainError::Config(format!(
                    "{option}: expected a segmentation model, found {}\nhint: leave it out",
                    self.model().path().display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// The model's forward programs as ONNX files.
    pub(crate) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        match self {
            Saved::Clip(saved) => saved.onnx(precision),
            Saved::Classify(saved) => saved.onnx(precision),
            Saved::Segment(saved) => saved.onnx(precision),
            Saved::VideoText(saved) => saved.onnx(precision),
        }
    }

    /// The task that computes the model's forward passes.
    pub(crate) fn task(&self) -> Box<dyn Task> {
        match self {
            Saved::Clip(saved) => Box::new(saved.task(1)),
            Saved::Classify(saved) => Box::new(saved.task().clone()),
            Saved::Segment(saved) => Box::new(saved.task().clone()),
            Saved::VideoText(saved) => Box::new(saved.task().clone()),
        }
    }

    pub fn task_name(&self) -> TaskName {
        match self {
            Saved::Clip(_) => TaskName::Clip,
            Saved::Classify(_) => TaskName::Classify,
            Saved::Segment(_) => TaskName::Segment,
            Saved::VideoText(_) => TaskName::VideoText,
        }
    }

    /// The part that is common to all tasks.
    pub fn model(&self) -> &dyn SavedModel {
        match self {
            Saved::Clip(saved) => saved,
            Saved::Classify(saved) => saved,
            Saved::Segment(saved) => saved,
            Saved::VideoText(saved) => &**saved,
        }
    }
}

/// Keys of `losses:` that apply to labels.
const LABEL_LOSSES: [&str; 3] = ["label", "label_smoothing", "class_weights"];

/// The data's CSV, if the config names no labels and the data is not a listing of folders.
fn table_without_labels(config: &RunConfig) -> Result<Option<Table>, TrainError> {
    let data = &config.data;
    if data.label.is_some() || !data.targets.is_empty() {
        return Ok(None);
    }
    // A folder of images and masks has no table.
    let is_folder = data.train.as_deref().is_some_and(Path::is_dir);
    if is_folder && evidence(data).is_ok_and(|found| found.kind == EvidenceKind::Masks) {
        return Ok(None);
    }
    let found = find(data.train.as_deref())?;
    let table = Table::open_separated(&found.csv, data.separator)?;
    // Class folders are labels already.
    Ok((!table.is_listing()).then_some(table))
}

/// Sets the label column for the evaluation of a model with labels: the column called `make` or `label`, if there is one.
pub(crate) fn take_label_column(config: &mut RunConfig) -> Result<(), TrainError> {
    if let Some(table) = table_without_labels(config)? {
        config.data.label = table::guess_label(&table).map(TargetConfig::from);
    }
    Ok(())
}

/// Whether a label column may be guessed by its name: without a config file, and for classifiers, which cannot train without
/// labels.
pub fn may_guess_label(config: &RunConfig, has_config_file: bool) -> bool {
    !has_config_file || config.task == Some(TaskName::Classify)
}

/// Without a config file, takes a column called `make` or `label` as the labels if it has two different values. Returns the log
/// line about it.
pub fn guess_label(config: &mut RunConfig) -> Result<Option<String>, TrainError> {
    let has_masks = match config.task {
        Some(task) => task == TaskName::Segment,
        None => evidence(&config.data).is_ok_and(|found| found.kind == EvidenceKind::Masks),
    };
    if has_masks {
        return Ok(None);
    }
    let Some(table) = table_without_labels(config)? else {
        return Ok(None);
    };
    let Some(label) = table::guess_label(&table) else {
        return Ok(None);
    };
    if !tells_apart(&table, label)? {
        return Ok(None);
    }
    config.data.label = Some(TargetConfig::from(label));
    Ok(Some(format!(
        "Label column: `{label}` (found by its name; `--set data.label=COLUMN` names another, or none)"
    )))
}

/// [`guess_label`] for a run of several processes: the first process reads the data and shares the result.
pub fn guess_label_together(
    group: &Group,
    config: &mut RunConfig,
) -> Result<Option<String>, TrainError> {
    let (label, note) = from_first(group, || {
        let note = guess_label(config)?;
        Ok((config.data.label.clone(), note))
    })?;
    config.data.label = label;
    Ok(note)
}

/// Whether a column has at least two different values; a constant column is no label.
fn tells_apart(table: &Table, label: &str) -> Result<bool, TrainError> {
    let Some(column) = table.columns().iter().position(|name| name == label) else {
        return Ok(false);
    };
    let mut first = String::new();
    let mut rows = table.rows()?;
    while let Some(row) = rows.read_any()? {
        match row.cell(column) {
            "" => {}
            cell if first.is_empty() => first.push_str(cell),
            cell if cell != first => return Ok(true),
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_hub_means_its_weights() {
        let named = |model: &str, random_weights: bool| RunConfig {
            model: model.to_owned(),
            random_weights,
            ..RunConfig::default()
        };
        // Nobody's cache has this model.
        let missing = named("nobody/no-such-model", false);
        let error = check_weights(&missing, &missing).unwrap_err().to_string();
        for words in ["holdall model get nobody/no-such-model", "--random-weights"] {
            assert!(error.contains(words), "{error}");
        }
        let unnamed = check_weights(&RunConfig::default(), &missing).unwrap_err();
        assert!(
            unnamed.to_string().starts_with("no model is named"),
            "{unnamed}"
        );
        for model in ["small", "vit-demo", "unet", "video-text-demo", "nowhere"] {
            let config = named(model, false);
            check_weights(&config, &config).unwrap();
        }
        let wanted = named("nobody/no-such-model", true);
        check_weights(&wanted, &wanted).unwrap();
    }

    #[test]
    fn weights_that_are_there_are_not_random() {
        let folder = tempfile::tempdir().unwrap();
        let config = RunConfig {
            model: folder.path().display().to_string(),
            random_weights: true,
            ..RunConfig::default()
        };
        let error = with_model(&config, TaskName::Clip).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains("leave one of the two out"),
            "{error}"
        );
    }
}
