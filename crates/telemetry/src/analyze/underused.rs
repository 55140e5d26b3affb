//! Underused: most of the memory is free while the GPU waits between small batches. One that waits for data is another verdict: no
//! batch makes data come faster.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom};
use super::series::Channel;
use crate::words::{percent, show_bytes};

/// Of the device, where the GPU is known to be busy for less than `BUSY` percent of the time.
const LITTLE: f64 = 0.5;
/// Of the device, where it is not known how busy it is.
const VERY_LITTLE: f64 = 0.25;
const BUSY: f64 = 70.0;
const FEWEST_SAMPLES: u64 = 20;
/// What a larger batch may fill.
const GOAL: f64 = 0.85;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let total = log.total?;
    // A larger batch makes no CPU faster.
    if log.held_share.count() < FEWEST_SAMPLES || log.name == "cpu" {
        return None;
    }
    // The peak decides how large a batch may be; of readings from outside, a single odd one aside.
    let peaks = [Channel::AllocatedPeak, Channel::Reserved].map(|channel| log.all.most(channel));
    let share = peaks
        .iter()
        .flatten()
        .map(|peak| peak / total)
        .fold(log.held_share.quantile(0.995)?, f64::max);
    let utilization = log.busy.utilization.of(FEWEST_SAMPLES);
    let is_underused = match utilization {
        // With nothing loaded, nothing ran: that is another verdict.
        _ if log.busy.num_empty > 0 && utilization.is_none() => false,
        Some(utilization) => share < LITTLE && utilization < BUSY,
        None => share < VERY_LITTLE,
    };
    if !is_underused {
        return None;
    }
    // All of it taken to grow with the batch, although weights do not: on the safe side.
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
    // Between steps a script holds little; only a peak says how much larger a batch may be.
    let outside = [Channel::Process, Channel::Used].map(|channel| log.all.most(channel));
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
