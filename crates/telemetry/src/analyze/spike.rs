//! Spikes: a few samples far above all others, with a gap in between.
//!
//! Noise, however wide, is dense up to its largest value; a spike leaves a gap. Samples are walked from the largest down; a gap of a
//! large share of the device with few samples above it is a spike. A log with `max_memory_allocated()` also shows peaks between
//! samples: a rise of that size in the high-water mark is a spike too.

use super::device::DeviceLog;
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

/// Finds a rise of the high-water mark of allocated or else reserved memory that the samples of allocated memory do not show.
fn find_rise(log: &DeviceLog) -> Option<Finding> {
    /// The first steps raise the mark.
    const NUM_FIRST: usize = 20;
    let channel = match log.most(Meaning::AllocatedPeak) {
        Some(_) => Meaning::AllocatedPeak,
        None => Meaning::Reserved,
    };
    let is_epoch_end = |pair: &[&Sample]| {
        let ends = matches!(pair[1].phase, Some(Phase::Evaluate | Phase::Save));
        ends || pair[0].epoch() != pair[1].epoch()
    };
    let samples = log.groups.iter().map(|group| &group.peak);
    let samples = samples.filter(|sample| sample.get(channel).is_some());
    let samples: Vec<&Sample> = samples.collect();
    let mut mark = 0.0;
    let mut rise: Option<(f64, &Sample, bool)> = None;
    for (at, pair) in samples.windows(2).enumerate() {
        mark = pair[0].get(channel)?.max(mark);
        let gain = pair[1].get(channel)? - mark;
        let is_epoch_end = is_epoch_end(pair);
        // Fragmentation raises reserved memory too; only at the end of an epoch does a rise indicate a spike.
        let may_be_spike = is_epoch_end || channel == Meaning::AllocatedPeak;
        let is_most = rise.is_none_or(|(most, ..)| gain > most);
        if at + 1 >= NUM_FIRST && may_be_spike && is_most {
            rise = Some((gain, pair[1], is_epoch_end));
        }
    }
    let (gain, sample, is_epoch_end) = rise?;
    let peak = sample.get(channel)?;
    let before = peak - gain;
    if gain < min_gap(log, before).max(MIN_SHARE_OF_LEVEL * before) {
        return None;
    }
    let (end, cause) = if is_epoch_end {
        (", at the end of an epoch", Some(Phase::Evaluate))
    } else {
        ("", sample.phase)
    };
    let message = format!(
        "{} rose to {}{end}: {} above the {} that it was until then",
        channel.words(),
        peak_in_words(log, peak, sample),
        show_bytes(gain),
        show_bytes(before),
    );
    Some(finding(log, message, cause, peak, before, sample))
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
