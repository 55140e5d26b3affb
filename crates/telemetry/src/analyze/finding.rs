//! What an analysis says: findings, each with its evidence and one line of what to do.

use serde::Serialize;
use serde_json::{Map, Value};

use super::device::DeviceLog;
use crate::log::{Format, Sample, Skipped};
use crate::memory_log::Phase;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// Memory grows steadily.
    Growth,
    /// Memory shot up for a moment.
    Spike,
    /// Far more is reserved than was ever allocated.
    Fragmentation,
    /// Little is left.
    NearLimit,
    /// Much is left, and the GPU waits.
    Underused,
    /// The GPU had nothing to do.
    Idle,
    /// The GPU waits for data, or for the host.
    WaitingForData,
    /// Others took memory.
    OtherProcesses,
    /// Steps got slow as memory filled up.
    Spill,
    /// One of several processes keeps the others waiting.
    Straggler,
    /// The process held more than it may.
    OverBudget,
    /// The driver cannot reach the GPU.
    GpuError,
    /// A kernel or a call failed.
    CudaError,
    /// An allocation failed.
    OutOfMemory,
    /// Losses that are no numbers.
    Diverged,
    /// The run ended with an error.
    Failed,
}

impl Symptom {
    /// As people read it.
    pub fn words(self) -> &'static str {
        match self {
            Symptom::Growth => "steady growth",
            Symptom::Spike => "spike",
            Symptom::Fragmentation => "fragmentation",
            Symptom::NearLimit => "near the limit",
            Symptom::Underused => "underused",
            Symptom::Idle => "idle GPU",
            Symptom::WaitingForData => "waiting for data",
            Symptom::OtherProcesses => "other processes",
            Symptom::Spill => "spill to host memory",
            Symptom::Straggler => "straggler",
            Symptom::OverBudget => "over the budget",
            Symptom::GpuError => "GPU error",
            Symptom::CudaError => "CUDA error",
            Symptom::OutOfMemory => "out of memory",
            Symptom::Diverged => "diverged",
            Symptom::Failed => "failed",
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth a look.
    Warning,
    /// Will end the run, or wastes most of it.
    Problem,
}

/// One thing that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What.
    pub kind: Symptom,
    /// How bad.
    pub severity: Severity,
    /// Where it shows, where that is a place.
    pub step: Option<u64>,
    /// What, with numbers, in one line.
    pub message: String,
    /// What to do, in one line.
    pub advice: String,
    /// Of several devices, which.
    pub device: Option<String>,
    /// What the run was doing.
    pub phase: Option<Phase>,
    /// The numbers behind it.
    pub evidence: Map<String, Value>,
}

/// The worst of the findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing was found.
    Healthy,
    /// Something is worth a look.
    Warning,
    /// Something must change.
    Problem,
}

/// What was read.
#[derive(Clone, Debug, Serialize)]
pub struct LogSummary {
    /// As the user named it.
    pub name: String,
    /// Whose log it is.
    pub format: Format,
    /// Lines.
    pub lines: u64,
    /// Lines that are samples.
    pub samples: u64,
    /// Lines that could not be read.
    pub skipped: Skipped,
    /// Seconds from the first sample to the last, gaps included and clocks that went back left out.
    pub seconds: Option<f64>,
    /// Devices, by their names in the log.
    pub devices: Vec<String>,
    /// Columns that are understood, as `name: meaning`.
    pub columns: Vec<String>,
    /// What was guessed, and what could not be judged.
    pub notes: Vec<String>,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// The worst of the findings.
    pub verdict: Verdict,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// What was read.
    pub log: LogSummary,
}

impl Analysis {
    /// The worst finding first, and the verdict that goes with it.
    pub(super) fn judge(&mut self) {
        self.findings
            .sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        self.verdict = match self.findings.first().map(|finding| finding.severity) {
            None => Verdict::Healthy,
            Some(Severity::Warning) => Verdict::Warning,
            Some(Severity::Problem) => Verdict::Problem,
        };
    }
}

impl Finding {
    pub(super) fn new(
        kind: Symptom,
        severity: Severity,
        message: String,
        advice: impl Into<String>,
    ) -> Finding {
        Finding {
            kind,
            severity,
            step: None,
            message,
            advice: advice.into(),
            device: None,
            phase: None,
            evidence: Map::new(),
        }
    }

    pub(super) fn at_step(mut self, step: Option<u64>) -> Finding {
        self.step = step;
        self
    }

    pub(super) fn in_phase(mut self, phase: Option<Phase>) -> Finding {
        self.phase = phase;
        self
    }

    pub(super) fn with(mut self, key: &str, number: f64) -> Finding {
        // Bytes are whole, and numbers such as a slope need not have sixteen digits.
        let value = match number.abs() {
            n if n >= 1e6 => Value::from(number.round() as i64),
            _ => Value::from((number * 1e6).round() / 1e6),
        };
        self.evidence.insert(key.to_owned(), value);
        self
    }
}

/// `at step 1,200`, or at a time into the log, or at a line.
pub(super) fn place(log: &DeviceLog, sample: &Sample) -> String {
    match (sample.step, sample.time, log.first.time) {
        (Some(step), _, _) => format!("at step {}", crate::words::thousands(step)),
        (None, Some(time), Some(first)) if time == first => "at the first sample".to_owned(),
        (None, Some(time), Some(first)) if time > first => {
            format!("{} into the log", crate::words::show_duration(time - first))
        }
        _ => format!("at line {}", crate::words::thousands(sample.line)),
    }
}
