//! Steady growth: distinguishes a leak from warm-up and from a sawtooth.
//!
//! Samples of one phase are compared: epoch by epoch if epochs are known; else cycle by cycle if memory goes up and down; else
//! block by block. A leak raises each over the one before, until the end of the log.
//!
//! Growth is a rate along one axis, steps if the log has them. The rates per epoch, per step and per minute are this one rate,
//! converted by the measured length of an epoch and of a step.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom};
use super::points::{Channel, Points};
use super::statistics::{median, t_975, trend};
use crate::log::Meaning;
use crate::words::{counted, percent, show_bytes, show_duration};

/// A slope is reported from 4 standard errors on: about one false alarm in 1,000 healthy logs.
const MIN_STANDARD_ERRORS: f64 = 4.0;
/// Smallest growth over a log that counts as a leak, as a share of device memory.
const MIN_GROWTH_SHARE: f64 = 0.0015;
/// The same for a device of unknown size, as a share of the current level.
const MIN_SHARE_OF_LEVEL: f64 = 0.005;
const MIN_BYTES: f64 = 4e6;
/// The same for host memory, of which caches take some: as a share of the current level.
const MIN_SHARE_OF_HOST: f64 = 0.05;
const MIN_HOST_BYTES: f64 = 256e6;
const FEWEST_SAMPLES: usize = 24;
/// Smallest lower bound of the confidence interval that is reported, as a share of the growth.
const MIN_LOWER_BOUND: f64 = 0.4;
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

/// Growth of the memory that the run is judged by.
pub(super) fn find_on_device(log: &DeviceLog, notes: &mut Vec<String>) -> Option<Finding> {
    let channel = log.primary()?;
    let count = log.means(channel).len();
    if count < FEWEST_SAMPLES {
        let samples = counted(count as u64, "sample");
        notes.push(format!(
            "{samples}: too few to judge growth, which takes {FEWEST_SAMPLES}"
        ));
        return None;
    }
    find(log, channel, notes)
}

pub(super) fn find_on_host(log: &DeviceLog, notes: &mut Vec<String>) -> Option<Finding> {
    let is_enough = log.means(Meaning::HostRss).len() >= FEWEST_SAMPLES;
    let found = is_enough.then(|| find(log, Meaning::HostRss, notes));
    Some(found??.advising(
        "look for lists, caches or logs on the host that grow with the steps; fewer loader workers hold less",
    ))
}

fn find(log: &DeviceLog, meaning: Meaning, notes: &mut Vec<String>) -> Option<Finding> {
    let channel = Channel::of(log, meaning)?;
    let limit = log.total().filter(|_| meaning != Meaning::HostRss);
    let min_growth = |level: f64| match limit {
        _ if meaning == Meaning::HostRss => MIN_HOST_BYTES.max(MIN_SHARE_OF_HOST * level),
        Some(limit) => MIN_BYTES.max(MIN_GROWTH_SHARE * limit),
        None => MIN_BYTES.max(MIN_SHARE_OF_LEVEL * level),
    };
    let rate = match (channel.by_many_epochs(), channel.gain_by_place()) {
        (Some(points), _) => rate_of(&points, min_growth),
        (None, Some(gain)) => {
            let by_epochs = from_epoch_to_epoch(&channel, gain, min_growth);
            let by_samples = || rate_of(&channel.by_samples()?, min_growth)?.reconciled_with(gain);
            let certain = by_epochs.filter(|rate| rate.low.is_finite());
            certain.or_else(by_samples).or(by_epochs)
        }
        (None, None) => rate_of(&channel.by_samples()?, min_growth),
    }?;
    let finding = if rate.low.is_finite() {
        grows(log, meaning, &channel, &rate, limit)
    } else {
        too_few_epochs(meaning, &channel, &rate, notes)?
    };
    let first = log.groups.first().and_then(|group| group.mean.step());
    Some(finding.at_step(first).in_phase(log.main_phase(meaning)))
}

/// The rate of points that rise steadily.
fn rate_of(points: &Points, min_growth: impl Fn(f64) -> f64) -> Option<Rate> {
    let other = trend(&points.at, &points.others)?;
    let trend = trend(&points.at, &points.values)?;
    let is_certain = trend.certainty >= MIN_STANDARD_ERRORS
        && trend.low > MIN_LOWER_BOUND * trend.growth
        && trend.growth >= min_growth(median(points.values.clone()));
    // A single step raises one half only, and warm-up the first.
    let goes_on = trend.least_half >= 0.25 * trend.growth
        && other.growth > 0.0
        && other.high >= 0.5 * trend.growth;
    let span = points.at.last()? - points.at.first()?;
    (is_certain && goes_on).then(|| Rate {
        middle: trend.growth / span,
        low: trend.low / span,
        high: trend.high / span,
        standard_errors: trend.certainty,
        num_points: points.at.len(),
    })
}

