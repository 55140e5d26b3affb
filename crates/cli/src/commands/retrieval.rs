//! `holdall retrieval`: exact ranks of features from any framework, inside a memory limit.

mod arguments;
mod forecast;
mod inputs;
mod memory_limit;
mod output;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use holdall_device::cpu::{CODE_BYTES, give_back_freed, peak_resident_bytes};
use holdall_device::{Device, DeviceError};
use holdall_files::show_bytes;
use holdall_metrics::features::{Features, Meter};
use holdall_metrics::retrieval::{
    Decided, Engine, Found, Go, Job, Options, Progress, Ranked, Ranks, RetrievalError, Rule, Ties,
    estimate_seconds, rank,
};
use holdall_train::TrainError;
use holdall_train::planning::setup::{limit_reading, note_on_budget, resolve_budget};
use serde::Serialize;

pub use self::arguments::RetrievalArguments;
use self::arguments::{PositivesArgument, TiesArgument};
use crate::commands::open_device;
use crate::screen::{print, print_json, progress_share, table, tell};
use crate::stop;
use forecast::Forecast;
use holdall_train::engine::similarity;
use inputs::{Inputs, config};
use memory_limit::Shares;

/// Default of `--top`.
const TOP: usize = 10;

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct RetrievalJson<'a> {
    #[serde(flatten)]
    sizes: SizesJson,
    query_to_gallery: DirectionJson,
    gallery_to_query: DirectionJson,
    tie_policy: Ties,
    positives: &'static str,
    decided: DecidedJson,
    device: &'a str,
    threads: usize,
    seconds: f64,
    #[serde(flatten)]
    memory: MemoryJson,
}

#[derive(Serialize)]
struct SizesJson {
    queries: usize,
    gallery: usize,
    dimension: usize,
    pairs: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_texts: Option<usize>,
}

#[derive(Serialize)]
struct MemoryJson {
    memory_bytes: Option<u64>,
    /// Peak memory of the process; on a GPU, of GPU memory. On the CPU it is the system's high-water mark of resident
    /// memory, which includes pages of mapped features.
    peak_bytes: Option<u64>,
    /// Peak of resident memory without file pages, sampled every few milliseconds.
    peak_private_bytes: Option<u64>,
}

#[derive(Serialize)]
struct DirectionJson {
    #[serde(flatten)]
    ranks: Ranks,
    /// NDCG@5.
    ndcg5: f64,
    /// R@k by k.
    at: serde_json::Map<String, serde_json::Value>,
    ranked: usize,
    /// Positives that share their score with another item.
    ties: usize,
}

impl DirectionJson {
    fn new(ranked: &Ranked, at: &[u64], ties: Ties) -> DirectionJson {
        let within = |&k: &u64| (k.to_string(), ranked.within(k, ties).into());
        DirectionJson {
            ranks: ranked.ranks(ties),
            ndcg5: ranked.ndcg(5, ties),
            at: at.iter().map(within).collect(),
            ranked: ranked.num_items(),
            ties: ranked.num_tied(),
        }
    }
}

/// Numbers of comparisons by the precision that decided them.
#[derive(Serialize)]
pub(super) struct DecidedJson {
    at_once: u64,
    in_f64: u64,
    exactly: u64,
}

impl From<Decided> for DecidedJson {
    fn from(decided: Decided) -> DecidedJson {
        DecidedJson {
            at_once: decided.at_once,
            in_f64: decided.in_f64,
            exactly: decided.exactly,
        }
    }
}

