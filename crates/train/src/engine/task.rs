//! The engine's interface to a task: model, batch, losses, evaluation and export.
//!
//! The loop, the planner, checkpoints, `verify` and the plan race know no task. They use this interface, and everything that a task brings
//! is data: losses by name, endpoints by name, forward programs by name, scores as fields.
//!
//! ```text
//! write_forward          the model for one micro-batch, and the separable losses
//! write_coupled_losses   the losses over the features of the whole effective batch
//! write_programs         forward programs beside the step, for evaluation and prediction
//! fill_batch             images from the loader -> columns for the endpoints
//! evaluate               forward programs over samples -> scores
//! save                   weights and the files beside them -> a folder
//! ```

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::loader::{Loaded, Loader, RowFormat, Skipped};
use holdall_data::samples::Samples;
use holdall_device::{Device, HostRow};
use holdall_graph::Graph;
use holdall_metrics::retrieval::{Found, Ties};

use crate::config::Subset;
use crate::engine::batch::{Batch, MicroBatch};
use crate::engine::forward::Forward;
use crate::engine::scores::{Direction, LOSS, Scores};
use crate::engine::step::Step;
use crate::engine::step_graph::StepWriter;
use crate::error::TrainError;

/// One loss of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// Key of the loss in `metrics.jsonl`, beside `NAME_chance`.
    pub name: String,
    /// Weight in the sum of all losses.
    pub weight: f64,
    /// Loss of random guessing.
    pub chance: Chance,
}

/// Loss of a model that guesses at random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Chance {
    /// The logarithm of the number of samples in the step.
    LogSamples,
    /// The logarithm of the number of classes.
    Log(usize),
    /// A constant.
    Value(f64),
    /// Not known.
    Unknown,
}

impl Chance {
    /// Value for a step of this many samples.
    pub fn of(self, samples: usize) -> Option<f64> {
        match self {
            Chance::LogSamples => Some((samples as f64).ln()),
            Chance::Log(classes) => Some((classes as f64).ln()),
            Chance::Value(value) => Some(value),
            Chance::Unknown => None,
        }
    }
}

/// Fills a parameter by its name.
pub type FillWeights<'a> = Box<dyn FnMut(&str, &mut [f32]) -> Result<(), TrainError> + 'a>;

/// A training task: model, batch, losses and evaluation.
pub trait Task: Send + Sync {
    /// Value of `task:` in a config.
    fn name(&self) -> &'static str;

    /// Every loss, in the order of the sums.
    fn losses(&self) -> Vec<Loss>;

