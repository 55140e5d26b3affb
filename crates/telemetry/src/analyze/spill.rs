//! Suspected spill: some drivers silently move memory to the host when the GPU is full, and steps take several times as long.

use super::device::{DeviceLog, FULL};
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::Sample;
use crate::words::{percent, show_duration};

/// Smallest slowdown that is reported.
const SLOWER: f64 = 1.5;
const FEWEST_SAMPLES: u64 = 8;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let (full, free) = (&log.training.step_ms_full, &log.training.step_ms_free);
    if full.count() < FEWEST_SAMPLES || free.count() < FEWEST_SAMPLES {
        return None;
    }
    let (slow, fast) = (full.quantile(0.5)?, free.quantile(0.5)?);
    // Nearly all steps must be slower, not just a few.
    let is_apart = full.quantile(0.25)? > 1.1 * free.quantile(0.75)?;
    if slow < SLOWER * fast || !is_apart {
        return None;
    }
    let first = log.training.first_full.as_ref();
    let message = format!(
        "steps take {:.1} times as long ({} instead of {}) where memory is more than {} full{}",
        slow / fast,
        show_duration(slow / 1e3),
        show_duration(fast / 1e3),
        percent(FULL),
        first.map_or(String::new(), |first| format!(
            ", first {}",
            place(log, first)
        )),
    );
    Some(
        Finding::new(
            Symptom::Spill,
            Severity::Problem,
            message,
            "need less memory (a smaller batch, recomputation), or forbid the driver's fallback to system memory so that it fails early",
        )
        .at_step(first.and_then(Sample::step))
        .with("slow_step_seconds", slow / 1e3)
        .with("fast_step_seconds", fast / 1e3)
        .with("times_slower", slow / fast)
        .with("slow_steps", full.count() as f64),
    )
}