/// Growth from epoch to epoch: a leak adds the same amount each time, at every place of an epoch; warm-up and a single step do not.
///
/// The error of the mean difference comes from the spread of the differences (Student's t). It is an overestimate, because a value
/// that raises one difference lowers the next. With too few epochs for that, the interval is infinite.
fn from_epoch_to_epoch(
    channel: &Channel,
    gain: f64,
    min_growth: impl Fn(f64) -> f64,
) -> Option<Rate> {
    let points = channel.by_epoch();
    let num_epochs = points.at.len();
    let steps = points.at.windows(2).zip(points.values.windows(2));
    let rates = steps.map(|(at, value)| (value[1] - value[0]) / (at[1] - at[0]));
    // The first epoch includes warm-up.
    let rates = rates.skip(usize::from(num_epochs > FEWEST_EPOCHS + 1));
    let rates: Vec<f64> = rates.collect();
    let usual = median(rates.clone());
    let total = usual * channel.whole;
    let is_even = |rate: &f64| (0.5 * usual..=1.5 * usual).contains(rate);
    // A sawtooth that is out of step with the epochs raises some places and lowers others, and its remainder is small compared with
    // its height.
    let is_alike = (gain - usual).abs() <= UNEVEN * usual && total >= UNEVEN * channel.height();
    let is_large = usual > 0.0 && total >= min_growth(median(points.values));
    if !is_large || !is_alike || !rates.iter().all(is_even) {
        return None;
    }
    let count = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / count;
    let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
    // Smaller differences are rounding errors.
    let error = (squares / (count - 1.0) / count).sqrt().max(1e-9 * mean);
    let reach = match num_epochs {
        ..FEWEST_EPOCHS => f64::INFINITY,
        _ => t_975(count - 1.0) * error,
    };
    (mean > reach || reach.is_infinite()).then(|| Rate {
        middle: mean,
        low: mean - reach,
        high: mean + reach,
        standard_errors: mean / error,
        num_points: num_epochs,
    })
}

/// A warning from three epochs on; most runs begin with one rise, which is a note.
fn too_few_epochs(
    meaning: Meaning,
    channel: &Channel,
    rate: &Rate,
    notes: &mut Vec<String>,
) -> Option<Finding> {
    let per_epoch = rate.middle * channel.per_epoch?;
    let message = format!(
        "{} rose by about {} per epoch over {}: too few to be sure, at least two more epochs are needed to tell a leak from warm-up",
        meaning.words(),
        show_bytes(per_epoch),
        counted(rate.num_points as u64, "whole epoch"),
    );
    if rate.num_points < 3 {
        notes.push(message);
        return None;
    }
    let finding = Finding::new(Symptom::Growth, Severity::Warning, message);
    let finding = finding.with("bytes_per_epoch", per_epoch);
    Some(finding.with("points", rate.num_points as f64))
}

fn grows(
    log: &DeviceLog,
    meaning: Meaning,
    channel: &Channel,
    rate: &Rate,
    limit: Option<f64>,
) -> Finding {
    let units = [
        ("per epoch", channel.per_epoch, channel.epoch_error),
        (
            "per minute",
            channel.seconds.map(|seconds| 60.0 / seconds),
            0.0,
        ),
        ("per step", channel.steps.map(|steps| 1.0 / steps), 0.0),
    ];
    let known = |(unit, length, error): (&'static str, Option<f64>, f64)| {
        Some((unit, rate.per(length?, error)))
    };
    let units: Vec<(&str, Rate)> = units.into_iter().filter_map(known).collect();
    // The rate in the log's main unit, and in parentheses in the other units.
    let whole = rate.per(channel.whole, 0.0);
    let (unit, main) = units.first().copied().unwrap_or(("over the log", whole));
    let share = limit.map(|limit| format!("{} of the device", percent(main.middle / limit)));
    let others = units.iter().skip(1);
    let others = others.map(|(unit, rate)| format!("{} {unit}", show_bytes(rate.middle)));
    let beside = share
        .into_iter()
        .chain(others)
        .collect::<Vec<_>>()
        .join(", ");
    let beside = if beside.is_empty() {
        beside
    } else {
        format!(" ({beside})")
    };
    // Distance along the axis until memory is full.
    let left = limit.zip(log.most(meaning));
    let left = left.map(|(limit, most)| (limit - most).max(0.0) / rate.middle);
    let message = format!(
        "{} grows by {} {unit}{beside}, 95% sure of {} to {} {unit}{}",
        meaning.words(),
        show_bytes(main.middle),
        show_bytes(main.low),
        show_bytes(main.high),
        left.map_or(String::new(), |left| until_full(left, channel))
    );
    // Within ten times the length of the log.
    let severity = Severity::problem_if(left.is_some_and(|left| left < 10.0 * channel.whole));
    let mut finding = Finding::new(Symptom::Growth, severity, message)
        .with("growth_bytes", whole.middle)
        .with("growth_low_bytes", whole.low)
        .with("growth_high_bytes", whole.high)
        .with("standard_errors", rate.standard_errors)
        .with("points", rate.num_points as f64);
    for (unit, rate) in units {
        let name = format!("bytes_{}", unit.replace(' ', "_"));
        finding = finding
            .with(&name, rate.middle)
            .with(&format!("{name}_low"), rate.low)
            .with(&format!("{name}_high"), rate.high);
    }
    if let Some(left) = left {
        finding = finding.with("logs_until_full", left / channel.whole);
    }
    match left.zip(channel.seconds) {
        Some((left, seconds)) => finding.with("seconds_until_full", left * seconds),
        None => finding,
    }
}

fn until_full(left: f64, channel: &Channel) -> String {
    if left <= 0.0 {
        return "; full already".to_owned();
    }
    let epochs = channel
        .per_epoch
        .map(|epoch| format!("{:.0} epochs", left / epoch));
    let time = channel.seconds.map(|seconds| show_duration(left * seconds));
    let known: Vec<String> = epochs.into_iter().chain(time).collect();
    if known.is_empty() {
        return format!(
            "; full after about {:.1} times this log",
            left / channel.whole
        );
    }
    format!("; full in about {}", known.join(", "))
}
