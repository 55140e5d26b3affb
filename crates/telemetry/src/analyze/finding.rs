//! Results of an analysis: findings, each with evidence and advice.

use serde::Serialize;
use serde_json::{Map, Value};

use super::device::DeviceLog;
use crate::log::{Format, Sample, Skipped};
use crate::memory_log::Phase;
use crate::words::{percent, show_duration, thousands};

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// Memory grows steadily.
    Growth,
    /// A short peak of memory.
    Spike,
    /// Far more memory is reserved than was ever allocated.
    Fragmentation,
    /// Memory is nearly full.
    NearLimit,
    /// Much memory is free, and the GPU is not busy.
    Underused,
    /// The GPU waits for data or for the host.
    WaitingForData,
    /// Other processes use much memory.
    OtherProcesses,
    /// Steps became slow as memory filled up.
    Spill,
    /// One of several processes slows down the others.
    Straggler,
    /// The process held more than its budget.
    OverBudget,
    /// The driver cannot reach the GPU.
    GpuError,
    /// A kernel or a CUDA call failed.
    CudaError,
    /// An allocation failed.
    OutOfMemory,
    /// The loss is NaN or infinite.
    Diverged,
    /// The run ended with an error.
    Failed,
}

impl Symptom {
    /// Name in messages.
    pub fn words(self) -> &'static str {
        self.words_and_advice().0
    }

    #[rustfmt::skip]
    fn words_and_advice(self) -> (&'static str, &'static str) {
        match self {
            Symptom::Growth => ("steady growth",
                "keep numbers, not tensors: loss.item(), detach() what goes into lists, and clear what lives past its step"),
            Symptom::Spike => ("spike",
                "look at that step's batch: cut or bucket the longest samples, and keep the batch size constant to its end"),
            Symptom::Fragmentation => ("fragmentation",
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and shapes that do not change: pad to a few lengths, drop odd last batches"),
            Symptom::NearLimit => ("near the limit",
                "a smaller batch with more accumulation, recomputation, or half precision; `holdall plan` shows what each would buy"),
            Symptom::Underused => ("underused", "try a larger batch size, with less accumulation"),
            Symptom::WaitingForData => ("waiting for data",
                "more loader workers and prefetch, smaller or pre-decoded files; `holdall bench loader` times them alone; \
                 a larger batch would only wait longer"),
            Symptom::OtherProcesses => ("other processes",
                "`nvidia-smi` names them: end them or move to another GPU, or plan with what is left (`memory: auto`)"),
            Symptom::Spill => ("spill to host memory",
                "need less memory (a smaller batch, recomputation), or forbid the driver's fallback to system memory so that it fails early"),
            Symptom::Straggler => ("straggler",
                "look at what else runs on that machine, its clock, its disk and its cores; or leave it out"),
            Symptom::OverBudget => ("over the budget",
                "allow what it held, or need less: a smaller batch with more accumulation, recomputation, smaller pictures; \
                 `holdall plan --memory` shows what fits"),
            Symptom::GpuError => ("GPU error",
                "look for Xid lines in `dmesg`, check power, cooling and seating; reset the GPU (`nvidia-smi -r`) or restart the machine, \
                 then resume"),
            Symptom::CudaError => ("CUDA error",
                "run again with CUDA_LAUNCH_BLOCKING=1, which names the call that failed; labels out of range are the usual cause"),
            Symptom::OutOfMemory => ("out of memory",
                "a smaller batch with more accumulation, or recomputation; `holdall plan` shows what fits before the run"),
            Symptom::Diverged => ("diverged",
                "go back to a checkpoint before that step, with a lower learning rate, a longer warm-up or gradient clipping"),
            Symptom::Failed => ("failed", "failure.json has the plan, the last samples and the last steps"),
        }
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth a look.
    Warning,
    /// Will end the run, or wastes most of it.
    Problem,
}

impl Severity {
    pub(super) fn problem_if(is_problem: bool) -> Severity {
        if is_problem {
            Severity::Problem
        } else {
            Severity::Warning
        }
    }
}

/// A finding.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub kind: Symptom,
    pub severity: Severity,
    /// Step at which it shows, if there is one.
    pub step: Option<u64>,
    /// One line with numbers.
    pub message: String,
    /// One line of advice.
    pub advice: String,
    /// Device, if the log has several.
    pub device: Option<String>,
    /// Phase of the run.
    pub phase: Option<Phase>,
    /// Numbers that support the finding.
    pub evidence: Map<String, Value>,
}

