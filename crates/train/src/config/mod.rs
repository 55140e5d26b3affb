//! What the user wrote.
//!
//! A config says only what differs from the defaults, which stand beside their structs. It comes in `layers`: what it
//! builds on, the file, `--set`; each is checked on its own, and `explain` answers what is wrong. Command-line options are
//! laid over it; nothing past this module sees a flag.

pub mod budget;
mod choices;
mod differences;
mod explain;
mod freeze;
mod generation_section;
mod keys;
mod layers;
#[cfg(test)]
mod layers_tests;
mod located_value;
mod lora_section;
mod losses_section;
mod optimizer_config;
mod paths;
mod pytorch_keys;
mod rates;
mod sections;
pub mod shell_words;
mod task_name;
#[cfg(test)]
mod tests;
mod training_defaults;
mod translate;
mod unet_section;
mod unused_keys;
mod validate;
mod video_text_section;
mod word_or_number;

use std::path::{Path, PathBuf};

use holdall_data::DataConfig;
pub use holdall_data::order::Sampling;
use holdall_device::Arithmetic;
use holdall_plan::Request;
use serde::{Deserialize, Serialize};

use self::budget::Memory;
pub use self::choices::{
    ClassWeights, Count, EvalEvery, GradientFormat, OptimizerState, Precision, RecomputeChoice,
    SaveEvery, Schedule, Shard, Subset, Warmup,
};
pub(crate) use self::differences::{differences, first_difference};
pub use self::freeze::{Freeze, FrozenShare, covers};
pub use self::generation_section::{
    EarlyStopping, EvaluationSection, GenerationMethod, GenerationSection,
};
pub use self::keys::as_typed;
pub(crate) use self::layers::MOST_CONFIG_BYTES;
pub use self::layers::lay_batch_numbers;
pub use self::lora_section::{LoraSection, LoraTargets};
pub use self::losses_section::{DiceOver, Focal, Losses, Tversky};
pub use self::optimizer_config::{Averaging, OptimizerConfig};
pub use self::rates::{RatesByName, matches};
pub use self::sections::{OptimizerSection, TrainSection};
pub use self::task_name::{AUTO_MODEL, TaskName};
pub use self::training_defaults::TrainingDefaults;
pub use self::translate::{Translation, TypedOption, typed_option};
pub use self::unet_section::UnetSection;
pub(crate) use self::unused_keys::{
    changed_keys, is_within, tasks_that_read, warnings_of_unused_keys,
};
pub(crate) use self::validate::{Wrong, check};
pub use self::video_text_section::{
    DecoderChoice, DecoderSection, FrameCacheChoice, PoolingName, SameText, VideoTextSection,
};
use crate::error::TrainError;

/// A whole config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Another config that this one builds on, relative to it; `None` once it has been laid under.
    #[serde(skip_serializing)]
    pub base: Option<PathBuf>,
    /// What kind of work; what the data says where it is left out.
    pub task: Option<TaskName>,
    /// A folder, a name in the local Hugging Face cache, a preset (random weights), or `auto`: what suits the task.
    pub model: String,
    /// Whether a model that is named as on the Hugging Face hub may begin from random weights.
    pub random_weights: bool,
    /// Which files, and which of their columns mean what.
    pub data: DataConfig,
    /// Classes of the label head; none leaves the head out. Data with labels says how many there are.
    pub labels: Option<usize>,
    /// Tokens per text; as many as the model has positions by default.
    pub tokens: Option<usize>,
    /// What differs from a U-Net's preset.
    pub unet: UnetSection,
    /// What differs from a video-text model's own settings.
    pub video_text: VideoTextSection,
    /// How captions are generated.
    pub generation: GenerationSection,
    /// How much is evaluated.
    pub evaluation: EvaluationSection,
    /// Weights of the losses.
    pub losses: Losses,
    /// Batch, rates, and what happens when.
    pub train: TrainSection,
    /// What the process may hold.
    pub memory: Memory,
    /// What the loader's ring, cached features and offloaded state may hold.
    pub host_memory: Memory,
    /// Number format.
    pub precision: Precision,
    /// Threads of the CPU; one per core by default.
    pub num_threads: Option<usize>,
    /// Threads that decode pictures beside the training; 0 decodes in the training's own.
    pub num_workers: Count,
    /// Micro-batches that wait, decoded.
    pub prefetch: Count,
    /// Seed of everything random.
    pub seed: u64,
    /// The run's folder; relative to the file that says it, as all paths of a config.
    pub out: Option<PathBuf>,
    /// Name of the run's folder in `runs`, where `out` names none; that of the data or of the config by default.
    pub run_name: Option<String>,
}

