//! The points that a trend is fitted to: epochs, cycles of a sawtooth, or blocks of samples.

use super::device::PhaseLog;
use super::progress::Axis;
use super::sawtooth::resets;
use super::series::{Bucket, Series, Stat};
use super::trend::{median, quantile};
use crate::log::Meaning;

pub(super) const FEWEST_CYCLES: usize = 6;
const MOST_POINTS: usize = 40;
/// Share of the usual number of samples below which an epoch counts as cut short.
const WHOLE_EPOCH: f64 = 0.9;
const FEWEST_PER_EPOCH: u64 = 3;

/// Points in the order of the log.
pub(super) struct Points {
    /// Positions along the axis.
    pub at: Vec<f64>,
    pub middles: Vec<f64>,
    pub floors: Vec<f64>,
    pub unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Epoch,
    Cycle,
    Block,
}

/// A bucket with a value of the channel and a position on the axis.
#[derive(Clone, Copy)]
struct Spot<'a> {
    at: f64,
    stat: &'a Stat,
    samples: u64,
}

fn spots(series: &Series, channel: Meaning, axis: Axis) -> Vec<Spot<'_>> {
    let spot = |bucket: &'_ Bucket| Some((bucket.middle_along(axis)?, bucket.num_samples()));
    let buckets = series.buckets.iter();
    buckets
        .filter_map(|bucket| {
            let (at, samples) = spot(bucket)?;
            let stat = bucket.stat(channel)?;
            Some(Spot { at, stat, samples })
        })
        .collect()
}

impl Points {
    fn of<'a>(groups: impl Iterator<Item = &'a [Spot<'a>]>, unit: Unit) -> Points {
        let mut points = Points {
            at: Vec::new(),
            middles: Vec::new(),
            floors: Vec::new(),
            unit,
        };
        for group in groups {
            let count = group.len() as f64;
            let means = || group.iter().map(|spot| spot.stat.mean());
            let mut leasts: Vec<f64> = group.iter().map(|spot| spot.stat.least).collect();
            points
                .at
                .push(group.iter().map(|spot| spot.at).sum::<f64>() / count);
            points.middles.push(match unit {
                Unit::Epoch => means().sum::<f64>() / count,
                Unit::Cycle | Unit::Block => median(means().collect()),
            });
            let floor = if unit == Unit::Block { 0.25 } else { 0.0 };
            points.floors.push(quantile(&mut leasts, floor));
        }
        points
    }
}

/// Epochs that were not cut short; `None` with too few samples in each.
fn whole_epochs(log: &PhaseLog, channel: Meaning, axis: Axis) -> Option<Vec<Spot<'_>>> {
    let mut epochs = spots(&log.epochs, channel, axis);
    if log.epochs.count(channel) < FEWEST_PER_EPOCH * epochs.len() as u64 {
        return None;
    }
    let usual = median(epochs.iter().map(|epoch| epoch.samples as f64).collect());
    epochs.retain(|epoch| epoch.samples as f64 >= WHOLE_EPOCH * usual);
    Some(epochs)
}

/// Whole epochs, one point each.
pub(super) fn of_epochs(log: &PhaseLog, channel: Meaning, axis: Axis) -> Option<Points> {
    let epochs = whole_epochs(log, channel, axis)?;
    Some(Points::of(epochs.chunks(1), Unit::Epoch))
}

/// Points for many epochs: all but the first, which includes warm-up.
pub(super) fn of_many_epochs(log: &PhaseLog, channel: Meaning, axis: Axis) -> Option<Points> {
    let epochs = whole_epochs(log, channel, axis)?;
    let inner = epochs
        .get(1..)
        .filter(|inner| inner.len() > FEWEST_CYCLES)?;
    let in_each = inner.len().div_ceil(MOST_POINTS);
    Some(Points::of(inner.chunks_exact(in_each), Unit::Epoch))
}

/// Gains over the previous epoch at the same place within the epoch, for places throughout all epochs.
pub(super) fn gains_by_place(
    log: &PhaseLog,
    channel: Meaning,
    axis: Axis,
    per_epoch: f64,
) -> Vec<f64> {
    let mut starts: Vec<f64> = log
        .epochs
        .buckets
        .iter()
        .filter_map(|bucket| bucket.first_along(axis))
        .collect();
    // The last epoch has no successor that marks its end.
    starts.extend(starts.last().map(|last| last + per_epoch));
    let spots = spots(&log.samples, channel, axis);
    let of_epoch = |pair: &[f64]| -> Vec<(f64, f64)> {
        let inside = spots
            .iter()
            .filter(|spot| (pair[0]..pair[1]).contains(&spot.at));
        let place = |spot: &Spot<'_>| (spot.at - pair[0]) / (pair[1] - pair[0]);
        inside.map(|spot| (place(spot), spot.stat.mean())).collect()
    };
    let epochs: Vec<Vec<(f64, f64)>> = starts.windows(2).map(of_epoch).collect();
    let mut gains = Vec::new();
    for pair in epochs.windows(2) {
        let mut before = pair[0].iter().peekable();
        for (place, value) in &pair[1] {
            // The nearest place in the previous epoch: both lists are sorted.
            while let Some((at, _)) = before.peek()
                && at + 1e-9 < *place
            {
                before.next();
            }
            if let Some((_, other)) = before.peek() {
                gains.push(value - other);
            }
        }
    }
    gains
}

/// Points from samples: cycles if memory goes up and down, else blocks. With too few cycles there is no result, because the last
/// cycle always seems to grow.
pub(super) fn of_samples(log: &PhaseLog, channel: Meaning, axis: Axis) -> Option<Points> {
    let spots = spots(&log.samples, channel, axis);
    let spots = while_running(&spots);
    let means: Vec<f64> = spots.iter().map(|spot| spot.stat.mean()).collect();
    let resets = resets(&means);
    if !resets.is_empty() {
        let cycles = resets.windows(2).map(|pair| &spots[pair[0]..pair[1]]);
        return (resets.len() > FEWEST_CYCLES).then(|| Points::of(cycles, Unit::Cycle));
    }
    let in_each = spots
        .len()
        .div_ceil(MOST_POINTS)
        .max(spots.len().min(120) / 30)
        .max(1);
    Some(Points::of(spots.chunks_exact(in_each), Unit::Block))
}

/// Drops both ends with hardly any memory: a capture by another process begins before the run and ends after it.
fn while_running<'a, 'b>(spots: &'a [Spot<'b>]) -> &'a [Spot<'b>] {
    if spots.is_empty() {
        return spots;
    }
    let mut means: Vec<f64> = spots.iter().map(|spot| spot.stat.mean()).collect();
    let little = 0.3 * quantile(&mut means, 0.95);
    let is_running = |spot: &Spot<'_>| spot.stat.mean() >= little;
    let first = spots.iter().position(is_running).unwrap_or(0);
    let last = spots.iter().rposition(is_running).unwrap_or(0);
    &spots[first..=last.max(first)]
}
