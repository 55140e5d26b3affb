//! `memory.jsonl`: a line per sample of the memory, every line whole.
//!
//! A line goes to the file in one write. A kill or a full disk may still cut the last one: whoever opens the file again cuts off
//! what is no line, or ends the one that only lacks its end, and appends behind it. Unlike `metrics.jsonl` nothing is cut
//! back to a checkpoint: what was measured was measured, and after a resume steps may come twice.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{TelemetryError, failed};

/// The file's name in a run's folder.
pub const FILE_NAME: &str = "memory.jsonl";

/// What a run was doing when its memory was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Reading data, opening the model.
    Start,
    /// Choosing how to run.
    Plan,
    /// Reserving memory, loading kernels, first steps.
    Warmup,
    /// Optimizer steps.
    Train,
    /// Scoring what was held out.
    Evaluate,
    /// Writing a checkpoint or the model.
    Save,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 6] = [
        Phase::Start,
        Phase::Plan,
        Phase::Warmup,
        Phase::Train,
        Phase::Evaluate,
        Phase::Save,
    ];

    /// As the log writes it.
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

/// A line of `memory.jsonl`; what is not known is null, or missing where another version wrote the line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemorySample {
    /// Seconds since 1970, UTC.
    pub time: f64,
    /// Optimizer steps done.
    pub step: Option<u64>,
    /// Epochs done.
    pub epoch: Option<u64>,
    /// What the run was doing.
    #[serde(deserialize_with = "known_phase")]
    pub phase: Option<Phase>,
    /// `cuda:0`, `cpu`.
    pub device: Option<String>,
    /// In use on the device, by all processes together.
    pub used_bytes: Option<u64>,
    /// What the device has.
    pub total_bytes: Option<u64>,
    /// What this process holds on the device, the driver's context included.
    pub process_bytes: Option<u64>,
    /// The arena: the part of it that was planned tensor by tensor.
    pub arena_bytes: Option<u64>,
    /// What this process holds of the host's memory.
    pub host_rss_bytes: Option<u64>,
    /// Percent of the time that the GPU was busy, 0 to 100, as the driver says it.
    pub gpu_utilization: Option<f64>,
    /// Samples trained per second since the line before.
    pub samples_per_s: Option<f64>,
    /// What the plan forecasts for `process_bytes`.
    pub planned_bytes: Option<u64>,
    /// Samples per micro-batch.
    pub batch_size: Option<u64>,
    /// Share of the time since the line before, 0 to 1, that the device waited for data.
    pub waited_for_data: Option<f64>,
    /// The most that this process has held so far, as a budget counts it: peaks between samples included.
    pub process_peak_bytes: Option<u64>,
    /// What this process may hold, as the user or the machine says.
    pub budget_bytes: Option<u64>,
}

/// A phase of another version is none of these, and no reason to lose its line.
fn known_phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Phase>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    let known = |name: &str| Phase::ALL.into_iter().find(|phase| phase.name() == name);
    Ok(name.as_deref().and_then(known))
}

impl MemorySample {
    /// A sample of this instant, of which nothing else is known yet.
    pub fn now() -> MemorySample {
        // A clock before 1970 is wrong, but no reason to end a run.
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        MemorySample {
            time: since.map_or(0.0, |since| since.as_secs_f64()),
            ..MemorySample::default()
        }
    }
}

/// The open file.
#[derive(Debug)]
pub struct MemoryLog {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
    /// Whether a write failed, perhaps halfway.
    is_torn: bool,
}

impl MemoryLog {
    /// Opens the file, makes it where there is none, and goes on behind its last whole line.
    pub fn open(path: &Path) -> Result<MemoryLog, TelemetryError> {
        Ok(MemoryLog {
            path: path.to_owned(),
            file: opened(path)?,
            line: Vec::new(),
            is_torn: false,
        })
    }

    /// Appends a line, in one write.
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
    // Appending, so that a second writer, wrong as it is, does not write into the middle of a line.
    let file = OpenOptions::new().append(true).open(path);
    file.map_err(failed(&name, "opened"))
}

/// Ends the last line, or cuts it off where it is only a part of one.
fn make_whole(file: &mut File) -> std::io::Result<()> {
    let length = file.metadata()?.len();
    let whole = whole_lines(file, length)?;
    if whole == length {
        return Ok(());
    }
    /// No whole line is longer.
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

/// How many of the first bytes are whole lines.
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

    /// The keys that others rely on, in their order; unknown is null.
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

    /// Cut at every byte of the last line, as a kill may cut it: the log goes on in whole lines.
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
