//! Opens a trained model for use: finds its folder, and plans its forward programs with memory for the pictures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use holdall_data::Side;
use holdall_data::config::DataConfig;
use holdall_data::loader::RowFormat;
use holdall_data::samples::Samples;
use holdall_device::Device;
use holdall_models::clip::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use holdall_models::hub_cache;
use holdall_models::unet::config::UnetConfig;
use holdall_models::video_text::config::VideoTextConfig;
use holdall_models::vit::config::VisionTransformerConfig;

use crate::config::RunConfig;
use crate::config::shell_words::quoted;
use crate::engine::forward::ForwardModel;
use crate::engine::task::Task;
use crate::error::TrainError;
use crate::planning::picture_costs::{self, PictureCosts, READING_BYTES};
use crate::planning::site::Site;
use crate::run_folder::checkpoint::best_so_far;

/// A saved model with its preprocessing and label files.
pub trait SavedModel {
    /// Folder of the weights.
    fn path(&self) -> &Path;

    /// Description of the preprocessing, for the log.
    fn describe_pictures(&self) -> String;

    /// Row format for data that is read with these settings.
    fn rows(&self, data: &DataConfig) -> RowFormat;

    /// Reads the samples to evaluate from the data of a config. With several processes, the first one lists the files.
    fn read(
        &self,
        config: &RunConfig,
        site: Site<'_>,
        evaluated: Evaluated,
    ) -> Result<EvaluationData, TrainError>;

    /// Error for rows of this format that do not fit beside `host_bytes`.
    fn refusal(
        &self,
        _device: &Device,
        _rows: &RowFormat,
        _host_bytes: u64,
        error: TrainError,
    ) -> TrainError {
        error
    }

    /// Passes the file contents that a run of this task was trained on to `each`, one by one.
    fn visit_trained_files(
        &self,
        run: &RunConfig,
        visit: &mut dyn FnMut(&Path),
    ) -> Result<(), TrainError>;

    /// Fills in the config's targets from the model's outputs, where the config does not name them: columns are matched by name.
    fn describe_data(&self, config: &mut RunConfig) -> Result<(), TrainError>;
}

/// Message if validation rows are wanted and the run has none.
pub const HELD_NOTHING_OUT: &str =
    "The run held nothing out: these are the pictures it was trained on";

/// Samples that are evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluated {
    /// Samples of this side of the split.
    Side(Side),
    /// All samples of a given file, which was read with [`holdall_data::config::Validation::Unsplit`], or its sides are in one list.
    All,
}

impl Evaluated {
    /// The side whose labels are read.
    pub(crate) fn side(self) -> Side {
        match self {
            Evaluated::Side(side) => side,
            Evaluated::All => Side::Train,
        }
    }

    /// The selected samples; adds a note if the run has no validation samples.
    pub(crate) fn choose(
        self,
        csv: &Path,
        train: Samples,
        validation: Option<Samples>,
        test: Option<Samples>,
        notes: &mut Vec<String>,
    ) -> Result<Samples, TrainError> {
        match (self, validation, test) {
            (Evaluated::Side(Side::Validation), Some(validation), _) => Ok(validation),
            (Evaluated::Side(Side::Validation), None, _) => {
                notes.push(HELD_NOTHING_OUT.to_owned());
                Ok(train)
            }
            (Evaluated::Side(Side::Test), _, Some(test)) => Ok(test),
            (Evaluated::Side(Side::Test), _, None) => Err(TrainError::Config(format!(
                "{}: expected test rows for --part test, found none\n\
                 hint: a column such as `split` marks them with `test`, or a folder is named so; without --part, `holdall eval RUN DATA` \
                 evaluates every row of DATA",
                csv.display()
            ))),
            (Evaluated::Side(Side::Train) | Evaluated::All, ..) => Ok(train),
        }
    }
}

