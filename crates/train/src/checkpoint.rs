//! A run's state between two steps: what must be known to go on as if nothing had happened.
//!
//! Checkpoints lie between optimizer steps, so an accumulation window is always complete: its position is the step.
//! What a step sees is a function of (seed, epoch, sample), so a place in the order is all that data needs. The split of the
//! batch travels along, because sums over micro-batches round in its order.

use std::path::{Path, PathBuf};

use holdall_data::loader::Cursor;
use holdall_device::Device;
use holdall_models::folder::{NamedTensor, Values};
use holdall_models::state_file::{StateFile, write_state};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::report::SummaryMetrics;
use crate::scaler::LossScaler;
use crate::step::{Step, Stored};

/// What a run does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Next {
    /// The next optimizer step.
    Step,
    /// An evaluation that was due, and interrupted.
    Evaluate,
}

/// The best evaluation so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Which metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// After which step.
    pub step: u64,
}

/// Where the seconds of a run went, over all processes that ran it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Samples trained on.
    pub samples: u64,
    /// Micro-batches of them.
    pub micro_batches: u64,
    /// Seconds that steps waited for data.
    pub waited: f64,
    /// Seconds that steps computed.
    pub computed: f64,
    /// All seconds, evaluation and saving included.
    pub all: f64,
}

impl Clock {
    /// While training.
    pub fn samples_per_s(&self) -> f64 {
        self.samples as f64 / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }

    /// Micro-batches, while training.
    pub fn batches_per_s(&self) -> f64 {
        self.micro_batches as f64 / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }

    /// Share of the training time that went into waiting for data.
    pub fn waiting(&self) -> f64 {
        self.waited / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }
}

/// How the batch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitOfBatch {
    /// Samples per step.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Micro-batches that keep their activations.
    pub kept_micro_batches: usize,
}

/// Everything beside the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Layout of this structure.
    pub format: u32,
    /// Optimizer steps done: the position in the data as well.
    pub step: u64,
    /// What is next.
    pub next: Next,
    /// Loss scale and its history.
    pub scaler: LossScaler,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Evaluations since then.
    pub without_improvement: usize,
    /// The last evaluation, for the summary.
    pub last_scores: Vec<SummaryMetrics>,
    /// Length of `metrics.jsonl`.
    pub journal_bytes: u64,
    /// Where the seconds of the run went.
    pub clock: Clock,
    /// How the batch is split.
    pub split: SplitOfBatch,
    /// Of the samples, in hexadecimal: other data would be another run.
    pub data_digest: String,
    /// Where the data goes on; a run that began before there was one has left nothing out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// What the device chose to compute with, in its own words: other algorithms would round otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<String>,
}

/// Changes when [`State`] does.
pub const FORMAT: u32 = 1;

/// A state on disk.
pub struct Checkpoint {
    path: PathBuf,
    file: StateFile,
    /// What it says.
    pub state: State,
}

impl Checkpoint {
    /// Opens a checkpoint; `None` where there is none yet.
    pub fn open(path: &Path) -> Result<Option<Checkpoint>, TrainError> {
        if !path.exists() {
            return Ok(None);
        }
        let file = StateFile::open(path)?;
        let wrong = |found: String| {
            TrainError::Run(format!(
                "{}: expected a checkpoint of format {FORMAT}, found {found}\n\
                 hint: go on with the version of holdall that wrote it, or begin a new run",
                path.display()
            ))
        };
        let state: State =
            serde_json::from_str(file.text()).map_err(|cause| wrong(cause.to_string()))?;
        if state.format != FORMAT {
            return Err(wrong(format!("format {}", state.format)));
        }
        Ok(Some(Checkpoint {
            path: path.to_owned(),
            file,
            state,
        }))
    }

    /// Puts weights and optimizer state into a step.
    pub fn restore(&self, device: &Device, step: &mut Step) -> Result<(), TrainError> {
        step.set_weights(device, |name, values| self.file.read(name, values))
            .and_then(|()| {
                step.set_moments(|name, moment, values| {
                    self.file.read(&moment_name(name, moment), values)
                })
            })
            .map_err(|cause| {
                TrainError::Run(format!(
                    "{}: does not fit the model of this run: {cause}",
                    self.path.display()
                ))
            })
    }
}

/// Writes a checkpoint over the one before, or leaves that one as it was.
pub fn save(path: &Path, state: &State, step: &Step) -> Result<(), TrainError> {
    let mut tensors: Vec<NamedTensor<Stored<'_>>> = Vec::new();
    for parameter in step.parameters() {
        let values = step.stored_weight(parameter);
        tensors.push((parameter.name.clone(), vec![values.num_values()], values));
    }
    for (parameter, pair) in step.moments() {
        for (moment, values) in pair.into_iter().enumerate() {
            let name = moment_name(&parameter.name, moment);
            tensors.push((name, vec![values.num_values()], values));
        }
    }
    let text = serde_json::to_string(state).expect("a state is plain data");
    write_state(path, &text, &tensors).map_err(|cause| {
        let before = if path.exists() {
            "the checkpoint before it is untouched: free some space, then go on with --resume"
        } else {
            "free some space, then begin again"
        };
        TrainError::Run(format!(
            "checkpoint of step {}: {cause}\nhint: {before}",
            state.step
        ))
    })
}

fn moment_name(parameter: &str, moment: usize) -> String {
    format!("optimizer.{}.{parameter}", ["m", "v"][moment])
}