/// Severity of the worst finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No findings.
    Healthy,
    /// Warnings only.
    Warning,
    /// At least one problem.
    Problem,
}

/// Summary of the log.
#[derive(Clone, Debug, Serialize)]
pub struct LogSummary {
    /// Path or name from the user.
    pub name: String,
    pub format: Format,
    /// Number of lines.
    pub lines: u64,
    /// Number of lines that are samples.
    pub samples: u64,
    pub skipped: Skipped,
    /// Seconds from the first sample to the last. Includes gaps; ignores backward jumps of the clock.
    pub seconds: Option<f64>,
    /// Names of the devices in the log.
    pub devices: Vec<String>,
    /// Recognised columns, as `name: meaning`.
    pub columns: Vec<String>,
    /// Guesses that were made, and aspects that could not be judged.
    pub notes: Vec<String>,
}

/// Result of an analysis.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    pub verdict: Verdict,
    /// Sorted by severity, worst first.
    pub findings: Vec<Finding>,
    pub log: LogSummary,
}

impl Analysis {
    /// Sorts the findings by severity, and sets the verdict.
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
    /// A finding with the usual advice of its kind.
    pub(super) fn new(kind: Symptom, severity: Severity, message: String) -> Finding {
        Finding {
            kind,
            severity,
            step: None,
            message,
            advice: kind.words_and_advice().1.to_owned(),
            device: None,
            phase: None,
            evidence: Map::new(),
        }
    }

    pub(super) fn advising(mut self, advice: impl Into<String>) -> Finding {
        self.advice = advice.into();
        self
    }

    pub(super) fn at_step(mut self, step: Option<u64>) -> Finding {
        self.step = step;
        self
    }

    pub(super) fn in_phase(mut self, phase: Option<Phase>) -> Finding {
        self.phase = phase;
        self
    }

    /// At the step and in the phase of a sample.
    pub(super) fn at(self, sample: &Sample) -> Finding {
        self.at_step(sample.step()).in_phase(sample.phase)
    }

    pub(super) fn with(mut self, key: &str, number: f64) -> Finding {
        // Bytes are integers; other numbers are rounded to six decimals.
        let value = match number.abs() {
            n if n >= 1e6 => Value::from(number.round() as i64),
            _ => Value::from((number * 1e6).round() / 1e6),
        };
        self.evidence.insert(key.to_owned(), value);
        self
    }
}

/// Position of a sample: `at step 1,200`, or the time since the first sample, or the line number.
pub(super) fn place(log: &DeviceLog, sample: &Sample) -> String {
    let first = log.groups.first().and_then(|group| group.mean.time());
    match (sample.step(), sample.time(), first) {
        (Some(step), _, _) => format!("at step {}", thousands(step)),
        (None, Some(time), Some(first)) if time == first => "at the first sample".to_owned(),
        (None, Some(time), Some(first)) if time > first => {
            format!("{} into the log", show_duration(time - first))
        }
        _ => format!("at line {}", thousands(sample.line)),
    }
}

/// `, first at step 1,200`, or nothing.
pub(super) fn first_at(log: &DeviceLog, sample: Option<&Sample>) -> String {
    sample.map_or(String::new(), |first| {
        format!(", first {}", place(log, first))
    })
}

/// ` (43% of the device)`, or nothing if its size is unknown.
pub(super) fn share_of_device(log: &DeviceLog, bytes: f64) -> String {
    let share = |total: f64| format!(" ({} of the device)", percent(bytes / total));
    log.total().map_or(String::new(), share)
}
