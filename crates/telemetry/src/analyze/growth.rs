//! Steady growth: a leak, told from warm-up and from a sawtooth.
//!
//! Like is compared with like: samples of one phase, epoch by epoch where epochs are known; else cycle by cycle where memory
//! goes up and down; else block by block. A leak raises the middle of each as well as its floor, and goes on to the end.

use super::device::{DeviceLog, PhaseLog};
use super::finding::{Finding, Kind, Severity};
use super::series::{Channel, Series, Stat};
use super::trend::{Trend, median, quantile, raw_growth, trend};
use crate::words::{counted, percent, show_bytes, show_duration};

/// Standard errors above nothing; with less, about one log in a thousand would be a false alarm by chance alone.
const CERTAIN: f64 = 4.0;
/// Of the device, over the whole log; less is nobody's leak.
const LEAST_SHARE: f64 = 0.0015;
/// The same where the device's size is not known: of the level.
const LEAST_OF_LEVEL: f64 = 0.005;
const LEAST_BYTES: f64 = 4e6;
/// Of host memory, of which caches take some: of the level.
const LEAST_OF_HOST: f64 = 0.05;
const LEAST_HOST_BYTES: f64 = 256e6;
const FEWEST_SAMPLES: u64 = 24;
const FEWEST_CYCLES: usize = 6;
const MOST_POINTS: usize = 40;

/// What is compared, from the first to the last.
struct Points {
    middles: Vec<f64>,
    floors: Vec<f64>,
    unit: Unit,
    /// How much of the log lies between the first and the last of them.
    share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Epoch,
    Cycle,
    Block,
}

pub(super) fn find(log: &DeviceLog, notes: &mut Vec<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let primary = log.primary();
    for channel in primary.into_iter().chain([Channel::HostRss]) {
        if log.all.count(channel) == 0 {
            continue;
        }
        if log.all.count(channel) < FEWEST_SAMPLES {
            if Some(channel) == primary {
                let samples = counted(log.all.count(channel), "sample");
                notes.push(format!(
                    "{samples}: too few to judge growth, which takes {FEWEST_SAMPLES}"
                ));
            }
            continue;
        }
        findings.extend(of_channel(log, channel));
    }
    findings
}

fn of_channel(log: &DeviceLog, channel: Channel) -> Option<Finding> {
    let (phase, phase_log) = log.main_phase(channel)?;
    let points = points(phase_log, channel)?;
    let level = median(points.middles.clone());
    let limit = log.total.filter(|_| channel != Channel::HostRss);
    let least = match (channel, limit) {
        (Channel::HostRss, _) => LEAST_HOST_BYTES.max(LEAST_OF_HOST * level),
        (_, Some(limit)) => LEAST_BYTES.max(LEAST_SHARE * limit),
        (_, None) => LEAST_BYTES.max(LEAST_OF_LEVEL * level),
    };
    // Most logs end here: warm-up and steps taken away, less is left, not more.
    if raw_growth(&points.middles) < 0.5 * least {
        return None;
    }
    let middle = trend(&points.middles)?;
    let floor = trend(&points.floors)?;
    let is_steady = |of: &Trend, other: &Trend| {
        let is_certain = of.certainty >= CERTAIN && of.low > 0.0 && of.growth >= least;
        let goes_on = of.late_growth >= 0.25 * of.growth;
        // As far as the other can tell, it grows along.
        is_certain && goes_on && other.growth > 0.0 && other.high >= 0.5 * of.growth
    };
    let shown = match points.unit {
        _ if is_steady(&middle, &floor) => middle,
        // Of a tooth, the floor is seen better than the middle.
        Unit::Cycle if is_steady(&floor, &middle) => floor,
        _ => return None,
    };
    Some(finding(log, channel, &points, &shown, limit).in_phase(phase))
}

