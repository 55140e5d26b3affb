//! `holdall eval`: a trained model on data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use holdall_data::config::Validation;
use holdall_processes::Group;
use holdall_train::TrainError;
use holdall_train::config::{RunConfig, Subset};
use holdall_train::loader_budget::Reading;
use holdall_train::plan_together::agree_on_samples;
use holdall_train::saved_model::{self, EvaluationData, HeldOut, Opened, Pictures, SavedModel};
use holdall_train::scores::Scores;
use holdall_train::setup::{resolve_budget, room_to_open};
use holdall_train::site::Site;
use holdall_train::skipped::{SkippedPicture, refused};
use holdall_train::task::{Evaluation, Unfinished};
use holdall_train::tasks::Saved;
use serde::Serialize;

use crate::arguments::{
    ComputeOptions, InferenceOptions, OutputOptions, ProcessOptions, TileOptions,
};
use crate::commands::open_device_in;
use crate::commands::plan::fitting;
use crate::processes::{self, Begun};
use crate::screen::{print, print_json, progress, tell};
use crate::stop;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  holdall eval runs/cars\n  holdall eval runs/cars test.csv --json\n  holdall eval runs/vessels FIVES/test --tiles 1024 --mirror"
)]
pub struct EvalArguments {
    /// The folder of a run, or a model folder
    #[arg(value_name = "RUN|MODEL")]
    pub model: String,
    /// A CSV, every row of which is evaluated, or a folder; without it, what the run held out
    #[arg(value_name = "DATA")]
    pub data: Option<String>,
    #[command(flatten)]
    pub tiling: TileOptions,
    #[command(flatten)]
    pub inference: InferenceOptions,
    #[command(flatten)]
    pub processes: ProcessOptions,
    /// Keys of the data section, such as data.caption=COLUMN; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    #[command(flatten)]
    pub output: OutputOptions,
}

#[derive(Serialize)]
struct EvalJson<'a> {
    model: &'a Path,
    data: &'a Path,
    device: &'static str,
    #[serde(flatten)]
    scores: &'a Scores,
    planned_bytes: u64,
    process_bytes: Option<u64>,
}

/// What a model is worth on data.
pub struct Found {
    model: PathBuf,
    csv: PathBuf,
    device: &'static str,
    num_samples: usize,
    scores: Scores,
    /// A line per figure, for people.
    pub words: String,
    planned_bytes: u64,
    process_bytes: Option<u64>,
}

pub fn run(arguments: EvalArguments) -> Result<ExitCode> {
    let group = match processes::begin(&arguments.processes)? {
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
            planned_bytes: found.planned_bytes,
            process_bytes: found.process_bytes,
        })?;
    } else {
        print(&format!(
            "{} pictures of {}\n{}\n",
            found.num_samples,
            found.csv.display(),
            found.words
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Evaluates; nothing where it was stopped.
pub fn evaluate(arguments: &EvalArguments, group: Group) -> Result<Option<Found>> {
    let ComputeOptions {
        device,
        num_threads,
    } = arguments.inference.compute;
    let inference = &arguments.inference;
    let device = open_device_in(group, device, num_threads)?;
    let budget = resolve_budget(inference.memory, &device)?;
    let mut opened = Saved::open(&arguments.model, room_to_open(&device, budget))?;
    opened.set_tiles(arguments.tiling.tiles, arguments.tiling.mirror)?;
    let saved = opened.model();
    tell(&saved.describe_pictures());
    let config = config(arguments, saved)?;
    let held_out = match arguments.data {
        Some(_) => HeldOut::All,
        None => HeldOut::Wanted,
    };
    let EvaluationData {
        task,
        samples,
        csv,
        notes,
        rows,
    } = saved.read(&config, Site::from(&device), held_out)?;
    notes.iter().for_each(|note| tell(note));
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
    let Opened {
        mut model,
        decode_bytes,
        note,
    } = opened;
    note.iter().for_each(|note| tell(note));
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
    let skipped =
        holdall_train::processes::skipped_by_all(group, part, &samples, &evaluated.skipped)?;
    if let Some(error) = refused(&csv, &skipped, &config.data) {
        return Err(error.into());
    }
    for SkippedPicture { line, .. } in &skipped {
        tell(&format!(
            "skipped row {}, {}: {}",
            line.row, line.image, line.reason
        ));
    }
    let scores = evaluated.scores;
    if let Some(size) = task.describe_size(&scores) {
        tell(&size);
    }
    Ok(Some(Found {
        model: saved.path().to_owned(),
        csv,
        device: device.kind(),
        num_samples: samples.len() - skipped.len(),
        words: task.describe_scores(&scores),
        scores,
        planned_bytes: model.plan().process_bytes,
        process_bytes: device.peak_bytes(),
    }))
}

/// The data as the run had it, or every row of the file named.
fn config(arguments: &EvalArguments, saved: &dyn SavedModel) -> Result<RunConfig> {
    let of_run = Path::new(&arguments.model).join("config.yml");
    let mut config = RunConfig::load(
        of_run.is_file().then_some(of_run.as_path()),
        &arguments.sets,
    )?;
    match &arguments.data {
        Some(data) => {
            let is_guess = !of_run.is_file();
            config.data.train = Some(PathBuf::from(data));
            let sets_root = |set: &String| set.trim_start().starts_with("data.image_root");
            if !is_guess && !arguments.sets.iter().any(sets_root) {
                config.data.image_root = None;
            }
            config.data.validation = Validation::None;
            if is_guess {
                saved.describe_data(&mut config)?;
            }
        }
        None if config.data.train.is_none() => {
            return Err(TrainError::Config(format!(
                "{}: expected the folder of a run, whose validation pictures are known, found a model alone\n\
                 hint: holdall eval {} DATA.csv",
                arguments.model, arguments.model
            ))
            .into());
        }
        None => {}
    }
    Ok(config)
}
