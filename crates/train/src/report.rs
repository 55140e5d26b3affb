//! What a run says of itself: lines of `metrics.jsonl`, events for whoever watches, and the summary.

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::checkpoint::Best;
use crate::config::Subset;
use crate::loader_budget::ReadingReport;
use crate::progress::StepProgress;
use crate::scores::Scores;
use crate::skipped::SkippedLine;

/// A line per optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    /// Counted from 1.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// The weighted losses together.
    pub loss: f64,
    /// Each of them.
    pub losses: Vec<LossLine>,
    /// Before clipping.
    pub gradient_norm: f64,
    /// Learning rates by their keys in a config: `lr`, and those that begin with `lr_`.
    pub rates: Vec<(&'static str, f64)>,
    /// What losses are multiplied by.
    pub loss_scale: f64,
    /// In this step.
    pub samples: usize,
    /// Whether a loss of so few samples cannot be compared with that of a whole effective batch: the last step of an epoch may be one.
    pub is_short: bool,
    /// Of their numbers, in order: equal for steps that saw the same.
    pub samples_digest: String,
    /// Of this step, reading included.
    pub seconds: f64,
    /// Seconds of it that went into reading.
    pub waited_for_data: f64,
    /// Where several processes share the step: how the step before it was for each.
    pub processes: Option<ProcessesOfStep>,
}

/// How a step was for each of several processes. Its fields stand in the step's line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessesOfStep {
    /// How many there are.
    pub processes: usize,
    /// The one that the others waited for most.
    pub slowest_rank: usize,
    /// Its machine.
    pub slowest_host: String,
    /// What it took, reading and computing, over what the others took on average; 1 is as long as they.
    pub slowest_ratio: f64,
    /// What each holds, by rank, as the system counts it.
    pub process_bytes: Vec<Option<u64>>,
}

/// How an epoch, or a run, was for each of several processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessesOfRun {
    /// Machines, by rank.
    pub hosts: Vec<String>,
    /// Seconds that each read and computed, by rank; waiting for the others is left out.
    pub seconds: Vec<f64>,
    /// What each held at most, by rank, as the system counts it.
    pub process_bytes: Vec<Option<u64>>,
    /// The one that took longest.
    pub slowest_rank: usize,
    /// What it took over what the others took on average.
    pub slowest_ratio: f64,
}

/// A loss in a step: `NAME` and `NAME_chance` of its line, which is how a reader tells that it is one.
#[derive(Clone, Debug, PartialEq)]
pub struct LossLine {
    /// As the task calls it.
    pub name: String,
    /// Its mean over the step.
    pub mean: f64,
    /// What guessing would give, where that is known.
    pub chance: Option<f64>,
}

impl StepLine {
    /// The line without losses that would saw a curve; metrics.jsonl has them.
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

/// A line per evaluated part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvaluationLine {
    /// `evaluation`.
    pub kind: &'static str,
    /// Optimizer steps done.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Which samples.
    pub on: Subset,
    /// What was found.
    #[serde(flatten)]
    pub scores: Scores,
    /// How long it took.
    pub seconds: f64,
}

/// What memory was promised, and what was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The plan's promise for the process.
    pub planned_bytes: u64,
    /// The most that was resident so far, as the system counts it.
    pub peak_bytes: Option<u64>,
    /// What the user allows.
    pub budget_bytes: Option<u64>,
}

/// How an epoch went.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochReport {
    /// Optimizer steps done.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u64,
    /// Steps of the epoch that are done: fewer than there are where the run ends with them.
    pub num_steps: u64,
    /// Steps of a whole epoch.
    pub steps_per_epoch: u64,
    /// Total number of epochs.
    pub epochs: u64,
    /// Evaluation included.
    pub seconds: f64,
    /// While training.
    pub samples_per_s: f64,
    /// Micro-batches, while training.
    pub batches_per_s: f64,
    /// Share of the training time.
    pub waited_for_data: f64,
    /// Share of the steps' time in which the GPU computed, where its driver tells and the epoch was long enough to ask.
    pub gpu_busy: Option<f64>,
    /// Where there are several processes.
    pub processes: Option<ProcessesOfRun>,
    /// Of its training steps; short ones of a contrastive loss are left out.
    pub train_loss: TotalLoss,
    /// Of the last evaluation of held-out samples in the epoch: after which step, and what was found.
    pub validation_loss: Option<(u64, TotalLoss)>,
}

