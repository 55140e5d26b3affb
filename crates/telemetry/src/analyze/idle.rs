//! Idle GPU: idle for nearly all of the log, or for one long stretch of it, while memory is held.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place};
use crate::words::{counted, percent, show_duration};

pub(super) const FEWEST_SAMPLES: u64 = 20;
/// Share of idle samples from which on the whole log counts as idle.
const NEARLY_ALL: f64 = 0.9;
/// Smallest share of the log that counts as a long stretch.
const LONG: f64 = 0.1;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let busy = &log.busy;
    let count = busy.utilization.count;
    let advice = "look at what the run waited for there: a lock, a download, a debugger; or end it and free the memory";
    let is_most = |samples: u64| samples >= FEWEST_SAMPLES && samples > 4 * count;
    if is_most(busy.num_before) {
        let samples = counted(busy.num_before, "sample");
        let message = format!("the GPU had nothing to do in the first {samples}, with memory held");
        let finding = Finding::new(Symptom::Idle, Severity::Problem, message, advice);
        return Some(finding.with("idle_samples", busy.num_before as f64));
    }
    if is_most(busy.num_empty) {
        let samples = counted(busy.num_empty, "sample");
        let message = format!("nothing ran: {samples} with nothing loaded and nothing to do");
        let advice = "check that the run found this GPU: CUDA_VISIBLE_DEVICES, --device";
        let finding = Finding::new(Symptom::Idle, Severity::Warning, message, advice);
        return Some(finding.with("idle_samples", busy.num_empty as f64));
    }
    if count < FEWEST_SAMPLES {
        return None;
    }
    let share = busy.num_nothing_to_do as f64 / count as f64;
    let utilization = busy.utilization.of(1)?;
    if share >= NEARLY_ALL {
        let message = format!(
            "the GPU had nothing to do in {} of the samples, with memory held; {utilization:.0}% busy on average",
            percent(share)
        );
        let finding = Finding::new(Symptom::Idle, Severity::Problem, message, advice);
        return Some(
            finding
                .with("idle_share", share)
                .with("gpu_utilization", utilization),
        );
    }
    if !is_one_stretch(log) {
        return None;
    }
    let stretch = &busy.longest;
    let length = if stretch.seconds > 0.0 {
        show_duration(stretch.seconds)
    } else {
        counted(stretch.num_samples, "sample")
    };
    let message = format!(
        "the GPU had nothing to do for {length} in a row ({} of the log), from {}",
        percent(stretch.num_samples as f64 / count as f64),
        place(log, &stretch.first).trim_start_matches("at ")
    );
    Some(
        Finding::new(Symptom::Idle, Severity::Warning, message, advice)
            .at_step(stretch.first.step)
            .with("idle_share", stretch.num_samples as f64 / count as f64)
            .with("idle_samples", stretch.num_samples as f64)
            .with("idle_seconds", stretch.seconds),
    )
}

/// Whether one long stretch has most of the idle time.
pub(super) fn is_one_stretch(log: &DeviceLog) -> bool {
    let busy = &log.busy;
    let length = busy.longest.num_samples as f64;
    length >= 10.0
        && length >= LONG * busy.utilization.count as f64
        && length >= 0.5 * busy.num_nothing_to_do as f64
}

/// Mean utilization outside of the longest idle stretch.
pub(super) fn utilization_otherwise(log: &DeviceLog) -> Option<f64> {
    let busy = &log.busy;
    if !is_one_stretch(log) {
        return busy.utilization.of(FEWEST_SAMPLES);
    }
    let count = busy.utilization.count - busy.longest.num_samples;
    (count >= FEWEST_SAMPLES).then(|| busy.utilization.sum / count as f64)
}
