//! One file per command.

pub mod analyze;
pub mod bench_captions;
pub mod bench_loader;
pub mod bench_retrieval;
pub mod bench_step;
pub mod caption_scores;
pub mod completions;
pub mod data_check;
pub mod data_clean;
pub mod data_pack;
mod data_pairs;
pub mod data_sample;
pub mod demo;
pub mod doctor;
pub mod eval;
pub mod man;
pub mod monitor;
pub mod plan;
mod plan_chart;
pub mod predict;
pub mod report;
pub mod retrieval;
pub mod train;
pub mod verify;

use anyhow::Result;
use holdall_device::{Device, DeviceChoice};
use holdall_train::TrainError;
use holdall_train::config::RunConfig;

use crate::screen::tell;

/// Opens the device for a config. What is wrong with the config is told first: opening takes threads, and a GPU.
fn open_device_for(config: &RunConfig, wish: DeviceChoice) -> Result<Device> {
    config.validate()?;
    open_device(wish, config.num_threads)
}

/// Opens the device that was asked for, and says what it is.
fn open_device(wish: DeviceChoice, num_threads: Option<usize>) -> Result<Device> {
    let device = Device::open(wish, num_threads).map_err(TrainError::from)?;
    for line in device.describe() {
        tell(&line);
    }
    Ok(device)
}
