//! `holdall bench clip`, `classify`, `segment` and `video-text`: times one training step over random data.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use holdall_data::config::ImageSize;
use holdall_device::Device;
use holdall_plan::HostState;
use holdall_train::TrainError;
use holdall_train::config::{DecoderChoice, RunConfig, TaskName};
use holdall_train::engine::batch::Batch;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::engine::scaler::LossScaler;
use holdall_train::engine::step::Step;
use holdall_train::planning::plan_race::Choosing;
use holdall_train::planning::setup::Setup;
use serde::Serialize;

use crate::commands::{Opened, open_device_for};
use crate::options::RunOptions;
use crate::screen::{print_json, progress, tell};

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| {
        argument.help("Samples per optimizer step [default: 32 x 4 with --small, else 8 x 16]")
    }),
    mut_arg("task", |argument| argument.hide(true)),
    after_help = "Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench clip --small --batch-size 32 --gradient-accumulation 4"
)]
pub struct BenchClipArguments {
    /// A model folder or a preset
    #[arg(
        long,
        default_value = "openai/clip-vit-base-patch32",
        value_name = "MODEL"
    )]
    pub model: String,
    /// The preset for CPUs: 64 px, patch 8, width 128, 4 + 4 layers
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    #[command(flatten)]
    pub timing: TimingOptions,
}

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| {
        argument.help("Samples per optimizer step [default: 32 x 4 with --small, else 8 x 16]")
    }),
    mut_arg("task", |argument| argument.hide(true)),
    mut_arg("tokens", |argument| argument.hide(true)),
    after_help = "Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench classify --small --batch-size 32 --gradient-accumulation 4"
)]
pub struct BenchClassifyArguments {
    /// A model folder or a preset
    #[arg(long, default_value = "vit-base-patch16-224", value_name = "MODEL")]
    pub model: String,
    /// The preset for CPUs: 64 px, patch 8, width 128, 4 layers
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    #[command(flatten)]
    pub timing: TimingOptions,
}

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| {
        argument.help("Samples per optimizer step [default: 1 x 4]")
    }),
    mut_arg("labels", |argument| {
        argument.help("Classes: 1 is a sigmoid, more a softmax [default: 1]")
    }),
    mut_arg("task", |argument| argument.hide(true)),
    mut_arg("tokens", |argument| argument.hide(true)),
    after_help = "Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench segment --small --micro-batch 1 --accum 4"
)]
pub struct BenchSegmentArguments {
    /// A model folder or a preset
    #[arg(long, default_value = "unet", value_name = "MODEL")]
    pub model: String,
    /// The preset for CPUs: 16 to 128 channels, 4 stages, 256 px
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    /// Height and width of the pictures [default: what the model says: 1024, or 256 with --small]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub size: Option<u32>,
    /// Accepted as in the PyTorch script, where it asks for the Dice of the whole batch: that is what is computed anyway
    #[arg(long, hide = true)]
    pub exact: bool,
    #[command(flatten)]
    pub timing: TimingOptions,
}

#[derive(Args)]
#[command(
    mut_arg("effective_batch", |argument| {
        argument.help("Clips per optimizer step [default: 32 x 4 with --small, else 8 x 16]")
    }),
    mut_arg("task", |argument| argument.hide(true)),
    mut_arg("tokens", |argument| argument.help("Tokens per text [default: the model's positions]")),
    after_help = "Example, beside a PyTorch script that does the same job:\n  \
                  holdall bench video-text --small --micro-batch 8 --accum 4"
)]
pub struct BenchVideoTextArguments {
    /// A model folder or a preset
    #[arg(long, default_value = "video-text", value_name = "MODEL")]
    pub model: String,
    /// The preset for CPUs: 4 frames of 64 px, patch 8, width 128, 4 + 4 layers, decoder of 2 layers
    #[arg(long, conflicts_with = "model")]
    pub small: bool,
    /// Frames of a clip [default: what the model has: 8, or 4 with --small]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub frames: Option<u32>,
    /// Tokens of a caption, the end token included [default: what the model has: 64, or 24 with --small]
    #[arg(long, value_name = "N")]
    pub caption_tokens: Option<usize>,
    /// Accepted as in the PyTorch script, where it asks for the losses of the whole batch: those are computed anyway
    #[arg(long, hide = true)]
    pub exact: bool,
    #[command(flatten)]
    pub timing: TimingOptions,
}