pub fn run(arguments: RetrievalArguments) -> Result<ExitCode> {
    output::check_names(&arguments)?;
    let device = open_device(arguments.compute.device, arguments.compute.num_threads)?;
    let memory_bytes = memory_limit_of(&arguments, &device)?;
    let inputs = Inputs::read(&arguments)?;
    let shares = memory_bytes.map(|bytes| shares(bytes, &device, &inputs));
    let shares = shares.transpose()?;
    let (num_queries, num_gallery) = (inputs.queries.num_rows(), inputs.num_gallery());
    let room_bytes = shares.map(|shares| shares.work_bytes);
    if let Some(line) = similarity::matrix(num_queries, num_gallery) {
        tell(&line);
    }
    let mapped_bytes = shares.and_then(|shares| shares.mapped_bytes);
    if let Some(bytes) = mapped_bytes {
        tell(&format!(
            "Features take {}: streamed from their files, {} of them in memory at a time",
            show_bytes(inputs.num_bytes()),
            show_bytes(bytes)
        ));
    }
    let options = Options {
        rule: match arguments.positives {
            PositivesArgument::Best => Rule::Best,
            PositivesArgument::Recall => Rule::Recall,
        },
        memory_bytes: room_bytes,
        neighbours: match arguments.neighbours {
            Some(_) => arguments.top.unwrap_or(TOP).min(num_gallery),
            None => 0,
        },
    };
    let meter = mapped_bytes.map(|bytes| inputs.meter(bytes));
    let job = Job {
        queries: &metered(inputs.queries.features(), &meter),
        gallery: &if inputs.gallery_stays(mapped_bytes) {
            inputs.gallery()
        } else {
            metered(inputs.gallery(), &meter)
        },
        pairs: &inputs.pairs,
    };
    let (found, seconds, peak_private_bytes) = rank_with_progress(&device, &job, &options);
    let found = found.map_err(|error| explained(error, &inputs, memory_bytes.zip(shares)))?;
    let ties = match arguments.ties {
        TiesArgument::Optimistic => Ties::Optimistic,
        TiesArgument::Pessimistic => Ties::Pessimistic,
        TiesArgument::Mean => Ties::Mean,
    };
    stop::whole(|| output::write(&arguments, &found, ties))?;
    if !arguments.output.json {
        print(&show(&found, &arguments.at, ties))?;
        return Ok(ExitCode::SUCCESS);
    }
    print_json(&RetrievalJson {
        sizes: SizesJson {
            queries: num_queries,
            gallery: num_gallery,
            dimension: inputs.queries.dimension(),
            pairs: inputs.pairs.len(),
            unique_texts: inputs.num_texts,
        },
        query_to_gallery: DirectionJson::new(&found.to_gallery, &arguments.at, ties),
        gallery_to_query: DirectionJson::new(&found.to_query, &arguments.at, ties),
        tie_policy: ties,
        positives: match options.rule {
            Rule::Best => "best",
            Rule::Recall => "recall",
        },
        decided: found.decided.into(),
        device: device.kind(),
        threads: device.cpu().num_threads(),
        seconds,
        memory: MemoryJson {
            memory_bytes,
            peak_bytes: if device.is_gpu() {
                device.peak_bytes()
            } else {
                peak_resident_bytes()
            },
            peak_private_bytes,
        },
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The limit of `--memory`, in bytes; readers keep to it too.
fn memory_limit_of(arguments: &RetrievalArguments, device: &Device) -> Result<Option<u64>> {
    let Some(memory) = arguments.memory else {
        return Ok(None);
    };
    let budget = resolve_budget(memory, device)?;
    if let Some(note) = note_on_budget(memory, device, budget) {
        tell(&note);
    }
    limit_reading(device, budget);
    Ok(budget)
}

/// Ranks with a progress bar and forecasts; returns the seconds and the peak of private memory too.
fn rank_with_progress(
    device: &Device,
    job: &Job<'_>,
    options: &Options,
) -> (Result<Found, RetrievalError>, f64, Option<u64>) {
    let mut forecast = if device.is_gpu() {
        Forecast::default()
    } else {
        // Estimated before the scan of all values, which takes time too.
        Forecast::said(device.cpu().scope(|| estimate_seconds(job)).unwrap_or(0.0))
    };
    if let Some(line) = forecast.at_start() {
        tell(&line);
    }
    let bar = progress_share(0, "Ranking");
    let began = Instant::now();
    let mut go_on = |progress: Progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        if let Some(line) = forecast.line(progress, began.elapsed()) {
            tell(&line);
        }
        true
    };
    let (found, peak_private_bytes) =
        memory_limit::watched(|| rank_on(device, job, options, &mut go_on));
    bar.finish_and_clear();
    (found, began.elapsed().as_secs_f64(), peak_private_bytes)
}

fn metered<'a>(features: Features<'a>, meter: &'a Option<Meter<'a>>) -> Features<'a> {
    match meter {
        Some(meter) => features.metered(meter),
        None => features,
    }
}

