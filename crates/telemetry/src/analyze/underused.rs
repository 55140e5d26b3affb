//! Underused: most memory is free, and the GPU idles between small batches. A run that waits for data is another finding, because
//! a larger batch does not make data arrive faster.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom};
use crate::log::Meaning;
use crate::words::{percent, show_bytes};

/// Share of the device below which memory is underused, if the GPU is busy for less than [`BUSY`] percent of the time.
const LITTLE: f64 = 0.5;
/// The same if the utilization is unknown.
const VERY_LITTLE: f64 = 0.25;
const BUSY: f64 = 70.0;
const FEWEST_SAMPLES: u64 = 20;
/// Share of the device that a larger batch may fill.
const GOAL: f64 = 0.85;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let total = log.total?;
    // A larger batch does not make a CPU faster.
    if log.training.held_share.count() < FEWEST_SAMPLES || log.name == "cpu" {
        return None;
    }
    // The peak limits the batch size. The quantile ignores a single outlier of samples from outside.
    let peaks = [Meaning::AllocatedPeak, Meaning::Reserved].map(|channel| log.memory.most(channel));
    let share = peaks
        .iter()
        .flatten()
        .map(|peak| peak / total)
        .fold(log.training.held_share.quantile(0.995)?, f64::max);
    let utilization = log.training.busy.utilization.of(FEWEST_SAMPLES);
    let is_underused = match utilization {
        // With nothing loaded, nothing ran, which is another finding.
        _ if log.training.busy.num_empty > 0 && utilization.is_none() => false,
        Some(utilization) => share < LITTLE && utilization < BUSY,
        None => share < VERY_LITTLE,
    };
    if !is_underused {
        return None;
    }
    // Assumes that all memory grows with the batch, although weights do not: the safe side.
    let factor = (GOAL / share).clamp(1.0, 64.0);
    let factor = 2f64.powf(factor.log2().floor()).max(2.0);
    let busy = utilization.map_or(String::new(), |u| {
        format!(", and the GPU is busy {u:.0}% of the time")
    });
    let message = format!(
        "at most {} of {} is used{busy}",
        percent(share),
        show_bytes(total)
    );
    let advice = match log.batch_size {
        Some(batch) => format!(
            "try a batch size of {:.0} instead of {batch:.0}, with less accumulation: it should fit in {}",
            batch * factor,
            percent(share * factor)
        ),
        None => format!(
            "where it does not wait for data, try {factor:.0} times the batch size, with less accumulation: it should fit in {} of the device",
            percent(share * factor)
        ),
    };
    // Between steps a script holds little; only a peak shows how much larger a batch may be.
    let outside = [Meaning::Process, Meaning::Used].map(|channel| log.memory.most(channel));
    let has_peak = peaks.iter().chain(&outside).any(Option::is_some);
    let advice = if has_peak {
        advice
    } else {
        "the log says what is allocated between steps alone, no peak: add torch.cuda.max_memory_allocated() to it before a larger batch"
            .to_owned()
    };
    let mut finding = Finding::new(Symptom::Underused, Severity::Warning, message, advice)
        .with("used_share", share)
        .with("total_bytes", total);
    if has_peak {
        finding = finding.with("batch_size_factor", factor);
    }
    if let Some(utilization) = utilization {
        finding = finding.with("gpu_utilization", utilization);
    }
    if let Some(batch) = log.batch_size.filter(|_| has_peak) {
        finding = finding.with("suggested_batch_size", batch * factor);
    }
    Some(finding)
}
