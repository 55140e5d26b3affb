//! Steady growth: distinguishes a leak from warm-up and from a sawtooth.
//!
//! Samples of one phase are compared: epoch by epoch if epochs are known; else cycle by cycle if memory goes up and down; else
//! block by block. A leak raises the middle and the floor of each, until the end of the log.
//!
//! Growth is a rate along one axis, steps if the log has them. The rates per epoch, per step and per minute are this one rate,
//! converted by the measured length of an epoch and of a step.

use super::device::{DeviceLog, PhaseLog};
use super::finding::{Finding, Severity, Symptom};
use super::pace::Pace;
use super::points::{Points, Unit, gains_by_place, of_many_epochs, of_samples, whole_epochs};
use super::trend::{Trend, median, raw_growth, t_975, trend};
use crate::log::Meaning;
use crate::words::{counted, percent, show_bytes, show_duration};

/// A slope is reported from 4 standard errors on: about one false alarm in 1,000 healthy logs.
const CERTAIN: f64 = 4.0;
/// Smallest growth over a log that counts as a leak, as a share of device memory.
const LEAST_SHARE: f64 = 0.0015;
/// The same for a device of unknown size, as a share of the current level.
const LEAST_OF_LEVEL: f64 = 0.005;
const LEAST_BYTES: f64 = 4e6;
/// The same for host memory, of which caches take some: as a share of the current level.
const LEAST_OF_HOST: f64 = 0.05;
const LEAST_HOST_BYTES: f64 = 256e6;
const FEWEST_SAMPLES: u64 = 24;
/// Smallest lower bound of the confidence interval that is reported, as a share of the growth.
const LEAST_SURE: f64 = 0.4;
/// Largest difference between the growth at fixed places of an epoch and the growth of epoch means, as a share of the latter.
const UNEVEN: f64 = 0.3;
/// With fewer whole epochs, a rise from one to the next is not conclusive.
const FEWEST_EPOCHS: usize = 4;

/// Growth per unit of the axis, with a 95% confidence interval.
#[derive(Clone, Copy, Debug)]
struct Rate {
    middle: f64,
    low: f64,
    high: f64,
    standard_errors: f64,
    num_points: usize,
}

impl Rate {
    /// Reconciles the rate with the gain of fixed places of an epoch over the previous epoch. `None` if the gain is below half of
    /// the rate: then it is no leak. If they differ, the gain is right, because it is free of sawtooth and warm-up.
    fn beside(self, gain: f64) -> Option<Rate> {
        let is_apart = (self.middle - gain).abs() > 0.1 * gain;
        (gain >= 0.5 * self.middle).then_some(Rate {
            middle: if is_apart { gain } else { self.middle },
            low: self.low.min(gain),
            high: self.high.max(gain),
            ..self
        })
    }

    /// Widens the interval by the relative error of the length of an epoch.
    fn widened(self, share: f64) -> Rate {
        let more = share * self.middle.abs();
        Rate {
            low: self.low - more,
            high: self.high + more,
            ..self
        }
    }
}

pub(super) fn find(log: &DeviceLog, notes: &mut Vec<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let primary = log.memory.primary();
    for channel in primary.into_iter().chain([Meaning::HostRss]) {
        if log.memory.all.count(channel) == 0 {
            continue;
        }
        if log.memory.all.count(channel) < FEWEST_SAMPLES {
            if Some(channel) == primary {
                let samples = counted(log.memory.all.count(channel), "sample");
                notes.push(format!(
                    "{samples}: too few to judge growth, which takes {FEWEST_SAMPLES}"
                ));
            }
            continue;
        }
        findings.extend(of_channel(log, channel, notes));
    }
    findings
}

