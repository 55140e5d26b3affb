//! Options that `train`, `plan`, `verify` and `bench` of a step share, and how they override a config.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use holdall_data::table::is_data;
use holdall_processes::Group;
use holdall_train::config::budget::Memory;
use holdall_train::config::{Freeze, Precision, RecomputeChoice, RunConfig, TaskName};
use holdall_train::tasks;

use crate::config_file::{self, Differences};
use crate::screen::tell;

use super::{ComputeOptions, OutputOptions, ProcessOptions, seed};

/// Options of `train`, `plan`, `verify` and `bench`.
#[derive(Args, Clone)]
pub struct RunOptions {
    /// Samples per optimizer step [default: by task and data]
    #[arg(long, alias = "effective_batch", value_name = "N")]
    pub effective_batch: Option<usize>,
    /// Samples per micro-batch; never changed, a better one is suggested
    #[arg(long, aliases = ["batch_size", "micro-batch"], value_name = "N")]
    pub batch_size: Option<usize>,
    /// Micro-batches per optimizer step; the gradient is that of the whole batch
    #[arg(
        long,
        aliases = ["gradient_accumulation", "gradient-accumulation-steps", "gradient_accumulation_steps", "accum"],
        value_name = "N"
    )]
    pub gradient_accumulation: Option<usize>,
    /// Memory budget of the process: 8GiB, 8GB, 80%, auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<Memory>,
    /// What to recompute in the backward pass instead of keeping it
    #[arg(long, value_name = "POLICY")]
    pub recompute: Option<RecomputeArgument>,
    /// What is not trained: names up to a dot, or `*` patterns, with commas between them; `all but heads`; none
    #[arg(long, value_name = "NAMES")]
    pub freeze: Option<Freeze>,
    /// Number format; the CPU computes in f32
    #[arg(long, aliases = ["dtype"], value_name = "FORMAT")]
    pub precision: Option<PrecisionArgument>,
    #[command(flatten)]
    pub compute: ComputeOptions,
    #[command(flatten)]
    pub processes: ProcessOptions,
    /// What kind of work [default: what the data, or the model, is for]
    #[arg(long, value_name = "TASK", value_parser = TaskParser)]
    pub task: Option<TaskArgument>,
    /// Classes of the label head, or of the classifier
    #[arg(long, value_name = "N")]
    pub labels: Option<usize>,
    /// Tokens per caption [default: the model's positions]
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Seed of all random numbers
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Any key of the config, such as train.lr=1e-4; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Run a config of another tool although some of its settings have another effect here
    #[arg(long)]
    pub accept: bool,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum TaskArgument {
    /// Pictures and captions, and labels beside them
    Clip,
    /// Pictures and labels, or numbers
    Classify,
    /// Pictures and masks
    Segment,
    /// Clips and texts, and captions of them
    VideoText,
}

impl From<TaskArgument> for TaskName {
    fn from(task: TaskArgument) -> TaskName {
        match task {
            TaskArgument::Clip => TaskName::Clip,
            TaskArgument::Classify => TaskName::Classify,
            TaskArgument::Segment => TaskName::Segment,
            TaskArgument::VideoText => TaskName::VideoText,
        }
    }
}

/// Parses `--task`; `detect` gets an error that it is not supported.
#[derive(Clone)]
struct TaskParser;