    /// Writes the forward pass of one micro-batch and the separable losses.
    fn write_forward(&self, step: &mut StepWriter<'_>);

    /// Writes the losses over the features that [`StepWriter::leave`] stored for the whole effective batch.
    fn write_coupled_losses(&self, _step: &mut StepWriter<'_>) {}

    /// Writes the forward programs for `batch` samples at a time; they may share the step's endpoints where the size is the same.
    fn write_programs(&self, graph: &mut Graph, batch: usize);

    fn parameter_names(&self) -> Vec<String>;

    /// Parameters without pretrained weights: heads, and layers that the model folder lacks. They are trained in full where
    /// the other parameters have low-rank adapters.
    fn new_parameters(&self) -> Vec<String> {
        Vec::new()
    }

    /// Modules among [`Task::new_parameters`] that belong to the model as other frameworks load it.
    fn heads_of_model(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Text that covers everything the time of a step depends on, and nothing else; measured times are cached under it.
    fn timing_key(&self) -> String;

    /// Initialises parameters: from the pretrained weights, or at random.
    fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError>;

    /// Whether the model begins from random weights alone.
    fn has_random_weights(&self) -> bool;

    /// Description of the weights' origin, for the log.
    fn describe_weights(&self) -> String;

    /// Drawback of a smaller effective batch, appended to a message.
    fn smaller_batch_note(&self) -> &'static str {
        ""
    }

    /// The same task as one pass of plain autodiff; `verify` compares with it.
    fn as_reference(&self) -> Arc<dyn Task>;

    /// The same task with other picture sizes, each with a label, so that users can weigh size against memory.
    fn variants_by_image_size(&self) -> Vec<(String, Arc<dyn Task>)> {
        Vec::new()
    }

    /// Bytes of a picture as the loader delivers it.
    fn picture_bytes(&self) -> usize;

    /// Whether rows are computed once, before the first step, and read from disk from then on.
    fn stores_rows(&self) -> bool {
        false
    }

    /// Computes the stored rows that are still missing and returns their format; `None` if interrupted.
    fn store_rows(&self, _storing: Storing<'_>) -> Result<Option<RowFormat>, TrainError> {
        unreachable!("the task stores no rows")
    }

    /// Host memory of a batch in bytes beside the loader's rows; includes rows that the batch copies.
    fn batch_bytes(&self, num_samples: usize) -> u64;

    /// Fills `batch` from pictures as the loader delivered them in this epoch.
    fn fill_batch(&self, batch: &mut Batch, loaded: &Loaded<HostRow>, epoch: u64);

    /// Random samples: for benchmarks and certificates.
    fn random_batch(&self, num_samples: usize, seed: u64) -> Batch;

    /// Inputs of a micro-batch that are computed from its other inputs, padding included.
    fn derived_inputs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Fills one of [`Task::derived_inputs`]; in a step over shorter texts, for their length.
    fn derive(&self, name: &str, _micro: &MicroBatch<'_>, _to: &mut [i64]) {
        unreachable!("no input {name} is derived")
    }

    /// Inputs of floats that are computed from a micro-batch's other inputs.
    fn derived_numbers(&self) -> &'static [&'static str] {
        &[]
    }

    /// Fills one of [`Task::derived_numbers`]; in a step over shorter texts, for their length.
    fn derive_numbers(&self, name: &str, _micro: &MicroBatch<'_>, _to: &mut [f32]) {
        unreachable!("no input {name} is derived")
    }

    /// Text lengths that steps are written for ([`StepWriter::length`]), ascending; the last is the full length. Empty if all
    /// texts have one length.
    fn lengths(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The longest text of a micro-batch, padding left out. Columns of texts have the full length; a shorter step gets their beginnings.
    fn longest_text(&self, _micro: &MicroBatch<'_>) -> usize {
        usize::MAX
    }

    /// Fills columns of the whole effective batch that are computed from the columns of all processes: `columns` holds those,
    /// with a row for each sample of all processes, padding included.
    fn fill_whole_batch_columns(&self, _columns: &mut Batch) {}

    /// Sets the divisor of each loss's sum.
    fn count_losses(&self, batch: &Batch, counts: &mut [f64]);

    /// Adds everything that decides which samples a run sees to the data digest.
    fn add_to_digest(&self, samples: &Samples, add: &mut dyn FnMut(&[u8]));

    /// Whether evaluation reads pictures without the loader; [`Task::evaluation_bytes`] includes their memory then.
    fn reads_its_own_pictures(&self) -> bool {
        false
    }

    /// Largest batch of a forward program where the user does not set one.
    fn max_forward_batch(&self) -> usize {
        usize::MAX
    }

    /// Host memory of an evaluation of `samples`, in bytes.
    fn evaluation_bytes(&self, subset: Subset, samples: &Samples, threads: usize) -> u64;

    /// Evaluates the model on samples.
    fn evaluate(&self, evaluation: Evaluation<'_>) -> Result<Evaluated, Unfinished>;

    /// The value of a metric; `None` if the task has none of that name.
    fn metric(&self, scores: &Scores, name: &str) -> Option<f64>;

    /// Name and direction of the task's metric for selecting the best model: `asked` if it is one, otherwise the default.
    fn best_metric(&self, asked: Option<&str>) -> Result<(String, Direction), TrainError>;

    /// Size of the evaluation in words; printed once.
    fn describe_size(&self, _scores: &Scores) -> Option<String> {
        None
    }

    /// Scores in words, a line each.
    fn describe_scores(&self, scores: &Scores) -> String;

    /// Bytes that [`Task::save`] writes beside the weights: parts of the model in folders of their own.
    fn part_bytes(&self) -> u64 {
        0
    }

    /// Writes everything that is needed to use the model into an existing folder.
    fn save(&self, step: &Step, folder: &Path) -> Result<(), TrainError>;
}

/// Metric and direction that select the best model: `loss`, or a metric of the task.
pub fn best_metric(
    task: &dyn Task,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    match asked {
        Some(LOSS) => Ok((LOSS.to_owned(), Direction::Lower)),
        asked => task.best_metric(asked),
    }
}

/// Inputs of [`Task::store_rows`].
pub struct Storing<'a> {
    /// Device that runs the programs.
    pub device: &'a Device,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Interrupts the work; rows that are done stay on disk.
    pub stop: &'a AtomicBool,
    /// Receives messages for the user.
    pub tell: &'a mut dyn FnMut(&str),
}

/// Inputs of [`Task::evaluate`].
pub struct Evaluation<'a> {
    /// Device that runs the programs.
    pub device: &'a Device,
    /// The forward programs.
    pub forward: Forward<'a>,
    /// The loader.
    pub pictures: &'a mut Loader<HostRow>,
    /// Which subset `samples` is.
    pub subset: Subset,
    /// The samples.
    pub samples: &'a Arc<Samples>,
    /// Optimizer steps done, if example predictions are wanted.
    pub step: Option<u64>,
    /// Samples of a training step, if losses are wanted: contrastive losses are computed over as many samples.
    pub effective_batch: Option<usize>,
    /// Interrupts waiting for a picture.
    pub stop: &'a AtomicBool,
    /// Whether to continue.
    pub is_wanted: &'a (dyn Fn() -> bool + Sync),
    /// Receives progress: done and total.
    pub tell: &'a mut dyn FnMut(usize, usize),
}

/// Result of an evaluation.
pub struct Evaluated {
    /// Losses and metrics.
    pub scores: Scores,
    /// Samples that could not be read.
    pub skipped: Vec<Skipped>,
    /// Files with example predictions to write into the run's folder: name and contents.
    pub files: Vec<(&'static str, String)>,
    /// Ranks, for tasks with retrieval; in the first process only.
    pub ranks: Option<SampleRanks>,
}

/// The rank of each sample's text among all texts, and of the sample among all samples.
pub struct SampleRanks {
    /// Readable samples, in ascending order.
    samples: Vec<u32>,
    /// Text id of each sample.
    text_of: Vec<u32>,
    found: Found,
}

impl SampleRanks {
    pub(crate) fn new(samples: Vec<u32>, text_of: Vec<u32>, found: Found) -> SampleRanks {
        SampleRanks {
            samples,
            text_of,
            found,
        }
    }

