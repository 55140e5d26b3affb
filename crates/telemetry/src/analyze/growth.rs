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
use super::points::{Points, Unit, gains_by_place, of_epochs, of_many_epochs, of_samples};
use super::trend::{Trend, median, raw_growth, t_975, trend};
use crate::log::Meaning;
use crate::words::{counted, percent, show_bytes, show_duration};

/// A slope is reported from 4 standard errors on: about one false alarm in 1,000 healthy logs.
const MIN_STANDARD_ERRORS: f64 = 4.0;
/// Smallest growth over a log that counts as a leak, as a share of device memory.
const MIN_GROWTH_SHARE: f64 = 0.0015;
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
    fn reconciled_with(self, gain: f64) -> Option<Rate> {
        let is_apart = (self.middle - gain).abs() > 0.1 * gain;
        (gain >= 0.5 * self.middle).then_some(Rate {
            middle: if is_apart { gain } else { self.middle },
            low: self.low.min(gain),
            high: self.high.max(gain),
            ..self
        })
    }

    /// The rate per `length` of the axis, with an interval widened by the relative error of that length.
    fn per(self, length: f64, error: f64) -> Rate {
        let more = error * self.middle.abs();
        Rate {
            middle: self.middle * length,
            low: (self.low - more) * length,
            high: (self.high + more) * length,
            ..self
        }
    }
}

/// Growth of one channel.
enum Growth {
    Steady(Rate),
    /// Memory rises from epoch to epoch, but there are too few epochs for a confidence interval.
    TooFewEpochs {
        per_epoch: f64,
        num_epochs: usize,
    },
    /// Epochs rise, and places within them contradict a leak.
    Uneven,
    Unknown,
}

impl From<Option<Rate>> for Growth {
    fn from(rate: Option<Rate>) -> Growth {
        rate.map_or(Growth::Unknown, Growth::Steady)
    }
}

pub(super) fn find(log: &DeviceLog, notes: &mut Vec<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let primary = log.memory.primary();
    for channel in primary.into_iter().chain([Meaning::HostRss]) {
        let count = log.memory.all.count(channel);
        if count >= FEWEST_SAMPLES {
            findings.extend(of_channel(log, channel, notes));
        } else if count > 0 && Some(channel) == primary {
            let samples = counted(count, "sample");
            notes.push(format!(
                "{samples}: too few to judge growth, which takes {FEWEST_SAMPLES}"
            ));
        }
    }
    findings
}

