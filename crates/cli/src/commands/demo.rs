//! `holdall demo`: a complete small run on pictures that it draws itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use holdall_data::cars::{self, CarsConfig};
use holdall_data::config::Augment;
use holdall_device::Device;
use holdall_train::TrainError;
use holdall_train::budget::Memory;
use holdall_train::config::{RunConfig, Warmup};
use holdall_train::report::{Outcome, Summary};

use crate::arguments::{ComputeOptions, TaskArgument, seed};
use crate::commands::open_device;
use crate::commands::train::{TrainRequest, train};
use crate::screen::{progress, tell};
use crate::stop;

#[derive(Args)]
#[command(after_help = "Example:\n  holdall demo --out /tmp/holdall-demo\n\n\
                  What it writes: DIR/data (pictures, image_labels.csv) and DIR/run (losses, summary, model).")]
pub struct DemoArguments {
    /// Where pictures and the run go; must not hold a run yet
    #[arg(long, value_name = "DIR", default_value = "holdall-demo")]
    pub out: PathBuf,
    /// Pictures to draw; a tenth is held out
    #[arg(long, value_name = "N", default_value_t = 5600, value_parser = clap::value_parser!(u64).range(32..1_000_000))]
    count: u64,
    /// Which task to show
    #[arg(long, value_name = "TASK", default_value = "clip")]
    pub task: TaskArgument,
    /// Times that the pictures are seen [default: 5 of clip, 4 of classify]
    #[arg(long, value_name = "N")]
    pub epochs: Option<usize>,
    /// What the process may hold: 1GiB, 80%, auto [default: 512MiB, on a GPU 2GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Memory>,
    #[command(flatten)]
    pub compute: ComputeOptions,
    /// Another seed, other cars
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
    /// The summary as one JSON object on stdout
    #[arg(long)]
    pub json: bool,
}

impl DemoArguments {
    /// Pictures to draw.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

pub fn run(arguments: DemoArguments) -> Result<ExitCode> {
    let started = Instant::now();
    let device = open_device(arguments.compute.device, arguments.compute.num_threads)?;
    let data = arguments.out.join("data");
    let what = match arguments.task {
        TaskArgument::Clip => "CLIP learns to tell cars apart",
        TaskArgument::Classify => "vision transformer learns the makes of cars",
        TaskArgument::Segment => {
            return Err(TrainError::Config(
                "--task segment: expected clip or classify\nhint: `holdall bench segment --small`"
                    .to_owned(),
            )
            .into());
        }
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
        tensorboard: false,
        notes: Vec::new(),
    };
    let outcome = train(request, device, arguments.json)?;
    let Outcome::Finished(summary) = outcome else {
        return Ok(stop::exit_code());
    };
    tell(teach(&summary, &arguments.out, started.elapsed().as_secs_f64()).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Whether all were drawn.
fn draw(folder: &Path, arguments: &DemoArguments) -> Result<bool> {
    let cars = CarsConfig {
        count: arguments.count(),
        seed: arguments.seed,
        ..CarsConfig::default()
    };
    let bar = progress(arguments.count() as u64, "Drawing cars");
    let orderly = stop::orderly("Stopping; the same command draws the rest");
    let written = cars::write(folder, &cars, |_| {
        bar.inc(1);
        !stop::is_asked()
    });
    drop(orderly);
    bar.finish_and_clear();
    let written = written.map_err(|error| TrainError::Run(error.to_string()))?;
    if written.is_some() {
        tell(&format!("Pictures and captions: {}", folder.display()));
    }
    Ok(written.is_some())
}

/// What the run differs in from the defaults, which are for fine-tuning: this one starts from nothing.
fn config(data: &Path, arguments: &DemoArguments, device: &Device) -> RunConfig {
    let (model, epochs) = match arguments.task {
        TaskArgument::Clip => ("small", 5),
        TaskArgument::Classify => ("vit-demo", 4),
        TaskArgument::Segment => ("unet-demo", 4),
    };
    let mut config = RunConfig {
        task: Some(arguments.task.into()),
        model: model.to_owned(),
        seed: arguments.seed,
        ..RunConfig::default()
    };
    config.data.train = Some(data.join("image_labels.csv"));
    config.data.label = Some("make".into());
    // Badges are small and pictures many: seen once or twice each, they need no crops.
    config.data.augment = Augment {
        crop: 1.0,
        ..Augment::default()
    };
    config.losses.label = 1.0;
    config.train.effective_batch = Some(128);
    config.num_threads = arguments.compute.num_threads;
    config.train.epochs = arguments.epochs.unwrap_or(epochs);
    config.train.lr = 1e-3;
    config.train.lr_head = 1e-2;
    config.train.warmup = Warmup::Percent(8.0);
    // A GPU's own context takes several hundred MiB before anything is computed.
    let memory = match device.is_gpu() {
        true => 2 << 30,
        false => 512 << 20,
    };
    config.memory = arguments.memory.unwrap_or(Memory::Bytes(memory));
    config
}

fn teach(summary: &Summary, out: &Path, seconds: f64) -> String {
    let mut text = String::from("\n");
    if let Some(found) = &summary.found {
        text.push_str(&format!("On pictures it has never seen:\n{found}\n"));
    }
    text.push_str(&format!(
        "All of it took {seconds:.0} s. What to look at, and what to type next:\n  \
         {run}/report.html         curves, memory, predictions: open it in a browser\n  \
         {run}/summary.json        planned bytes beside measured ones\n  \
         {run}/metrics.jsonl       every loss\n  \
         {run}/model               loads in transformers\n\n  \
         holdall eval {run}\n  \
         holdall predict {run} {out}/data/images/000003.jpg\n  \
         holdall train --resume --out {run} --epochs {more}\n  \
         holdall train your.csv --memory 8GiB\n",
        run = out.join("run").display(),
        out = out.display(),
        more = (summary.epochs * 1.5).ceil(),
    ));
    text
}
