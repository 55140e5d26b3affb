//! The order of pictures to read, and the substitutes of pictures that cannot be read.
//!
//! An epoch of training is a table: row `b` is the effective batch `b`, `T` places wide; the last row may be shorter. An unreadable picture
//! is replaced by the next readable picture below it in its column, continuing at the top behind the last row:
//!
//! ```text
//! place p of batch b    p, p + T, p + 2T, ... of the epoch's order, wrapping at its end
//! ```
//!
//! So the steps of an epoch keep their number and their size, no batch has a picture twice, and a process can choose a substitute without
//! communication: N processes that share every batch read the same batches as one process. Where a whole column is unreadable, for example
//! in an epoch of a single step, the batch gets smaller.

use std::ops::Range;
use std::sync::Arc;

use crate::random::{DrawPurpose, Random};
use crate::samples::{Order, Samples, Sampling};

/// The part of every batch, or of a list, that a process reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Counted from 0.
    pub rank: usize,
    /// Number of processes.
    pub count: usize,
}

impl Default for Share {
    /// The whole batch.
    fn default() -> Share {
        Share { rank: 0, count: 1 }
    }
}

impl Share {
    /// The process's range of places. The ranges of all processes are contiguous and cover all places; with fewer places than processes,
    /// some ranges are empty.
    pub fn of(&self, places: usize) -> Range<usize> {
        let start = |rank: usize| (places as u128 * rank as u128 / self.count as u128) as usize;
        start(self.rank)..start(self.rank + 1)
    }
}

/// Position of a run in its data, sufficient to resume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Counted from 0.
    pub epoch: u64,
    /// Next effective batch of the epoch, counted from 0.
    pub batch: u64,
}

impl Cursor {
    /// Position after `steps` steps, with `per_epoch` steps per epoch.
    pub fn after(steps: u64, per_epoch: u64) -> Cursor {
        Cursor {
            epoch: steps / per_epoch,
            batch: steps % per_epoch,
        }
    }
}

/// Order of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Each sample of a share once, in file order.
    Once(Share),
    /// All samples from this one on, in file order.
    From {
        /// The first sample.
        first: u32,
    },
    /// A random subset of the samples, each at most once, in file order.
    Drawn {
        /// Size of the subset; all samples if the list has fewer.
        count: usize,
        /// Seed of the subset.
        seed: u64,
        /// The part of the subset that is read.
        share: Share,
    },
    /// Epoch after epoch, batch after batch.
    Epochs(Epochs),
}

/// Settings of a course of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epochs {
    /// The run's seed.
    pub seed: u64,
    pub sampling: Sampling,
    /// Samples of an effective batch.
    pub batch: usize,
    /// The part of every batch that is read.
    pub share: Share,
    /// First batch.
    pub from: Cursor,
    /// Epoch at which the course ends, exclusive.
    pub until: u64,
}

impl Epochs {
    /// Places of a batch in an epoch of `num_samples` samples.
    fn places(&self, num_samples: usize, batch: u64) -> Range<usize> {
        let start = (batch as usize * self.batch).min(num_samples);
        start..(start + self.batch).min(num_samples)
    }

    /// This process's places of a batch.
    fn share_of(&self, num_samples: usize, batch: u64) -> Range<usize> {
        let all = self.places(num_samples, batch);
        let share = self.share.of(all.len());
        all.start + share.start..all.start + share.end
    }
}

/// `count` of the samples, ascending: each set of that size is equally likely.
fn drawn(num_samples: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(DrawPurpose::Drawn, &[seed]);
    let mut open = count.min(num_samples);
    let mut taken = Vec::with_capacity(open);
    for sample in 0..num_samples {
        // Selects this sample with probability `open` / (samples left).
        if random.below(num_samples - sample) < open {
            taken.push(sample as u32);
            open -= 1;
        }
    }
    taken
}

/// A place of a course, and the picture that is tried for it.
#[derive(Clone, Debug)]
pub(super) struct CoursePlace {
    pub epoch: u64,
    order: Arc<[u32]>,
    home: usize,
    at: usize,
    /// Distance of the places of a column; `None` where unreadable pictures have no substitute.
    column: Option<usize>,
}

impl CoursePlace {
    pub(super) fn sample(&self) -> u32 {
        self.order[self.at]
    }

    /// Moves on to the substitute of an unreadable picture; returns whether one is left.
    pub(super) fn move_on(&mut self) -> bool {
        let Some(width) = self.column else {
            return false;
        };
        let below = self.at + width;
        self.at = if below < self.order.len() {
            below
        } else {
            self.at % width
        };
        self.at != self.home
    }
}

/// Iterates over the places of a course.
pub(super) struct CourseStream {
    samples: Arc<Samples>,
    course: Course,
    epoch: u64,
    order: Arc<[u32]>,
    /// Remaining places: of the order, or of the current batch of an epoch.
    places: Range<usize>,
    /// The next batch of the epoch.
    next_batch: u64,
    is_over: bool,
}