impl Default for RunConfig {
    fn default() -> RunConfig {
        RunConfig {
            base: None,
            task: None,
            model: AUTO_MODEL.to_owned(),
            random_weights: false,
            data: DataConfig::default(),
            labels: None,
            tokens: None,
            unet: UnetSection::default(),
            video_text: VideoTextSection::default(),
            generation: GenerationSection::default(),
            evaluation: EvaluationSection::default(),
            losses: Losses::default(),
            train: TrainSection::default(),
            memory: Memory::Auto,
            host_memory: Memory::Auto,
            precision: Precision::Auto,
            num_threads: None,
            num_workers: Count::Auto,
            prefetch: Count::Auto,
            seed: 0,
            out: None,
            run_name: None,
        }
    }
}

impl RunConfig {
    /// The file (with what it builds on), then each `KEY=VALUE`, over the defaults; checked. Paths of a file are relative
    /// to it, those of `sets` to the current folder.
    pub fn load(path: Option<&Path>, sets: &[String]) -> Result<RunConfig, TrainError> {
        let (config, translations) = RunConfig::load_translated(path, sets)?;
        match translations.iter().find_map(Translation::refusal) {
            Some(refusal) => Err(refusal),
            None => Ok(config),
        }
    }

    /// The same, and what was translated from files of other tools: whoever runs it has to say what differs.
    pub fn load_translated(
        path: Option<&Path>,
        sets: &[String],
    ) -> Result<(RunConfig, Vec<Translation>), TrainError> {
        RunConfig::load_layers(path.as_slice(), sets)
    }

    /// The same with several files, each laid over the one before.
    pub fn load_layers(
        files: &[&Path],
        sets: &[String],
    ) -> Result<(RunConfig, Vec<Translation>), TrainError> {
        let (merged, translations) = layers::merged(files, sets)?;
        let place = match files.last() {
            Some(path) => format!("{}: ", path.display()),
            None => String::new(),
        };
        let named = |error: TrainError| TrainError::Config(format!("{place}{error}"));
        let config: RunConfig = serde_json::from_value(merged).map_err(|error| {
            named(TrainError::Config(format!(
                "its layers do not go together: {error}\nhint: look at what `base` says of that key"
            )))
        })?;
        config.validate().map_err(named)?;
        Ok((config, translations))
    }

    /// The same over the `data` section that a model folder keeps, instead of a file.
    pub fn over_data(data: &DataConfig, sets: &[String]) -> Result<RunConfig, TrainError> {
        let kept = serde_json::json!({ "data": data });
        let merged = layers::merged_over(kept, sets)?;
        let config: RunConfig = serde_json::from_value(merged)
            .map_err(|error| TrainError::Config(format!("--set: {error}\nhint: check its keys")))?;
        config.validate()?;
        Ok(config)
    }

    /// Reads a YAML file.
    pub fn read(path: &Path) -> Result<RunConfig, TrainError> {
        RunConfig::load(Some(path), &[])
    }

    /// The whole config as YAML that reads back as itself, from any folder.
    pub fn resolved(&self) -> String {
        let text = serde_saphyr::to_string(&self.with_absolute_paths())
            .expect("numbers, text and paths made text by `absolute`: all of them can be written");
        format!(
            "# All that this run was told, defaults included: `holdall train` on this file runs it again.\n{text}"
        )
    }

    /// The same config with the paths that the file system knows, for comparisons.
    pub(crate) fn with_real_paths(&self) -> RunConfig {
        paths::real_paths(self)
    }

    /// The same config from any folder.
    pub fn with_absolute_paths(&self) -> RunConfig {
        paths::absolute(self)
    }

    /// What the planner is asked.
    pub fn request(&self, budget_bytes: Option<u64>, arithmetic: Arithmetic) -> Request {
        Request {
            effective_batch: self.train.effective_batch,
            batch_size: self.train.batch_size,
            gradient_accumulation: self.train.gradient_accumulation,
            recompute: self.train.recompute.policy(),
            kept: None,
            budget_bytes,
            host_bytes: None,
            host_state: None,
            precision: arithmetic.name(),
            optimizer_state: self.train.optimizer_state.moments().name(),
            smaller_batch_note: "",
        }
    }
}
