//! `holdall eval`: a trained model on data.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use holdall_data::columns::guess_label;
use holdall_data::config::Validation;
use holdall_data::find::find;
use holdall_data::source::{self, Captions};
use holdall_data::table::Table;
use holdall_train::TrainError;
use holdall_train::config::RunConfig;
use holdall_train::config::Split;
use holdall_train::evaluate::{self, Scores};
use holdall_train::prepare::Part;
use holdall_train::reading::Reading;
use holdall_train::setup::{resolve_budget, room_to_open};
use holdall_train::skipped::{SkippedLine, refused};
use holdall_train::trained::{Opened, Sight, Trained};
use serde::Serialize;

use crate::arguments::EvalArguments;
use crate::commands::open_device;
use crate::commands::plan::fitting;
use crate::screen::{print, print_json, progress, tell};
use crate::similarity;
use crate::stop;
use crate::watch::show_scores;

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

pub fn run(arguments: EvalArguments) -> Result<ExitCode> {
    let device = open_device(arguments.device, arguments.num_threads)?;
    let budget = resolve_budget(arguments.memory, &device)?;
    let trained = Trained::open(&arguments.model, room_to_open(&device, budget))?;
    tell(&trained.processor.describe());
    let config = config(&arguments, &trained)?;
    let data = match trained.labels.is_empty() {
        true => source::read(&config.data, Captions::Required, config.seed),
        false => source::read_with_labels(&config.data, &trained.labels, config.seed),
    };
    let data = data.map_err(TrainError::from)?;
    for note in &data.notes {
        tell(note);
    }
    let samples = match (&arguments.data, data.validation) {
        (None, Some(validation)) => validation,
        (None, None) => {
            tell("The run held nothing out: these are the pictures it was trained on");
            data.train
        }
        (Some(_), _) => data.train,
    };
    let tokens = trained.tokens(samples.captions())?;
    let part = Part {
        samples: Arc::new(samples),
        tokens,
    };
    let (pictures, texts) = (part.samples.len(), part.tokens.len());
    tell(&similarity::unique_texts(texts, pictures));
    tell(&similarity::matrix(pictures, texts));
    let host_bytes = evaluate::host_bytes(&part, trained.projection(), device.cpu().num_threads());
    let sight = Sight {
        samples: &part.samples,
        policy: &config.data,
        longest: part.tokens.longest(),
        batch: arguments.batch_size,
        budget_bytes: budget,
        host_bytes,
    };
    let opened = trained.open_for(&device, &sight, &stop::requests().stop);
    let Some(opened) = fitting(arguments.json, device.kind(), opened)? else {
        return Ok(stop::exit_code());
    };
    let Opened {
        mut encoders,
        decode_bytes,
        note,
    } = opened;
    note.iter().for_each(|note| tell(note));
    tell(&format!(
        "Weights: pretrained from {}",
        trained.path().display()
    ));
    let bar = progress(
        (part.samples.len() + part.tokens.len()) as u64,
        "Evaluating",
    );
    let mut encoder = encoders.encoder();
    let reading = Reading::evaluation(
        &device,
        encoder.batch(),
        trained.picture_bytes(),
        decode_bytes,
    );
    let mut pictures = reading.open(&device, trained.processor.framing)?;
    let scores = evaluate::evaluate(
        &device,
        &mut encoder,
        (&mut pictures, &part),
        None,
        &stop::requests().stop,
        &|| true,
        |done, _| bar.set_position(done as u64),
    );
    bar.finish_and_clear();
    let (scores, skipped) = match scores {
        Ok(scores) => scores,
        Err(unfinished) => return Err(unfinished.into_error().into()),
    };
    if let Some(error) = refused(&data.csv, &part.samples, &skipped, &config.data) {
        return Err(error.into());
    }
    for one in &skipped {
        let line = SkippedLine::new(Split::Validation, &part.samples, one);
        tell(&format!(
            "skipped row {}, {}: {}",
            line.row, line.image, line.reason
        ));
    }
    if arguments.json {
        print_json(&EvalJson {
            model: trained.path(),
            data: &data.csv,
            device: device.kind(),
            scores: &scores,
            planned_bytes: encoders.plan().process_bytes,
            process_bytes: device.peak_bytes(),
        })?;
    } else {
        print(&format!(
            "{} pictures, {} different captions of {}\n{}\n",
            scores.retrieval.pictures,
            scores.retrieval.captions,
            data.csv.display(),
            show_scores(&scores)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The data as the run had it, or every row of the file named.
fn config(arguments: &EvalArguments, trained: &Trained) -> Result<RunConfig> {
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
                describe(&mut config, trained)?;
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

/// Labels are looked for where the model has a head for them.
fn describe(config: &mut RunConfig, trained: &Trained) -> Result<()> {
    let found = find(config.data.train.as_deref()).map_err(TrainError::from)?;
    let table = Table::open(&found.csv).map_err(TrainError::from)?;
    if config.data.label.is_none() && !trained.labels.is_empty() {
        config.data.label = guess_label(&table).map(Into::into);
    }
    Ok(())
}
