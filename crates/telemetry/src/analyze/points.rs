//! The points that a trend is fitted to: epochs, cycles of a sawtooth, or blocks of samples.

use super::device::{DeviceLog, Group};
use super::statistics::{median, quantile};
use crate::log::Meaning;

pub(super) const FEWEST_CYCLES: usize = 6;
const MOST_POINTS: usize = 40;
/// Share of the usual number of samples below which an epoch counts as cut short.
const WHOLE_EPOCH: f64 = 0.9;
const FEWEST_PER_EPOCH: usize = 3;

/// A value of a channel, and its position along the axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub at: f64,
    pub value: f64,
    pub epoch: Option<u64>,
}

/// A channel in the main phase of a log, along one axis, with the measured lengths of an epoch, a step and a second.
pub(super) struct Channel {
    pub spots: Vec<Spot>,
    /// Length of the log along the axis.
    pub whole: f64,
    pub per_epoch: Option<f64>,
    /// Relative error of `per_epoch`, because samples may miss the beginning of an epoch.
    pub epoch_error: f64,
    /// Steps and seconds per unit of the axis.
    pub steps: Option<f64>,
    pub seconds: Option<f64>,
}

/// Positions along the axis and values, in the order of the log.
#[derive(Default)]
pub(super) struct Points {
    pub at: Vec<f64>,
    pub values: Vec<f64>,
    /// Another quantile of the same samples: a leak raises all of them.
    pub others: Vec<f64>,
}

impl Channel {
    /// The channel along steps if all samples have them, or else along time, or else sample by sample.
    pub fn of(log: &DeviceLog, channel: Meaning) -> Option<Channel> {
        let phase = log.main_phase(channel);
        let of_phase = log.groups.iter().filter(|group| group.mean.phase == phase);
        let groups: Vec<&Group> = of_phase.collect();
        let (first, last) = (groups.first()?, groups.last()?);
        let span = |axis: Meaning| {
            let is_known = groups.iter().all(|group| group.mean.get(axis).is_some());
            let span = last.mean.get(axis)? - first.mean.get(axis)?;
            (is_known && span > 0.0).then_some(span)
        };
        let axes = [Meaning::Progress, Meaning::Clock, Meaning::Row];
        let (axis, middles) = axes
            .into_iter()
            .find_map(|axis| Some((axis, span(axis)?)))?;
        let spot = |group: &&Group| {
            let sample = &group.mean;
            Some(Spot {
                at: sample.get(axis)?,
                value: sample.get(channel)?,
                epoch: sample.epoch(),
            })
        };
        let spots: Vec<Spot> = groups.iter().filter_map(spot).collect();
        let (per_epoch, epoch_error) = epoch_length(&epochs(&spots)).unzip();
        Some(Channel {
            spots,
            // Between the middles of the first and the last group, the length of one group is missing.
            whole: middles * groups.len() as f64 / (groups.len() - 1) as f64,
            per_epoch,
            epoch_error: epoch_error.unwrap_or(0.0),
            steps: span(Meaning::Progress).map(|span| span / middles),
            seconds: span(Meaning::Clock).map(|span| span / middles),
        })
    }

    /// Epochs that were not cut short; none with too few samples in each.
    fn whole_epochs(&self) -> Vec<&[Spot]> {
        let mut epochs = epochs(&self.spots);
        let usual = median(epochs.iter().map(|epoch| epoch.len() as f64).collect());
        epochs.retain(|epoch| epoch.len() as f64 >= WHOLE_EPOCH * usual);
        if self.spots.len() < FEWEST_PER_EPOCH * epochs.len() {
            epochs.clear();
        }
        epochs
    }

    /// Whole epochs, one point each.
    pub fn by_epoch(&self) -> Points {
        Points::of(self.whole_epochs().into_iter(), mean, 0.0)
    }

    /// Points for many epochs: all but the first, which includes warm-up.
    pub fn by_many_epochs(&self) -> Option<Points> {
        let epochs = self.whole_epochs();
        let inner = epochs
            .get(1..)
            .filter(|inner| inner.len() > FEWEST_CYCLES)?;
        let in_each = inner.len().div_ceil(MOST_POINTS);
        let groups: Vec<Vec<Spot>> = inner.chunks_exact(in_each).map(<[_]>::concat).collect();
        Some(Points::of(groups.iter().map(Vec::as_slice), mean, 0.0))
    }