/// Samples to evaluate, and the task that evaluates them.
pub struct EvaluationData {
    /// The task; its [`crate::config::Subset::Train`] is these samples.
    pub task: Arc<dyn Task>,
    /// Samples to evaluate.
    pub samples: Arc<Samples>,
    /// File that lists the samples.
    pub csv: PathBuf,
    /// Messages for the log.
    pub notes: Vec<String>,
    /// Row format of the loader.
    pub rows: RowFormat,
}

/// The model of a run: the finished one, or the best so far.
pub fn model_of(path: &Path) -> Option<PathBuf> {
    let is_model = |folder: &PathBuf| folder.join("config.json").is_file();
    let finished = Some(path.join("model")).filter(is_model);
    finished.or_else(|| best_so_far(path).filter(is_model))
}

/// The model of a run folder, or the name unchanged.
pub fn resolve(name: &str) -> Result<PathBuf, TrainError> {
    let path = Path::new(name);
    let named = model_of(path).unwrap_or(path.to_owned());
    if named == path && path.join("config.yml").is_file() {
        return Err(TrainError::Config(format!(
            "{name}: expected a model, found a run that has saved none yet\n\
             hint: holdall train --resume --out {} continues it",
            quoted(path)
        )));
    }
    let is_preset = ClipConfig::preset(name).is_some()
        || VisionTransformerConfig::preset(name).is_some()
        || UnetConfig::preset(name).is_some()
        || VideoTextConfig::preset(name).is_some();
    if !is_preset && !named.exists() && hub_cache::find(name).is_none() {
        return Err(nothing_there(name));
    }
    Ok(named)
}

/// Default folder of runs.
const RUNS: &str = "runs";

/// Text that names the runs beside a wrong path, or in the default folder: `there are runs/a, runs/b`; `None` if there are
/// none.
fn hint_at_runs(name: &str) -> Option<String> {
    /// Maximum number of runs in a hint.
    const MOST_RUNS: usize = 4;
    let runs_in = |folder: &Path| -> Vec<PathBuf> {
        let read = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let entries = std::fs::read_dir(read).into_iter().flatten().flatten();
        let mut runs: Vec<PathBuf> = entries
            .map(|entry| folder.join(entry.file_name()))
            .filter(|path| model_of(path).is_some())
            .collect();
        runs.sort();
        runs
    };
    let mut runs = runs_in(Path::new(name).parent().unwrap_or(Path::new("")));
    // A name with a slash is a path or a name on the hub.
    if runs.is_empty() && !name.contains('/') {
        runs = runs_in(Path::new(RUNS));
    }
    let shown: Vec<String> = runs
        .iter()
        .take(MOST_RUNS)
        .map(|path| quoted(path))
        .collect();
    let shown = shown.join(", ");
    match runs.len() {
        0 => None,
        1 => Some(format!("there is {shown}")),
        2..=MOST_RUNS => Some(format!("there are {shown}")),
        count => Some(format!("there are {shown} and {} more", count - MOST_RUNS)),
    }
}

/// Error for a name that is neither a path nor a model, with the available runs.
fn nothing_there(name: &str) -> TrainError {
    let hint = hint_at_runs(name).unwrap_or_else(|| match hub_cache::command_for(name) {
        Some(command) => format!("check the path; {command} downloads a model of the hub"),
        None => TRAINED.to_owned(),
    });
    TrainError::Config(format!(
        "{name}: expected the folder of a run or of a model, found nothing there\nhint: {hint}"
    ))
}

/// Description of a trained model, for hints.
const TRAINED: &str = "a folder that `holdall train` or transformers wrote";

/// Opens the weights of a model folder, of the folder of a run, or of a name in the local Hugging Face cache.
pub fn open_folder(name: &str) -> Result<ModelFolder, TrainError> {
    let path = resolve(name)?;
    let path = if path.exists() {
        path
    } else {
        hub_cache::find(name).ok_or_else(|| not_trained(name))?
    };
    let folder = ModelFolder::open(&path)?;
    folder.check()?;
    Ok(folder)
}

