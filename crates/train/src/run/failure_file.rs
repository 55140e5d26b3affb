//! `failure.json`: a self-contained report of a failed run.
//!
//! The file is written to a sibling and renamed, after the run has failed and before the error is printed. If it cannot be
//! written, the error of the run is printed anyway. The next failure overwrites it, a finished run removes it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use holdall_telemetry::memory_log::MemorySample;
use serde::Serialize;
use serde_json::Value;

use crate::error::Diverged;
use crate::planning::planned_run::{PlanReport, PlannedRun};
use crate::run::recorder::Recorder;
use crate::run_folder::folder::write_whole;
use holdall_telemetry::run_files::FAILURE_FILE;

/// Last lines of `metrics.jsonl` in the report, and bytes of the end of the file that are searched for them.
const NUM_LINES: usize = 20;
const TAIL_BYTES: u64 = 64 << 10;

/// The parts of the report that are known before a failure.
pub struct FailureFile {
    folder: PathBuf,
    recorder: Recorder,
    command: Vec<String>,
    device: Vec<String>,
    config: Value,
    plan: Value,
}

/// The report; keys in order of interest.
#[derive(Serialize)]
struct Failure<'a> {
    /// Seconds since 1970, UTC.
    time: f64,
    /// `diverged` or `failed`.
    kind: &'static str,
    /// Step of a divergence.
    step: Option<u64>,
    /// The error message with its hint.
    error: &'a str,
    diverged: Option<&'a Diverged>,
    version: &'static str,
    /// The command line as typed.
    command: &'a [String],
    device: &'a [String],
    /// The resolved config.
    config: &'a Value,
    plan: &'a Value,
    /// The last memory samples, oldest first.
    memory: Vec<MemorySample>,
    metrics: Vec<Value>,
}

impl FailureFile {
    pub fn new(planned: &PlannedRun, folder: &Path, command: Vec<String>) -> FailureFile {
        let report = PlanReport::new(
            &planned.plan,
            &planned.device,
            planned.prepared.setup.budget_bytes,
        );
        FailureFile {
            folder: folder.to_owned(),
            recorder: planned.recorder().clone(),
            command,
            device: planned.device.describe(),
            config: serde_json::to_value(&planned.config).unwrap_or_default(),
            plan: serde_json::to_value(report).unwrap_or_default(),
        }
    }

    /// Writes the report and returns its path, if that succeeds.
    pub fn write(&self, error: &str, diverged: Option<&Diverged>) -> Option<PathBuf> {
        let failure = Failure {
            time: MemorySample::now().time,
            kind: match diverged {
                Some(_) => "diverged",
                None => "failed",
            },
            step: diverged.map(|diverged| diverged.step),
            error,
            diverged,
            version: env!("CARGO_PKG_VERSION"),
            command: &self.command,
            device: &self.device,
            config: &self.config,
            plan: &self.plan,
            memory: self.recorder.last_samples(),
            metrics: last_lines(&self.folder.join("metrics.jsonl")),
        };
        let path = self.folder.join(FAILURE_FILE);
        let json = serde_json::to_string_pretty(&failure).ok()?;
        write_whole(&path, format!("{json}\n").as_bytes()).ok()?;
        Some(path)
    }
}

/// Removes the report of an earlier failure at the end of a run.
pub(crate) fn remove(folder: &Path) {
    // Usually there is none.
    let _ = fs::remove_file(folder.join(FAILURE_FILE));
}

/// The last complete lines that are JSON.
fn last_lines(path: &Path) -> Vec<Value> {
    let tail = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut tail)?;
        Ok(tail)
    };
    let tail = tail().unwrap_or_default();
    let lines = tail.split(|&byte| byte == b'\n').rev();
    let mut values: Vec<Value> = lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .take(NUM_LINES)
        .collect();
    values.reverse();
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        assert!(last_lines(&path).is_empty());
        // The file is longer than the searched tail, and ends in the middle of a line.
        let lines: String = (0..9000)
            .map(|step| format!("{{\"step\":{step}}}\n"))
            .collect();
        fs::write(&path, format!("{lines}{{\"step\":90")).unwrap();
        let found = last_lines(&path);
        let steps: Vec<u64> = found
            .iter()
            .map(|line| line["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, (8980..9000).collect::<Vec<u64>>());
        remove(folder.path());
    }
}
