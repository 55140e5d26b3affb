//! What the user wrote.
//!
//! A config says only what differs from the defaults, which stand here in one place. Command-line options are laid over
//! it; nothing past this file sees a flag.

mod choices;
mod rates;
mod sections;
mod written;

use std::path::{Path, PathBuf};

use holdall_data::DataConfig;
use holdall_plan::Request;
use serde::{Deserialize, Serialize};

pub use self::choices::{
    ClassWeights, Count, EvalEvery, Precision, RecomputeChoice, Sampling, SaveEvery, Schedule,
    Split, Task, Warmup,
};
pub use self::rates::RatesByName;
pub use self::sections::{Losses, OptimizerSection, TrainSection};
use crate::budget::Memory;
use crate::error::TrainError;

/// A whole config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Another config that this one builds on, relative to it; `None` once it has been laid under.
    #[serde(skip_serializing)]
    pub base: Option<PathBuf>,
    /// What kind of model.
    pub task: Task,
    /// A folder, or a preset by name (random weights).
    pub model: String,
    /// Which files, and which of their columns mean what.
    pub data: DataConfig,
    /// Classes of the label head; none leaves the head out. Data with labels says how many there are.
    pub labels: Option<usize>,
    /// Tokens per caption; as many as the model has positions by default.
    pub tokens: Option<usize>,
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
    /// The run's folder, relative to where the command was typed.
    pub out: Option<PathBuf>,
}

impl Default for RunConfig {
    fn default() -> RunConfig {
        RunConfig {
            base: None,
            task: Task::Clip,
            model: "openai/clip-vit-base-patch32".to_owned(),
            data: DataConfig::default(),
            labels: None,
            tokens: None,
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
        }
    }
}

impl RunConfig {
    /// Reads a YAML file; a relative model folder is relative to it.
    pub fn read(path: &Path) -> Result<RunConfig, TrainError> {
        let fail = |what: String| TrainError::Config(format!("{}: {what}", path.display()));
        let bytes = std::fs::read(path)
            .map_err(|error| fail(format!("cannot be read: {error}\nhint: check the path")))?;
        let text = String::from_utf8(bytes)
            .map_err(|_| fail("is not UTF-8 text\nhint: save it as UTF-8".to_owned()))?;
        let options = serde_saphyr::options! { with_snippet: false };
        let mut config: RunConfig = serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| fail(explain(&error.to_string(), &text)))?;
        let beside = path.parent().unwrap_or(Path::new("")).join(&config.model);
        if beside.is_dir() {
            config.model = beside.display().to_string();
        }
        Ok(config)
    }

    /// What the planner is asked.
    pub fn request(&self, budget_bytes: Option<u64>) -> Request {
        Request {
            effective_batch: self.train.effective_batch,
            batch_size: self.train.batch_size,
            gradient_accumulation: self.train.gradient_accumulation,
            recompute: self.train.recompute.policy(),
            kept: None,
            budget_bytes,
        }
    }
}

/// A parser's complaint with a hint that fits the key it names.
fn explain(complaint: &str, text: &str) -> String {
    let complaint = complaint.trim_start_matches("error: ");
    let first = complaint.lines().next().unwrap_or(complaint);
    let first = first
        .replace("invalid u64", "expected a whole number of at least 0")
        .replace("invalid floating point value", "expected a number")
        .replace(", set DuplicateKeyPolicy in Options if acceptable", "")
        .replace(
            "; use from_str_multiple or from_str_multiple_with_options",
            "",
        );
    // The line itself says what was found.
    let line = first
        .split_once("line ")
        .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next())
        .and_then(|number| number.parse::<usize>().ok())
        .and_then(|number| text.lines().nth(number.checked_sub(1)?));
    let first = match line {
        Some(line) => format!("{first}: found `{}`", line.trim()),
        None => first,
    };
    let key = first
        .split_once("unknown field `")
        .and_then(|(_, rest)| rest.split_once('`'))
        .map(|(key, _)| key);
    let hint = match key {
        Some(
            "batch_size"
            | "gradient_accumulation"
            | "gradient_accumulation_steps"
            | "effective_batch"
            | "recompute",
        ) => "that key belongs under `train:`".to_owned(),
        Some("use_gradient_checkpointing" | "gradient_checkpointing") => {
            "`train: {recompute: auto}`, or none, cheap, blocks".to_owned()
        }
        Some("mixed_precision" | "fp16" | "bf16" | "allow_tf32") => {
            "`precision: auto`, or fp16, bf16, tf32, f32".to_owned()
        }
        Some("clip_norm" | "weight_decay" | "beta1" | "beta2" | "eps") => {
            "that key belongs under `train: optimizer:`".to_owned()
        }
        Some("empty_cache_frequency") => {
            "nothing to do: there is no cache, lifetimes are planned".to_owned()
        }
        None if first.contains("memory `") => "`memory: 8GiB`".to_owned(),
        _ => "the README has an example of a config".to_owned(),
    };
    format!("{first}\nhint: {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RunConfig, TrainError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        RunConfig::read(file.path())
    }

    #[test]
    fn a_config_says_only_what_differs() {
        let config =
            parse("model: small\ntrain:\n  batch_size: 8\n  recompute: blocks\nmemory: 2GiB\n")
                .unwrap();
        assert_eq!(config.train.batch_size, Some(8));
        assert_eq!(config.train.recompute, RecomputeChoice::Blocks);
        assert_eq!(config.memory, Memory::Bytes(2 << 30));
        assert_eq!(config.losses, Losses::default());
    }

    #[test]
    fn a_resolved_config_reads_back_as_itself() {
        let mut config = RunConfig::default();
        config.train.effective_batch = Some(128);
        config.memory = Memory::Percent(80.0);
        let text = serde_saphyr::to_string(&config).unwrap();
        assert_eq!(parse(&text).unwrap(), config);
    }

    #[test]
    fn errors_name_the_file_the_line_and_a_way_out() {
        for (text, word) in [
            ("modell: small\n", "modell"),
            ("model: small\ntrain:\n  batch_size: eight\n", "line 3"),
            ("memory: 8 gallons\n", "gallons"),
            ("train: {recompute: everything}\n", "everything"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains(word) && error.contains("hint:"),
                "{text}: {error}"
            );
        }
    }
}
