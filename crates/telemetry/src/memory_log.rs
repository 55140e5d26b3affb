//! `memory.jsonl`: one line per memory sample.
//!
//! Each line is appended in one write. A kill or a full disk may still cut the last line: opening the file removes an incomplete
//! line, or adds a missing line end, and appends after it. Unlike `metrics.jsonl`, the file is not cut back to a checkpoint on
//! resume: its measurements stay valid, and steps may occur twice.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{TelemetryError, failed};

/// Name of the file in a run's folder.
pub const FILE_NAME: &str = "memory.jsonl";

/// Activity of a run at the time of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Reading data, opening the model.
    Start,
    /// Planning memory.
    Plan,
    /// Reserving memory, loading kernels, first steps.
    Warmup,
    /// Optimizer steps.
    Train,
    /// Evaluating validation samples.
    Evaluate,
    /// Writing a checkpoint or the model.
    Save,
}

impl Phase {
    pub const ALL: [Phase; 6] = [
        Phase::Start,
        Phase::Plan,
        Phase::Warmup,
        Phase::Train,
        Phase::Evaluate,
        Phase::Save,
    ];

    /// Name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Start => "start",
            Phase::Plan => "plan",
            Phase::Warmup => "warmup",
            Phase::Train => "train",
            Phase::Evaluate => "evaluate",
            Phase::Save => "save",
        }
    }
}

/// A line of `memory.jsonl`. Unknown values are null; keys may be missing in lines of other versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySample {
    /// Seconds since 1970, UTC.
    pub time: f64,
    /// Completed optimizer steps.
    pub step: Option<u64>,
    /// Completed epochs.
    pub epoch: Option<u64>,
    #[serde(deserialize_with = "known_phase")]
    pub phase: Option<Phase>,
    /// Such as `cuda:0` or `cpu`.
    pub device: Option<String>,
    /// Used device memory, over all processes.
    pub used_bytes: Option<u64>,
    /// Total device memory.
    pub total_bytes: Option<u64>,
    /// Device memory of this process, including the driver's context.
    pub process_bytes: Option<u64>,
    /// Arena: the part of the process's memory that is planned tensor by tensor.
    pub arena_bytes: Option<u64>,
    /// Resident host memory of this process.
    pub host_rss_bytes: Option<u64>,
    /// GPU utilization in percent, 0 to 100, from the driver.
    pub gpu_utilization: Option<f64>,
    /// Trained samples per second since the previous line.
    pub samples_per_s: Option<f64>,
    /// Planned peak of `process_bytes`.
    pub planned_bytes: Option<u64>,
    /// Samples per micro-batch.
    pub batch_size: Option<u64>,
    /// Share of the time since the previous line that the device waited for data, 0 to 1.
    pub waited_for_data: Option<f64>,
    /// High-water mark of this process so far, counted as the budget counts it; includes peaks between samples.
    pub process_peak_bytes: Option<u64>,
    /// Memory budget of this process, from the user or the machine.
    pub budget_bytes: Option<u64>,
}

/// Reads unknown phases of other versions as `None`, so that their lines stay readable.
fn known_phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Phase>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    let known = |name: &str| Phase::ALL.into_iter().find(|phase| phase.name() == name);
    Ok(name.as_deref().and_then(known))
}

impl MemorySample {
    /// A sample with the current time only.
    pub fn now() -> MemorySample {
        // A clock before 1970 is wrong, but must not end a run.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        MemorySample {
            time: since.map_or(0.0, |since| since.as_secs_f64()),
            ..MemorySample::default()
        }
    }
}

/// The open `memory.jsonl`.
#[derive(Debug)]
pub struct MemoryLog {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
    /// Whether a write failed, possibly halfway.
    is_torn: bool,
}

impl MemoryLog {
    /// Opens or creates the file, to append after its last complete line.
    pub fn open(path: &Path) -> Result<MemoryLog, TelemetryError> {
        Ok(MemoryLog {
            path: path.to_owned(),
            file: opened(path)?,
            line: Vec::new(),
            is_torn: false,
        })
    }

    /// Appends a line in one write.
    pub fn add(&mut self, sample: &MemorySample) -> Result<(), TelemetryError> {
        let name = self.path.display().to_string();
        if self.is_torn {
            self.file = opened(&self.path)?;
            self.is_torn = false;
        }
        self.line.clear();
        serde_json::to_writer(&mut self.line, sample)
            .map_err(|cause| failed(&name, "written")(cause.into()))?;
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(|cause| {
            self.is_torn = true;
            failed(&name, "written")(cause)
        })
    }
}