    /// The floors of cycles if memory goes up and down, else blocks. With too few cycles there are no points, because the last cycle
    /// always seems to grow.
    pub fn by_samples(&self) -> Option<Points> {
        let spots = while_running(&self.spots);
        let resets = resets(&values(spots));
        if !resets.is_empty() {
            let cycles = resets.windows(2).map(|pair| &spots[pair[0]..pair[1]]);
            let floor = |spots: &[Spot]| quantile(values(spots), 0.0);
            return (resets.len() > FEWEST_CYCLES).then(|| Points::of(cycles, floor, 0.5));
        }
        let in_each = spots.len().div_ceil(MOST_POINTS);
        let in_each = in_each.max(spots.len().min(120) / 30).max(1);
        let blocks = spots.chunks_exact(in_each);
        Some(Points::of(blocks, |spots| median(values(spots)), 0.25))
    }

    /// Median gain per unit of the axis over the previous epoch at the same place within the epoch, for places throughout all epochs.
    pub fn gain_by_place(&self) -> Option<f64> {
        let per_epoch = self.per_epoch?;
        let epochs = epochs(&self.spots);
        let mut gains = Vec::new();
        for pair in epochs.windows(2) {
            // Where each spot would be in the epoch before, whose length may differ.
            let starts = (pair[0][0].at, pair[1][0].at);
            for spot in pair[1] {
                let at = starts.0 + spot.at - starts.1;
                let later = pair[0].partition_point(|before| before.at + 1e-9 * per_epoch < at);
                gains.extend(pair[0].get(later).map(|before| spot.value - before.value));
            }
        }
        (!gains.is_empty()).then(|| median(gains) / per_epoch)
    }

    /// How far memory goes up and down within an epoch.
    pub fn height(&self) -> f64 {
        let epochs = self.whole_epochs().into_iter();
        let heights = epochs.map(|epoch| mean(epoch) - quantile(values(epoch), 0.0));
        median(heights.collect())
    }
}

impl Points {
    fn of<'a>(
        groups: impl Iterator<Item = &'a [Spot]>,
        value: impl Fn(&[Spot]) -> f64,
        other_quantile: f64,
    ) -> Points {
        let mut points = Points::default();
        for spots in groups {
            let sum: f64 = spots.iter().map(|spot| spot.at).sum();
            points.at.push(sum / spots.len() as f64);
            points.values.push(value(spots));
            points.others.push(quantile(values(spots), other_quantile));
        }
        points
    }
}

fn values(spots: &[Spot]) -> Vec<f64> {
    spots.iter().map(|spot| spot.value).collect()
}

fn mean(spots: &[Spot]) -> f64 {
    values(spots).iter().sum::<f64>() / spots.len() as f64
}

fn epochs(spots: &[Spot]) -> Vec<&[Spot]> {
    let epochs = spots.chunk_by(|a, b| a.epoch == b.epoch);
    epochs.filter(|epoch| epoch[0].epoch.is_some()).collect()
}

/// Length of an epoch along the axis, from its beginning to that of the next, and its relative error. The last epoch may be cut
/// short and is excluded. The first may have begun before the log, and is used only if it is the only one.
fn epoch_length(epochs: &[&[Spot]]) -> Option<(f64, f64)> {
    let between = |pair: &[&[Spot]]| {
        let (from, to) = (&pair[0][0], &pair[1][0]);
        let num_epochs = to.epoch?.checked_sub(from.epoch?)? as f64;
        let span = to.at - from.at;
        let is_forward = num_epochs > 0.0 && span > 0.0;
        is_forward.then_some((num_epochs, span, pair[0].len() as f64))
    };
    let mut pairs: Vec<(f64, f64, f64)> = epochs.windows(2).filter_map(between).collect();
    if pairs.len() >= 2 {
        pairs.remove(0);
    }
    let add = |a: (f64, f64, f64), b: (f64, f64, f64)| (a.0 + b.0, a.1 + b.1, a.2 + b.2);
    let (num_epochs, span, num_samples) = pairs.into_iter().reduce(add)?;
    Some((span / num_epochs, 0.5 / num_samples))
}

