//! Spikes: a few samples far above all others, with a gap in between.
//!
//! Noise, however wide, is dense up to its largest value; a spike leaves a gap. The histogram is walked from the top; a gap of a
//! large share of the device with few samples above it is a spike. A log with `max_memory_allocated()` also shows peaks between
//! samples: a rise of that size in a steady high-water mark is a spike too.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::Sample;
use crate::memory_log::Phase;
use crate::words::{counted, percent, show_bytes};

/// Smallest gap, as a share of the device.
const LEAST_SHARE: f64 = 0.05;
/// Smallest gap for a device of unknown size, as a share of the usual level.
const LEAST_OF_LEVEL: f64 = 0.15;
/// Largest share of samples above the gap; more frequent peaks are normal operation.
const MOST_OFTEN: f64 = 0.015;
/// Fewest samples per epoch for which one spike per epoch counts.
const FEWEST_PER_EPOCH: u64 = 8;
const FEWEST_SAMPLES: u64 = 30;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    find_gap(log).or_else(|| find_rise(log))
}

/// Finds a rise of the high-water mark that the samples of allocated memory do not show.
fn find_rise(log: &DeviceLog) -> Option<Finding> {
    let rise = log.peak.rise?;
    let gain = rise.to - rise.from;
    let least = log
        .total
        .map_or(LEAST_OF_LEVEL * rise.from, |total| LEAST_SHARE * total);
    if gain < least || gain < LEAST_OF_LEVEL * rise.from {
        return None;
    }
    let share = log.total.map(|total| rise.to / total);
    let end = if rise.is_at_epoch_end {
        ", at the end of an epoch"
    } else {
        ""
    };
    let message = format!(
        "{} rose to {}{} {}{}{end}: {} above the {} that it was until then",
        rise.channel.words(),
        show_bytes(rise.to),
        share.map_or(String::new(), |share| format!(
            " ({} of the device)",
            percent(share)
        )),
        place(log, &rise.sample),
        during(&rise.sample),
        show_bytes(gain),
        show_bytes(rise.from),
    );
    let severity = match share {
        Some(share) if share >= 0.95 => Severity::Problem,
        _ => Severity::Warning,
    };
    let advice = if rise.is_at_epoch_end {
        advice_of(Some(Phase::Evaluate))
    } else {
        advice_of(rise.sample.phase)
    };
    Some(
        Finding::new(Symptom::Spike, severity, message, advice)
            .at_step(rise.sample.step)
            .in_phase(rise.sample.phase)
            .with("peak_bytes", rise.to)
            .with("usual_peak_bytes", rise.from)
            .with("line", rise.sample.line as f64),
    )
}

fn find_gap(log: &DeviceLog) -> Option<Finding> {
    let channel = log.primary()?;
    let levels = log.level(channel);
    if levels.count() < FEWEST_SAMPLES {
        return None;
    }
    let usual = levels.quantile(0.5)?;
    let least = log
        .total
        .map_or(LEAST_OF_LEVEL * usual, |total| LEAST_SHARE * total);
    // One peak per epoch is a spike too, if epochs are long.
    let once_an_epoch = log.num_epochs.min(levels.count() / FEWEST_PER_EPOCH);
    let most_above = ((MOST_OFTEN * levels.count() as f64).max(1.0) as u64).max(once_an_epoch);
    let mut num_above = 0;
    let mut above: Option<f64> = None;
    let mut gap = None;
    for (value, count) in levels.largest_first() {
        if let Some(above) = above
            && above - value >= least
            && num_above <= most_above
        {
            gap = Some((value, num_above));
        }
        num_above += count;
        if num_above > most_above {
            // The remaining samples are the bulk; every gap above them has been compared.
            break;
        }
        above = Some(value);
    }
    let (usual_peak, num_above) = gap?;
    let tops = &log.tops[channel as usize];
    let top = tops.first()?;
    let peak = channel.of(top)?;
    let share = log.total.map(|total| peak / total);
    let often = match num_above {
        1 => String::new(),
        times => format!(", {} in all", counted(times, "sample")),
    };
    let message = format!(
        "{} shot up to {}{} {}{}, {} above its usual peak of {}{often}",
        channel.words(),
        show_bytes(peak),
        share.map_or(String::new(), |share| format!(
            " ({} of the device)",
            percent(share)
        )),
        place(log, top),
        during(top),
        show_bytes(peak - usual_peak),
        show_bytes(usual_peak),
    );
    let severity = match share {
        Some(share) if share >= 0.95 => Severity::Problem,
        _ => Severity::Warning,
    };
    Some(
        Finding::new(Symptom::Spike, severity, message, advice_of(top.phase))
            .at_step(top.step)
            .in_phase(top.phase)
            .with("peak_bytes", peak)
            .with("usual_peak_bytes", usual_peak)
            .with("usual_bytes", usual)
            .with("samples_above", num_above as f64)
            .with("line", top.line as f64),
    )
}

fn during(top: &Sample) -> String {
    top.phase
        .map_or(String::new(), |phase| format!(" during {}", phase.name()))
}

fn advice_of(phase: Option<Phase>) -> &'static str {
    match phase {
        Some(Phase::Evaluate) => {
            "evaluate without gradients, in smaller batches, and move outputs to the host as they come"
        }
        Some(Phase::Save) => {
            "copy weights to the host one by one before saving; do not clone the whole state on the device"
        }
        Some(Phase::Start | Phase::Plan | Phase::Warmup) => {
            "load weights straight to where they stay, and bound the workspace of algorithm searches"
        }
        Some(Phase::Train) | None => {
            "look at that step's batch: cut or bucket the longest samples, and keep the batch size constant to its end"
        }
    }
}
