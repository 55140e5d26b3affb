//! The tasks: each a folder, each an implementation of [`crate::task::Task`]; and which one a run is.

pub mod classify;
pub mod clip;
pub mod losses;
mod ranking;
pub mod segment;
pub mod video_text;

use std::path::Path;

use holdall_data::columns;
use holdall_data::find::find;
use holdall_data::source::{EvidenceKind, evidence};
use holdall_data::table::Table;
use holdall_data::target::TargetConfig;
use holdall_models::clip::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;
use holdall_models::model_config::ModelConfig;
use holdall_models::unet::config::UnetConfig;
use holdall_models::video_text::config::VideoTextConfig;
use holdall_models::vit::config::VisionTransformerConfig;
use holdall_onnx::Precision;
use holdall_processes::Group;
use serde::{Deserialize, Serialize};

use crate::config::{ClassWeights, RunConfig};
use crate::error::TrainError;
use crate::onnx::OnnxFile;
use crate::prepare::Prepared;
use crate::processes::from_first;
use crate::saved_model::{SavedModel, resolve};
use crate::setup::Setup;
use crate::site::Site;
use crate::task::Task;

/// The model of a config that names none.
pub const DEFAULT_MODEL: &str = "openai/clip-vit-base-patch32";

/// What kind of model and loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskName {
    /// Pictures and captions, with an optional label head.
    Clip,
    /// Pictures and labels, or numbers.
    Classify,
    /// Pictures and masks.
    Segment,
    /// Clips and texts.
    #[serde(rename = "video-text")]
    VideoText,
}

impl TaskName {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            TaskName::Clip => "clip",
            TaskName::Classify => "classify",
            TaskName::Segment => "segment",
            TaskName::VideoText => "video-text",
        }
    }

    /// The task of that name.
    pub(crate) fn by_name(name: &str) -> Option<TaskName> {
        let all = [
            TaskName::Clip,
            TaskName::Classify,
            TaskName::Segment,
            TaskName::VideoText,
        ];
        all.into_iter().find(|task| task.name() == name)
    }
}

/// A task, and why it was taken where the config does not say.
#[derive(Serialize, Deserialize)]
pub struct Decision {
    /// Which one.
    pub task: TaskName,
    /// For the log.
    pub note: Option<String>,
}

/// Which task a config means: what it says; else what its data is; without data, what its model is.
pub fn decide(config: &RunConfig) -> Result<Decision, TrainError> {
    if let Some(task) = config.task {
        return Ok(Decision { task, note: None });
    }
    if config.data.train.is_none() {
        let task = of_model(&config.model);
        return Ok(Decision { task, note: None });
    }
    let found = evidence(&config.data)?;
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

/// The task of a model that is a folder or a preset.
fn of_model(name: &str) -> TaskName {
    let path = Path::new(name);
    let found = match path.exists() {
        true => Some(path.to_owned()),
        false => hub_cache::find(name),
    };
    let opened = found.and_then(|path| ModelFolder::open(&path).ok());
    match opened.as_ref().map(ModelFolder::config) {
        Some(ModelConfig::Clip(_)) => TaskName::Clip,
        Some(ModelConfig::Backbone(_) | ModelConfig::Classifier(_)) => TaskName::Classify,
        Some(ModelConfig::Unet(_)) => TaskName::Segment,
        Some(ModelConfig::VideoText(_)) => TaskName::VideoText,
        // Parts of such a model; neither is trained alone.
        Some(ModelConfig::Bert(_) | ModelConfig::CaptionDecoder(_)) => TaskName::VideoText,
        None if ClipConfig::preset(name).is_some() => TaskName::Clip,
        None if VisionTransformerConfig::preset(name).is_some() => TaskName::Classify,
        None if UnetConfig::preset(name).is_some() => TaskName::Segment,
        None if VideoTextConfig::preset(name).is_some() => TaskName::VideoText,
        None => TaskName::Clip,
    }
}

/// Reads a run's data and opens its model.
pub(crate) fn prepare(config: &RunConfig, site: Site<'_>) -> Result<Prepared, TrainError> {
    let Decision { task, note } = site.listed(|| decide(config))?;
    check_class_weights(config, task)?;
    let mut prepared = match task {
        TaskName::Clip => clip::prepare(config, site)?,
        TaskName::Classify => classify::prepare(config, site)?,
        TaskName::Segment => segment::prepare(config, site)?,
        TaskName::VideoText => video_text::prepare(config, site)?,
    };
    prepared.notes.splice(0..0, note);
    Ok(prepared)
}

/// Opens a model without data.
pub(crate) fn setup(config: &RunConfig, site: Site<'_>) -> Result<Setup, TrainError> {
    match decide(config)?.task {
        TaskName::Clip => clip::setup(config, site),
        TaskName::Classify => classify::setup(config, site),
        TaskName::Segment => segment::setup(config, site),
        TaskName::VideoText => video_text::setup(config, site),
    }
}

/// Numbers are for classes that a config can know the order of: those of masks.
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

/// A trained model of one of the tasks.
pub enum Saved {
    /// Pictures and captions.
    Clip(clip::SavedClip),
    /// Pictures and labels.
    Classify(classify::SavedClassifier),
    /// Pictures and masks.
    Segment(segment::SavedSegmenter),
    /// Clips and texts.
    VideoText(Box<video_text::SavedVideoText>),
}

impl Saved {
    /// Opens a trained model, whatever its task; reading what lies beside it takes at most `most_bytes`.
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

    /// Lets a segmentation model look at tiles, or at mirrored pictures too; no other can.
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

    /// Its forward programs as ONNX files, and the task that knows their weights.
    pub(crate) fn onnx(&self, precision: Precision) -> Result<Vec<OnnxFile>, TrainError> {
        match self {
            Saved::Clip(saved) => saved.onnx(precision),
            Saved::Classify(saved) => saved.onnx(precision),
            Saved::Segment(saved) => saved.onnx(precision),
            Saved::VideoText(saved) => saved.onnx(precision),
        }
    }

    /// What is computed.
    pub(crate) fn task(&self) -> Box<dyn Task> {
        match self {
            Saved::Clip(saved) => Box::new(saved.task(1)),
            Saved::Classify(saved) => Box::new(saved.task().clone()),
            Saved::Segment(saved) => Box::new(saved.task().clone()),
            Saved::VideoText(saved) => Box::new(saved.task().clone()),
        }
    }

    /// What all of them are.
    pub fn model(&self) -> &dyn SavedModel {
        match self {
            Saved::Clip(saved) => saved,
            Saved::Classify(saved) => saved,
            Saved::Segment(saved) => saved,
            Saved::VideoText(saved) => &**saved,
        }
    }
}

/// The data's table, where labels are not said and are no folders.
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
    // Class folders are labels themselves.
    Ok((!table.is_listing()).then_some(table))
}

/// What a model with labels is evaluated on: the column that is called `make` or `label`, if there is one.
pub(crate) fn take_label_column(config: &mut RunConfig) -> Result<(), TrainError> {
    if let Some(table) = table_without_labels(config)? {
        config.data.label = columns::guess_label(&table).map(TargetConfig::from);
    }
    Ok(())
}

/// Without a config, a column that is called `make` or `label`, and tells rows apart, is one of labels. Returns the line that
/// says so.
pub fn guess_label(config: &mut RunConfig) -> Result<Option<String>, TrainError> {
    // Folders of masks have no table.
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
    let Some(label) = columns::guess_label(&table) else {
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

/// The same among the processes of a run: the first looks, for all.
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

/// Whether a column has two values: one of a single value tells nothing apart.
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
