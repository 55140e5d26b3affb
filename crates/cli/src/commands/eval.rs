//! `holdall eval`: evaluates a trained model on data.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::Side;
use holdall_data::check::{CompareBy, MOST_BYTES, MOST_DECODE_BYTES, Overlap, OverlapSearch};
use holdall_data::config::Validation;
use holdall_data::samples::Samples;
use holdall_data::table::find;
use holdall_files::{counted, resident_bytes, show_bytes, thousands, write_whole_by};
use holdall_processes::Group;
use holdall_train::TrainError;
use holdall_train::config::{RunConfig, Subset, TaskName};
use holdall_train::engine::scores::Scores;
use holdall_train::engine::task::{Evaluation, SampleRanks, Unfinished};
use holdall_train::export::saved_inputs::{self, Reader};
use holdall_train::export::saved_model::{
    self, Evaluated, EvaluationData, HELD_NOTHING_OUT, Pictures, ReadyModel, SavedModel,
};
use holdall_train::planning::loader_budget::Reading;
use holdall_train::planning::plan_together::{agree_on_samples, agree_on_weights};
use holdall_train::planning::processes::skipped_by_all;
use holdall_train::planning::setup::{limit_reading, note_on_budget, resolve_budget, room_to_open};
use holdall_train::planning::site::Site;
use holdall_train::run_folder::skipped::{SkippedPicture, refused};
use holdall_train::tasks::Saved;
use serde::Serialize;
use serde_json::json;

use crate::commands::open_device_in;
use crate::commands::plan::fitting;
use crate::invocation::quoted;
use crate::options::{
    ComputeOptions, InferenceOptions, OutputOptions, OverwriteOption, ProcessOptions, TileOptions,
    files_of_model,
};
use crate::processes::{self, Begun};
use crate::screen::{packed, print_json, print_wrapped, progress, tell};
use crate::stop;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall eval runs/cars\n  holdall eval runs/cars test.csv --json\n  holdall eval runs/cars --part test\n  holdall eval runs/vessels FIVES/test --tiles 1024 --mirror"
)]
pub struct EvalArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// A CSV, every row of which is evaluated, or a folder; without it, what the run held out
    #[arg(value_name = "DATA")]
    pub data: Option<String>,
    /// Side of the split that is evaluated [default: validation of a run; all rows of DATA]
    #[arg(long, value_name = "SIDE")]
    pub part: Option<PartArgument>,
    #[command(flatten)]
    pub tiling: TileOptions,
    #[command(flatten)]
    pub inference: InferenceOptions,
    #[command(flatten)]
    pub processes: ProcessOptions,
    /// Keys of the data section, such as data.caption=COLUMN; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Writes each row's ranks to FILE.csv: its path and text, the rank of its text among all texts, and of the best picture or clip with that
    /// text among all; of a CLIP or a video-text model
    #[arg(long, value_name = "FILE")]
    pub ranks: Option<PathBuf>,
    #[command(flatten)]
    pub overwrite: OverwriteOption,
    #[command(flatten)]
    pub output: OutputOptions,
}

/// Rows to evaluate, as they are typed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PartArgument {
    /// Rows that are trained on
    #[value(alias = "training")]
    Train,
    /// Rows that choose the best model
    #[value(alias = "val", alias = "valid", alias = "dev")]
    Validation,
    /// Rows that a column or a folder marks as test
    #[value(alias = "testing")]
    Test,
    /// Every row, whatever marks it
    All,
}

impl EvalArguments {
    /// The samples to evaluate.
    fn evaluated(&self) -> Evaluated {
        match (self.part, &self.data) {
            (Some(PartArgument::Train), _) => Evaluated::Side(Side::Train),
            (Some(PartArgument::Validation), _) | (None, None) => Evaluated::Side(Side::Validation),
            (Some(PartArgument::Test), _) => Evaluated::Side(Side::Test),
            (Some(PartArgument::All), _) | (None, Some(_)) => Evaluated::All,
        }
    }
}

#[derive(Serialize)]
struct EvalJson<'a> {
    model: &'a Path,
    data: &'a Path,
    device: &'static str,
    #[serde(flatten)]
    scores: &'a Scores,
    /// Rows that are also in the run's training data, if that was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    trained_on: Option<Overlap>,
    planned_bytes: u64,
    process_bytes: Option<u64>,
}

/// Ending of notes on columns that the user did not name.
const FOUND_BY_NAME: &str = "(found by its name)";

