//! Analysis of a memory log, in one pass and constant memory.
//!
//! Every sample goes into a few hundred buckets and some histograms per device (`DeviceLog`). At the end of the log each kind of
//! finding is derived from them, by a file of its own. Every finding has supporting numbers and one line of advice.

mod budget;
mod device;
mod failed;
mod finding;
mod fragmentation;
mod growth;
mod histogram;
mod idle;
mod limit;
mod others;
mod pace;
mod points;
mod progress;
mod run_folder;
mod sawtooth;
mod series;
mod spike;
mod spill;
mod straggler;
mod trend;
mod underused;
mod waiting;

use std::io::Read;

use self::device::DeviceLog;
use crate::error::TelemetryError;
use crate::log::Log;
use crate::words::{counted, show_bytes, thousands};

pub use self::finding::{Analysis, Finding, LogSummary, Severity, Symptom, Verdict};
pub use self::run_folder::analyze_run;
pub use crate::log::{Format, Skipped};

/// Devices that are analysed; the samples of further devices are only counted.
const MOST_DEVICES: usize = 32;

/// Options of an analysis.
#[derive(Clone, Debug, Default)]
pub struct AnalyzeOptions {
    /// Name of the log in errors.
    pub log: String,
    /// Column names of a CSV without a header.
    pub columns: Option<Vec<String>>,
    /// Limit of device memory, instead of the total in the log.
    pub limit_bytes: Option<u64>,
}

/// Reads and analyses a log.
pub fn analyze(reader: impl Read, options: &AnalyzeOptions) -> Result<Analysis, TelemetryError> {
    let limit = options.limit_bytes.map(|bytes| bytes as f64);
    let mut log = Log::open(&options.log, reader, options.columns.as_deref())?;
    let mut devices: Vec<DeviceLog> = Vec::new();
    let mut num_samples = 0;
    let mut num_of_more_devices = 0;
    let mut last = 0;
    while let Some((sample, name)) = log.next()? {
        num_samples += 1;
        let found = match devices.get(last) {
            Some(device) if device.name == name => Some(last),
            _ => devices.iter().position(|device| device.name == name),
        };
        last = match found {
            Some(at) => at,
            None if devices.len() == MOST_DEVICES => {
                num_of_more_devices += 1;
                continue;
            }
            None => {
                devices.push(DeviceLog::new(name, &sample));
                devices.len() - 1
            }
        };
        devices[last].add(&sample, limit);
    }
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(log.troubles.iter().map(failed::of_lines));
    findings.extend(failed::of_losses(&log.losses));
    if num_samples == 0 && findings.is_empty() {
        return Err(log.nothing());
    }
    let mut notes = std::mem::take(&mut log.notes);
    if num_of_more_devices > 0 {
        notes.push(format!(
            "more than {MOST_DEVICES} devices: {} of the others left out",
            counted(num_of_more_devices, "sample")
        ));
    }
    if let (Some(limit), Some(total)) = (limit, devices.iter().find_map(|device| device.said_total))
    {
        notes.push(format!(
            "--limit: {} counts as full, not the {} that the log says the device has",
            show_bytes(limit),
            show_bytes(total)
        ));
    }
    for device in &devices {
        let mut of_device = judge(device, &mut notes);
        if devices.len() > 1 {
            for finding in &mut of_device {
                finding.device = Some(device.name.clone());
            }
        }
        findings.extend(of_device);
    }
    let seconds = devices
        .iter()
        .filter(|device| device.seconds.count > 0)
        .map(|device| device.seconds.sum);
    let mut analysis = Analysis {
        verdict: Verdict::Healthy,
        findings,
        log: LogSummary {
            name: options.log.clone(),
            format: log.format(),
            lines: log.num_lines,
            samples: num_samples,
            skipped: log.skipped,
            seconds: seconds.reduce(f64::max),
            devices: devices
                .into_iter()
                .map(|device| device.name)
                .filter(|name| !name.is_empty())
                .collect(),
            columns: log.columns,
            notes,
        },
    };
    analysis.judge();
    Ok(analysis)
}

fn judge(device: &DeviceLog, notes: &mut Vec<String>) -> Vec<Finding> {
    if device.num_clock_backwards > 0 {
        notes.push(format!(
            "the clock went back {} times; samples are taken in the order of the lines",
            thousands(device.num_clock_backwards)
        ));
    }
    if device.total.is_none() && device.memory.primary().is_some() {
        notes.push(
            "the log does not say how much memory the device has; --limit 24GiB does".to_owned(),
        );
    }
    let mut findings = growth::find(device, notes);
    findings.extend(spill::find(device));
    let over_budget = budget::find(device);
    if over_budget.is_none() {
        findings.extend(limit::find(device));
    }
    findings.extend(over_budget);
    findings.extend(spike::find(device));
    findings.extend(fragmentation::find(device, notes));
    findings.extend(others::find(device));
    findings.extend(idle::find(device));
    let waiting = waiting::find(device);
    // A larger batch would wait even longer.
    if waiting.is_none() {
        findings.extend(underused::find(device));
    }
    findings.extend(waiting);
    findings
}