/// Drops both ends with hardly any memory: a capture by another process begins before the run and ends after it.
fn while_running(spots: &[Spot]) -> &[Spot] {
    let little = 0.3 * quantile(values(spots), 0.95);
    let is_running = |spot: &Spot| spot.value >= little;
    match (
        spots.iter().position(is_running),
        spots.iter().rposition(is_running),
    ) {
        (Some(first), Some(last)) => &spots[first..=last],
        _ => spots,
    }
}

/// Where each tooth of a sawtooth begins: the minima of all falls by a large part of the range, and by far more than the noise. Short
/// dips are ignored: an evaluation that needs less memory does not begin a new cycle.
fn resets(values: &[f64]) -> Vec<usize> {
    let n = values.len();
    // A running median removes outliers.
    let around = |at: usize| values[at.saturating_sub(2)..(at + 3).min(n)].to_vec();
    let smooth: Vec<f64> = (0..n).map(|at| median(around(at))).collect();
    let changes = smooth.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    let noise = median(changes.collect());
    let range = quantile(smooth.clone(), 0.98) - quantile(smooth.clone(), 0.02);
    let enough = (0.4 * range).max(8.0 * noise);
    if enough <= 0.0 {
        return Vec::new();
    }
    let mut falls = falls(&smooth, enough);
    // A fall at the very end is not conclusive.
    falls.retain(|fall| fall.from + (n / 30).max(5) < n);
    let ends = falls.iter().skip(1).map(|fall| fall.from).chain([n]);
    let shares_below = falls.iter().zip(ends).map(|(fall, end)| {
        let recovered = fall.recovered_at.unwrap_or(end).min(end);
        (recovered - fall.from) as f64 / (end - fall.from).max(1) as f64
    });
    if median(shares_below.collect()) < 0.4 {
        return Vec::new();
    }
    falls.iter().map(|fall| fall.lowest_at).collect()
}

/// A fall from a maximum, and its recovery.
struct Fall {
    from: usize,
    lowest_at: usize,
    /// Where three quarters of the fall are recovered.
    recovered_at: Option<usize>,
}

fn falls(smooth: &[f64], enough: f64) -> Vec<Fall> {
    let mut falls: Vec<Fall> = Vec::new();
    let mut highest_at = 0;
    let mut is_falling = false;
    for (at, &value) in smooth.iter().enumerate() {
        if let Some(fall) = falls.last_mut() {
            let (highest, lowest) = (smooth[fall.from], smooth[fall.lowest_at]);
            if is_falling && value < lowest {
                fall.lowest_at = at;
            } else if is_falling && value > lowest + 0.25 * enough {
                is_falling = false;
                highest_at = at;
            }
            if value >= smooth[fall.lowest_at] + 0.75 * (highest - smooth[fall.lowest_at]) {
                fall.recovered_at.get_or_insert(at);
            }
        }
        if is_falling {
            continue;
        }
        if value >= smooth[highest_at] {
            highest_at = at;
        } else if value < smooth[highest_at] - enough {
            is_falling = true;
            falls.push(Fall {
                from: highest_at,
                lowest_at: at,
                recovered_at: None,
            });
        }
    }
    falls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_of_a_sawtooth_and_none_of_a_line() {
        let sawtooth: Vec<f64> = (0..200).map(|i| f64::from(i % 20)).collect();
        assert_eq!(resets(&sawtooth).len(), 9);
        let dips: Vec<f64> = (0..200)
            .map(|i| if i % 20 < 4 { 1.0 } else { 9.0 })
            .collect();
        assert_eq!(resets(&dips), [0usize; 0]);
        let line: Vec<f64> = (0..200)
            .map(|i| f64::from(i) + f64::from((i * 7) % 5))
            .collect();
        assert_eq!(resets(&line), [0usize; 0]);
        let mut spike = vec![5.0; 100];
        spike[50] = 50.0;
        assert_eq!(resets(&spike), [0usize; 0]);
        assert_eq!(resets(&[1.0]), [0usize; 0]);
        assert_eq!(resets(&[]), [0usize; 0]);
    }
}