/// Result of an evaluation.
pub struct EvaluationResult {
    model: PathBuf,
    csv: PathBuf,
    device: &'static str,
    num_samples: usize,
    side: Option<Side>,
    /// Noun for a sample in messages.
    sample: &'static str,
    scores: Scores,
    /// One line per metric, for people.
    pub words: String,
    trained_on: Option<Overlap>,
    planned_bytes: u64,
    process_bytes: Option<u64>,
}

pub fn run(arguments: EvalArguments) -> Result<ExitCode> {
    let request = || {
        let given = json!({
            "model": arguments.model,
            "data": arguments.data,
            "--set": arguments.sets,
            "--num-threads": arguments.inference.compute.num_threads,
        });
        json!({"command": "eval", "given": given})
    };
    let group = match processes::begin(&arguments.processes, request)? {
        Begun::Ended(code) => return Ok(code),
        Begun::Member(group) => group,
    };
    let Some(found) = evaluate(&arguments, group)? else {
        return Ok(stop::exit_code());
    };
    if arguments.output.json {
        print_json(&EvalJson {
            model: &found.model,
            data: &found.csv,
            device: found.device,
            scores: &found.scores,
            trained_on: found.trained_on,
            planned_bytes: found.planned_bytes,
            process_bytes: found.process_bytes,
        })?;
    } else {
        let side = match found.side {
            Some(side) => format!(" ({})", side.name()),
            None => String::new(),
        };
        print_wrapped(&format!(
            "{} of {}{side}\n{}\n",
            counted(found.num_samples, found.sample),
            found.csv.display(),
            found.words
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Evaluates; `None` if it was stopped.
pub fn evaluate(arguments: &EvalArguments, group: Group) -> Result<Option<EvaluationResult>> {
    let ComputeOptions {
        device,
        num_threads,
    } = arguments.inference.compute;
    let inference = &arguments.inference;
    let inputs: Vec<PathBuf> = arguments.data.iter().map(PathBuf::from).collect();
    check_output(arguments, inputs)?;
    let device = open_device_in(group, device, num_threads)?;
    let budget = resolve_budget(inference.memory, &device)?;
    if let Some(note) = note_on_budget(inference.memory, &device, budget) {
        tell(&note);
    }
    limit_reading(&device, budget);
    let mut opened = Saved::open(&arguments.model, room_to_open(&device, budget))?;
    opened.set_tiles(arguments.tiling.tiles, arguments.tiling.mirror)?;
    let saved = opened.model();
    tell(&saved.describe_pictures());
    check_options(arguments, &opened)?;
    let config = config(arguments, saved)?;
    let validation = match &config.data.validation {
        Validation::File { path, .. } => Some(path),
        _ => None,
    };
    let tables = config.data.train.iter().chain(validation);
    let tables = tables.filter_map(|table| Some(find(Some(table)).ok()?.csv));
    check_output(arguments, tables.collect())?;
    let warnings = saved_inputs::warnings_of_sets(&config, &arguments.sets, opened.task_name());
    warnings.iter().for_each(|warning| tell(warning));
    let EvaluationData {
        task,
        samples,
        csv,
        notes,
        rows,
    } = saved.read(&config, Site::from(&device), arguments.evaluated())?;
    // The training run has already reported the columns it found.
    let news = notes.iter().filter(|note| !note.ends_with(FOUND_BY_NAME));
    packed(news.map(String::as_str))
        .iter()
        .for_each(|line| tell(line));
    let side = match arguments.evaluated() {
        Evaluated::Side(_) if notes.iter().any(|note| note == HELD_NOTHING_OUT) => {
            Some(Side::Train)
        }
        Evaluated::Side(side) => Some(side),
        Evaluated::All => None,
    };
    let sample = if opened.task_name() == TaskName::VideoText {
        "clip"
    } else {
        "picture"
    };
    let compare_by = compare_by(opened.task_name(), budget);
    let trained_on = trained_on(arguments, saved, (&samples, compare_by));
    agree_on_samples(device.group(), &*task, &samples)?;
    let subset = Subset::Train;
    let pictures = Pictures {
        samples: &samples,
        rows: rows.clone(),
        policy: &config.data,
        batch: inference.batch_size,
        budget_bytes: budget,
        host_bytes: task.evaluation_bytes(subset, &samples, device.cpu().num_threads()),
    };
    let opened = saved_model::open(&device, &*task, &pictures, &stop::requests().stop)
        .map_err(|error| saved.refusal(&device, &pictures.rows, pictures.host_bytes, error));
    let json = arguments.output.json;
    let Some(opened) = fitting(json, device.kind(), opened)? else {
        return Ok(None);
    };
    let ReadyModel {
        mut model,
        decode_bytes,
        note,
    } = opened;
    note.iter().for_each(|note| tell(note));
    agree_on_weights(device.group(), &arguments.model, || {
        model.sampled_checksum()
    })?;
    tell(&format!(
        "Weights: pretrained from {}",
        saved.path().display()
    ));
    let bar = progress(samples.len() as u64, "Evaluating");
    let batch = model.batch();
    let reading = Reading::evaluation(&device, batch, task.picture_bytes(), decode_bytes);
    let mut loader = reading.open(&device, rows)?;
    let evaluated = task.evaluate(Evaluation {
        device: &device,
        forward: model.forward(&device),
        pictures: &mut loader,
        subset,
        samples: &samples,
        step: None,
        effective_batch: None,
        stop: &stop::requests().stop,
        is_wanted: &|| true,
        tell: &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        },
    });
    bar.finish_and_clear();
    let evaluated = evaluated.map_err(Unfinished::into_error)?;
    let (group, part) = (device.group(), Subset::Validation);
    let skipped = skipped_by_all(group, part, &samples, &evaluated.skipped)?;
    if let Some(error) = refused(&csv, &skipped, &config.data) {
        return Err(error.into());
    }
    tell_skipped(&skipped);
    if let (Some(path), Some(ranks)) = (&arguments.ranks, &evaluated.ranks) {
        write_ranks(path, ranks, &samples)?;
    }
    let scores = evaluated.scores;
    if let Some(size) = task.describe_size(&scores) {
        tell(&size);
    }
    Ok(Some(EvaluationResult {
        model: saved.path().to_owned(),
        csv,
        device: device.kind(),
        num_samples: samples.len() - skipped.len(),
        side,
        sample,
        words: task.describe_scores(&scores),
        scores,
        trained_on,
        planned_bytes: model.plan().process_bytes,
        process_bytes: device.peak_bytes(),
    }))
}

/// Refuses options that do not suit the model's task.
fn check_options(arguments: &EvalArguments, opened: &Saved) -> Result<()> {
    if let (Some(path), Saved::Classify(_) | Saved::Segment(_)) = (&arguments.ranks, opened) {
        return Err(TrainError::Config(format!(
            "--ranks {}: expected a CLIP or a video-text model, found {}\nhint: leave it out; `holdall predict --csv FILE` tells of each row",
            path.display(),
            arguments.model
        ))
        .into());
    }
    let reader = match arguments.data {
        Some(_) => Reader::EvalOfData,
        None => Reader::Eval,
    };
    saved_inputs::check_sets(&arguments.sets, opened.task_name(), reader)?;
    Ok(())
}

fn tell_skipped(skipped: &[SkippedPicture]) {
    for SkippedPicture { line, .. } in skipped {
        tell(&format!(
            "skipped row {}, {}: {}",
            line.row, line.image, line.reason
        ));
    }
}

/// Refuses a file of ranks that exists, or that is among `inputs` or the model's files.
fn check_output(arguments: &EvalArguments, mut inputs: Vec<PathBuf>) -> Result<(), TrainError> {
    inputs.extend(files_of_model(Path::new(&arguments.model)));
    let ranks = [("--ranks", &arguments.ranks)];
    arguments.overwrite.check_files(ranks, &inputs)
}

/// Writes a row for each readable sample, in the order of the table.
fn write_ranks(path: &Path, ranks: &SampleRanks, samples: &Samples) -> Result<()> {
    let fill = |file: &mut dyn Write| -> Result<(), csv::Error> {
        let mut rows = csv::Writer::from_writer(file);
        rows.write_record(["path", "text", "rank_of_text", "rank_of_sample"])?;
        for (sample, [of_text, of_sample]) in ranks.rows() {
            let sample = sample as usize;
            let [of_text, of_sample] = [of_text, of_sample].map(|rank| rank.to_string());
            let (path, text) = (samples.image(sample), samples.caption(sample));
            rows.write_record([path, text, &of_text, &of_sample])?;
        }
        rows.flush()?;
        Ok(())
    };
    let written = stop::whole(|| write_whole_by(path, |file| fill(file).map_err(io::Error::other)));
    written.map_err(|cause| {
        let path = path.display();
        anyhow::anyhow!("{path}: {cause}\nhint: choose another file for --ranks")
    })?;
    tell(&format!("Ranks of every row: {}", path.display()));
    Ok(())
}

/// Overlap with the run's training data, checked for other data and for the test side; reports any overlap.
fn trained_on(
    arguments: &EvalArguments,
    saved: &dyn SavedModel,
    (samples, compare_by): (&Samples, CompareBy),
) -> Option<Overlap> {
    let is_test = arguments.evaluated() == Evaluated::Side(Side::Test);
    let of_run = Path::new(&arguments.model).join("config.yml");
    if !(is_test || arguments.data.is_some()) || !of_run.is_file() {
        return None;
    }
    let search = || -> Result<Overlap, TrainError> {
        let run = RunConfig::load(Some(&of_run), &[])?;
        let mut search = OverlapSearch::new(samples, compare_by);
        saved.visit_trained_files(&run, &mut |path| search.add(path))?;
        Ok(search.finish())
    };
    match search() {
        Ok(overlap) => {
            describe_overlap(&overlap, samples.len(), compare_by)
                .iter()
                .for_each(|line| tell(line));
            Some(overlap)
        }
        Err(error) => {
            let error = error.to_string();
            let first = error.lines().next().unwrap_or_default();
            tell(&format!(
                "Whether these rows were trained on is not known: the run's data cannot be read ({first})"
            ));
            None
        }
    }
}

/// Whether copies are found by decoding pictures: only if the budget has room for one picture per core.
fn compare_by(task: TaskName, budget_bytes: Option<u64>) -> CompareBy {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let needed = resident_bytes().unwrap_or(0) + cores * MOST_DECODE_BYTES;
    let has_room = budget_bytes.is_none_or(|budget| needed <= budget);
    if task != TaskName::VideoText && has_room {
        CompareBy::Pictures
    } else {
        CompareBy::Files
    }
}

/// Lines on samples, and copies of pictures, that the run was trained on.
fn describe_overlap(overlap: &Overlap, num_samples: usize, compare_by: CompareBy) -> Vec<String> {
    let rows = counted(num_samples, "row");
    let were = |count: usize, one, several| if count == 1 { one } else { several };
    let mut lines = Vec::new();
    let count = overlap.count();
    if count > 0 {
        let by_pixels = match overlap.by_pixels.unwrap_or(0) {
            0 => String::new(),
            equal => format!(", {} by equal pixels", thousands(equal)),
        };
        lines.push(format!(
            "Careful: {} of {rows} {} trained on ({} by path, {} by contents{by_pixels}): scores look better than they are",
            thousands(count),
            were(count, "was", "were"),
            thousands(overlap.by_path),
            thousands(overlap.by_contents)
        ));
    }
    match overlap.near_copies {
        None if compare_by == CompareBy::Pictures => lines.push(format!(
            "Trained on: looked up by path and contents alone; resized or re-encoded copies are not looked for among more than {} of pictures",
            show_bytes(MOST_BYTES)
        )),
        None | Some(0) => {}
        Some(near) => lines.push(format!(
            "Careful: {} of {rows} {} of pictures that were trained on, resized or encoded again: scores look better than they are",
            thousands(near),
            were(near, "is a near copy", "are near copies"),
        )),
    }
    lines
}

/// The run's data config, or every row of the named file.
fn config(arguments: &EvalArguments, saved: &dyn SavedModel) -> Result<RunConfig> {
    let mut config = saved_inputs::config_of(&arguments.model, saved, &arguments.sets)?;
    match &arguments.data {
        Some(data) => {
            // The run's random split or separate validation file does not apply to other data.
            let validation = match config.data.validation.clone() {
                column @ Validation::Column { .. } => column,
                _ => Validation::default(),
            };
            let note = saved_inputs::take_data(&mut config, Path::new(data), &arguments.sets);
            note.iter().for_each(|note| tell(note));
            config.data.validation = validation;
            saved.describe_data(&mut config)?;
        }
        None if config.data.train.is_none() => {
            return Err(TrainError::Config(format!(
                "{}: expected the folder of a run, whose validation pictures are known, found a model alone\n\
                 hint: holdall eval {} DATA.csv",
                arguments.model,
                quoted(Path::new(&arguments.model))
            ))
            .into());
        }
        None => {}
    }
    if arguments.evaluated() == Evaluated::All {
        config.data.validation = Validation::UNSPLIT;
    }
    Ok(config)
}
