//! Reading the files of a run's folder, for the report, the monitor and `analyze`.
//!
//! Files may be missing, from another version, or end within a line: the readable part is used.

mod metrics;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::metrics::{
    EvaluationLine, LOSS, LOSSES, Loss, Metric, MetricsLine, ProcessesOfStep, StepLine, TRAIN_LOSS,
    flatten, in_words, is_share,
};
use crate::memory_log::{self, MemorySample};

/// One line per optimizer step and per evaluation.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The resolved config.
pub const CONFIG_FILE: &str = "config.yml";
/// The memory plan.
pub const PLAN_FILE: &str = "plan.json";
/// Results of a finished run.
pub const SUMMARY_FILE: &str = "summary.json";
/// Error of a failed run.
pub const FAILURE_FILE: &str = "failure.json";

/// A folder with one of these files is a run.
pub const OF_A_RUN: [&str; 4] = [CONFIG_FILE, METRICS_FILE, PLAN_FILE, SUMMARY_FILE];

/// Size limit of a JSON file.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Length limit of a line.
pub const MAX_LINE_BYTES: u64 = 1 << 20;
/// Bytes at the end of a memory log that contain the last line; a line has a few hundred bytes.
pub const LOG_TAIL_BYTES: u64 = 64 << 10;
/// Seconds for which a failing run may sample memory after it wrote its failure.
const LAST_SAMPLES_S: f64 = 10.0;

/// `plan.json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// `cpu` or `cuda`.
    pub device: Option<String>,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Samples per optimizer step.
    pub effective_batch: Option<u64>,
    /// The chosen candidate.
    pub chosen: Chosen,
}

/// The candidate that the planner chose.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Chosen {
    /// Samples per micro-batch.
    pub batch_size: Option<u64>,
    /// Micro-batches per optimizer step.
    pub gradient_accumulation: Option<u64>,
    /// Number format.
    pub precision: Option<String>,
    /// Recompute policy.
    pub recompute: Option<String>,
    /// Planned peak memory of the process.
    pub process_bytes: Option<u64>,
}

/// `summary.json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Number of optimizer steps.
    pub steps: Option<u64>,
    /// Training throughput.
    pub samples_per_s: Option<f64>,
    /// Share of the training time spent waiting for data, 0 to 1.
    pub waited_for_data: Option<f64>,
    /// Memory budget of the process.
    pub budget_bytes: Option<u64>,
    /// Peak memory of the process.
    pub process_bytes: Option<u64>,
    pub best: Option<Best>,
}

/// The best evaluation of a run.
#[derive(Clone, Debug, Deserialize)]
pub struct Best {
    /// Name of the metric that chooses the best model.
    pub metric: String,
    /// Value of the metric.
    pub value: f64,
    /// Step of the evaluation.
    pub step: u64,
}

/// `failure.json`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Failure {
    /// Seconds since 1970, UTC.
    pub time: Option<f64>,
    /// `diverged`, or another kind.
    pub kind: Option<String>,
    pub step: Option<u64>,
    /// The error message with its hint.
    pub error: String,
}

/// The failure of a run, unless it was resumed since. `Err` explains why the file is unreadable.
pub fn failure(folder: &Path) -> Result<Option<Failure>, String> {
    let Some(failure) = read_json::<Failure>(folder, FAILURE_FILE)? else {
        return Ok(None);
    };
    let went_on = failure.time.is_some_and(|time| {
        let last = last_sample(&folder.join(memory_log::FILE_NAME));
        last.is_some_and(|sample| sample.time > time + LAST_SAMPLES_S)
    });
    Ok(Some(failure).filter(|failure| !went_on && !failure.error.is_empty()))
}

/// The last complete line of a memory log.
fn last_sample(path: &Path) -> Option<MemorySample> {
    let (mut file, metadata) = holdall_files::open_regular(path).ok()?;
    let start = metadata.len().saturating_sub(LOG_TAIL_BYTES);
    file.seek(SeekFrom::Start(start)).ok()?;
    let mut tail = Vec::new();
    file.take(LOG_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let lines = tail.rsplit(|byte| *byte == b'\n');
    lines
        .filter_map(|line| serde_json::from_slice(line).ok())
        .next()
}

/// Reads a JSON file; `None` without that file. `Err` explains why it is unreadable.
pub fn read_json<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, String> {
    let bytes = match holdall_files::read_regular(&folder.join(name), MAX_JSON_BYTES) {
        Ok(bytes) => bytes,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(format!("{name} cannot be read: {cause}")),
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed
        .map(Some)
        .map_err(|cause| format!("{name} is not as expected: {cause}"))
}

/// Calls `each` for every line that is not blank; a missing file has none. Returns the number of lines that were too long.
pub fn for_each_line(path: &Path, mut each: impl FnMut(&[u8])) -> io::Result<u64> {
    let file = match holdall_files::open_regular(path) {
        Ok((file, _)) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(cause) => return Err(cause),
    };
    let mut reader = BufReader::new(file);
    let (mut line, mut num_too_long) = (Vec::new(), 0);
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_LINE_BYTES);
        match limited.read_until(b'\n', &mut line)? as u64 {
            0 => return Ok(num_too_long),
            MAX_LINE_BYTES if !line.ends_with(b"\n") => {
                num_too_long += 1;
                reader.skip_until(b'\n')?;
            }
            _ if line.iter().all(u8::is_ascii_whitespace) => {}
            _ => each(&line),
        }
    }
}

/// Whether a folder is a run.
pub fn is_run(folder: &Path) -> bool {
    OF_A_RUN
        .iter()
        .any(|name| fs::metadata(folder.join(name)).is_ok_and(|file| file.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_any_length_are_survived() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut seen = Vec::new();
        assert_eq!(for_each_line(&path, |_| panic!("no file")).unwrap(), 0);
        let long = "x".repeat(3 * MAX_LINE_BYTES as usize + 5);
        let exact = "y".repeat(MAX_LINE_BYTES as usize - 1);
        fs::write(&path, format!("a\n\n{long}\n{exact}\nb")).unwrap();
        let too_long = for_each_line(&path, |line| seen.push(line.len())).unwrap();
        assert_eq!((too_long, seen), (1, vec![2, MAX_LINE_BYTES as usize, 1]));
    }

    #[test]
    fn a_failure_is_over_when_the_run_went_on() {
        let folder = tempfile::tempdir().unwrap();
        assert!(failure(folder.path()).unwrap().is_none());
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(FAILURE_FILE, "{\"time\": 100.0, \"error\": \"disk full\"}");
        assert!(failure(folder.path()).unwrap().is_some());
        write(
            memory_log::FILE_NAME,
            "{\"time\":99.0}\n{\"time\":109.5}\n{\"ti",
        );
        assert!(failure(folder.path()).unwrap().is_some());
        write(memory_log::FILE_NAME, "{\"time\":99.0}\n{\"time\":110.5}\n");
        assert!(failure(folder.path()).unwrap().is_none());
        write(FAILURE_FILE, "{");
        assert!(failure(folder.path()).is_err());
    }
}
