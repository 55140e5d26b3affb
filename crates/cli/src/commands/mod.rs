//! One file per command.

pub mod analyze;
pub mod bench_captions;
pub mod bench_exchange;
pub mod bench_loader;
pub mod bench_retrieval;
pub mod bench_step;
pub mod caption_scores;
pub mod completions;
pub mod config_translate;
pub mod data_check;
pub mod data_clean;
pub mod data_pack;
mod data_pairs;
pub mod data_sample;
pub mod demo;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod man;
pub mod model_get;
pub mod monitor;
mod next_command;
pub mod plan;
mod plan_chart;
pub mod predict;
pub mod report;
pub mod retrieval;
pub mod train;
pub mod verify;

use anyhow::Result;
use holdall_device::{Device, cuda};
use holdall_processes::Group;
use holdall_train::config::RunConfig;
use holdall_train::planning::setup::{limit_reading, resolve_budget};
use serde_json::json;

use crate::options::{DeviceArgument, RunOptions};
use crate::processes::{self, Begun};
use crate::screen::tell;

/// Opens the device for a command and its config, in the group of processes that the options describe; an exit code if this process only
/// launched them. The config is validated first, because opening takes threads and a GPU.
fn open_device_for(command: &str, config: &RunConfig, options: &RunOptions) -> Result<Opened> {
    config.validate()?;
    let request = || {
        // The output folder is rank 0's and may differ on other ranks.
        let out = None;
        let config = RunConfig {
            out,
            ..config.clone()
        };
        json!({"command": command, "config": config})
    };
    let group = match processes::begin(&options.processes, request)? {
        Begun::Ended(code) => return Ok(Opened::Elsewhere(code)),
        Begun::Member(group) => group,
    };
    let device = open_device_in(group, options.compute.device, config.num_threads)?;
    limit_reading(&device, resolve_budget(config.memory, &device)?);
    Ok(Opened::Here(device))
}

/// Where a command's work runs.
#[allow(clippy::large_enum_variant)] // one per process
enum Opened {
    /// In this process.
    Here(Device),
    /// In processes that this one launched, and that have ended.
    Elsewhere(std::process::ExitCode),
}

/// Opens the requested device and prints its name.
fn open_device(wish: DeviceArgument, num_threads: Option<usize>) -> Result<Device> {
    open_device_in(Group::alone(), wish, num_threads)
}

/// Like [`open_device`], for one process of a group.
fn open_device_in(
    group: Group,
    wish: DeviceArgument,
    num_threads: Option<usize>,
) -> Result<Device> {
    let device = processes::open_device(group, wish, num_threads)?;
    for line in device.describe() {
        tell(&line);
    }
    Ok(device)
}

/// Hints at unused GPUs when a single process runs.
fn tell_of_other_cards(device: &Device) {
    let num_cards = cuda::count().unwrap_or(0);
    if device.is_gpu() && device.group().size() == 1 && num_cards > 1 {
        tell(&format!(
            "{num_cards} GPUs are here and one is used: --processes {num_cards} uses them all"
        ));
    }
}
