//! A run's state between two steps: what must be known to go on as if nothing had happened.
//!
//! Checkpoints lie between optimizer steps, so an accumulation window is always complete: its position is the step.
//! The data of a step is a function of (seed, epoch, sample), so a place in the order is all that data needs. The split of the
//! batch travels along, because sums over micro-batches round in its order.
//!
//! ```text
//! checkpoints/last.safetensors         the newest; a checksum for each tensor and one for all the rest
//! checkpoints/previous.safetensors     the one before, for the case that the newest is damaged
//! checkpoints/best-000123/             a model folder for each best evaluation that one of the two names
//! ```
//!
//! Files come first, the checkpoint that refers to them after: what a checkpoint names is there and on disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use holdall_device::Device;
use holdall_files::{Checksum, remove_folder};
use holdall_models::ModelError;
use holdall_models::folder::{CHECKSUMS_FILE, NamedTensor, Values};
use holdall_models::state_file::{StateFile, write_state};
use serde::{Deserialize, Serialize};

use crate::config::Subset;
use crate::engine::scaler::LossScaler;
use crate::engine::scores::Scores;
use crate::engine::step::{ElementsMut, StateTensor, Step};
use crate::error::{TrainError, without_hint};
use crate::run_folder::appended_file::Prefix;
use crate::run_folder::epoch_losses::EpochLosses;
use crate::run_folder::folder::{RunFolder, failed};

/// Next action of a resumed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Next {
    /// The next optimizer step.
    Step,
    /// An evaluation that was due when the run was interrupted.
    Evaluate,
}

/// The last scores on one subset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryMetrics {
    /// Evaluated subset.
    pub on: Subset,
    /// Optimizer step of the evaluation.
    pub step: u64,
    /// Losses and metrics.
    #[serde(flatten)]
    pub scores: Scores,
}

/// The best evaluation so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub metric: String,
    pub value: f64,
    /// Optimizer step of the evaluation.
    pub step: u64,
    /// Folder name of its model inside `checkpoints`.
    pub folder: String,
    /// Checksum of that folder's `holdall.json`; `None` in processes that write no files.
    pub checksum: Option<String>,
}

/// Time spent by a run, over all processes that worked on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    pub samples: u64,
    pub micro_batches: u64,
    /// Seconds that steps waited for data.
    pub waited: f64,
    /// Seconds that steps computed.
    pub computed: f64,
    /// All seconds, evaluation and saving included.
    pub all: f64,
}

impl Clock {
    /// Samples per second of training time.
    pub fn samples_per_s(&self) -> f64 {
        self.samples as f64 / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }

    /// Micro-batches per second of training time.
    pub fn batches_per_s(&self) -> f64 {
        self.micro_batches as f64 / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }

    /// Share of the training time that went into waiting for data.
    pub fn waiting(&self) -> f64 {
        self.waited / (self.waited + self.computed).max(f64::MIN_POSITIVE)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitOfBatch {
    /// Samples per step, over all processes.
    pub effective_batch: usize,
    /// Samples per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub gradient_accumulation: usize,
    /// Micro-batches that keep their activations.
    pub kept_micro_batches: usize,
    /// Processes that share a step; the two counts before are of each.
    pub processes: usize,
}

/// The state of a run, apart from its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// Version of this structure.
    pub format: u32,
    /// Optimizer steps done: the position in the data as well.
    pub step: u64,
    /// Action to resume with.
    pub next: Next,
    /// Loss scale and its history.
    pub scaler: LossScaler,
    /// The best evaluation.
    pub best: Option<Best>,
    /// Evaluations without improvement since the best one.
    pub without_improvement: usize,
    /// The last scores of each subset, for the summary.
    pub last_scores: Vec<SummaryMetrics>,
    /// Losses of the current epoch's steps.
    #[serde(default, skip_serializing_if = "EpochLosses::is_empty")]
    pub epoch_losses: EpochLosses,
    /// Length and checksum of `metrics.jsonl` at this state.
    pub journal: Prefix,
    /// Length and checksum of `skipped.csv` at this state.
    pub skipped: Prefix,
    pub clock: Clock,
    pub split: SplitOfBatch,
    /// Hash of the training and evaluation samples, in hexadecimal. A run with other data cannot resume from this checkpoint.
    pub data_digest: String,
    /// Algorithms chosen by the device, in its own notation. Others would round differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<String>,
    /// Checksum of the initial weights, if the run needs them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_weights: Option<String>,
}

/// Version of [`RunState`].
pub const FORMAT: u32 = 3;

impl RunState {
    /// The state before the first step.
    pub fn new(scaler: LossScaler, split: SplitOfBatch, data_digest: String) -> RunState {
        RunState {
            format: FORMAT,
            step: 0,
            next: Next::Step,
            scaler,
            best: None,
            without_improvement: 0,
            last_scores: Vec::new(),
            epoch_losses: EpochLosses::default(),
            journal: Prefix::default(),
            skipped: Prefix::default(),
            clock: Clock::default(),
            split,
            data_digest,
            algorithms: None,
            starting_weights: None,
        }
    }
}

/// A checkpoint that was read from disk.
pub struct Checkpoint {
    path: PathBuf,
    file: StateFile,
    /// The run's state.
    pub state: RunState,
    /// Messages about the resumption, for the user.
    pub notes: Vec<String>,
    /// The files on disk that are still valid.
    checkpoints: Checkpoints,
}

/// Why a checkpoint is not used.
enum Unusable {
    /// The checkpoint, or a file that it refers to, is corrupt: use the previous one.
    Damaged(String),
    /// The checkpoint may be valid, but the user has to decide.
    Refused(Box<TrainError>),
}

impl Checkpoint {
    /// Opens the newest intact checkpoint of a run, and checks all files that it refers to; `None` if the run has no
    /// checkpoint.
    pub fn newest(run: &RunFolder) -> Result<Option<Checkpoint>, TrainError> {
        let mut found: Vec<String> = Vec::new();
        for path in [run.last(), run.previous()] {
            if !path.try_exists().map_err(failed(&path, "found"))? {
                continue;
            }
            match Checkpoint::open(&path, run) {
                Ok(mut checkpoint) => {
                    let is_last = path == run.last();
                    if !is_last && found.is_empty() {
                        // A process killed between two renames leaves only `previous`.
                        found.push(format!("{} is not there", run.last().display()));
                    }
                    let notes = found.iter().map(|found| {
                        format!(
                            "Warning: {found}\nGoing on from {}, step {}",
                            path.display(),
                            checkpoint.state.step
                        )
                    });
                    checkpoint.notes.splice(0..0, notes);
                    let checkpoints = &mut checkpoint.checkpoints;
                    if is_last {
                        checkpoints.previous_best = best_of(&run.previous());
                    } else {
                        checkpoints.previous_best = checkpoints.last_best.take();
                        checkpoints.is_last_sound = false;
                    }
                    return Ok(Some(checkpoint));
                }
                Err(Unusable::Refused(error)) => return Err(*error),
                Err(Unusable::Damaged(why)) => found.push(why),
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        Err(TrainError::Run(format!(
            "{}\nhint: no checkpoint of the run is sound: restore the files from a backup, or begin a new run; {}",
            found.join("\n"),
            "models in checkpoints/best-* that are sound can be used: holdall eval names those that are not"
        )))
    }

    fn open(path: &Path, run: &RunFolder) -> Result<Checkpoint, Unusable> {
        let (file, mut state) = read(path)?;
        file.verify().map_err(|cause| unusable(path, cause))?;
        let mut notes = Vec::new();
        for (prefix, file) in [
            (&state.journal, run.journal()),
            (&state.skipped, run.skipped()),
        ] {
            let checked = prefix.check(&file);
            checked.map_err(|cause| Unusable::Damaged(without_hint(&cause)))?;
        }
        if let Some(best) = &state.best {
            let folder = run.checkpoints().join(&best.folder);
            if !folder.is_dir() {
                notes.push(format!(
                    "Warning: {} is not there, the best model so far: the next evaluation begins anew",
                    folder.display()
                ));
                state.best = None;
                state.without_improvement = 0;
            } else if let Some(expected) = &best.checksum {
                check_best(&folder.join(CHECKSUMS_FILE), expected)?;
            }
        }
        let checkpoints = Checkpoints {
            folder: run.checkpoints(),
            checksum: file.checksum(),
            is_last_sound: true,
            last_best: state.best.as_ref().map(|best| best.folder.clone()),
            previous_best: None,
        };
        Ok(Checkpoint {
            path: path.to_owned(),
            file,
            state,
            notes,
            checkpoints,
        })
    }

    /// Loads weights and optimizer state into a step.
    pub fn restore(&self, device: &Device, step: &mut Step) -> Result<(), TrainError> {
        step.set_weights(device, |name, values| self.file.read(name, values))
            .and_then(|()| {
                step.set_optimizer_state(|name, elements| match elements {
                    ElementsMut::F32(values) => self.file.read(name, values),
                    ElementsMut::Bf16(values) => self.file.read(name, values),
                    ElementsMut::U8(values) => self.file.read(name, values),
                })
            })
            .map_err(|cause| match cause {
                ModelError::Damaged { .. } => TrainError::Run(format!(
                    "{}\nhint: it was sound a moment ago: check the memory and the disk of this machine, then try again",
                    without_hint(&cause)
                )),
                cause => TrainError::Run(format!(
                    "{}: does not fit the model of this run: {cause}",
                    self.path.display()
                )),
            })
    }

    /// Checksum of the file in hexadecimal; processes that resume together compare it.
    pub(crate) fn checksum(&self) -> Option<String> {
        self.checkpoints.checksum()
    }

    /// The valid checkpoints on disk, for the code that writes the next ones.
    pub(crate) fn checkpoints(&self) -> Checkpoints {
        self.checkpoints.clone()
    }
}

/// The best model that the newest readable checkpoint of a run names.
pub fn best_so_far(run: &Path) -> Option<PathBuf> {
    let checkpoints = run.join("checkpoints");
    let mut names = ["last.safetensors", "previous.safetensors"].into_iter();
    let (_, state) = names.find_map(|name| read(&checkpoints.join(name)).ok())?;
    Some(checkpoints.join(state.best?.folder))
}

fn read(path: &Path) -> Result<(StateFile, RunState), Unusable> {
    let file = StateFile::open(path).map_err(|cause| unusable(path, cause))?;
    let wrong = |found: String| {
        Unusable::Refused(Box::new(TrainError::Run(format!(
            "{}: expected a checkpoint of format {FORMAT}, found {found}\n\
             hint: go on with the version of holdall that wrote it, or begin a new run",
            path.display()
        ))))
    };
    let state: RunState =
        serde_json::from_str(file.text()).map_err(|cause| wrong(cause.to_string()))?;
    if state.format != FORMAT {
        return Err(wrong(format!("format {}", state.format)));
    }
    if file.checksum().is_none() {
        let text = "its header: expected checksums, found none";
        return Err(Unusable::Damaged(format!(
            "{}: damaged: {text}",
            path.display()
        )));
    }
    Ok((file, state))
}

fn best_of(path: &Path) -> Option<String> {
    let (_, state) = read(path).ok()?;
    state.best.map(|best| best.folder)
}

fn check_best(path: &Path, expected: &str) -> Result<(), Unusable> {
    let damaged = |found: String| {
        let path = path.display();
        Unusable::Damaged(format!(
            "{path}: damaged: expected checksum {expected}, as the checkpoint says, found {found}"
        ))
    };
    match Checksum::of_file(path) {
        Ok((found, _)) if found.to_string() == expected => Ok(()),
        Ok((found, _)) => Err(damaged(found.to_string())),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Err(damaged("no file".into())),
        Err(cause) => Err(Unusable::Refused(Box::new(failed(path, "read")(cause)))),
    }
}

/// An I/O error may be temporary, so the checkpoint is refused; any other error means that it is damaged.
fn unusable(path: &Path, cause: ModelError) -> Unusable {
    match cause {
        ModelError::Io { .. } => Unusable::Refused(Box::new(TrainError::Run(format!(
            "{}\nhint: try again; if it can never be read, move it away: the run then goes on from the checkpoint before it",
            without_hint(&cause)
        )))),
        ModelError::Damaged { .. } => Unusable::Damaged(without_hint(&cause)),
        cause => {
            let text = without_hint(&cause);
            let named = format!("{}: ", path.display());
            let text = text.strip_prefix(&named).unwrap_or(&text);
            Unusable::Damaged(format!("{named}damaged: {text}"))
        }
    }
}

/// The checkpoints of a run as they lie on disk.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// Checksum of the newest checkpoint; the summary refers to it.
    checksum: Option<Checksum>,
    /// Whether `last.safetensors` is valid and may replace `previous.safetensors`.
    is_last_sound: bool,
    /// Best models that the two checkpoints refer to.
    last_best: Option<String>,
    previous_best: Option<String>,
}

impl Checkpoints {
    /// For a run without checkpoints.
    pub fn new(run: &RunFolder) -> Checkpoints {
        Checkpoints {
            folder: run.checkpoints(),
            checksum: None,
            is_last_sound: false,
            last_best: None,
            previous_best: None,
        }
    }