/// Options of every timed step.
#[derive(Args)]
pub struct TimingOptions {
    /// Timed steps
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Print where the time of a step goes, operation by operation
    #[arg(long)]
    pub profile: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Settings of a timed step.
struct Bench {
    job: String,
    model: String,
    task: TaskName,
    /// Micro-batch and accumulation of the PyTorch script for comparison.
    split: (usize, usize),
    /// Classes of the label head, if the script has one.
    num_labels: Option<usize>,
    /// Frames per clip and tokens per caption, if set.
    frames: Option<u32>,
    caption_tokens: Option<usize>,
    /// Height and width of pictures, for models with variable input size.
    size: Option<u32>,
    timing: TimingOptions,
}

impl Bench {
    /// Settings for a model, or for the small model of its task.
    fn new(
        task: TaskName,
        (model, small): (String, Option<&str>),
        num_labels: Option<usize>,
        timing: TimingOptions,
    ) -> Bench {
        let (job, model, split) = match small {
            Some(small) => (format!("{}-small", task.name()), small.to_owned(), (32, 4)),
            None => (model.clone(), model, (8, 16)),
        };
        Bench {
            job,
            model,
            task,
            split,
            num_labels,
            frames: None,
            caption_tokens: None,
            size: None,
            timing,
        }
    }
}

pub fn run_clip(arguments: BenchClipArguments) -> Result<ExitCode> {
    let model = (arguments.model, arguments.small.then_some("small"));
    let num_labels = Some(196);
    run(Bench::new(
        TaskName::Clip,
        model,
        num_labels,
        arguments.timing,
    ))
}

pub fn run_classify(arguments: BenchClassifyArguments) -> Result<ExitCode> {
    let model = (arguments.model, arguments.small.then_some("vit-demo"));
    run(Bench::new(
        TaskName::Classify,
        model,
        Some(1000),
        arguments.timing,
    ))
}

pub fn run_segment(arguments: BenchSegmentArguments) -> Result<ExitCode> {
    let model = (arguments.model, arguments.small.then_some("unet-small"));
    run(Bench {
        split: (1, 4),
        size: arguments.size,
        ..Bench::new(TaskName::Segment, model, Some(1), arguments.timing)
    })
}

pub fn run_video_text(arguments: BenchVideoTextArguments) -> Result<ExitCode> {
    let small = arguments.small.then_some("video-text-small");
    run(Bench {
        frames: arguments.frames,
        caption_tokens: arguments.caption_tokens,
        ..Bench::new(
            TaskName::VideoText,
            (arguments.model, small),
            None,
            arguments.timing,
        )
    })
}

const WARM_UP_STEPS: usize = 3;

/// JSON output; its keys are a public interface.
#[derive(Serialize)]
struct StepBenchJson<'a> {
    #[serde(flatten)]
    setting: SettingJson<'a>,
    #[serde(flatten)]
    speed: SpeedJson,
    #[serde(flatten)]
    plan: PlanJson<'a>,
    plan_ms: f64,
    first_step_ms: f64,
    threads: usize,
    loss: f64,
    #[serde(skip_serializing_if = "is_zero")]
    skipped_steps: u64,
}

/// What was timed.
#[derive(Serialize)]
struct SettingJson<'a> {
    job: &'a str,
    micro_batch: usize,
    accum: usize,
    processes: usize,
    device: &'a str,
    dtype: &'a str,
    recompute: &'a str,
    exact: bool,
}

