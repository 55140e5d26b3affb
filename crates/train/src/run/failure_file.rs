//! `failure.json`: what someone needs who was not there, in one file beside the run.
//!
//! Written to a sibling and renamed, after the run has failed and before that is said; if it cannot be written, the failure
//! that led to it is still the one that is told. The next failure overwrites it, a finished run removes it.

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

/// Lines of `metrics.jsonl` that are kept, and how much of its end is searched for them.
const NUM_LINES: usize = 20;
const TAIL_BYTES: u64 = 64 << 10;

/// What is known of a run before it fails.
pub struct FailureFile {
    folder: PathBuf,
    recorder: Recorder,
    command: Vec<String>,
    device: Vec<String>,
    config: Value,
    plan: Value,
}

/// Keys in the order in which people ask.
#[derive(Serialize)]
struct Failure<'a> {
    /// Seconds since 1970, UTC.
    time: f64,
    /// `diverged` or `failed`.
    kind: &'static str,
    /// At which step, where that is known.
    step: Option<u64>,
    /// As it was told, with its hint.
    error: &'a str,
    /// Where it diverged: what was found, and what is left.
    diverged: Option<&'a Diverged>,
    version: &'static str,
    /// As typed.
    command: &'a [String],
    device: &'a [String],
    /// As resolved.
    config: &'a Value,
    plan: &'a Value,
    /// The last looks at the memory, oldest first.
    memory: Vec<MemorySample>,
    /// The last lines of `metrics.jsonl`.
    metrics: Vec<Value>,
}

impl FailureFile {
    /// For a run in this folder.
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

    /// Says where it was written, if it could be.
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

/// A run has come to its end: how it failed before is over.
pub(crate) fn remove(folder: &Path) {
    // Where there was none there is nothing to remove.
    let _ = fs::remove_file(folder.join(FAILURE_FILE));
}

/// The last whole lines, as far as they are JSON.
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
        // Longer than what is looked at, and killed within a line.
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
