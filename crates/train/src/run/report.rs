//! Reports of a run: lines of `metrics.jsonl`, progress events, and `summary.json`.

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::config::Subset;
use crate::engine::scores::Scores;
use crate::planning::loader_budget::ReadingReport;
use crate::run::progress::StepProgress;
use crate::run_folder::checkpoint::{Best, SummaryMetrics};
pub use crate::run_folder::epoch_losses::{LossLine, TotalLoss};
use crate::run_folder::skipped::SkippedLine;

/// A line per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// Optimizer step, counted from 1.
    pub step: u64,
    /// Epoch, counted from 1.
    pub epoch: u64,
    /// Weighted sum of all losses.
    pub loss: f64,
    /// Each loss by name.
    pub losses: Vec<LossLine>,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Learning rates by their keys in a config: `lr`, and those that begin with `lr_`.
    pub rates: Vec<(&'static str, f64)>,
    /// Factor that losses are multiplied by.
    pub loss_scale: f64,
    /// Samples in this step.
    pub samples: usize,
    /// Whether the step has fewer samples than the effective batch, as the last one of an epoch may: its loss is not
    /// comparable with that of other steps.
    pub is_short: bool,
    /// Hash of the sample numbers in order; equal for steps that saw the same samples.
    pub samples_digest: String,
    /// Seconds of this step, reading included.
    pub seconds: f64,
    /// Seconds that the step waited for data.
    pub waited_for_data: f64,
    /// Load of each process during the previous step, if several share the step.
    pub processes: Option<ProcessesOfStep>,
}

/// Load of each process during a step. The fields are part of the step's line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessesOfStep {
    /// Number of processes.
    pub processes: usize,
    /// The rank that the others waited for most.
    pub slowest_rank: usize,
    /// Host name of the slowest rank.
    pub slowest_host: String,
    /// Time the slowest rank spent reading and computing, divided by the mean of the others.
    pub slowest_ratio: f64,
    /// Memory of each process by rank, as counted by the operating system or driver.
    pub process_bytes: Vec<Option<u64>>,
}

/// Load of each process over an epoch or a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessesOfRun {
    /// Host names by rank.
    pub hosts: Vec<String>,
    /// Seconds of reading and computing by rank; waiting for other processes is not included.
    pub seconds: Vec<f64>,
    /// Peak memory of each process by rank, as counted by the operating system or driver.
    pub process_bytes: Vec<Option<u64>>,
    /// The rank that took longest.
    pub slowest_rank: usize,
    /// Time of the slowest rank, divided by the mean of the others.
    pub slowest_ratio: f64,
}

impl StepLine {
    /// A copy without the losses of a short step, which would show as spikes in a curve; `metrics.jsonl` has them.
    pub(crate) fn comparable(&self) -> StepLine {
        let mut line = self.clone();
        if self.is_short {
            line.loss = f64::NAN;
            line.losses.clear();
        }
        line
    }
}

impl Serialize for StepLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_map(None)?;
        line.serialize_entry("kind", "step")?;
        line.serialize_entry("step", &self.step)?;
        line.serialize_entry("epoch", &self.epoch)?;
        line.serialize_entry("loss", &self.loss)?;
        for loss in &self.losses {
            line.serialize_entry(&loss.name, &loss.mean)?;
            line.serialize_entry(&format!("{}_chance", loss.name), &loss.chance)?;
        }
        line.serialize_entry("gradient_norm", &self.gradient_norm)?;
        for (name, rate) in &self.rates {
            line.serialize_entry(name, rate)?;
        }
        line.serialize_entry("loss_scale", &self.loss_scale)?;
        line.serialize_entry("samples", &self.samples)?;
        line.serialize_entry("samples_digest", &self.samples_digest)?;
        line.serialize_entry("seconds", &self.seconds)?;
        line.serialize_entry("waited_for_data", &self.waited_for_data)?;
        if let Some(each) = &self.processes {
            line.serialize_entry("processes", &each.processes)?;
            line.serialize_entry("slowest_rank", &each.slowest_rank)?;
            line.serialize_entry("slowest_host", &each.slowest_host)?;
            line.serialize_entry("slowest_ratio", &each.slowest_ratio)?;
            line.serialize_entry("process_bytes", &each.process_bytes)?;
        }
        line.end()
    }
}

/// A line per evaluated subset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationLine {
    /// Always `evaluation`.
    pub kind: &'static str,
    /// Optimizer steps done.
    pub step: u64,
    /// Epoch, counted from 1.
    pub epoch: u64,
    /// Evaluated subset.
    pub on: Subset,
    /// Losses and metrics.
    #[serde(flatten)]
    pub scores: Scores,
    /// Duration of the evaluation.
    pub seconds: f64,
}

/// Memory forecast and measured peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Forecast for the process.
    pub planned_bytes: u64,
    /// Peak so far, as counted by the operating system or driver; `None` if unknown.
    pub peak_bytes: Option<u64>,
    /// Memory budget, if there is one.
    pub budget_bytes: Option<u64>,
}