    /// Checksum of the newest checkpoint in hexadecimal.
    pub fn checksum(&self) -> Option<String> {
        self.checksum.map(|checksum| checksum.to_string())
    }

    /// Writes a checkpoint and keeps the one before it. If writing fails, the checkpoints on disk stay as they were.
    pub fn save(&mut self, state: &RunState, step: &Step) -> Result<(), TrainError> {
        assert!(!step.is_averaged(), "training goes on from the weights");
        let mut tensors: Vec<NamedTensor<StateTensor<'_>>> = Vec::new();
        for parameter in step.parameters() {
            let values = StateTensor::Here(step.stored_weight(parameter));
            tensors.push((parameter.name.clone(), vec![values.num_values()], values));
        }
        for (name, values) in step.whole_optimizer_state() {
            tensors.push((name, vec![values.num_values()], values));
        }
        let text = serde_json::to_string(state).expect("a state is plain data");
        let [last, previous] =
            ["last", "previous"].map(|name| self.folder.join(format!("{name}.safetensors")));
        let keeps_last = self.is_last_sound && last.exists();
        let written = write_state(&last, &text, &tensors, || {
            if keeps_last {
                holdall_files::rename(&last, &previous)
            } else {
                Ok(())
            }
        });
        step.release_state();
        let checksum = written.map_err(|cause| {
            if keeps_last && !last.exists() {
                // If this fails too, the run resumes from `previous`.
                let _ = holdall_files::rename(&previous, &last);
            }
            let before = if keeps_last {
                "the checkpoint before it is untouched: free some space, then go on with --resume"
            } else {
                "free some space, then go on with --resume"
            };
            TrainError::Run(format!(
                "checkpoint of step {}: {}\nhint: {before}",
                state.step,
                without_hint(&cause)
            ))
        })?;
        if keeps_last {
            self.previous_best = self.last_best.take();
        }
        self.last_best = state.best.as_ref().map(|best| best.folder.clone());
        self.is_last_sound = true;
        self.checksum = Some(checksum);
        self.remove_unnamed_bests();
        Ok(())
    }

    /// Removes best models that no checkpoint names any more. A folder that cannot be removed is tried again after the next
    /// checkpoint.
    fn remove_unnamed_bests(&self) {
        let named = [self.last_best.as_deref(), self.previous_best.as_deref()];
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_best = name == "best" || name.starts_with("best-");
            if is_best && !named.contains(&Some(&*name)) {
                let _ = remove_folder(&entry.path());
            }
        }
    }
}
