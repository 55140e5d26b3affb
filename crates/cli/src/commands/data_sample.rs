//! `holdall data sample`: pictures to try things on, drawn on the spot.

use std::process::ExitCode;

use anyhow::Result;
use holdall_data::cars::{self, CarsConfig};
use holdall_train::TrainError;

use crate::arguments::{DataSampleArguments, SampleKind};
use crate::screen::{progress, tell};

pub fn run(arguments: DataSampleArguments) -> Result<ExitCode> {
    let SampleKind::Cars = arguments.kind;
    let cars = CarsConfig {
        count: arguments.count(),
        size: arguments.size,
        seed: arguments.seed,
    };
    let bar = progress(arguments.count() as u64, "Drawing cars");
    let written = cars::write(&arguments.folder, &cars, |_| bar.inc(1));
    bar.finish_and_clear();
    written.map_err(|error| TrainError::Config(error.to_string()))?;
    let csv = arguments.folder.join("image_labels.csv");
    tell(&format!(
        "{} cars in {}\nhint: holdall train {} --model small --lr 1e-3",
        arguments.count(),
        csv.display(),
        csv.display()
    ));
    Ok(ExitCode::SUCCESS)
}
