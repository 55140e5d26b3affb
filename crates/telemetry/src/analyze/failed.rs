//! Failures that a log reports explicitly: a lost GPU, a failed allocation, a non-finite loss.

use super::finding::{Finding, Severity, Symptom};
use crate::log::{OddLosses, Trouble, TroubleLines};
use crate::words::{counted, thousands};

pub(super) fn of_lines(lines: &TroubleLines) -> Finding {
    let (kind, says, advice) = match lines.what {
        Trouble::Gpu => (
            Symptom::GpuError,
            "the driver lost the GPU, or cannot read it",
            "look for Xid lines in `dmesg`, check power, cooling and seating; reset the GPU (`nvidia-smi -r`) or restart the machine, \
             then resume",
        ),
        Trouble::Cuda => (
            Symptom::CudaError,
            "a CUDA call failed",
            "run again with CUDA_LAUNCH_BLOCKING=1, which names the call that failed; labels out of range are the usual cause",
        ),
        Trouble::OutOfMemory => (
            Symptom::OutOfMemory,
            "an allocation failed: out of memory",
            "a smaller batch with more accumulation, or recomputation; `holdall plan` shows what fits before the run",
        ),
    };
    let times = match lines.count {
        1 => String::new(),
        times => format!(", and {} more", counted(times - 1, "such line")),
    };
    let message = format!(
        "{says}, line {}{times}: `{}`",
        thousands(lines.first_line),
        lines.text
    );
    Finding::new(kind, Severity::Problem, message, advice)
        .at_step(lines.step)
        .with("line", lines.first_line as f64)
        .with("lines", lines.count as f64)
}

/// Finding about non-finite losses: the run diverged if they last to the end of the log; else some steps were affected.
pub(super) fn of_losses(losses: &OddLosses) -> Option<Finding> {
    let (line, step) = losses.first?;
    let at = match step {
        Some(step) => format!("step {}", thousands(step)),
        None => format!("line {}", thousands(line)),
    };
    let finding = if losses.is_last {
        diverged(&format!(
            "training diverged: from {at} to the end the loss is NaN or infinite, in {} of {}",
            thousands(losses.count),
            counted(losses.count + losses.num_finite, "line")
        ))
    } else {
        Finding::new(
            Symptom::Diverged,
            Severity::Warning,
            format!(
                "the loss was NaN or infinite in {} of {}, last from {at}, and is finite again",
                thousands(losses.count),
                counted(losses.count + losses.num_finite, "line")
            ),
            "look at that step's batch for broken samples; use gradient clipping, or lower the learning rate",
        )
    };
    let finding = finding
        .at_step(step)
        .with("odd_losses", losses.count as f64);
    Some(finding.with("line", line as f64))
}

pub(super) fn diverged(message: &str) -> Finding {
    Finding::new(
        Symptom::Diverged,
        Severity::Problem,
        message.to_owned(),
        "go back to a checkpoint before that step, with a lower learning rate, a longer warm-up or gradient clipping",
    )
}