    /// Each sample with two ranks: of its text among all texts, and of the best sample with that text among all samples. Ties
    /// count half.
    pub fn rows(&self) -> impl Iterator<Item = (u32, [f64; 2])> {
        let to_sample = &self.found.to_query.entries;
        let own = self.samples.iter().zip(&self.found.to_gallery.entries);
        own.zip(&self.text_of).map(|((&sample, entry), &text)| {
            let at = to_sample.partition_point(|entry| entry.item < text);
            let ranks = [entry, &to_sample[at]].map(|entry| entry.rank(Ties::Mean));
            (sample, ranks)
        })
    }
}

/// Names that [`Evaluated::files`] may contain; those of the best model are kept.
pub const BEST_FILES: [&str; 5] = [
    "samples.json",
    "confusion.json",
    "segmentation.json",
    "captions.json",
    "predictions.csv",
];

/// Reason why an evaluation has no result.
#[derive(Debug)]
pub enum Unfinished {
    /// Interrupted by the caller.
    Stopped,
    /// Features or outputs are infinite or not a number; the text names them.
    NotFinite(String),
    /// Any other error.
    Failed(Box<TrainError>),
}

impl Unfinished {
    /// The error outside of a run, where nothing interrupts an evaluation.
    pub fn into_error(self) -> TrainError {
        match self {
            Unfinished::Stopped => TrainError::Run("the evaluation was stopped".to_owned()),
            Unfinished::NotFinite(found) => TrainError::Run(format!(
                "{found}\nhint: the model may come from a run that diverged; use a checkpoint from before"
            )),
            Unfinished::Failed(error) => *error,
        }
    }
}

impl<E: Into<TrainError>> From<E> for Unfinished {
    fn from(error: E) -> Unfinished {
        Unfinished::Failed(Box::new(error.into()))
    }
}

/// Error for an empty set of samples.
pub fn nothing_readable(samples: &Samples, skipped: &[Skipped]) -> TrainError {
    let first = skipped.first().map(|first| {
        let row = samples.row(first.sample as usize);
        (row, first.error.to_string())
    });
    let first = first.as_ref().map(|(row, error)| (*row, error.as_str()));
    nothing_of(samples.len(), first)
}

/// Error if none of the images could be read; `first` is row and cause of the first.
pub(crate) fn nothing_of(num_pictures: usize, first: Option<(u32, &str)>) -> TrainError {
    let first = first.map_or(String::new(), |(row, error)| {
        format!("; the first, of row {row}: {error}")
    });
    // The error of an image has its own hint.
    let hint = if first.is_empty() {
        "\nhint: `holdall data check` says what is wrong with them"
    } else {
        ""
    };
    TrainError::Config(format!(
        "none of {num_pictures} pictures could be read{first}{hint}"
    ))
}