/// Error for a preset, which has random weights: there is nothing to evaluate.
pub(crate) fn not_trained(name: &str) -> TrainError {
    let hint = hint_at_runs(name).unwrap_or_else(|| match hub_cache::command_for(name) {
        Some(command) => format!("{command} downloads its pretrained weights"),
        None => TRAINED.to_owned(),
    });
    TrainError::Config(format!(
        "{name}: expected a trained model, found a preset, which has random weights\nhint: {hint}"
    ))
}

/// A model that is ready to run on pictures.
pub struct Opened {
    /// Its forward programs.
    pub model: ForwardModel,
    /// Memory for decoding pictures, beside the model.
    pub decode_bytes: u64,
    /// A message that names skipped pictures, if there are any.
    pub note: Option<String>,
}

/// Pictures to run a model on, and the limits for that.
pub struct Pictures<'a> {
    /// The pictures.
    pub samples: &'a Arc<Samples>,
    /// Row format of the loader.
    pub rows: RowFormat,
    /// Policy for pictures that do not fit.
    pub policy: &'a DataConfig,
    /// Batch size, if the user sets one.
    pub batch: Option<usize>,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Host memory in use beside the model, without decoding.
    pub host_bytes: u64,
}

/// Heap that stays with a thread after decoding: freed buffers below the allocator's page threshold are not returned. A
/// training run reads its first batch before it plans, so its measurement includes this memory; here nothing has been read
/// yet. Measured as 140 KiB for clips with 1 to 16 threads.
const READER_BYTES: u64 = 160 << 10;

/// Reads the headers of all pictures and plans the forward programs with memory to decode them; `None` if `stop` is set.
pub fn open(
    device: &Device,
    task: &dyn Task,
    pictures: &Pictures<'_>,
    stop: &AtomicBool,
) -> Result<Option<Opened>, TrainError> {
    if task.reads_its_own_pictures() {
        let host_bytes = pictures.host_bytes + READING_BYTES;
        let (batch, budget) = (pictures.batch, pictures.budget_bytes);
        let mut model = ForwardModel::new(device, task, batch, budget, host_bytes)?;
        model.set_weights(device, task.weights(0)?)?;
        return Ok(Some(Opened {
            model,
            decode_bytes: 0,
            note: None,
        }));
    }
    let lists = [pictures.samples];
    let Some(mut costs) = PictureCosts::read(device, &lists, pictures.rows.clone(), stop) else {
        return Ok(None);
    };
    let workers = device.cpu().num_threads();
    let planned = |host_bytes: u64| -> Result<ForwardModel, TrainError> {
        let (batch, budget) = (pictures.batch, pictures.budget_bytes);
        let host_bytes = host_bytes + READING_BYTES + workers as u64 * READER_BYTES;
        let mut model = ForwardModel::new(device, task, batch, budget, host_bytes)?;
        model.set_weights(device, task.weights(0)?)?;
        Ok(model)
    };
    if device.is_gpu() {
        // The GPU's budget does not bound the host: decoding gets as much as with an automatic `host_memory`.
        let free = holdall_device::cpu::available_bytes().unwrap_or(u64::MAX);
        let decode_bytes = costs.together_bytes(workers).min(free / 4);
        return Ok(Some(Opened {
            model: planned(pictures.host_bytes)?,
            decode_bytes,
            note: None,
        }));
    }
    let (mut model, least, refused) = costs.plan(pictures.policy, |decode_bytes| {
        planned(pictures.host_bytes + decode_bytes)
    })?;
    let process_bytes = model.plan().process_bytes;
    let budget = pictures.budget_bytes;
    let decode_bytes = picture_costs::share(&costs, workers, least, process_bytes, budget);
    model.hold_more(decode_bytes - least);
    Ok(Some(Opened {
        model,
        decode_bytes,
        note: picture_costs::describe(&refused),
    }))
}
