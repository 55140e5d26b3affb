//! Measured length of an epoch in steps and in seconds, to convert one rate into rates per epoch, per step and per minute.

use super::device::PhaseLog;
use super::progress::Axis;
use super::series::{Bucket, Series};

/// The axis of growth, and the conversion to other units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub axis: Axis,
    /// Length of the log along the axis.
    pub whole: f64,
    pub per_epoch: Option<f64>,
    /// Relative error of `per_epoch`, because samples may miss the beginning of an epoch.
    pub epoch_error: f64,
    pub steps: Option<f64>,
    pub seconds: Option<f64>,
}

impl Pace {
    pub fn of(log: &PhaseLog) -> Option<Pace> {
        let buckets = &log.samples.buckets;
        let span = |axis: Axis| {
            let is_known = buckets
                .iter()
                .all(|bucket| bucket.middle_along(axis).is_some());
            let (first, last) = (buckets.first()?, buckets.last()?);
            let span = last.middle_along(axis)? - first.middle_along(axis)?;
            (is_known && span > 0.0).then_some(span)
        };
        let (axis, middles) = Axis::ALL
            .into_iter()
            .find_map(|axis| Some((axis, span(axis)?)))?;
        let per = |other: Axis| span(other).map(|span| span / middles);
        let (per_epoch, epoch_error) = per_epoch(&log.epochs, axis).unzip();
        Some(Pace {
            axis,
            // Between the middles of the first and the last bucket, the length of one bucket is missing.
            whole: middles * buckets.len() as f64 / (buckets.len() - 1).max(1) as f64,
            per_epoch,
            epoch_error: epoch_error.unwrap_or(0.0),
            steps: per(Axis::Steps),
            seconds: per(Axis::Seconds),
        })
    }
}

/// Length of an epoch along the axis, from its beginning to that of the next, and its relative error. The last epoch may be cut
/// short and is excluded. The first may have begun before the log, and is used only if it is the only one.
fn per_epoch(epochs: &Series, axis: Axis) -> Option<(f64, f64)> {
    let between = |pair: &[Bucket]| {
        let (Some(from), Some(to)) = (pair[0].first_epoch, pair[1].first_epoch) else {
            return None;
        };
        let epochs = to.checked_sub(from).filter(|epochs| *epochs > 0)?;
        let span = pair[1].first_along(axis)? - pair[0].first_along(axis)?;
        (span > 0.0).then_some((epochs as f64, span, pair[0].num_samples() as f64))
    };
    let mut pairs: Vec<(f64, f64, f64)> = epochs.buckets.windows(2).filter_map(between).collect();
    if pairs.len() >= 2 {
        pairs.remove(0);
    }
    let sum = |part: fn(&(f64, f64, f64)) -> f64| pairs.iter().map(part).sum::<f64>();
    let (epochs, span, samples) = (sum(|pair| pair.0), sum(|pair| pair.1), sum(|pair| pair.2));
    (epochs > 0.0).then(|| (span / epochs, 0.5 / samples.max(1.0)))
}