fn opened(path: &Path) -> Result<File, TelemetryError> {
    let name = path.display().to_string();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path).map_err(failed(&name, "opened"))?;
    make_whole(&mut file).map_err(failed(&name, "cut to whole lines"))?;
    drop(file);
    // In append mode, so that an accidental second writer cannot write into the middle of a line.
    let file = OpenOptions::new().append(true).open(path);
    file.map_err(failed(&name, "opened"))
}

/// Adds a missing last line end, or removes an incomplete last line.
fn make_whole(file: &mut File) -> std::io::Result<()> {
    let length = file.metadata()?.len();
    let whole = whole_lines(file, length)?;
    if whole == length {
        return Ok(());
    }
    /// Limit of a complete line.
    const LONGEST: u64 = 1 << 16;
    if length - whole <= LONGEST {
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(whole))?;
        file.take(LONGEST).read_to_end(&mut tail)?;
        if serde_json::from_slice::<MemorySample>(&tail).is_ok() {
            file.seek(SeekFrom::Start(length))?;
            return file.write_all(b"\n");
        }
    }
    file.set_len(whole)
}

/// Length of the complete lines, in bytes.
fn whole_lines(file: &mut File, length: u64) -> std::io::Result<u64> {
    let mut block = [0; 4096];
    let mut end = length;
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64) -> MemorySample {
        MemorySample {
            step: Some(step),
            phase: Some(Phase::Train),
            device: Some("cuda:0".to_owned()),
            used_bytes: Some(u64::MAX),
            ..MemorySample::now()
        }
    }

    fn steps(text: &str) -> Vec<u64> {
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text.lines()
            .map(|line| serde_json::from_str::<MemorySample>(line).unwrap())
            .map(|sample| sample.step.unwrap())
            .collect()
    }

    /// Keys that readers rely on, in their order; unknown values are null.
    #[test]
    fn keys() {
        let sample = MemorySample {
            time: 1.5,
            ..MemorySample::default()
        };
        assert_eq!(
            serde_json::to_string(&sample).unwrap(),
            "{\"time\":1.5,\"step\":null,\"epoch\":null,\"phase\":null,\"device\":null,\"used_bytes\":null,\
             \"total_bytes\":null,\"process_bytes\":null,\"arena_bytes\":null,\"host_rss_bytes\":null,\
             \"gpu_utilization\":null,\"samples_per_s\":null,\"planned_bytes\":null,\"batch_size\":null,\
             \"waited_for_data\":null,\"process_peak_bytes\":null,\"budget_bytes\":null}"
        );
        for phase in Phase::ALL {
            let name = serde_json::to_string(&phase).unwrap();
            assert_eq!(name, format!("\"{}\"", phase.name()));
        }
    }

    /// For a cut at every byte of the last line: later lines are complete.
    #[test]
    fn a_log_that_was_cut_anywhere_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let mut log = MemoryLog::open(&path).unwrap();
        log.add(&sample(1)).unwrap();
        let first = std::fs::read(&path).unwrap().len();
        log.add(&sample(2)).unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut log = MemoryLog::open(&path).unwrap();
            log.add(&sample(3)).unwrap();
            let expected: &[u64] = match cut {
                _ if cut + 1 < first => &[3],
                _ if cut + 1 < whole.len() => &[1, 3],
                _ => &[1, 2, 3],
            };
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(steps(&text), expected, "cut at {cut}");
        }
    }

    #[test]
    fn a_tail_that_is_no_line_is_cut_off_whatever_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for length in [1, 4095, 4096, 4097, 100_000] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            MemoryLog::open(&path).unwrap().add(&sample(7)).unwrap();
            assert_eq!(steps(&std::fs::read_to_string(&path).unwrap()), [7]);
        }
    }

    #[test]
    fn where_it_cannot_be_opened_the_path_and_a_hint_are_said() {
        let folder = tempfile::tempdir().unwrap();
        let error = MemoryLog::open(folder.path()).unwrap_err().to_string();
        let name = folder.path().display().to_string();
        assert!(
            error.starts_with(&name) && error.contains("\nhint: "),
            "{error}"
        );
    }
}
