//! One file per command.

pub mod bench_clip;
pub mod data_sample;
pub mod demo;
pub mod eval;
pub mod plan;
pub mod predict;
pub mod train;
pub mod verify;

use anyhow::Result;
use holdall_device::{Device, Wish};
use holdall_train::TrainError;

use crate::screen::tell;

/// Opens the device that was asked for, and says what it is.
fn open_device(wish: Wish, num_threads: Option<usize>) -> Result<Device> {
    let device = Device::open(wish, num_threads).map_err(TrainError::from)?;
    for line in device.describe() {
        tell(&line);
    }
    Ok(device)
}