impl CourseStream {
    pub(super) fn new(samples: Arc<Samples>, course: Course) -> CourseStream {
        let all = samples.len() as u32;
        let from = match course {
            Course::Epochs(epochs) => epochs.from,
            _ => Cursor::default(),
        };
        let (order, places): (Vec<u32>, _) = match course {
            Course::Once(share) => ((0..all).collect(), share.of(samples.len())),
            Course::From { first } => ((0..all).collect(), first as usize..samples.len()),
            Course::Drawn { count, seed, share } => {
                let order = drawn(samples.len(), count, seed);
                let places = share.of(order.len());
                (order, places)
            }
            Course::Epochs(epochs) => (order_of(&epochs, from.epoch, &samples), 0..0),
        };
        CourseStream {
            samples,
            course,
            epoch: from.epoch,
            order: order.into(),
            places,
            next_batch: from.batch,
            is_over: false,
        }
    }

    pub(super) fn samples(&self) -> &Arc<Samples> {
        &self.samples
    }

    /// Number of this process's places in the batch `after` batches into the course; `None` for a course without batches.
    pub(super) fn size_of_batch(&self, after: u64) -> Option<usize> {
        let Course::Epochs(epochs) = self.course else {
            return None;
        };
        let per_epoch = self.samples.len().div_ceil(epochs.batch) as u64;
        if per_epoch == 0 {
            return Some(0);
        }
        let batch = (epochs.from.batch + after) % per_epoch;
        Some(epochs.share_of(self.samples.len(), batch).len())
    }

    /// Whether [`CourseStream::next`] has reached the end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The next place; `None` behind the last.
    pub(super) fn next(&mut self) -> Option<CoursePlace> {
        while self.places.is_empty() {
            if !self.begin_batch() {
                self.is_over = true;
                return None;
            }
        }
        let at = self.places.next()?;
        Some(CoursePlace {
            epoch: self.epoch,
            order: Arc::clone(&self.order),
            home: at,
            at,
            column: match self.course {
                Course::Epochs(epochs) => Some(epochs.batch),
                _ => None,
            },
        })
    }

    /// Moves on to the next batch, which may have no place for this process; returns whether the course has one.
    fn begin_batch(&mut self) -> bool {
        let Course::Epochs(epochs) = self.course else {
            return false;
        };
        let num_samples = self.order.len();
        let last = num_samples.div_ceil(epochs.batch).saturating_sub(1) as u64;
        // With small batches a process may have no place in any batch.
        let has_places = [0, last]
            .iter()
            .any(|&batch| !epochs.share_of(num_samples, batch).is_empty());
        if !has_places || self.epoch >= epochs.until {
            return false;
        }
        if epochs.places(num_samples, self.next_batch).is_empty() {
            if self.epoch + 1 >= epochs.until {
                return false;
            }
            self.epoch += 1;
            self.next_batch = 0;
            self.order = order_of(&epochs, self.epoch, &self.samples).into();
        }
        self.places = epochs.share_of(num_samples, self.next_batch);
        self.next_batch += 1;
        true
    }
}

