//! A log of any length as a few hundred buckets with minimum, maximum and mean.
//!
//! A bucket takes one sample or one epoch. When there are too many buckets, neighbours are merged, and later buckets take twice as
//! much. So memory is constant, every sample counts, and a short log is kept exactly.

use super::progress::{Axis, Position};
use crate::log::{Meaning, Sample};

/// Statistics of a bucket for one channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub least: f64,
    pub most: f64,
    sum: f64,
    count: u64,
}

impl Stat {
    const NONE: Stat = Stat {
        least: f64::INFINITY,
        most: f64::NEG_INFINITY,
        sum: 0.0,
        count: 0,
    };

    fn add(&mut self, value: f64) {
        self.merge(&Stat {
            least: value,
            most: value,
            sum: value,
            count: 1,
        });
    }

    fn merge(&mut self, other: &Stat) {
        self.least = self.least.min(other.least);
        self.most = self.most.max(other.most);
        self.sum += other.sum;
        self.count += other.count;
    }

    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }
}

/// Successive samples.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub first_step: Option<u64>,
    /// Number of samples or epochs in the bucket.
    size: u64,
    num_samples: u64,
    pub first_epoch: Option<u64>,
    epoch: Option<u64>,
    first: Position,
    /// Sum and count of the positions along each axis.
    along: [(f64, u64); Axis::ALL.len()],
    stats: [Stat; Meaning::CHANNELS.len()],
}

impl Bucket {
    fn new(sample: &Sample, position: &Position) -> Bucket {
        Bucket {
            first_step: sample.step(),
            size: 1,
            num_samples: 0,
            first_epoch: sample.epoch(),
            epoch: sample.epoch(),
            first: *position,
            along: [(0.0, 0); Axis::ALL.len()],
            stats: [Stat::NONE; Meaning::CHANNELS.len()],
        }
    }

    fn add(&mut self, sample: &Sample, position: &Position) {
        self.num_samples += 1;
        for ((sum, count), axis) in self.along.iter_mut().zip(Axis::ALL) {
            if let Some(at) = position.along(axis) {
                *sum += at;
                *count += 1;
            }
        }
        for (stat, channel) in self.stats.iter_mut().zip(Meaning::CHANNELS) {
            if let Some(value) = sample.get(channel) {
                stat.add(value);
            }
        }
    }

    fn merge(&mut self, next: &Bucket) {
        self.size += next.size;
        self.num_samples += next.num_samples;
        self.epoch = next.epoch;
        for ((sum, count), (more, of)) in self.along.iter_mut().zip(&next.along) {
            *sum += more;
            *count += of;
        }
        for (stat, other) in self.stats.iter_mut().zip(&next.stats) {
            stat.merge(other);
        }
    }

    pub fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Mean position of the samples; `None` unless nearly all have one.
    pub fn middle_along(&self, axis: Axis) -> Option<f64> {
        let (sum, count) = self.along[axis as usize];
        (count > 0 && count * 10 >= self.num_samples * 9).then(|| sum / count as f64)
    }

    /// Position of the first sample.
    pub fn first_along(&self, axis: Axis) -> Option<f64> {
        self.first.along(axis)
    }

    pub fn stat(&self, channel: Meaning) -> Option<&Stat> {
        let stat = &self.stats[channel as usize];
        (stat.count > 0).then_some(stat)
    }
}

/// Unit of a bucket's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Sample,
    Epoch,
}

/// Buckets in the order of the log.
#[derive(Clone, Debug)]
pub(super) struct Series {
    per: Per,
    /// Number of samples or epochs per bucket.
    size: u64,
    pub buckets: Vec<Bucket>,
    counts: [u64; Meaning::CHANNELS.len()],
}

/// Even, so that merging in pairs leaves none over.
const MOST_BUCKETS: usize = 512;

impl Series {
    pub fn new(per: Per) -> Series {
        Series {
            per,
            size: 1,
            buckets: Vec::new(),
            counts: [0; Meaning::CHANNELS.len()],
        }
    }

    pub fn add(&mut self, sample: &Sample, position: &Position) {
        if self.per == Per::Epoch && sample.epoch().is_none() {
            return;
        }
        for (count, channel) in self.counts.iter_mut().zip(Meaning::CHANNELS) {
            *count += u64::from(sample.get(channel).is_some());
        }
        let full = self.size;
        match (self.buckets.last_mut(), self.per) {
            (Some(last), Per::Sample) if last.size < full => {
                last.size += 1;
                last.add(sample, position);
                return;
            }
            (Some(last), Per::Epoch) if last.epoch == sample.epoch() => {
                last.add(sample, position);
                return;
            }
            (Some(last), Per::Epoch) if last.size < full => {
                last.size += 1;
                last.epoch = sample.epoch();
                last.add(sample, position);
                return;
            }
            _ => {}
        }
        if self.buckets.len() == MOST_BUCKETS {
            self.halve();
        }
        let mut bucket = Bucket::new(sample, position);
        bucket.add(sample, position);
        self.buckets.push(bucket);
    }

    fn halve(&mut self) {
        let mut merged = Vec::with_capacity(MOST_BUCKETS);
        for pair in self.buckets.chunks(2) {
            let mut bucket = pair[0].clone();
            pair[1..].iter().for_each(|next| bucket.merge(next));
            merged.push(bucket);
        }
        self.buckets = merged;
        self.size *= 2;
    }

    /// Number of samples with a value of the channel.
    pub fn count(&self, channel: Meaning) -> u64 {
        self.counts[channel as usize]
    }

    /// The channel's statistics, one per bucket.
    pub fn stats(&self, channel: Meaning) -> impl DoubleEndedIterator<Item = &Stat> {
        self.buckets
            .iter()
            .filter_map(move |bucket| bucket.stat(channel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(number: u64) -> Sample {
        Sample::default()
            .with(Meaning::Step, number as f64)
            .with(Meaning::Epoch, (number / 10) as f64)
            .with(Meaning::Used, number as f64)
    }

    #[test]
    fn nothing_is_lost_and_nothing_grows() {
        for (per, length) in [
            (Per::Sample, 100_003),
            (Per::Epoch, 100_003),
            (Per::Sample, 3),
            (Per::Epoch, 35),
        ] {
            let mut series = Series::new(per);
            (0..length).for_each(|number| series.add(&sample(number), &Position::default()));
            assert!(series.buckets.len() <= MOST_BUCKETS);
            assert_eq!(series.count(Meaning::Used), length);
            let samples: u64 = series.buckets.iter().map(|bucket| bucket.num_samples).sum();
            assert_eq!(samples, length);
            // In order, without gaps.
            let mut next = 0.0;
            for stat in series.stats(Meaning::Used) {
                assert_eq!(stat.least, next);
                assert_eq!(stat.mean(), (stat.least + stat.most) / 2.0);
                next = stat.most + 1.0;
            }
            assert_eq!(series.stats(Meaning::Reserved).count(), 0);
        }
        let mut series = Series::new(Per::Epoch);
        (0..35).for_each(|number| series.add(&sample(number), &Position::default()));
        assert_eq!(series.buckets.len(), 4);
    }
}