fn finding(
    log: &DeviceLog,
    channel: Channel,
    points: &Points,
    trend: &Trend,
    limit: Option<f64>,
) -> Finding {
    let growth = trend.growth / points.share;
    let seconds = log.seconds.sum;
    let epochs = log
        .last
        .epoch
        .zip(log.first.epoch)
        .map(|(last, first)| last.saturating_sub(first))
        .filter(|epochs| *epochs >= 2);
    // The rate in what the log counts in.
    let (rate, unit_growth) = match (epochs, seconds > 0.0) {
        (Some(epochs), _) => (" per epoch".to_owned(), growth / epochs as f64),
        (None, true) => (" per hour".to_owned(), growth / seconds * 3600.0),
        (None, false) => (" over the log".to_owned(), growth),
    };
    let of_card = limit.map_or(String::new(), |limit| {
        format!(" ({} of the device)", percent(unit_growth / limit))
    });
    // In lengths of this log.
    let left = limit
        .zip(log.all.most(channel))
        .map(|(limit, most)| (limit - most).max(0.0) / growth);
    let until = left.map(|left| until_full(left, epochs, seconds));
    let [low, high] = [trend.low, trend.high].map(|bound| bound / trend.growth);
    let message = format!(
        "{} grows by {}{rate}{of_card}, 95% sure of {} to {}{}",
        channel.words(),
        show_bytes(unit_growth),
        show_bytes(unit_growth * low),
        show_bytes(unit_growth * high),
        until.unwrap_or_default()
    );
    let advice = match channel {
        Channel::HostRss => {
            "look for lists, caches or logs on the host that grow with the steps; fewer loader workers hold less"
        }
        _ => {
            "keep numbers, not tensors: loss.item(), detach() what goes into lists, and clear what lives past its step"
        }
    };
    let severity = match left {
        // Within ten times what was watched.
        Some(left) if left < 10.0 => Severity::Problem,
        _ => Severity::Warning,
    };
    let mut finding = Finding::new(Kind::Growth, severity, message, advice)
        .at_step(log.first.step)
        .with("growth_bytes", growth)
        .with("growth_low_bytes", growth * low)
        .with("growth_high_bytes", growth * high)
        .with("standard_errors", trend.certainty)
        .with("points", points.middles.len() as f64);
    if let Some(left) = left {
        finding = finding.with("logs_until_full", left);
        if seconds > 0.0 {
            finding = finding.with("seconds_until_full", left * seconds);
        }
    }
    finding
}

fn until_full(left: f64, epochs: Option<u64>, seconds: f64) -> String {
    let epochs = epochs.map(|epochs| left * epochs as f64);
    match (epochs, seconds > 0.0) {
        _ if left <= 0.0 => "; full already".to_owned(),
        (Some(epochs), true) => format!(
            "; full in about {epochs:.0} epochs, {}",
            show_duration(left * seconds)
        ),
        (Some(epochs), false) => format!("; full in about {epochs:.0} epochs"),
        (None, true) => format!("; full in about {}", show_duration(left * seconds)),
        (None, false) => format!("; full after about {left:.1} times this log"),
    }
}

fn points(log: &PhaseLog, channel: Channel) -> Option<Points> {
    of_epochs(&log.epochs, channel).or_else(|| of_samples(&log.samples, channel))
}

/// Epochs but the first, in which things warm up, and the last, which may be cut short.
fn of_epochs(epochs: &Series, channel: Channel) -> Option<Points> {
    const FEWEST_PER_EPOCH: u64 = 3;
    let stats: Vec<&Stat> = epochs.stats(channel).collect();
    let num_inner = stats.len().checked_sub(2)?;
    if num_inner < FEWEST_CYCLES || epochs.count(channel) < FEWEST_PER_EPOCH * stats.len() as u64 {
        return None;
    }
    let num_all = stats.len();
    let stats = &stats[1..=num_inner];
    let in_each = stats.len().div_ceil(MOST_POINTS);
    let groups = stats.chunks_exact(in_each);
    let mean =
        |group: &[&Stat]| group.iter().map(|stat| stat.mean()).sum::<f64>() / group.len() as f64;
    let floor = |group: &[&Stat]| {
        group
            .iter()
            .map(|stat| stat.least)
            .fold(f64::INFINITY, f64::min)
    };
    Some(Points {
        middles: groups.clone().map(mean).collect(),
        floors: groups.map(floor).collect(),
        unit: Unit::Epoch,
        share: (num_inner / in_each - 1) as f64 * in_each as f64 / (num_all - 1) as f64,
    })
}

fn of_samples(samples: &Series, channel: Channel) -> Option<Points> {
    let stats: Vec<&Stat> = samples.stats(channel).collect();
    let stats = while_running(&stats);
    let means: Vec<f64> = stats.iter().map(|stat| stat.mean()).collect();
    let resets = resets(&means);
    if !resets.is_empty() {
        return of_cycles(stats, &resets);
    }
    let in_each = stats
        .len()
        .div_ceil(MOST_POINTS)
        .max(stats.len().min(120) / 30)
        .max(1);
    let groups = stats.chunks_exact(in_each);
    let middle = |group: &[&Stat]| median(group.iter().map(|stat| stat.mean()).collect());
    let floor = |group: &[&Stat]| {
        let mut leasts: Vec<f64> = group.iter().map(|stat| stat.least).collect();
        quantile(&mut leasts, 0.25)
    };
    Some(Points {
        middles: groups.clone().map(middle).collect(),
        floors: groups.map(floor).collect(),
        unit: Unit::Block,
        share: 1.0 - in_each as f64 / stats.len() as f64,
    })
}