/// The weighted losses together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TotalLoss {
    /// What they are.
    pub value: f64,
    /// What guessing would give, where that is known of all.
    pub chance: Option<f64>,
}

impl TotalLoss {
    /// Of losses with their weights: weight, mean and chance of each.
    pub(crate) fn of(losses: impl IntoIterator<Item = (f64, f64, Option<f64>)>) -> TotalLoss {
        let none = TotalLoss {
            value: 0.0,
            chance: Some(0.0),
        };
        let add = |total: TotalLoss, (weight, mean, chance): (f64, f64, Option<f64>)| TotalLoss {
            value: total.value + weight * mean,
            chance: total
                .chance
                .zip(chance)
                .map(|(total, one)| total + weight * one),
        };
        losses.into_iter().fold(none, add)
    }
}

/// Something to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step is done.
    Step(&'a StepLine),
    /// A step goes on that takes a while: told as it begins, and every now and then.
    InStep(&'a StepProgress),
    /// After the first batch and after each epoch.
    Memory(MemoryUse),
    /// An evaluation goes on.
    Evaluating {
        /// Which samples.
        on: Subset,
        /// Samples (and texts) done.
        done: usize,
        /// Total number of them.
        total: usize,
    },
    /// An evaluation is done.
    Evaluated {
        /// What was found.
        line: &'a EvaluationLine,
        /// The best so far.
        is_best: bool,
    },
    /// A picture was left out.
    Skipped {
        /// Which, and why.
        line: &'a SkippedLine,
        /// How many so far.
        total: usize,
    },
    /// Something that the user should know of the run's memory; each is told once, and a run inside its plan has none.
    Notice(&'a str),
    /// An epoch is done.
    Epoch(&'a EpochReport),
    /// A checkpoint is on disk.
    Saved {
        /// After this step.
        step: u64,
        /// Whether someone asked for it; else it was due.
        is_asked: bool,
    },
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// All steps, or as many as improved it.
    Finished(Box<Summary>),
    /// All steps, and the first process of the run tells how it went.
    FinishedByFirst,
    /// An earlier process had finished it.
    NothingToDo,
    /// The user stopped it; its state is saved.
    Interrupted {
        /// Steps done.
        step: u64,
        /// Total number of steps.
        total: u64,
    },
}

/// `summary.json`: keys that others rely on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Where it ran.
    pub device: &'static str,
    /// Samples per step.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Number format.
    pub precision: &'static str,
    /// What was recomputed.
    pub recompute: String,
    /// Epochs done.
    pub epochs: f64,
    /// Optimizer steps done.
    pub steps: u64,
    /// Whether it stopped improving before its end.
    pub stopped_early: bool,
    /// Of this process, evaluation included.
    pub seconds: f64,
    /// While training.
    pub samples_per_s: f64,
    /// Share of the training time.
    pub waited_for_data: f64,
    /// How pictures were read, by this process.
    pub reading: ReadingReport,
    /// Where there are several processes, how it was for each in the last epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<ProcessesOfRun>,
    /// Pictures that were left out; `skipped.csv` names them.
    pub skipped: usize,
    /// What the user allows.
    pub budget_bytes: Option<u64>,
    /// The plan's promise for the process.
    pub planned_bytes: u64,
    /// The most that was resident, as the system counts it.
    pub process_bytes: Option<u64>,
    /// The plan's arena.
    pub planned_arena_bytes: u64,
    /// The arena as reserved.
    pub arena_bytes: u64,
    /// Where the weights came from.
    pub weights: String,
    /// Numbers of the model.
    pub parameters: u64,
    /// Those that were trained: `train: freeze` leaves others out.
    pub trained_parameters: u64,
    /// The best evaluation, whose model is in `model/`.
    pub best: Option<Best>,
    /// The last evaluation, part by part.
    pub metrics: Vec<SummaryMetrics>,
    /// The last evaluation of its first part, for people.
    #[serde(skip)]
    pub found: Option<String>,
    /// What is in `model/`.
    pub model: Option<ModelOfRun>,
    /// Checksum of the checkpoint that this belongs to.
    pub checkpoint: Option<String>,
}

/// The model that a run leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelOfRun {
    /// After which step.
    pub step: u64,
    /// Of its `holdall.json`, which has those of its files.
    pub checksum: String,
}

/// The last scores on one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryMetrics {
    /// Which samples.
    pub on: Subset,
    /// After which step.
    pub step: u64,
    /// What was found.
    #[serde(flatten)]
    pub scores: Scores,
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