fn order_of(epochs: &Epochs, epoch: u64, samples: &Samples) -> Vec<u32> {
    Order::new(epochs.seed, epoch, samples, epochs.sampling).into_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::samples::SamplesBuilder;

    fn samples(count: usize) -> Arc<Samples> {
        let mut builder = SamplesBuilder::new(PathBuf::new());
        for row in 0..count {
            builder.push("x.jpg", None, row as u32 + 2);
        }
        Arc::new(builder.finish(Vec::new()))
    }

    fn epochs(batch: usize, share: Share, from: Cursor) -> Course {
        Course::Epochs(Epochs {
            seed: 3,
            sampling: Sampling::Shuffle,
            batch,
            share,
            from,
            until: 2,
        })
    }

    /// One process's share of every batch of a course.
    fn batches(
        samples: &Arc<Samples>,
        course: Course,
        is_bad: impl Fn(u32) -> bool,
    ) -> Vec<Vec<u32>> {
        let mut stream = CourseStream::new(Arc::clone(samples), course);
        let Course::Epochs(epochs) = course else {
            panic!("not of epochs");
        };
        let per_epoch = samples.len().div_ceil(epochs.batch) as u64;
        let total = per_epoch * epochs.until - (epochs.from.epoch * per_epoch + epochs.from.batch);
        let mut found = Vec::new();
        for after in 0..total {
            let mut batch = Vec::new();
            for _ in 0..stream.size_of_batch(after).unwrap() {
                let mut place = stream.next().unwrap();
                while is_bad(place.sample()) && place.move_on() {}
                if !is_bad(place.sample()) {
                    batch.push(place.sample());
                }
            }
            found.push(batch);
        }
        assert!(stream.next().is_none() && stream.is_over());
        found
    }

    #[test]
    fn a_drawn_course_has_each_sample_at_most_once_in_order() {
        let all = drawn(40, 100, 7);
        assert_eq!(all, (0..40).collect::<Vec<u32>>());
        let mut counts = [0; 40];
        for seed in 0..2000 {
            let some = drawn(40, 10, seed);
            assert_eq!(some.len(), 10);
            assert!(some.is_sorted_by(|a, b| a < b));
            some.iter().for_each(|&one| counts[one as usize] += 1);
        }
        // 500 each, plus or minus five standard deviations.
        assert!(
            counts.iter().all(|count| (400..600).contains(count)),
            "{counts:?}"
        );
        let mut read = Vec::new();
        for rank in 0..3 {
            let share = Share { rank, count: 3 };
            let course = Course::Drawn {
                count: 10,
                seed: 3,
                share,
            };
            let mut stream = CourseStream::new(samples(40), course);
            read.extend(std::iter::from_fn(|| stream.next()).map(|place| place.sample()));
            assert!(stream.is_over());
        }
        assert_eq!(read, drawn(40, 10, 3));
    }

    #[test]
    fn the_next_below_in_its_column_takes_a_broken_pictures_place() {
        let samples = samples(10);
        let order = Order::new(3, 0, &samples, Sampling::Shuffle).into_vec();
        // Batches are 0..4, 4..8 and 8..10.
        let bad = [order[1], order[5], order[3], order[8]];
        let course = epochs(4, Share::default(), Cursor::default());
        let found = batches(&samples, course, |sample| bad.contains(&sample));
        let at = |places: &[usize]| places.iter().map(|&at| order[at]).collect::<Vec<_>>();
        assert_eq!(found[0], at(&[0, 9, 2, 7]));
        assert_eq!(found[1], at(&[4, 9, 6, 7]));
        assert_eq!(found[2], at(&[0, 9]));
    }

    #[test]
    fn an_epoch_that_is_one_step_gets_smaller_and_one_without_pictures_is_empty() {
        let course = epochs(8, Share::default(), Cursor::default());
        let found = batches(&samples(5), course, |sample| sample == 2);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
        let found = batches(&samples(5), course, |_| true);
        assert!(found.iter().all(Vec::is_empty));
        let mut none = CourseStream::new(samples(0), Course::Once(Share::default()));
        assert!(none.next().is_none());
    }

    #[test]
    fn a_process_without_a_place_in_any_batch_reads_nothing() {
        let share = Share { rank: 0, count: 4 };
        let course = Course::Epochs(Epochs {
            seed: 0,
            sampling: Sampling::Shuffle,
            batch: 3,
            share,
            from: Cursor::default(),
            until: u64::MAX,
        });
        let mut stream = CourseStream::new(samples(9), course);
        assert!(stream.next().is_none());
        assert_eq!(stream.size_of_batch(0), Some(0));
    }

    proptest! {
        /// N processes together read the batches of one process, whatever pictures are broken and wherever the course begins; no batch has
        /// a sample twice, and a batch is smaller only where a whole column cannot be read.
        #[test]
        fn processes_read_the_batches_of_one(
            count in 1usize..60, batch in 1usize..20, processes in 1usize..5, step in 0u64..40,
            bad in proptest::collection::vec(0u32..60, 0..30),
        ) {
            let bad: HashSet<u32> = bad.into_iter().collect();
            let is_bad = |sample: u32| bad.contains(&sample);
            let samples = samples(count);
            let per_epoch = count.div_ceil(batch) as u64;
            let whole = batches(&samples, epochs(batch, Share::default(), Cursor::default()), is_bad);
            prop_assert_eq!(whole.len() as u64, 2 * per_epoch);
            let step = step.min(2 * per_epoch);
            let from = Cursor::after(step, per_epoch);
            let shares: Vec<_> = (0..processes)
                .map(|rank| batches(&samples, epochs(batch, Share { rank, count: processes }, from), is_bad))
                .collect();
            for (at, expected) in whole[step as usize..].iter().enumerate() {
                let union: Vec<u32> = shares.iter().flat_map(|share| share[at].clone()).collect();
                prop_assert_eq!(&union, expected);
                let most = batch.div_ceil(processes);
                prop_assert!(shares.iter().all(|share| share[at].len() <= most));
            }
            for (at, found) in whole.iter().enumerate() {
                let epoch = at as u64 / per_epoch;
                let order = Order::new(3, epoch, &samples, Sampling::Shuffle).into_vec();
                let distinct: BTreeSet<u32> = found.iter().copied().collect();
                prop_assert_eq!(distinct.len(), found.len());
                let start = (at as u64 % per_epoch) as usize * batch;
                let columns = start..(start + batch).min(count);
                let readable = columns.filter(|place| {
                    let column = order.iter().skip(place % batch).step_by(batch);
                    column.clone().any(|&sample| !is_bad(sample))
                });
                prop_assert_eq!(readable.count(), found.len());
            }
        }
    }
}
