//! Failures that a log reports explicitly: a lost GPU, a failed allocation, a non-finite loss, an error that ended the run.

use super::finding::{Finding, Severity, Symptom};
use crate::log::{OddLosses, Trouble, TroubleLines};
use crate::run_files::Failure;
use crate::words::{counted, thousands};

pub(super) fn trouble(lines: &TroubleLines) -> Finding {
    let (kind, says) = match lines.kind {
        Trouble::Gpu => (
            Symptom::GpuError,
            "the driver lost the GPU, or cannot read it",
        ),
        Trouble::Cuda => (Symptom::CudaError, "a CUDA call failed"),
        Trouble::OutOfMemory => (Symptom::OutOfMemory, "an allocation failed: out of memory"),
    };
    let times = match lines.count {
        1 => String::new(),
        times => format!(", and {} more", counted(times - 1, "such line")),
    };
    let line = thousands(lines.first_line);
    let message = format!("{says}, line {line}{times}: `{}`", lines.text);
    Finding::new(kind, Severity::Problem, message)
        .at_step(lines.step)
        .with("line", lines.first_line as f64)
        .with("lines", lines.count as f64)
}

/// Finding about non-finite losses: the run diverged if they last to the end of the log; else some steps were affected.
pub(super) fn odd_losses(losses: &OddLosses) -> Option<Finding> {
    let (line, step) = losses.first?;
    let at = match step {
        Some(step) => format!("step {}", thousands(step)),
        None => format!("line {}", thousands(line)),
    };
    let (odd, all) = (
        thousands(losses.count),
        counted(losses.count + losses.num_finite, "line"),
    );
    let finding = if losses.is_last {
        let message = format!(
            "training diverged: from {at} to the end the loss is NaN or infinite, in {odd} of {all}"
        );
        Finding::new(Symptom::Diverged, Severity::Problem, message)
    } else {
        let message = format!(
            "the loss was NaN or infinite in {odd} of {all}, last from {at}, and is finite again"
        );
        Finding::new(Symptom::Diverged, Severity::Warning, message).advising(
            "look at that step's batch for broken samples; use gradient clipping, or lower the learning rate",
        )
    };
    let finding = finding
        .at_step(step)
        .with("odd_losses", losses.count as f64);
    Some(finding.with("line", line as f64))
}

/// The error in a run's `failure.json`.
pub(super) fn failure(failure: &Failure) -> Finding {
    let printable = |line: &str| -> String {
        let characters = line.chars().filter(|c| !c.is_control());
        characters.take(300).collect()
    };
    let mut lines = failure.error.lines();
    let first = printable(lines.next().unwrap_or_default());
    if failure.kind.as_deref() == Some("diverged") {
        // The error message contains the step.
        let finding = Finding::new(Symptom::Diverged, Severity::Problem, first);
        return finding.at_step(failure.step);
    }
    let message = format!("the run failed: {first}");
    let finding = Finding::new(Symptom::Failed, Severity::Problem, message).at_step(failure.step);
    match lines.find_map(|line| line.strip_prefix("hint: ")) {
        Some(hint) => finding.advising(printable(hint)),
        None => finding,
    }
}
