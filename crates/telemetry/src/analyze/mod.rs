//! Verdicts on a log of memory, from one pass over it in constant memory.
//!
//! Every sample goes into a few hundred buckets and some histograms per device (`DeviceLog`); each verdict has a file that looks at those
//! when the log is over. A verdict is only given with numbers that bear it out, and with one line of what to do.

mod device;
mod finding;
mod fragmentation;
mod growth;
mod histogram;
mod idle;
mod limit;
mod others;
mod series;
mod spike;
mod spill;
mod trend;
mod underused;
mod waiting;

use std::io::Read;

use self::device::DeviceLog;
use crate::error::TelemetryError;
use crate::log::Log;
use crate::words::{counted, thousands};

pub use self::finding::{Analysis, Finding, Kind, LogSummary, Severity, Verdict};
pub use crate::log::{Format, Skipped};

/// Devices that are followed; more are counted.
const MOST_DEVICES: usize = 32;

/// What the user says about a log.
#[derive(Clone, Debug, Default)]
pub struct AnalyzeOptions {
    /// As errors name it.
    pub log: String,
    /// Columns of a CSV without a header.
    pub columns: Option<Vec<String>>,
    /// What the device has, where the log does not say or a smaller budget counts.
    pub limit_bytes: Option<u64>,
}

/// Reads a log to its end and judges it.
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
    if num_samples == 0 {
        return Err(log.nothing());
    }
    let mut notes = log.notes().to_vec();
    if num_of_more_devices > 0 {
        notes.push(format!(
            "more than {MOST_DEVICES} devices: {} of the others left out",
            counted(num_of_more_devices, "sample")
        ));
    }
    let mut findings: Vec<Finding> = Vec::new();
    for device in &devices {
        let mut of_device = judge(device, &mut notes);
        if devices.len() > 1 {
            for finding in &mut of_device {
                finding.device = Some(device.name.clone());
            }
        }
        findings.extend(of_device);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let verdict = match findings.first().map(|finding| finding.severity) {
        None => Verdict::Healthy,
        Some(Severity::Warning) => Verdict::Warning,
        Some(Severity::Problem) => Verdict::Problem,
    };
    let seconds = devices
        .iter()
        .filter(|device| device.seconds.count > 0)
        .map(|device| device.seconds.sum);
    Ok(Analysis {
        verdict,
        findings,
        log: LogSummary {
            name: options.log.clone(),
            format: log.format(),
            lines: log.num_lines(),
            samples: num_samples,
            skipped: log.skipped().clone(),
            seconds: seconds.reduce(f64::max),
            devices: devices
                .into_iter()
                .map(|device| device.name)
                .filter(|name| !name.is_empty())
                .collect(),
            columns: log.columns().to_vec(),
            notes,
        },
    })
}

fn judge(device: &DeviceLog, notes: &mut Vec<String>) -> Vec<Finding> {
    if device.num_clock_backwards > 0 {
        notes.push(format!(
            "the clock went back {} times; samples are taken in the order of the lines",
            thousands(device.num_clock_backwards)
        ));
    }
    if device.total.is_none() && device.primary().is_some() {
        notes.push(
            "the log does not say how much memory the device has; --limit 24GiB does".to_owned(),
        );
    }
    let mut findings = growth::find(device, notes);
    findings.extend(spill::find(device));
    findings.extend(limit::find(device));
    findings.extend(spike::find(device));
    findings.extend(fragmentation::find(device, notes));
    findings.extend(others::find(device));
    findings.extend(idle::find(device));
    findings.extend(waiting::find(device));
    findings.extend(underused::find(device));
    findings
}