impl TypedValueParser for TaskParser {
    type Value = TaskArgument;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        typed: &OsStr,
    ) -> Result<TaskArgument, clap::Error> {
        let typed_text = typed.to_string_lossy();
        if typed_text.contains("detect") {
            let message = format!(
                "--task {typed_text}: objects are not detected here; expected clip, classify, segment or video-text\n\
                 hint: --task segment learns masks of objects, --task classify labels of whole pictures\n"
            );
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message).with_cmd(command));
        }
        EnumValueParser::<TaskArgument>::new().parse_ref(command, argument, typed)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let all = TaskArgument::value_variants().iter();
        Some(Box::new(all.filter_map(ValueEnum::to_possible_value)))
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum RecomputeArgument {
    /// Whatever the budget asks for
    Auto,
    /// Keep everything
    None,
    /// Recompute norms and activation functions
    Cheap,
    /// Recompute whole blocks
    Blocks,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum PrecisionArgument {
    /// Whatever suits the device
    Auto,
    /// 32-bit
    F32,
    /// 16-bit IEEE with loss scaling
    Fp16,
    /// 16-bit brain float
    Bf16,
    /// 32-bit with 10-bit products
    Tf32,
}

impl From<PrecisionArgument> for Precision {
    fn from(precision: PrecisionArgument) -> Precision {
        match precision {
            PrecisionArgument::Auto => Precision::Auto,
            PrecisionArgument::F32 => Precision::F32,
            PrecisionArgument::Fp16 => Precision::Fp16,
            PrecisionArgument::Bf16 => Precision::Bf16,
            PrecisionArgument::Tf32 => Precision::Tf32,
        }
    }
}

impl RunOptions {
    /// The config that `target` names, overridden by these options. No data is read yet.
    pub fn config(&self, target: &str) -> Result<RunConfig> {
        let path = Path::new(target);
        let is_config = is_yaml(target);
        let mut config = self.over(is_config.then_some(path))?;
        let sets_model = |set: &String| set.split('=').next().map(str::trim) == Some("model");
        if !is_config && is_data(path) {
            config.data.train = Some(path.to_owned());
        }
        if !is_config && !is_data(path) && !self.sets.iter().any(sets_model) {
            config.model = target.to_owned();
        }
        Ok(config)
    }

    /// Guesses the label column where `target` and these options name none. It reads the data, so a command limits its reading to the
    /// budget first.
    pub fn guess_label(target: &str, group: &Group, config: &mut RunConfig) -> Result<()> {
        let is_config = is_yaml(target);
        if config.data.train.is_some() && tasks::may_guess_label(config, is_config) {
            let note = tasks::guess_label_together(group, config)?;
            note.iter().for_each(|note| tell(note));
        }
        Ok(())
    }

    /// The config in `file`, or the defaults, overridden by these options.
    pub fn over(&self, file: Option<&Path>) -> Result<RunConfig> {
        self.over_layers(file.as_slice())
    }

    /// Like [`RunOptions::over`] for several files, each overriding the previous one.
    pub fn over_layers(&self, files: &[&Path]) -> Result<RunConfig> {
        let differences = if self.accept {
            Differences::Accept
        } else {
            Differences::Refuse
        };
        // Two of the batch numbers determine the third, so all that were typed are merged as one layer.
        let batch_numbers = [
            ("effective_batch", self.effective_batch),
            ("batch_size", self.batch_size),
            ("gradient_accumulation", self.gradient_accumulation),
        ];
        let typed = batch_numbers.into_iter();
        let typed = typed.filter_map(|(key, number)| Some(format!("train.{key}={}", number?)));
        let sets: Vec<String> = self.sets.iter().cloned().chain(typed).collect();
        let mut config = config_file::load_layers(files, &sets, differences)?;
        self.lay_over(&mut config);
        Ok(config)
    }

    fn lay_over(&self, config: &mut RunConfig) {
        set(
            &mut config.train.recompute,
            self.recompute.map(|recompute| match recompute {
                RecomputeArgument::Auto => RecomputeChoice::Auto,
                RecomputeArgument::None => RecomputeChoice::None,
                RecomputeArgument::Cheap => RecomputeChoice::Cheap,
                RecomputeArgument::Blocks => RecomputeChoice::Blocks,
            }),
        );
        set(&mut config.train.freeze, self.freeze.clone());
        set(&mut config.memory, self.memory);
        set(&mut config.precision, self.precision.map(Precision::from));
        set(&mut config.seed, self.seed);
        config.task = self.task.map(TaskName::from).or(config.task);
        config.labels = self.labels.or(config.labels);
        config.tokens = self.tokens.or(config.tokens);
        config.num_threads = self.compute.num_threads.or(config.num_threads);
    }
}

/// Whether a target is a config file.
pub fn is_yaml(target: &str) -> bool {
    let extension = Path::new(target).extension();
    extension.is_some_and(|extension| extension == "yml" || extension == "yaml")
}

pub fn set<T>(target: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *target = given;
    }
}
