//! Spikes: a few samples far above all others, with a gap in between.
//!
//! Noise, however wide, is dense up to its largest value; a spike leaves a gap. Samples are walked from the largest down; a gap of a
//! large share of the device with few samples above it is a spike. A log with `max_memory_allocated()` also shows peaks between
//! samples: a rise of that size in a steady high-water mark is a spike too.

use super::device::{DeviceLog, Group};
use super::finding::{Finding, Severity, Symptom, place, share_of_device};
use super::statistics::median;
use crate::log::{Meaning, Sample};
use crate::memory_log::Phase;
use crate::words::{counted, show_bytes};

/// Smallest gap, as a share of the device.
const MIN_SHARE: f64 = 0.05;
/// Smallest gap for a device of unknown size, as a share of the usual level.
const MIN_SHARE_OF_LEVEL: f64 = 0.15;
/// Largest share of samples above the gap; more frequent peaks are normal operation.
const MAX_SHARE_ABOVE: f64 = 0.015;
/// Fewest samples per epoch for which one spike per epoch counts.
const FEWEST_PER_EPOCH: usize = 8;
const FEWEST_SAMPLES: usize = 30;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    find_gap(log).or_else(|| find_rise(log))
}

/// Smallest gap above a level that counts.
fn min_gap(log: &DeviceLog, level: f64) -> f64 {
    log.total()
        .map_or(MIN_SHARE_OF_LEVEL * level, |total| MIN_SHARE * total)
}

fn find_gap(log: &DeviceLog) -> Option<Finding> {
    let channel = log.primary()?;
    let mut levels = log.peaks(channel);
    if levels.len() < FEWEST_SAMPLES {
        return None;
    }
    let usual = median(levels.clone());
    levels.sort_by(|a, b| b.total_cmp(a));
    // One peak per epoch is a spike too, if epochs are long.
    let epochs = log.groups.chunk_by(|a, b| a.mean.epoch() == b.mean.epoch());
    let num_epochs = epochs
        .filter(|epoch| epoch[0].mean.epoch().is_some())
        .count();
    let once_an_epoch = num_epochs.min(levels.len() / FEWEST_PER_EPOCH);
    let most_above = (MAX_SHARE_ABOVE * levels.len() as f64).max(1.0) as usize;
    let num_above = (1..=most_above.max(once_an_epoch))
        .rev()
        .find(|&above| levels[above - 1] - levels[above] >= min_gap(log, usual))?;
    let (usual_peak, top) = (levels[num_above], log.largest(channel)?);
    let peak = top.get(channel)?;
    let often = match num_above {
        1 => String::new(),
        times => format!(", {} in all", counted(times as u64, "sample")),
    };
    let message = format!(
        "{} shot up to {}, {} above its usual peak of {}{often}",
        channel.words(),
        peak_in_words(log, peak, top),
        show_bytes(peak - usual_peak),
        show_bytes(usual_peak),
    );
    let finding = finding(log, message, top.phase, peak, usual_peak, top);
    let finding = finding.with("usual_bytes", usual);
    Some(finding.with("samples_above", num_above as f64))
}

/// A rise of a high-water mark that was steady before.
struct Rise<'a> {
    from: f64,
    to: f64,
    sample: &'a Sample,
    /// Whether an epoch ended between this sample and the previous one.
    is_at_epoch_end: bool,
}

/// The largest rise of allocated or else reserved memory after a steady time.
fn largest_rise(log: &DeviceLog, channel: Meaning) -> Option<Rise<'_>> {
    /// Samples that a mark must be steady for, because the first steps raise it.
    const FEWEST_STEADY: u64 = 20;
    /// Factor up to which a rise counts as steady.
    const STEADY: f64 = 1.02;
    let (mut mark, mut num_steady) = (0.0, 0);
    let mut largest: Option<Rise<'_>> = None;
    let mut last: Option<&Group> = None;
    for group in &log.groups {
        let before = last.replace(group);
        let Some(peak) = group.peak.get(channel) else {
            continue;
        };
        num_steady += 1;
        if peak <= mark {
            continue;
        }
        let sample = &group.peak;
        let ends = matches!(sample.phase, Some(Phase::Evaluate | Phase::Save));
        let is_at_epoch_end =
            ends || before.is_some_and(|before| before.mean.epoch() != sample.epoch());
        // Fragmentation raises reserved memory too; only at the end of an epoch does a rise indicate a spike.
        let may_be_spike = is_at_epoch_end || channel == Meaning::AllocatedPeak;
        let most_risen = largest.as_ref().map_or(0.0, |rise| rise.to - rise.from);
        if num_steady > FEWEST_STEADY && may_be_spike && peak - mark > most_risen {
            largest = Some(Rise {
                from: mark,
                to: peak,
                sample,
                is_at_epoch_end,
            });
        }
        if peak > STEADY * mark {
            num_steady = 0;
        }
        mark = peak;
    }
    largest
}

/// Finds a rise of the high-water mark that the samples of allocated memory do not show.
fn find_rise(log: &DeviceLog) -> Option<Finding> {
    let channel = match log.most(Meaning::AllocatedPeak) {
        Some(_) => Meaning::AllocatedPeak,
        None => Meaning::Reserved,
    };
    let rise = largest_rise(log, channel)?;
    let gain = rise.to - rise.from;
    if gain < min_gap(log, rise.from).max(MIN_SHARE_OF_LEVEL * rise.from) {
        return None;
    }
    let (end, cause) = if rise.is_at_epoch_end {
        (", at the end of an epoch", Some(Phase::Evaluate))
    } else {
        ("", rise.sample.phase)
    };
    let message = format!(
        "{} rose to {}{end}: {} above the {} that it was until then",
        channel.words(),
        peak_in_words(log, rise.to, rise.sample),
        show_bytes(gain),
        show_bytes(rise.from),
    );
    Some(finding(
        log,
        message,
        cause,
        rise.to,
        rise.from,
        rise.sample,
    ))
}

/// `60.00 GiB (75% of the device) at step 121 during train`.
fn peak_in_words(log: &DeviceLog, peak: f64, sample: &Sample) -> String {
    let phase = sample
        .phase
        .map(|phase| format!(" during {}", phase.name()));
    format!(
        "{}{} {}{}",
        show_bytes(peak),
        share_of_device(log, peak),
        place(log, sample),
        phase.unwrap_or_default()
    )
}

/// The finding; `cause` is the phase to look at.
fn finding(
    log: &DeviceLog,
    message: String,
    cause: Option<Phase>,
    peak: f64,
    usual_peak: f64,
    sample: &Sample,
) -> Finding {
    let severity = Severity::problem_if(log.total().is_some_and(|total| peak >= 0.95 * total));
    let finding = Finding::new(Symptom::Spike, severity, message)
        .at(sample)
        .with("peak_bytes", peak)
        .with("usual_peak_bytes", usual_peak)
        .with("line", sample.line as f64);
    match cause {
        Some(Phase::Evaluate) => finding.advising(
            "evaluate without gradients, in smaller batches, and move outputs to the host as they come",
        ),
        Some(Phase::Save) => finding.advising(
            "copy weights to the host one by one before saving; do not clone the whole state on the device",
        ),
        Some(Phase::Start | Phase::Plan | Phase::Warmup) => finding.advising(
            "load weights straight to where they stay, and bound the workspace of algorithm searches",
        ),
        Some(Phase::Train) | None => finding,
    }
}