fn of_channel(log: &DeviceLog, channel: Meaning, notes: &mut Vec<String>) -> Option<Finding> {
    let (phase, phase_log) = log.memory.main_phase(channel)?;
    let pace = Pace::of(phase_log)?;
    let limit = log.total.filter(|_| channel != Meaning::HostRss);
    let least = |level: f64| match (channel, limit) {
        (Meaning::HostRss, _) => LEAST_HOST_BYTES.max(LEAST_OF_HOST * level),
        (_, Some(limit)) => LEAST_BYTES.max(LEAST_SHARE * limit),
        (_, None) => LEAST_BYTES.max(LEAST_OF_LEVEL * level),
    };
    let told = match of_many_epochs(phase_log, channel, pace.axis) {
        Some(points) => Told::Rate(of_points(&points, least)?),
        None => of_few_epochs(phase_log, channel, &pace, least)?,
    };
    let finding = match told {
        Told::Rate(rate) => finding(log, channel, &pace, &rate, limit),
        Told::TooFew {
            per_epoch,
            num_epochs,
        } => {
            let message = format!(
                "{} rose by about {} per epoch over {}: too few to be sure, at least two more epochs are needed to tell a leak \
                 from warm-up",
                channel.in_findings(),
                show_bytes(per_epoch),
                counted(num_epochs as u64, "whole epoch"),
            );
            // Most runs begin with one rise.
            if num_epochs < 3 {
                notes.push(message);
                return None;
            }
            Finding::new(Symptom::Growth, Severity::Warning, message, advice(channel))
                .at_step(log.first.step())
                .with("bytes_per_epoch", per_epoch)
                .with("points", num_epochs as f64)
        }
    };
    Some(finding.in_phase(phase))
}

/// Result for one channel.
enum Told {
    Rate(Rate),
    /// Memory rises from epoch to epoch, but there are too few epochs for a confidence interval.
    TooFew {
        per_epoch: f64,
        num_epochs: usize,
    },
}

/// Growth with few or unknown epochs: by epochs if there are enough, else by samples unless the epochs contradict it.
fn of_few_epochs(
    log: &PhaseLog,
    channel: Meaning,
    pace: &Pace,
    least: impl Fn(f64) -> f64,
) -> Option<Told> {
    let by_samples = || of_points(&of_samples(log, channel, pace.axis)?, &least);
    let Some(per_epoch) = pace.per_epoch else {
        return by_samples().map(Told::Rate);
    };
    let gains = gains_by_place(log, channel, pace.axis, per_epoch);
    if gains.is_empty() {
        return by_samples().map(Told::Rate);
    }
    let gain = median(gains) / per_epoch;
    let by_epochs = whole_epochs(log, channel, pace.axis)
        .and_then(|points| from_epoch_to_epoch(&points, gain, pace, &least));
    match by_epochs {
        Some(EpochToEpoch::Rate(rate)) => return Some(Told::Rate(rate)),
        Some(EpochToEpoch::Uneven) => return None,
        Some(EpochToEpoch::TooFew { .. }) | None => {}
    }
    let by_samples = by_samples().and_then(|rate| rate.beside(gain));
    match (by_samples, by_epochs) {
        (Some(rate), _) => Some(Told::Rate(rate)),
        (None, Some(EpochToEpoch::TooFew { rate, num_epochs })) => Some(Told::TooFew {
            per_epoch: rate * per_epoch,
            num_epochs,
        }),
        (None, _) => None,
    }
}