#[derive(Serialize)]
struct SpeedJson {
    step_ms: f64,
    samples_per_s: f64,
    /// Same value, under the key of the segmentation script.
    #[serde(skip_serializing_if = "Option::is_none")]
    images_per_s: Option<f64>,
    /// Same value, under the key of the clip script.
    #[serde(skip_serializing_if = "Option::is_none")]
    clips_per_s: Option<f64>,
}

/// Memory, as planned and as used, and the predicted time.
#[derive(Serialize)]
struct PlanJson<'a> {
    planned_bytes: u64,
    arena_bytes: u64,
    process_bytes: Option<u64>,
    kept_micro_batches: usize,
    /// The state kept in host memory, and its bytes.
    host_state: HostState,
    host_bytes: u64,
    optimizer_state: &'a str,
    planned_arena_bytes: u64,
    predicted_step_ms: f64,
    /// Whether the prediction is a time measured when the plan was chosen.
    measured: bool,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Bench {
    /// The run's configuration, with the sizes that are timed.
    fn config(&self) -> Result<RunConfig> {
        let mut config = self.timing.options.config(&self.model)?;
        if let Some(task) = config.task.filter(|task| *task != self.task) {
            return Err(TrainError::Config(format!(
                "task: {}, expected {}: that is what is timed here\nhint: holdall bench {}",
                task.name(),
                self.task.name(),
                task.name()
            ))
            .into());
        }
        config.task = Some(self.task);
        if let Some(side) = self.size {
            config.data.image_size = ImageSize::Exactly {
                height: side,
                width: side,
            };
        }
        config.labels = config.labels.or(self.num_labels);
        config.data.frames = self.frames.or(config.data.frames);
        if let (Some(tokens), DecoderChoice::Sizes(decoder)) =
            (self.caption_tokens, &mut config.video_text.decoder)
        {
            decoder.tokens = Some(tokens);
        }
        if config.train.effective_batch.is_none()
            && config.train.batch_size.is_none()
            && config.train.gradient_accumulation.is_none()
        {
            config.train.batch_size = Some(self.split.0);
            config.train.gradient_accumulation = Some(self.split.1);
        }
        Ok(config)
    }
}