/// Ranks on the GPU if the device is one, else on the device's threads.
pub(super) fn rank_on(
    device: &Device,
    job: &Job<'_>,
    options: &Options,
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
    let engine = device.gpu().map_or(Engine::Cpu, Engine::Gpu);
    device.cpu().scope(|| rank(engine, job, options, go_on))
}

/// Divides the memory that the limit leaves beside the memory already in use.
fn shares(memory_bytes: u64, device: &Device, inputs: &Inputs) -> Result<Shares> {
    inputs.give_back();
    give_back_freed();
    // Code pages of ranking and writing become resident at their first use.
    let code_bytes = if device.is_gpu() { 0 } else { CODE_BYTES };
    let held_bytes = device.held_bytes().unwrap_or(0) + code_bytes;
    match memory_bytes.checked_sub(held_bytes) {
        // Memory on a card is independent of file pages on the host.
        Some(free_bytes) if free_bytes > 0 && device.is_gpu() => Ok(Shares::of(free_bytes, 0)),
        Some(free_bytes) if free_bytes > 0 => Ok(Shares::of(free_bytes, inputs.num_bytes())),
        _ => Err(does_not_fit(memory_bytes, held_bytes)),
    }
}

fn does_not_fit(limit_bytes: u64, needed_bytes: u64) -> anyhow::Error {
    // The process's memory varies by a few pages.
    const RESERVE_BYTES: u64 = 8 << 20;
    let needed_bytes = needed_bytes.saturating_add(RESERVE_BYTES);
    let found = format!(
        "ranking does not fit: the limit is {}, at least {} are needed",
        show_bytes(limit_bytes),
        show_bytes(needed_bytes)
    );
    let hint = format!("--memory {}MiB", needed_bytes.div_ceil(1 << 20));
    TrainError::Device(DeviceError::Memory { found, hint }).into()
}

/// Adds file names and a hint to an error.
fn explained(
    error: RetrievalError,
    inputs: &Inputs,
    limit: Option<(u64, Shares)>,
) -> anyhow::Error {
    match error {
        RetrievalError::NotFinite {
            side,
            row,
            column,
            value,
        } => {
            let (path, row) = inputs.place(side, row);
            config(format!(
                "{}, row {row}, value {column}: expected a finite number, found {value}\n\
                 hint: a row of zeros has no direction to normalise; what overflows in f16 does not in f32",
                path.display()
            ))
        }
        RetrievalError::DoesNotFit {
            needed_bytes,
            limit_bytes,
        } => match limit {
            // The limit for ranking is what all other uses leave.
            Some((memory_bytes, shares)) => {
                let features_bytes = if shares.work_bytes == shares.free_bytes {
                    0
                } else {
                    inputs.num_bytes()
                };
                let held_bytes = memory_bytes.saturating_sub(shares.free_bytes);
                let least = Shares::least_free_bytes(needed_bytes, features_bytes);
                does_not_fit(memory_bytes, held_bytes.saturating_add(least))
            }
            None => does_not_fit(limit_bytes, needed_bytes),
        },
        // Not an error of the files.
        RetrievalError::Device(text) => TrainError::Device(DeviceError::Failed(text)).into(),
        error => config(format!(
            "{error}\nhint: check the files of --queries, --gallery and --pairs"
        )),
    }
}

/// One line per direction.
fn show(found: &Found, at: &[u64], ties: Ties) -> String {
    let mut heading = vec![String::new()];
    heading.extend(at.iter().map(|k| format!("R@{k}")));
    heading.extend(
        [
            "median rank",
            "mean rank",
            "MRR",
            "NDCG@5",
            "ranked",
            "tied",
        ]
        .map(str::to_owned),
    );
    let direction = |name: &str, ranked: &Ranked| {
        let ranks = ranked.ranks(ties);
        let mut row = vec![name.to_owned()];
        row.extend(
            at.iter()
                .map(|&k| format!("{:.2}%", 100.0 * ranked.within(k, ties))),
        );
        row.extend([
            format!("{}", ranks.median_rank),
            format!("{:.2}", ranks.mean_rank),
            format!("{:.4}", ranks.mrr),
            format!("{:.4}", ranked.ndcg(5, ties)),
            ranked.num_items().to_string(),
            ranked.num_tied().to_string(),
        ]);
        row
    };
    table(&[
        heading,
        direction("query to gallery", &found.to_gallery),
        direction("gallery to query", &found.to_query),
    ])
}
