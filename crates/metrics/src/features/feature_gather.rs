//! Collects a model's features batch by batch, in any order, from one process or several, and sorts them by sample.
//!
//! Memory holds each row once: rows are stored in order of arrival, and permuted in place at the end.

use crate::error::InputError;

/// Features of some samples of a data set.
#[derive(Clone, Debug)]
pub struct FeatureGather {
    num_samples: usize,
    dimension: usize,
    /// Sample of each row, in order of arrival.
    samples: Vec<u32>,
    rows: Vec<f32>,
    /// One bit per sample: whether its row has arrived.
    seen: Vec<u64>,
}

/// Rows in the order of their samples.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderedFeatures {
    /// Sample numbers, ascending: all but those left out.
    pub samples: Vec<u32>,
    /// Features, one row after another.
    pub rows: Vec<f32>,
}

impl FeatureGather {
    /// An empty collection for a data set of `num_samples`. Memory for `num_expected` rows is allocated at once.
    ///
    /// # Panics
    /// If rows have no values, or `num_samples` exceeds 32 bits.
    pub fn new(num_samples: usize, dimension: usize, num_expected: usize) -> FeatureGather {
        assert!(dimension > 0, "a row has at least one value");
        assert!(
            u32::try_from(num_samples).is_ok(),
            "samples are numbered in 32 bits"
        );
        FeatureGather {
            num_samples,
            dimension,
            samples: Vec::with_capacity(num_expected),
            rows: Vec::with_capacity(num_expected * dimension),
            seen: vec![0; num_samples.div_ceil(64)],
        }
    }

    /// Number of samples whose rows have arrived.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Adds the rows of a batch.
    ///
    /// # Errors
    /// If a sample is not in the data set, or has a row already. The whole batch is rejected then.
    ///
    /// # Panics
    /// If the number of rows differs from the number of samples.
    pub fn add(&mut self, samples: &[u32], rows: &[f32]) -> Result<(), InputError> {
        assert_eq!(
            rows.len(),
            samples.len() * self.dimension,
            "a row per sample"
        );
        for (done, &sample) in samples.iter().enumerate() {
            if let Err(error) = self.mark(sample) {
                for &sample in &samples[..done] {
                    self.seen[sample as usize / 64] &= !(1 << (sample % 64));
                }
                return Err(error);
            }
        }
        self.samples.extend_from_slice(samples);
        self.rows.extend_from_slice(rows);
        Ok(())
    }

    fn mark(&mut self, sample: u32) -> Result<(), InputError> {
        if sample as usize >= self.num_samples {
            return Err(InputError::SampleUnknown {
                sample,
                count: self.num_samples,
            });
        }
        let (bits, bit) = (&mut self.seen[sample as usize / 64], 1 << (sample % 64));
        if *bits & bit != 0 {
            return Err(InputError::SampleTwice { sample });
        }
        *bits |= bit;
        Ok(())
    }

    /// Samples without a row, ascending.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        let is_there = |sample: u32| self.seen[sample as usize / 64] >> (sample % 64) & 1 == 1;
        (0..self.num_samples as u32).filter(move |&sample| !is_there(sample))
    }

    /// Adds the rows that another process has collected.
    ///
    /// # Errors
    /// If the other collection is of another data set or model, or shares a sample with this one.
    pub fn merge(&mut self, other: &FeatureGather) -> Result<(), InputError> {
        let [expected, found] = [&*self, other].map(|one| [one.num_samples, one.dimension]);
        if expected != found {
            return Err(InputError::Shard { expected, found });
        }
        self.add(&other.samples, &other.rows)
    }

    /// Sorts the rows by sample.
    ///
    /// # Errors
    /// If a sample is missing and not in `left_out`.
    pub fn in_order(mut self, left_out: &[u32]) -> Result<OrderedFeatures, InputError> {
        for &sample in left_out {
            self.mark(sample)?;
        }
        let (first, count) = {
            let mut missing = self.missing();
            (missing.next(), 1 + missing.count())
        };
        if let Some(first) = first {
            return Err(InputError::SampleMissing { first, count });
        }
        let mut order: Vec<u32> = (0..self.samples.len() as u32).collect();
        order.sort_unstable_by_key(|&place| self.samples[place as usize]);
        take_places(&order, &mut self.rows, self.dimension);
        self.samples.sort_unstable();
        Ok(OrderedFeatures {
            samples: self.samples,
            rows: self.rows,
        })
    }
}

