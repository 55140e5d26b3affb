//! `holdall data sample`: pictures to try things on, drawn on the spot.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use holdall_data::cars::{self, CarsConfig};
use holdall_train::TrainError;

use crate::arguments::seed;
use crate::screen::{progress, tell};
use crate::stop;

#[derive(Args)]
#[command(
    after_help = "Example:\n  holdall data sample cars /tmp/cars --count 500\n  \
                  holdall train /tmp/cars --model small --lr 1e-3"
)]
pub struct DataSampleArguments {
    /// What to draw
    pub kind: SampleKind,
    /// Where: pictures in DIR/images, the list in DIR/image_labels.csv
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..10_000_000))]
    count: u64,
    /// Width and height in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 96, value_parser = clap::value_parser!(u32).range(32..=1024))]
    pub size: u32,
    /// Another seed, other pictures
    #[arg(long, value_name = "SEED", default_value_t = 0, value_parser = seed)]
    pub seed: u64,
}

impl DataSampleArguments {
    /// How many.
    pub fn count(&self) -> usize {
        self.count as usize
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum SampleKind {
    /// Cars of several makes, with captions
    Cars,
}

pub fn run(arguments: DataSampleArguments) -> Result<ExitCode> {
    let SampleKind::Cars = arguments.kind;
    let cars = CarsConfig {
        count: arguments.count(),
        size: arguments.size,
        seed: arguments.seed,
    };
    let bar = progress(arguments.count() as u64, "Drawing cars");
    let orderly = stop::orderly("Stopping; the same command draws the rest");
    let written = cars::write(&arguments.folder, &cars, |_| {
        bar.inc(1);
        !stop::is_asked()
    });
    drop(orderly);
    bar.finish_and_clear();
    let written = written.map_err(|error| TrainError::Config(error.to_string()))?;
    if written.is_none() {
        return Ok(stop::exit_code());
    }
    let csv = arguments.folder.join("image_labels.csv");
    tell(&format!(
        "{} cars in {}\nhint: holdall train {} --model small --lr 1e-3",
        arguments.count(),
        csv.display(),
        csv.display()
    ));
    Ok(ExitCode::SUCCESS)
}