/// Summary of a finished epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochReport {
    /// Optimizer steps done.
    pub step: u64,
    /// Epoch, counted from 1.
    pub epoch: u64,
    /// Finished steps of the epoch; fewer than `steps_per_epoch` if the run ended early.
    pub num_steps: u64,
    /// Steps of a complete epoch.
    pub steps_per_epoch: u64,
    /// Total number of epochs.
    pub epochs: u64,
    /// Duration of the epoch, evaluation included.
    pub seconds: f64,
    /// Samples per second of training time.
    pub samples_per_s: f64,
    /// Micro-batches per second of training time.
    pub batches_per_s: f64,
    /// Share of the training time spent waiting for data.
    pub waited_for_data: f64,
    /// Share of the steps' time in which the GPU was busy; `None` if the driver does not report it or the epoch was too short to sample.
    pub gpu_busy: Option<f64>,
    /// Load of each process, if there are several.
    pub processes: Option<ProcessesOfRun>,
    /// Mean loss over the training steps; short steps of a contrastive loss are left out.
    pub train_loss: TotalLoss,
    /// Step and loss of the last validation evaluation in the epoch.
    pub validation_loss: Option<(u64, TotalLoss)>,
}

/// An event during a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step is done.
    Step(&'a StepLine),
    /// A long step is in progress: sent at the beginning of the step, then at intervals.
    InStep(&'a StepProgress),
    /// Memory use, sent after the first batch and after each epoch.
    Memory(MemoryUse),
    /// An evaluation is in progress.
    Evaluating {
        /// Evaluated subset.
        on: Subset,
        /// Samples and texts done.
        done: usize,
        /// Total number of samples and texts.
        total: usize,
    },
    /// An evaluation is done.
    Evaluated {
        /// The evaluation's line.
        line: &'a EvaluationLine,
        /// Whether it is the best so far.
        is_best: bool,
    },
    /// A picture was skipped.
    Skipped {
        /// The picture and the reason.
        line: &'a SkippedLine,
        /// Pictures skipped so far.
        total: usize,
    },
    /// A warning about the run's memory. Each is sent once; a run that stays within its plan sends none.
    Notice(&'a str),
    /// An epoch is done.
    Epoch(&'a EpochReport),
    /// A checkpoint is on disk.
    Saved {
        /// Optimizer steps done.
        step: u64,
        /// Whether the user asked for it; otherwise it was due.
        is_asked: bool,
    },
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// All steps are done, or early stopping ended the run.
    Finished(Box<Summary>),
    /// All steps are done; the first process has the summary.
    FinishedByFirst,
    /// The run was finished already by an earlier process.
    NothingToDo,
    /// The user stopped the run; its state is saved.
    Interrupted {
        /// Steps done.
        step: u64,
        /// Total number of steps.
        total: u64,
    },
}

/// `summary.json`; other programs rely on its keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Device kind.
    pub device: &'static str,
    /// Samples per step.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Number format.
    pub precision: &'static str,
    /// Recomputation policy.
    pub recompute: String,
    /// Epochs done.
    pub epochs: f64,
    /// Optimizer steps done.
    pub steps: u64,
    /// Whether early stopping ended the run.
    pub stopped_early: bool,
    /// Duration in this process, evaluation included.
    pub seconds: f64,
    /// Samples per second of training time.
    pub samples_per_s: f64,
    /// Share of the training time spent waiting for data.
    pub waited_for_data: f64,
    /// Loader statistics of this process.
    pub reading: ReadingReport,
    /// Load of each process in the last epoch, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessesOfRun>,
    /// Skipped pictures; `skipped.csv` lists them.
    pub skipped: usize,
    /// Memory budget, if there is one.
    pub budget_bytes: Option<u64>,
    /// Forecast for the process.
    pub planned_bytes: u64,
    /// Peak memory of the process, as counted by the operating system or driver.
    pub process_bytes: Option<u64>,
    /// Forecast for the arena.
    pub planned_arena_bytes: u64,
    /// Bytes reserved for the arena.
    pub arena_bytes: u64,
    /// Origin of the weights.
    pub weights: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Number of trained parameters; `train.freeze` leaves others out.
    pub trained_parameters: u64,
    /// The best evaluation; its model is in `model/`.
    pub best: Option<Best>,
    /// The last evaluation of each subset.
    pub metrics: Vec<SummaryMetrics>,
    /// Scores of the first subset in words.
    #[serde(skip)]
    pub found: Option<String>,
    /// The model in `model/`.
    pub model: Option<ModelOfRun>,
    /// Checksum of the checkpoint that this summary belongs to.
    pub checkpoint: Option<String>,
}

/// The model that a run saves at its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOfRun {
    /// Optimizer step of its weights.
    pub step: u64,
    /// Checksum of `holdall.json`, which in turn lists the checksums of all files of the model.
    pub checksum: String,
}

impl From<&EvaluationLine> for SummaryMetrics {
    fn from(line: &EvaluationLine) -> SummaryMetrics {
        SummaryMetrics {
            on: line.on,
            step: line.step,
            scores: line.scores.clone(),
        }
    }
}