fn of_points(points: &Points, least: impl Fn(f64) -> f64) -> Option<Rate> {
    let least = least(median(points.middles.clone()));
    // Most logs end here: removing warm-up and steps leaves less growth, not more.
    if raw_growth(&points.at, &points.middles) < 0.5 * least {
        return None;
    }
    let middle = trend(&points.at, &points.middles)?;
    let floor = trend(&points.at, &points.floors)?;
    let is_steady = |of: &Trend, other: &Trend| {
        let is_certain =
            of.certainty >= CERTAIN && of.low > LEAST_SURE * of.growth && of.growth >= least;
        let goes_on = of.late_growth >= 0.25 * of.growth;
        // The other series grows too, within its uncertainty.
        is_certain && goes_on && other.growth > 0.0 && other.high >= 0.5 * of.growth
    };
    let shown = match points.unit {
        _ if is_steady(&middle, &floor) => middle,
        // The floor of a sawtooth is better determined than its middle.
        Unit::Cycle if is_steady(&floor, &middle) => floor,
        _ => return None,
    };
    let span = points.at.last()? - points.at.first()?;
    (span > 0.0).then(|| Rate {
        middle: shown.growth / span,
        low: shown.low / span,
        high: shown.high / span,
        standard_errors: shown.certainty,
        num_points: points.at.len(),
    })
}

/// Result of comparing the means of whole epochs.
enum EpochToEpoch {
    Rate(Rate),
    /// Places within the epochs contradict a leak.
    Uneven,
    /// Memory rises, but there are too few epochs to call it a leak.
    TooFew {
        rate: f64,
        num_epochs: usize,
    },
}