fn of_channel(log: &DeviceLog, channel: Meaning, notes: &mut Vec<String>) -> Option<Finding> {
    let (phase, phase_log) = log.memory.main_phase(channel)?;
    let pace = Pace::of(phase_log)?;
    let limit = log.total.filter(|_| channel != Meaning::HostRss);
    let least = |level: f64| match (channel, limit) {
        (Meaning::HostRss, _) => LEAST_HOST_BYTES.max(LEAST_OF_HOST * level),
        (_, Some(limit)) => LEAST_BYTES.max(MIN_GROWTH_SHARE * limit),
        (_, None) => LEAST_BYTES.max(LEAST_OF_LEVEL * level),
    };
    let growth = match of_many_epochs(phase_log, channel, pace.axis) {
        Some(points) => of_points(&points, least).into(),
        None => of_few_epochs(phase_log, channel, &pace, least),
    };
    let finding = match growth {
        Growth::Steady(rate) => finding(log, channel, &pace, &rate, limit),
        Growth::TooFewEpochs {
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
        Growth::Uneven | Growth::Unknown => return None,
    };
    Some(finding.in_phase(phase))
}

/// Growth with few or unknown epochs: by epochs if there are enough, else by samples unless the epochs contradict it.
fn of_few_epochs(
    log: &PhaseLog,
    channel: Meaning,
    pace: &Pace,
    least: impl Fn(f64) -> f64,
) -> Growth {
    let by_samples = || of_points(&of_samples(log, channel, pace.axis)?, &least);
    let gains = match pace.per_epoch {
        Some(per_epoch) => gains_by_place(log, channel, pace.axis, per_epoch),
        None => Vec::new(),
    };
    let Some(per_epoch) = pace.per_epoch.filter(|_| !gains.is_empty()) else {
        return by_samples().into();
    };
    let gain = median(gains) / per_epoch;
    let points = of_epochs(log, channel, pace.axis);
    let by_epochs = points
        .and_then(|points| from_epoch_to_epoch(&points, gain, (pace.whole, per_epoch), &least));
    match by_epochs {
        Some(known @ (Growth::Steady(_) | Growth::Uneven)) => known,
        other => match by_samples().and_then(|rate| rate.reconciled_with(gain)) {
            Some(rate) => Growth::Steady(rate),
            None => other.unwrap_or(Growth::Unknown),
        },
    }
}

fn of_points(points: &Points, least: impl Fn(f64) -> f64) -> Option<Rate> {
    let least = least(median(points.middles.clone()));
    // Most logs end here: removing warm-up leaves less growth, not more.
    if raw_growth(&points.at, &points.middles) < 0.5 * least {
        return None;
    }
    let middle = trend(&points.at, &points.middles)?;
    let floor = trend(&points.at, &points.floors)?;
    let is_steady = |of: &Trend, other: &Trend| {
        let is_certain = of.certainty >= MIN_STANDARD_ERRORS
            && of.low > LEAST_SURE * of.growth
            && of.growth >= least;
        // A single step raises one half only, and warm-up the first.
        let goes_on = of.least_half >= 0.25 * of.growth;
        // The other series grows too, within its uncertainty.
        is_certain && goes_on && other.growth > 0.0 && other.high >= 0.5 * of.growth
    };
    let shown = if is_steady(&middle, &floor) {
        middle
    } else if points.unit == Unit::Cycle && is_steady(&floor, &middle) {
        // The floor of a sawtooth is better determined than its middle.
        floor
    } else {
        return None;
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

/// Growth from epoch to epoch: a leak adds the same amount each time; warm-up and a single step do not.
///
/// The error of the mean difference comes from the spread of the differences (Student's t). It is an overestimate, because a value
/// that raises one difference lowers the next. Two differences are not enough for an estimate.
fn from_epoch_to_epoch(
    points: &Points,
    gain: f64,
    (whole, per_epoch): (f64, f64),
    least: impl Fn(f64) -> f64,
) -> Option<Growth> {
    let num_epochs = points.at.len();
    let rates = |values: &[f64]| -> Vec<f64> {
        let steps = points.at.windows(2).zip(values.windows(2));
        let rates = steps.map(|(at, value)| (value[1] - value[0]) / (at[1] - at[0]));
        // The first epoch includes warm-up.
        rates
            .skip(usize::from(num_epochs > FEWEST_EPOCHS + 1))
            .collect()
    };
    let (middles, floors) = (rates(&points.middles), rates(&points.floors));
    let usual = median(middles.clone());
    let even = 0.5 * usual..=1.5 * usual;
    let least = least(median(points.middles.clone()));
    let grows = usual > 0.0 && usual * whole >= least && floors.iter().all(|rate| *rate > 0.0);
    if !grows || !middles.iter().all(|rate| even.contains(rate)) {
        return None;
    }
    // A leak raises every place of an epoch equally. A sawtooth that is out of step with the epochs raises some places and lowers
    // others, and its remainder is small compared with its height.
    let heights = points.middles.iter().zip(&points.floors);
    let height = median(heights.map(|(middle, floor)| middle - floor).collect());
    let is_alike = (gain - usual).abs() <= UNEVEN * usual && usual * whole >= UNEVEN * height;
    if num_epochs < FEWEST_EPOCHS {
        return is_alike.then_some(Growth::TooFewEpochs {
            per_epoch: usual * per_epoch,
            num_epochs,
        });
    }
    if !is_alike {
        return Some(Growth::Uneven);
    }
    let count = middles.len() as f64;
    let mean = middles.iter().sum::<f64>() / count;
    let squares: f64 = middles.iter().map(|rate| (rate - mean).powi(2)).sum();
    // Smaller differences are rounding errors.
    let error = (squares / (count - 1.0) / count).sqrt().max(1e-9 * mean);
    let reach = t_975(count - 1.0) * error;
    (mean > reach).then_some(Growth::Steady(Rate {
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
    let per = |unit: &'static str, length: Option<f64>, error: f64| {
        length.map(|length| (unit, rate.per(length, error)))
    };
    let units = [
        per("per epoch", pace.per_epoch, pace.epoch_error),
        per(
            "per minute",
            pace.seconds.map(|seconds| 60.0 / seconds),
            0.0,
        ),
        per("per step", pace.steps.map(|steps| 1.0 / steps), 0.0),
    ];
    let units: Vec<(&str, Rate)> = units.into_iter().flatten().collect();
    // The rate in the log's main unit, and in parentheses in the other units.
    let whole = ("over the log", rate.per(pace.whole, 0.0));
    let (unit, main) = *units.first().unwrap_or(&whole);
    let share = limit.map(|limit| format!("{} of the device", percent(main.middle / limit)));
    let others = units.iter().skip(1);
    let others = others.map(|(unit, rate)| format!("{} {unit}", show_bytes(rate.middle)));
    let beside: Vec<String> = share.into_iter().chain(others).collect();
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
        "{} grows by {} {unit}{beside}, 95% sure of {} to {} {unit}{}",
        channel.in_findings(),
        show_bytes(main.middle),
        show_bytes(main.low),
        show_bytes(main.high),
        left.map_or(String::new(), |left| until_full(left, pace))
    );
    // Within ten times the length of the log.
    let severity = Severity::problem_if(left.is_some_and(|left| left < 10.0 * pace.whole));
    let mut finding = Finding::new(Symptom::Growth, severity, message, advice(channel))
        .at_step(log.first.step())
        .with("growth_bytes", whole.1.middle)
        .with("growth_low_bytes", whole.1.low)
        .with("growth_high_bytes", whole.1.high)
        .with("standard_errors", rate.standard_errors)
        .with("points", rate.num_points as f64);
    for (unit, rate) in units {
        let name = unit.replace(' ', "_");
        finding = finding
            .with(&format!("bytes_{name}"), rate.middle)
            .with(&format!("bytes_{name}_low"), rate.low)
            .with(&format!("bytes_{name}_high"), rate.high);
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
