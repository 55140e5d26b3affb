//! `holdall demo`: a complete small run on synthetic pictures.

mod middle_frame;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use holdall_data::config::{Augment, ImageSize, TargetConfig, Validation};
use holdall_device::Device;
use holdall_sample_data::cars::{self, CarsConfig};
use holdall_sample_data::moving_shapes::{self, MovingShapesConfig};
use holdall_sample_data::vessels::{self, ThresholdSearch, VesselsConfig};
use holdall_train::TrainError;
use holdall_train::config::budget::Memory;
use holdall_train::config::{EvalEvery, RunConfig, Warmup};
use holdall_train::run::report::{Outcome, Summary};

use crate::commands::open_device;
use crate::commands::train::{TrainRequest, train};
use crate::invocation;
use crate::options::{ComputeOptions, TaskArgument, seed};
use crate::screen::{progress, tell};
use crate::stop;

/// Frames of a synthetic clip.
const FRAMES: usize = 8;

#[derive(Args)]
#[command(after_help = "Examples:\n  holdall demo --out /tmp/holdall-demo\n  \
                  holdall demo --task segment --out /tmp/holdall-vessels\n  \
                  holdall demo --task video-text --out /tmp/holdall-clips\n\n\
                  What it writes: DIR/data (pictures with captions or masks, or clips) and DIR/run (losses, summary, report, model).")]
pub struct DemoArguments {
    /// Where pictures and the run go; must not hold a run yet
    #[arg(long, value_name = "DIR", default_value = "holdall-demo")]
    pub out: PathBuf,
    /// Pictures to draw; a tenth is held out, of segment a quarter, of clips a fifth [default: 5600, of segment 160, of video-text 6000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(16..1_000_000))]
    count: Option<u64>,
    /// Width and height of the pictures [default: 96, of segment 256, of video-text 64]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(64..=1024))]
    size: Option<u32>,
    /// Which task to show
    #[arg(long, value_name = "TASK", default_value = "clip")]
    pub task: TaskArgument,
    /// Times that the pictures are seen [default: 5 of clip, 4 of classify, 6 of segment, 15 of video-text]
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,
    /// What the process may hold: 1GiB, 80%, auto [default: 512MiB, on a GPU 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    #[command(flatten)]
    pub compute: ComputeOptions,
    /// Another seed, other pictures
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
    /// The summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

impl DemoArguments {
    /// Number of pictures to draw.
    pub fn count(&self) -> usize {
        let usual = match self.task {
            TaskArgument::Clip | TaskArgument::Classify => 5600,
            TaskArgument::Segment => 160,
            TaskArgument::VideoText => 6000,
        };
        self.count.unwrap_or(usual) as usize
    }

