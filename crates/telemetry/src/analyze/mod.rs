//! Analysis of a memory log, in one pass and constant memory.
//!
//! Every sample goes into a bounded list of groups per device (`DeviceLog`). At the end of the log each of `DETECTORS` looks at
//! these. Every finding has supporting numbers and one line of advice.

mod device;
mod failed;
mod finding;
mod growth;
mod memory;
mod points;
mod run_folder;
mod speed;
mod spike;
mod statistics;

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

/// Looks for one kind of finding on a device; what could not be judged becomes a note.
type Detector = fn(&DeviceLog, &mut Vec<String>) -> Option<Finding>;

/// In the order of the answer.
const DETECTORS: [Detector; 10] = [
    growth::find_on_device,
    growth::find_on_host,
    |log, _| speed::spill(log),
    |log, _| memory::near_limit(log),
    |log, _| memory::over_budget(log),
    |log, _| spike::find(log),
    memory::fragmentation,
    |log, _| memory::other_processes(log),
    |log, _| memory::underused(log),
    |log, _| speed::waiting_for_data(log),
];

/// Reads and analyses a log.
pub fn analyze(reader: impl Read, options: &AnalyzeOptions) -> Result<Analysis, TelemetryError> {
    let mut log = Log::open(&options.log, reader, options.columns.as_deref())?;
    let limit = options.limit_bytes.map(|bytes| bytes as f64);
    let (devices, num_samples) = read_devices(&mut log, limit)?;
    let mut findings: Vec<Finding> = log.troubles.iter().map(failed::trouble).collect();
    findings.extend(failed::odd_losses(&log.losses));
    if num_samples == 0 && findings.is_empty() {
        return Err(log.nothing());
    }
    let mut notes = std::mem::take(&mut log.notes);
    let mut totals = devices.iter().filter_map(|device| device.said_total);
    if let (Some(limit), Some(total)) = (limit, totals.next()) {
        notes.push(format!(
            "--limit: {} counts as full, not the {} that the log says the device has",
            show_bytes(limit),
            show_bytes(total)
        ));
    }
    for device in &devices {
        add_notes(device, &mut notes);
        for detector in DETECTORS {
            let mut found = detector(device, &mut notes);
            if let Some(finding) = found.as_mut().filter(|_| devices.len() > 1) {
                finding.device = Some(device.name.clone());
            }
            findings.extend(found);
        }
    }
    let timed = devices.iter().filter(|device| device.progress.has_clock());
    let seconds = timed.map(|device| device.progress.seconds);
    let names = devices.iter().map(|device| device.name.clone());
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
            devices: names.filter(|name| !name.is_empty()).collect(),
            columns: log.columns,
            notes,
        },
    };
    analysis.judge();
    Ok(analysis)
}

/// Reads all samples; returns the devices and the number of samples.
fn read_devices(
    log: &mut Log<impl Read>,
    limit: Option<f64>,
) -> Result<(Vec<DeviceLog>, u64), TelemetryError> {
    let mut devices: Vec<DeviceLog> = Vec::new();
    let (mut num_samples, mut num_left_out) = (0, 0);
    while let Some((sample, name)) = log.next()? {
        num_samples += 1;
        if let Some(known) = devices.iter_mut().find(|device| device.name == name) {
            known.add(sample);
        } else if devices.len() < MOST_DEVICES {
            let mut device = DeviceLog::new(name, limit);
            device.add(sample);
            devices.push(device);
        } else {
            num_left_out += 1;
        }
    }
    if num_left_out > 0 {
        log.notes.push(format!(
            "more than {MOST_DEVICES} devices: {} of the others left out",
            counted(num_left_out, "sample")
        ));
    }
    Ok((devices, num_samples))
}

fn add_notes(device: &DeviceLog, notes: &mut Vec<String>) {
    let num_backwards = device.progress.num_clock_backwards;
    if num_backwards > 0 {
        notes.push(format!(
            "the clock went back {} times; samples are taken in the order of the lines",
            thousands(num_backwards)
        ));
    }
    if device.total().is_none() && device.primary().is_some() {
        notes.push(
            "the log does not say how much memory the device has; --limit 24GiB does".to_owned(),
        );
    }
}