/// Without the ends at which next to nothing is held: a capture from outside begins before the run and ends after it.
fn while_running<'a, 'b>(stats: &'a [&'b Stat]) -> &'a [&'b Stat] {
    let mut means: Vec<f64> = stats.iter().map(|stat| stat.mean()).collect();
    let little = 0.3 * quantile(&mut means, 0.95);
    let is_running = |stat: &&Stat| stat.mean() >= little;
    let first = stats.iter().position(is_running).unwrap_or(0);
    let last = stats.iter().rposition(is_running).unwrap_or(0);
    &stats[first..=last.max(first)]
}

/// Whole cycles, from one reset to the next. Of too few nothing can be told: the last tooth always grows.
fn of_cycles(stats: &[&Stat], resets: &[usize]) -> Option<Points> {
    let cycles = || resets.windows(2).map(|pair| &stats[pair[0]..pair[1]]);
    if cycles().count() < FEWEST_CYCLES {
        return None;
    }
    Some(Points {
        middles: cycles()
            .map(|cycle| median(cycle.iter().map(|stat| stat.mean()).collect()))
            .collect(),
        floors: cycles()
            .map(|cycle| {
                cycle
                    .iter()
                    .map(|stat| stat.least)
                    .fold(f64::INFINITY, f64::min)
            })
            .collect(),
        unit: Unit::Cycle,
        share: (resets[resets.len() - 2] - resets[0]) as f64 / stats.len() as f64,
    })
}

/// Where memory falls by a good part of its whole range, and by far more than noise: the lowest points of such falls. Dips, which
/// are over soon, are none: an evaluation that needs less is no beginning of a new cycle.
fn resets(means: &[f64]) -> Vec<usize> {
    let smooth = without_single_points(means);
    let changes = smooth
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).abs())
        .collect();
    let noise = median(changes);
    let mut sorted = smooth.clone();
    let range = quantile(&mut sorted, 0.98) - quantile(&mut sorted, 0.02);
    let enough = (0.4 * range).max(8.0 * noise);
    if enough <= 0.0 {
        return Vec::new();
    }
    let mut falls = falls(&smooth, enough);
    // What falls at the very end may be anything.
    let end = smooth.len() - (smooth.len() / 30).max(5).min(smooth.len());
    falls.retain(|fall| fall.from < end);
    let ends = falls
        .iter()
        .skip(1)
        .map(|fall| fall.from)
        .chain([smooth.len()]);
    let lengths = falls.iter().zip(ends).map(|(fall, end)| {
        let below = fall.until.unwrap_or(end).min(end) - fall.from;
        below as f64 / (end - fall.from).max(1) as f64
    });
    match median(lengths.collect()) < 0.4 {
        true => Vec::new(),
        false => falls.iter().map(|fall| fall.lowest_at).collect(),
    }
}

/// From a height down, and how long it took to come back.
struct Fall {
    from: usize,
    lowest_at: usize,
    /// Where three quarters of it were made good.
    until: Option<usize>,
}

fn falls(smooth: &[f64], enough: f64) -> Vec<Fall> {
    let mut falls: Vec<Fall> = Vec::new();
    let (mut highest, mut highest_at) = (f64::NEG_INFINITY, 0);
    let mut lowest = f64::INFINITY;
    let mut is_falling = false;
    // Of the last fall, what makes three quarters of it good.
    let mut recovered = f64::INFINITY;
    for (at, &value) in smooth.iter().enumerate() {
        if let Some(fall) = falls.last_mut() {
            if is_falling && value < lowest {
                lowest = value;
                fall.lowest_at = at;
                recovered = lowest + 0.75 * (highest - lowest);
            } else if is_falling && value > lowest + 0.25 * enough {
                is_falling = false;
                (highest, highest_at) = (value, at);
            }
            if fall.until.is_none() && value >= recovered {
                fall.until = Some(at);
            }
        }
        if is_falling {
            continue;
        }
        if value >= highest {
            (highest, highest_at) = (value, at);
        } else if value < highest - enough {
            is_falling = true;
            lowest = value;
            recovered = lowest + 0.75 * (highest - lowest);
            falls.push(Fall {
                from: highest_at,
                lowest_at: at,
                until: None,
            });
        }
    }
    falls
}

/// Medians of five: single points out of line are no cycle.
fn without_single_points(means: &[f64]) -> Vec<f64> {
    let n = means.len();
    if n < 5 {
        return means.to_vec();
    }
    let around = |at: usize| &means[at.saturating_sub(2)..(at + 3).min(n)];
    (0..n).map(|at| median(around(at).to_vec())).collect()
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
