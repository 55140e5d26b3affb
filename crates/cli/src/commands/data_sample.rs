//! `holdall data sample`: pictures to try things on, drawn on the spot.

use std::process::ExitCode;

use anyhow::Result;
use holdall_data::cars::{self, CarsConfig};
use holdall_train::TrainError;

use crate::arguments::{DataSampleArguments, SampleKind};
use crate::screen::{progress, tell};
use crate::stop;

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
