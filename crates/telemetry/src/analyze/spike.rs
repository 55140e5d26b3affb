//! A spike: a few samples far above all others, with nothing between.
//!
//! Noise, however wide, is dense up to its largest value; a spike leaves a gap. So the histogram is walked from the top, and a gap that
//! is a good part of the device, with few samples above it, is a spike.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::Sample;
use crate::memory_log::Phase;
use crate::words::{counted, percent, show_bytes};

/// Of the device.
const LEAST_SHARE: f64 = 0.05;
/// Where the device's size is not known: of what is usual.
const LEAST_OF_LEVEL: f64 = 0.15;
/// Of the samples; what comes more often is no exception.
const MOST_OFTEN: f64 = 0.015;
const FEWEST_SAMPLES: u64 = 30;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let channel = log.primary()?;
    let levels = log.level(channel);
    if levels.count() < FEWEST_SAMPLES {
        return None;
    }
    let usual = levels.quantile(0.5)?;
    let least = log
        .total
        .map_or(LEAST_OF_LEVEL * usual, |total| LEAST_SHARE * total);
    let most_above = (MOST_OFTEN * levels.count() as f64).max(1.0) as u64;
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
            // The rest is the bulk; every gap above it was compared, but for the last one.
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
        Finding::new(Symptom::Spike, severity, message, advice(top))
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

fn advice(top: &Sample) -> &'static str {
    match top.phase {
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