fn run(bench: Bench) -> Result<ExitCode> {
    let began = Instant::now();
    let config = bench.config()?;
    let device = match open_device_for("bench", &config, &bench.timing.options)? {
        Opened::Here(device) => device,
        Opened::Elsewhere(code) => return Ok(code),
    };
    let mut setup = Setup::without_data(&config, &device)?;
    for note in &setup.notes {
        tell(note);
    }
    // The samples of all processes; each process computes its share.
    let (rank, num_processes) = (device.group().rank(), device.group().size());
    let samples = setup.share_among(rank, num_processes)?;
    let task = &setup.step.task;
    tell(&task.describe_weights());
    let started = Instant::now();
    let mut say = tell;
    let mut host_bytes = task.batch_bytes(samples);
    if num_processes > 1 {
        host_bytes += task.batch_bytes(samples.div_ceil(num_processes));
    }
    let plan = setup.plan_together(&device, host_bytes, Choosing::Measured(&mut say))?;
    let plan_ms = started.elapsed().as_secs_f64() * 1e3;
    let mut batch = setup.step.random_batch(samples, setup.seed);
    if num_processes > 1 {
        batch = batch.part(setup.step.processes.share(samples));
    }
    let (mut step, chosen) = setup.start(&device, plan, &mut say)?;
    let times = time_steps(
        (&device, &mut step, &batch),
        LossScaler::suiting(setup.step.arithmetic),
        bench.timing.steps as usize,
        began,
    )?;
    let samples_per_s = samples as f64 / times.step_seconds;
    print_json(&StepBenchJson {
        setting: SettingJson {
            job: &bench.job,
            micro_batch: chosen.choice.batch_size,
            accum: chosen.choice.gradient_accumulation,
            processes: num_processes,
            device: device.kind(),
            dtype: chosen.precision,
            recompute: &chosen.choice.recompute.label(),
            exact: true,
        },
        speed: SpeedJson {
            step_ms: times.step_seconds * 1e3,
            samples_per_s,
            images_per_s: (bench.task == TaskName::Segment).then_some(samples_per_s),
            clips_per_s: (bench.task == TaskName::VideoText).then_some(samples_per_s),
        },
        plan: PlanJson {
            planned_bytes: chosen.process_bytes,
            arena_bytes: step.arena_bytes(),
            process_bytes: device.peak_bytes(),
            kept_micro_batches: chosen.choice.kept_micro_batches,
            host_state: chosen.choice.host_state,
            host_bytes: chosen.host_bytes,
            optimizer_state: chosen.optimizer_state,
            planned_arena_bytes: chosen.arena_bytes,
            predicted_step_ms: chosen.step_ms,
            measured: chosen.measured,
        },
        plan_ms,
        first_step_ms: times.first_step_seconds * 1e3,
        threads: device.cpu().num_threads(),
        loss: times.loss,
        skipped_steps: times.skipped_steps,
    })?;
    if bench.timing.profile {
        tell_profile(&device, &mut step, &batch)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Times of the steps.
struct StepTimes {
    /// From the start of the command to the end of the first step.
    first_step_seconds: f64,
    /// Mean of the timed steps.
    step_seconds: f64,
    loss: f64,
    skipped_steps: u64,
}

/// Runs the warm-up and the timed steps; `began` is the start of the command.
fn time_steps(
    (device, step, batch): (&Device, &mut Step, &Batch),
    mut scaler: LossScaler,
    steps: usize,
    began: Instant,
) -> Result<StepTimes> {
    let bar = progress((WARM_UP_STEPS + steps) as u64, "Steps");
    // Like in training, a step whose gradients overflow is skipped and the loss scale halved.
    let mut one_step = |count: usize| -> Result<f64> {
        let scalars = StepScalars {
            step: count as u64 + 1 - scaler.skipped_steps(),
            rates: &[2e-5, 1e-3],
            loss_scale: scaler.scale(),
        };
        step.launch(device, batch, &scalars);
        step.preload(device, batch);
        let report = step.finish().map_err(TrainError::from)?;
        let observed = scaler.observe(report.gradients);
        observed.map_err(|_| {
            TrainError::Run(
                "training diverged: the gradients are not finite\nhint: random batches teach nothing; fewer --steps"
                    .to_owned(),
            )
        })?;
        bar.inc(1);
        Ok(report.loss)
    };
    one_step(0)?;
    let first_step_seconds = began.elapsed().as_secs_f64();
    for count in 1..WARM_UP_STEPS {
        one_step(count)?;
    }
    let started = Instant::now();
    let mut loss = 0.0;
    for count in 0..steps {
        loss = one_step(WARM_UP_STEPS + count)?;
    }
    let step_seconds = started.elapsed().as_secs_f64() / steps as f64;
    bar.finish_and_clear();
    Ok(StepTimes {
        first_step_seconds,
        step_seconds,
        loss,
        skipped_steps: scaler.skipped_steps(),
    })
}

/// Prints where the time of a step goes, operation by operation.
fn tell_profile(device: &Device, step: &mut Step, batch: &Batch) -> Result<()> {
    let mut times = step
        .profile_programs(device, batch)
        .map_err(TrainError::from)?;
    let operations = step.profile(device, batch).map_err(TrainError::from)?;
    let operations = operations.into_iter();
    times.extend(operations.map(|(name, seconds, count)| (name.to_owned(), seconds, count)));
    for (name, seconds, count) in times {
        tell(&format!("{:9.2} ms  {count:5} x  {name}", seconds * 1e3));
    }
    Ok(())
}