    fn size(&self) -> u32 {
        let usual = match self.task {
            TaskArgument::Clip | TaskArgument::Classify => 96,
            TaskArgument::Segment => 256,
            TaskArgument::VideoText => 64,
        };
        self.size.unwrap_or(usual)
    }
}

pub fn run(arguments: DemoArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let device = open_device(arguments.compute.device, arguments.compute.num_threads)?;
    let data = arguments.out.join("data");
    let what = match arguments.task {
        TaskArgument::Clip => "CLIP learns to tell cars apart",
        TaskArgument::Classify => "vision transformer learns the makes of cars",
        TaskArgument::Segment => "U-Net learns to find blood vessels",
        TaskArgument::VideoText => "model of clips and texts learns what moves where",
    };
    tell(&format!(
        "A small {what}, from random weights, on {} pictures drawn now.",
        arguments.count()
    ));
    if !draw(&data, &arguments)? {
        return Ok(stop::exit_code());
    }
    let request = TrainRequest {
        config: config(&data, &arguments, &device),
        out: arguments.out.join("run"),
        resume: false,
        guesses_label: false,
        tensorboard: false,
        notes: Vec::new(),
    };
    let outcome = train(request, device, arguments.json)?;
    let Outcome::Finished(summary) = outcome else {
        return Ok(stop::exit_code());
    };
    let beside = match arguments.task {
        TaskArgument::Clip | TaskArgument::Classify => None,
        TaskArgument::VideoText => middle_frame::scores(&data, &arguments)?,
        TaskArgument::Segment => Some(best_threshold(&data.join("test"))?),
    };
    let text = teach(
        &summary,
        beside.as_deref(),
        &arguments,
        started.elapsed().as_secs_f64(),
    );
    tell(text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Draws the data; false if it was stopped.
fn draw(folder: &Path, arguments: &DemoArguments) -> Result<bool> {
    let (count, size, seed) = (arguments.count(), arguments.size(), arguments.seed);
    let doing = match arguments.task {
        TaskArgument::Clip | TaskArgument::Classify => "Drawing cars",
        TaskArgument::Segment => "Drawing vessels",
        TaskArgument::VideoText => "Drawing clips",
    };
    let bar = progress(count as u64, doing);
    let orderly = stop::orderly("Stopping; the same command draws the rest");
    let on_progress = |_| {
        bar.inc(1);
        !stop::is_asked()
    };
    let drawn = match arguments.task {
        TaskArgument::Clip | TaskArgument::Classify => {
            let config = CarsConfig { count, size, seed };
            let cars = cars::write(folder, &config, on_progress);
            cars.map(|cars| cars.map(|_| "Pictures and captions"))
                .map_err(|error| error.to_string())
        }
        TaskArgument::Segment => {
            let config = VesselsConfig { count, size, seed };
            let pictures = vessels::write(folder, &config, on_progress);
            pictures
                .map(|pictures| pictures.map(|_| "Pictures and masks"))
                .map_err(|error| error.to_string())
        }
        TaskArgument::VideoText => {
            let config = MovingShapesConfig {
                count,
                size,
                frames: FRAMES,
                seed,
                ..MovingShapesConfig::default()
            };
            let clips = moving_shapes::write(folder, &config, on_progress);
            clips
                .map(|clips| clips.map(|_| "Clips and captions"))
                .map_err(|error| error.to_string())
        }
    };
    drop(orderly);
    bar.finish_and_clear();
    let drawn = drawn.map_err(TrainError::Run)?;
    if let Some(what) = drawn {
        tell(&format!("{what}: {}", folder.display()));
    }
    Ok(drawn.is_some())
}

/// The demo's config. The defaults are for fine-tuning; the demo trains from scratch.
fn config(data: &Path, arguments: &DemoArguments, device: &Device) -> RunConfig {
    let (model, epochs) = match arguments.task {
        TaskArgument::Clip => ("small", 5),
        TaskArgument::Classify => ("vit-demo", 4),
        TaskArgument::Segment => ("unet-demo", 6),
        TaskArgument::VideoText => ("video-text-demo", 15),
    };
    let mut config = RunConfig {
        task: Some(arguments.task.into()),
        model: model.to_owned(),
        seed: arguments.seed,
        ..RunConfig::default()
    };
    config.num_threads = arguments.compute.num_threads;
    config.train.epochs = Some(arguments.epochs.unwrap_or(epochs));
    config.train.warmup = Warmup::Percent(8.0);
    match arguments.task {
        TaskArgument::Clip | TaskArgument::Classify => learn_cars(data, &mut config),
        TaskArgument::Segment => learn_vessels(data, arguments.size(), &mut config),
        TaskArgument::VideoText => learn_motion(data, &mut config),
    }
    // A GPU context alone takes several hundred MiB.
    let memory = if device.is_gpu() { 2 << 30 } else { 512 << 20 };
    config.memory = arguments.memory.unwrap_or(Memory::Bytes(memory));
    config
}

fn learn_cars(data: &Path, config: &mut RunConfig) {
    config.data.train = Some(data.join("image_labels.csv"));
    config.data.label = Some("make".into());
    // Badges are small and pictures many: seen once or twice each, the pictures need no random crops.
    config.data.augment = Augment {
        crop: 1.0,
        ..Augment::default()
    };
    config.losses.label = 1.0;
    config.train.effective_batch = Some(128);
    config.train.lr = Some(1e-3);
    config.train.lr_head = Some(1e-2);
}

fn learn_vessels(data: &Path, size: u32, config: &mut RunConfig) {
    config.data.train = Some(data.join("train"));
    config.data.validation = Validation::file(data.join("test"));
    config.data.image_size = ImageSize::Exactly {
        height: size,
        width: size,
    };
    config.train.effective_batch = Some(4);
    config.train.lr = Some(3e-3);
    config.train.lr_head = Some(3e-3);
}

fn learn_motion(data: &Path, config: &mut RunConfig) {
    config.data.train = Some(data.join("clips.csv"));
    config.data.validation = Validation::column("split");
    // A crop could cut off the moving object, and a mirror would swap left and right.
    config.data.augment = Augment {
        crop: 1.0,
        ..Augment::default()
    };
    let direction = TargetConfig::from("direction".to_owned());
    config
        .data
        .targets
        .insert("direction".to_owned(), direction);
    config.losses.targets.insert("direction".to_owned(), 2.0);
    config.losses.caption = Some(1.0);
    config.train.effective_batch = Some(32);
    config.train.lr = Some(1.5e-3);
    config.train.lr_head = Some(2e-2);
    // An evaluation generates captions, which takes as long as half an epoch.
    config.train.eval_every = EvalEvery::Steps(600);
    config.evaluation.captions = 200;
}

/// Score of the best single brightness threshold on the pictures of a folder, as a baseline.
fn best_threshold(folder: &Path) -> Result<String, TrainError> {
    let mut search = ThresholdSearch::default();
    search
        .add_folder(folder)
        .map_err(|error| TrainError::Run(error.to_string()))?;
    Ok(match search.best() {
        Some(best) => format!(
            "For comparison, the best single threshold of the same pictures ({best}): Dice {:.1}%",
            100.0 * best.dice
        ),
        None => String::new(),
    })
}

fn teach(
    summary: &Summary,
    beside: Option<&str>,
    arguments: &DemoArguments,
    seconds: f64,
) -> String {
    let mut text = String::from("\n");
    if let Some(found) = &summary.found {
        text.push_str(&format!("On pictures it has never seen:\n{found}\n"));
    }
    if let Some(beside) = beside {
        text.push_str(&format!("{beside}\n"));
    }
    // The first held-out clip: the last fifth is held out.
    let held_out = arguments.count() - arguments.count() / 5;
    let clip = format!("clips/{held_out:06}");
    let (contents, loads, picture, yours) = match arguments.task {
        TaskArgument::Clip | TaskArgument::Classify => (
            "curves, memory, predictions",
            "loads in transformers",
            "images/000003.jpg",
            "your.csv",
        ),
        TaskArgument::Segment => (
            "curves, memory, what was missed and invented",
            "safetensors and config.json; docs/scripts/unet.py loads it in PyTorch",
            "test --out masks --overlays",
            "FIVES --task segment",
        ),
        TaskArgument::VideoText => (
            "curves, memory, captions",
            "safetensors and config.json; docs/scripts/video_text.py loads it in PyTorch",
            clip.as_str(),
            "clips.csv --task video-text",
        ),
    };
    text.push_str(&format!(
        "All of it took {seconds:.0} s. What to look at, and what to type next:\n  \
         {run}/report.html         {contents}: open it in a browser\n  \
         {run}/summary.json        planned bytes beside measured ones\n  \
         {run}/metrics.jsonl       every loss\n  \
         {run}/model               {loads}\n\n  \
         {holdall} eval {run}\n  \
         {holdall} predict {run} {out}/data/{picture}\n  \
         {holdall} train --resume --out {run} --epochs {more}\n  \
         {holdall} train {yours} --memory 8GiB\n",
        holdall = invocation::program(),
        run = invocation::quoted(&arguments.out.join("run")),
        out = invocation::quoted(&arguments.out),
        more = (summary.epochs * 1.5).ceil(),
    ));
    text
}