/// Permutes rows in place: row `order[i]` moves to place `i`. Each cycle starts by moving one row to a spare buffer.
fn take_places(order: &[u32], rows: &mut [f32], dimension: usize) {
    let mut is_done = vec![false; order.len()];
    let mut room = vec![0.0; dimension];
    for first in 0..order.len() {
        if is_done[first] {
            continue;
        }
        room.copy_from_slice(&rows[first * dimension..][..dimension]);
        let mut to = first;
        loop {
            is_done[to] = true;
            let from = order[to] as usize;
            if from == first {
                rows[to * dimension..][..dimension].copy_from_slice(&room);
                break;
            }
            rows.copy_within(from * dimension..(from + 1) * dimension, to * dimension);
            to = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn row(sample: u32) -> [f32; 3] {
        [sample as f32, -(sample as f32), 0.5]
    }

    fn rows(samples: &[u32]) -> Vec<f32> {
        samples.iter().flat_map(|&sample| row(sample)).collect()
    }

    proptest! {
        /// Any order, batch size, number of processes and set of left-out samples: the other rows come out sorted.
        #[test]
        fn rows_come_out_in_the_order_of_samples(
            order in Just((0..40u32).collect::<Vec<_>>()).prop_shuffle(),
            num_left_out in 0usize..5,
            batch in 1usize..10,
            num_processes in 1usize..5,
        ) {
            let (left_out, read) = order.split_at(num_left_out);
            let mut shards = vec![FeatureGather::new(40, 3, 0); num_processes];
            for (turn, samples) in read.chunks(batch).enumerate() {
                shards[turn % num_processes].add(samples, &rows(samples)).unwrap();
            }
            let mut all = FeatureGather::new(40, 3, 40);
            for shard in &shards {
                all.merge(shard).unwrap();
            }
            prop_assert_eq!(all.len(), read.len());
            let ordered = all.in_order(left_out).unwrap();
            let mut expected = read.to_vec();
            expected.sort_unstable();
            prop_assert_eq!(&ordered.rows, &rows(&expected));
            prop_assert_eq!(ordered.samples, expected);
        }
    }

    #[test]
    fn a_sample_that_is_there_twice_or_not_at_all_is_named() {
        let mut some = FeatureGather::new(100, 3, 4);
        some.add(&[1, 70], &rows(&[1, 70])).unwrap();
        let error = some.add(&[2, 70], &rows(&[2, 70])).unwrap_err().to_string();
        assert!(
            error.starts_with("sample 70: ") && error.contains("twice"),
            "{error}"
        );
        // The whole batch was rejected.
        some.add(&[2], &rows(&[2])).unwrap();
        let error = some.add(&[100], &rows(&[100])).unwrap_err().to_string();
        assert!(error.starts_with("sample 100: "), "{error}");
        let same = some.clone();
        assert!(some.merge(&same).unwrap_err().to_string().contains("twice"));
        let other = FeatureGather::new(100, 2, 0);
        let error = some.merge(&other).unwrap_err().to_string();
        assert!(
            error.contains("100 samples and 3 values each, found 100 and 2"),
            "{error}"
        );
        let error = some.clone().in_order(&[0]).unwrap_err().to_string();
        assert!(
            error.starts_with("sample 3: ") && error.contains("96 are missing"),
            "{error}"
        );
        let error = some.in_order(&[1]).unwrap_err().to_string();
        assert!(
            error.starts_with("sample 1: ") && error.contains("twice"),
            "{error}"
        );
    }
}