/// Growth from epoch to epoch: a leak adds the same amount each time; warm-up and a single step do not.
///
/// The error of the mean difference comes from the spread of the differences (Student's t). It is an overestimate, because a value
/// that raises one difference lowers the next. Two differences are not enough for an estimate.
fn from_epoch_to_epoch(
    points: &Points,
    gain: f64,
    pace: &Pace,
    least: impl Fn(f64) -> f64,
) -> Option<EpochToEpoch> {
    let num_epochs = points.at.len();
    let rates = |values: &[f64]| -> Vec<f64> {
        let steps = points.at.windows(2).zip(values.windows(2));
        steps
            .map(|(at, value)| (value[1] - value[0]) / (at[1] - at[0]))
            .collect()
    };
    let mut middles = rates(&points.middles);
    let mut floors = rates(&points.floors);
    // The first epoch includes warm-up.
    if middles.len() > FEWEST_EPOCHS {
        middles.remove(0);
        floors.remove(0);
    }
    if middles.is_empty() || middles.iter().any(|rate| !rate.is_finite()) {
        return None;
    }
    let usual = median(middles.clone());
    let is_even = middles
        .iter()
        .all(|rate| (0.5 * usual..=1.5 * usual).contains(rate));
    let least = least(median(points.middles.clone()));
    let grows = usual > 0.0 && usual * pace.whole >= least && floors.iter().all(|rate| *rate > 0.0);
    if !is_even || !grows {
        return None;
    }
    // A leak raises every place of an epoch equally. A sawtooth that is out of step with the epochs raises some places and lowers
    // others, and its remainder is small compared with its height.
    let heights = points.middles.iter().zip(&points.floors);
    let height = median(heights.map(|(middle, floor)| middle - floor).collect());
    let is_alike = (gain - usual).abs() <= UNEVEN * usual && usual * pace.whole >= UNEVEN * height;
    if num_epochs < FEWEST_EPOCHS {
        let rate = usual;
        return is_alike.then_some(EpochToEpoch::TooFew { rate, num_epochs });
    }
    if !is_alike {
        return Some(EpochToEpoch::Uneven);
    }
    let count = middles.len() as f64;
    let mean = middles.iter().sum::<f64>() / count;
    let variance = middles
        .iter()
        .map(|rate| (rate - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0);
    // Smaller differences are rounding errors.
    let error = (variance / count).sqrt().max(1e-9 * mean);
    let reach = t_975(count - 1.0) * error;
    (mean - reach > 0.0).then_some(EpochToEpoch::Rate(Rate {
        middle: mean,
        low: mean - reach,
        high: mean + reach,
        standard_errors: mean / error,
        num_points: num_epochs,
    }))
}

fn finding(
    log: &DeviceLog,
    channel: Meaning,
    pace: &Pace,
    rate: &Rate,
    limit: Option<f64>,
) -> Finding {
    // The rate in the log's main unit, and in parentheses in the other units.
    let epoch = pace.per_epoch.map(|epoch| (" per epoch", epoch));
    let minute = pace
        .seconds
        .map(|seconds| 60.0 / seconds)
        .map(|minute| (" per minute", minute));
    let step = pace
        .steps
        .map(|steps| 1.0 / steps)
        .map(|step| (" per step", step));
    let mut units = [epoch, minute, step].into_iter().flatten();
    let (unit, length) = units.next().unwrap_or((" over the log", pace.whole));
    let shown = match epoch {
        Some(_) => rate.widened(pace.epoch_error),
        None => *rate,
    };
    let beside: Vec<String> = limit
        .map(|limit| format!("{} of the device", percent(rate.middle * length / limit)))
        .into_iter()
        .chain(units.map(|(unit, length)| format!("{}{unit}", show_bytes(rate.middle * length))))
        .collect();
    let beside = if beside.is_empty() {
        String::new()
    } else {
        format!(" ({})", beside.join(", "))
    };
    // Distance along the axis until memory is full.
    let left = limit
        .zip(log.memory.most(channel))
        .map(|(limit, most)| (limit - most).max(0.0) / rate.middle);
    let message = format!(
        "{} grows by {}{unit}{beside}, 95% sure of {} to {}{unit}{}",
        channel.in_findings(),
        show_bytes(shown.middle * length),
        show_bytes(shown.low * length),
        show_bytes(shown.high * length),
        left.map_or(String::new(), |left| until_full(left, pace))
    );
    let severity = match left {
        // Within ten times the length of the log.
        Some(left) if left < 10.0 * pace.whole => Severity::Problem,
        _ => Severity::Warning,
    };
    let mut finding = Finding::new(Symptom::Growth, severity, message, advice(channel))
        .at_step(log.first.step())
        .with("growth_bytes", rate.middle * pace.whole)
        .with("growth_low_bytes", rate.low * pace.whole)
        .with("growth_high_bytes", rate.high * pace.whole)
        .with("standard_errors", rate.standard_errors)
        .with("points", rate.num_points as f64);
    let of_epoch = rate.widened(pace.epoch_error);
    for (unit, rate) in [(epoch, &of_epoch), (minute, rate), (step, rate)] {
        if let Some((unit, length)) = unit {
            let name = unit.trim_start().replace(' ', "_");
            finding = finding
                .with(&format!("bytes_{name}"), rate.middle * length)
                .with(&format!("bytes_{name}_low"), rate.low * length)
                .with(&format!("bytes_{name}_high"), rate.high * length);
        }
    }
    if let Some(left) = left {
        finding = finding.with("logs_until_full", left / pace.whole);
        if let Some(seconds) = pace.seconds {
            finding = finding.with("seconds_until_full", left * seconds);
        }
    }
    finding
}

fn advice(channel: Meaning) -> &'static str {
    match channel {
        Meaning::HostRss => {
            "look for lists, caches or logs on the host that grow with the steps; fewer loader workers hold less"
        }
        _ => {
            "keep numbers, not tensors: loss.item(), detach() what goes into lists, and clear what lives past its step"
        }
    }
}

fn until_full(left: f64, pace: &Pace) -> String {
    let epochs = pace.per_epoch.map(|epoch| left / epoch);
    let seconds = pace.seconds.map(|seconds| left * seconds);
    match (epochs, seconds) {
        _ if left <= 0.0 => "; full already".to_owned(),
        (Some(epochs), Some(seconds)) => {
            format!(
                "; full in about {epochs:.0} epochs, {}",
                show_duration(seconds)
            )
        }
        (Some(epochs), None) => format!("; full in about {epochs:.0} epochs"),
        (None, Some(seconds)) => format!("; full in about {}", show_duration(seconds)),
        (None, None) => format!("; full after about {:.1} times this log", left / pace.whole),
    }
}
