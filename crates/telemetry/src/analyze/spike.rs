//! Spikes: a few samples far above all others, with a gap in between.
//!
//! Noise, however wide, is dense up to its largest value; a spike leaves a gap. The histogram is walked from the top; a gap of a
//! large share of the device with few samples above it is a spike. A log with `max_memory_allocated()` also shows peaks between
//! samples: a rise of that size in a steady high-water mark is a spike too.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place, share_of_device};
use crate::log::{Meaning, Sample};
use crate::memory_log::Phase;
use crate::words::{counted, show_bytes};

/// Smallest gap, as a share of the device.
const MIN_SHARE: f64 = 0.05;
/// Smallest gap for a device of unknown size, as a share of the usual level.
const MIN_SHARE_OF_LEVEL: f64 = 0.15;
/// Largest share of samples above the gap; more frequent peaks are normal operation.
const MOST_OFTEN: f64 = 0.015;
/// Fewest samples per epoch for which one spike per epoch counts.
const FEWEST_PER_EPOCH: u64 = 8;
const FEWEST_SAMPLES: u64 = 30;

/// High-water mark of allocated memory from the log, or else of reserved memory, and its largest rise after a steady time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HighWaterMark {
    most: f64,
    num_steady: u64,
    is_reserved: bool,
    rise: Option<PeakRise>,
}

/// A rise of a high-water mark that was steady before.
#[derive(Clone, Copy, Debug)]
struct PeakRise {
    channel: Meaning,
    from: f64,
    to: f64,
    sample: Sample,
    /// Whether an epoch ended between this sample and the previous one.
    is_at_epoch_end: bool,
}

impl HighWaterMark {
    /// Samples that a mark must be steady for, because the first steps raise it.
    const FEWEST_STEADY: u64 = 20;
    /// Factor up to which a rise counts as steady.
    const STEADY: f64 = 1.02;

    pub fn add(&mut self, sample: &Sample, last: Option<&Sample>) {
        let channels = [Meaning::AllocatedPeak, Meaning::Reserved];
        let known = channels
            .into_iter()
            .find_map(|channel| Some((channel, sample.get(channel)?)));
        let Some((channel, peak)) = known else {
            return;
        };
        let is_reserved = channel == Meaning::Reserved;
        if is_reserved != self.is_reserved {
            *self = HighWaterMark {
                is_reserved,
                ..HighWaterMark::default()
            };
        }
        self.num_steady += 1;
        if peak <= self.most {
            return;
        }
        let most_risen = self.rise.map_or(0.0, |rise| rise.to - rise.from);
        let ends = matches!(sample.phase, Some(Phase::Evaluate | Phase::Save));
        let is_at_epoch_end = ends || last.is_some_and(|last| last.epoch() != sample.epoch());
        // Fragmentation raises reserved memory too; only at the end of an epoch does a rise indicate a spike.
        let may_be_spike = is_at_epoch_end || !is_reserved;
        if self.num_steady > Self::FEWEST_STEADY && may_be_spike && peak - self.most > most_risen {
            self.rise = Some(PeakRise {
                channel,
                from: self.most,
                to: peak,
                sample: *sample,
                is_at_epoch_end,
            });
        }
        if peak > Self::STEADY * self.most {
            self.num_steady = 0;
        }
        self.most = peak;
    }
}

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    find_gap(log).or_else(|| find_rise(log))
}

/// Smallest gap above a level that counts.
fn least_gap(log: &DeviceLog, level: f64) -> f64 {
    log.total
        .map_or(MIN_SHARE_OF_LEVEL * level, |total| MIN_SHARE * total)
}

/// Finds a rise of the high-water mark that the samples of allocated memory do not show.
fn find_rise(log: &DeviceLog) -> Option<Finding> {
    let rise = log.peak.rise?;
    let gain = rise.to - rise.from;
    if gain < least_gap(log, rise.from).max(MIN_SHARE_OF_LEVEL * rise.from) {
        return None;
    }
    let (end, cause) = if rise.is_at_epoch_end {
        (", at the end of an epoch", Some(Phase::Evaluate))
    } else {
        ("", rise.sample.phase)
    };
    let message = format!(
        "{} rose to {}{end}: {} above the {} that it was until then",
        rise.channel.in_findings(),
        peak_in_words(log, rise.to, &rise.sample),
        show_bytes(gain),
        show_bytes(rise.from),
    );
    Some(finding(
        log,
        message,
        cause,
        rise.to,
        rise.from,
        &rise.sample,
    ))
}

fn find_gap(log: &DeviceLog) -> Option<Finding> {
    let channel = log.memory.primary()?;
    let levels = log.memory.level(channel);
    if levels.count() < FEWEST_SAMPLES {
        return None;
    }
    let usual = levels.quantile(0.5)?;
    let least = least_gap(log, usual);
    // One peak per epoch is a spike too, if epochs are long.
    let once_an_epoch = log.num_epochs.min(levels.count() / FEWEST_PER_EPOCH);
    let most_above = ((MOST_OFTEN * levels.count() as f64).max(1.0) as u64).max(once_an_epoch);
    let mut num_above = 0;
    let mut above = f64::NEG_INFINITY;
    let mut gap = None;
    for (value, count) in levels.largest_first() {
        if above - value >= least {
            gap = Some((value, num_above));
        }
        num_above += count;
        if num_above > most_above {
            // The remaining samples are the bulk; every gap above them has been compared.
            break;
        }
        above = value;
    }
    let (usual_peak, num_above) = gap?;
    let top = log.memory.largest(channel)?;
    let peak = top.get(channel)?;
    let often = match num_above {
        1 => String::new(),
        times => format!(", {} in all", counted(times, "sample")),
    };
    let message = format!(
        "{} shot up to {}, {} above its usual peak of {}{often}",
        channel.in_findings(),
        peak_in_words(log, peak, top),
        show_bytes(peak - usual_peak),
        show_bytes(usual_peak),
    );
    let finding = finding(log, message, top.phase, peak, usual_peak, top);
    Some(
        finding
            .with("usual_bytes", usual)
            .with("samples_above", num_above as f64),
    )
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
    let is_full = log.total.is_some_and(|total| peak >= 0.95 * total);
    let severity = Severity::problem_if(is_full);
    Finding::new(Symptom::Spike, severity, message, advice_of(cause))
        .at(sample)
        .with("peak_bytes", peak)
        .with("usual_peak_bytes", usual_peak)
        .with("line", sample.line as f64)
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
