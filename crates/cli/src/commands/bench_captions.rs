//! `holdall bench captions`: times captioning of random clips by a decoder with random weights.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use holdall_files::SplitMix64;
use holdall_train::TrainError;
use holdall_train::config::Precision;
use holdall_train::engine::forward::ForwardModel;
use holdall_train::engine::task::Task;
use holdall_train::tasks::generation::{Generation, Method};
use holdall_train::tasks::video_text::{ClipReader, VideoTextTask};
use serde::Serialize;

use crate::commands::open_device;
use crate::options::{ComputeOptions, PrecisionArgument, at_least_one, seed, small_count};
use crate::screen::{print_json, tell};

#[derive(Args)]
#[command(
    after_help = "No caption ends before --tokens, so that every one has the same work. After a warm-up, `ms` is the best of --repeat: \
                  the keys of the frames and all tokens of all clips, the frames' encoder aside (`encode_ms`, a batch). One JSON \
                  line on stdout.\n\n\
                  Example, beside docs/scripts/captions_torch.py, which does the same job:\n  \
                  holdall bench captions --small --num-threads 2"
)]
pub struct BenchCaptionsArguments {
    /// A preset of a video-text model
    #[arg(long, default_value = "video-text", value_name = "MODEL")]
    pub model: String,
    /// The preset for CPUs: width 128, 2 layers; 64 clips in batches of 16, 24 tokens
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    /// Clips [default: 1024, or 64 with --small]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub clips: Option<usize>,
    /// Clips at a time [default: 128, or 16 with --small]
    #[arg(long, alias = "batch_size", value_name = "N", value_parser = small_count)]
    pub batch_size: Option<usize>,
    /// Tokens of every caption [default: as many as the decoder has positions]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub tokens: Option<usize>,
    /// Beams of a beam search; 1 is greedy
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = small_count)]
    pub beams: usize,
    /// Number format; the CPU computes in f32
    #[arg(long, alias = "dtype", value_name = "FORMAT")]
    pub precision: Option<PrecisionArgument>,
    #[command(flatten)]
    pub compute: ComputeOptions,
    /// Seed of weights and frames
    #[arg(long, default_value_t = 0, value_name = "SEED", value_parser = seed)]
    pub seed: u64,
    /// Timed repetitions
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = at_least_one)]
    pub repeat: usize,
    /// One JSON object on stdout, nothing else there: so it is with or without this
    #[arg(long)]
    pub json: bool,
}

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct CaptionBenchJson<'a> {
    job: &'a str,
    clips: usize,
    batch: usize,
    tokens: usize,
    beams: usize,
    device: &'a str,
    dtype: &'a str,
    #[serde(flatten)]
    time: TimeJson,
    arena_bytes: u64,
    planned_bytes: u64,
    process_bytes: Option<u64>,
    threads: usize,
}

#[derive(Serialize)]
struct TimeJson {
    /// Time for all clips, the best of `all_ms`.
    ms: f64,
    all_ms: Vec<f64>,
    ms_per_token: f64,
    clips_per_s: f64,
    /// Time of one batch of clips in the frame encoder.
    encode_ms: f64,
}

pub fn run(arguments: BenchCaptionsArguments) -> Result<ExitCode> {
    let (model, clips, batch) = if arguments.small {
        ("video-text-small", 64, 16)
    } else {
        (arguments.model.as_str(), 1024, 128)
    };
    let batch = arguments.batch_size.unwrap_or(batch);
    // Full batches: a partial one would take as long.
    let clips = arguments.clips.unwrap_or(clips).next_multiple_of(batch);
    let task = task(model, &arguments)?;
    let device = open_device(arguments.compute.device, arguments.compute.num_threads)?;
    let precision = arguments.precision.map(Precision::from);
    let arithmetic = precision
        .and_then(Precision::arithmetic)
        .filter(|&asked| device.supports(asked))
        .unwrap_or_else(|| device.best_arithmetic());
    let mut opened = ForwardModel::with_arithmetic(&device, &task, arithmetic, batch)?;
    tell(&task.describe_weights());
    opened.set_weights(&device, task.weights(arguments.seed)?)?;
    let (arena_bytes, planned_bytes) = (opened.plan().arena_bytes, opened.plan().process_bytes);
    let mut rows = device
        .host_rows(batch, task.picture_bytes())
        .map_err(TrainError::from)?;
    let mut random = SplitMix64(arguments.seed);
    for row in &mut rows {
        let bytes = row.as_mut().iter_mut();
        bytes.for_each(|byte| *byte = (random.bits() >> 56) as u8);
    }
    let mut reader = ClipReader::new(&task, opened.forward(&device));
    let samples: Vec<u64> = (0..batch as u64).collect();
    let mut encode_ms = 0.0;
    for _ in 0..2 {
        let began = Instant::now();
        reader.frames(&rows, &[]).map_err(TrainError::from)?;
        encode_ms = began.elapsed().as_secs_f64() * 1e3;
    }
    let mut tokens = 0;
    let mut all_ms = Vec::new();
    for repeat in 0..=arguments.repeat {
        let began = Instant::now();
        let batches = if repeat == 0 { 1 } else { clips / batch };
        for _ in 0..batches {
            let captions = reader.captions(&samples)?;
            tokens = captions.iter().map(|one| one.tokens.len()).sum::<usize>() / batch;
        }
        // The first repeat is a warm-up.
        if repeat > 0 {
            all_ms.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    let ms = all_ms.iter().copied().fold(f64::INFINITY, f64::min);
    print_json(&CaptionBenchJson {
        job: "captions",
        clips,
        batch,
        tokens,
        beams: arguments.beams,
        device: device.kind(),
        dtype: arithmetic.name(),
        time: TimeJson {
            ms,
            ms_per_token: ms / (clips / batch * tokens) as f64,
            clips_per_s: clips as f64 / ms * 1e3,
            all_ms,
            encode_ms,
        },
        arena_bytes,
        planned_bytes,
        process_bytes: device.peak_bytes(),
        threads: device.cpu().num_threads(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A preset whose captions never end before the maximum length.
fn task(model: &str, arguments: &BenchCaptionsArguments) -> Result<VideoTextTask, TrainError> {
    let refuse = || {
        TrainError::Config(format!(
            "--model: {model}, expected one of {}\nhint: weights are random; only sizes count",
            VideoTextTask::PRESETS.join(", ")
        ))
    };
    let mut task = VideoTextTask::preset(model).ok_or_else(refuse)?;
    let longest = task.num_caption_tokens;
    task.generation = Generation {
        method: if arguments.beams > 1 {
            Method::Beam
        } else {
            Method::Greedy
        },
        beams: arguments.beams,
        max_tokens: arguments.tokens,
        min_tokens: longest,
        ..Generation::default()
    };
    Ok(task)
}
