//! Which picture is read next.
//!
//! An epoch of training gives as many pictures as it has samples: its order from the beginning, those left out that cannot
//! be read, and then its first pictures once more in their place. So the steps of an epoch keep their number and their size,
//! whatever is broken. Where an epoch is a single step it just gets smaller: the same picture twice in one batch would be its
//! own negative.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::order::{Order, Sampling};
use crate::random::{Purpose, Random};
use crate::samples::Samples;

/// Where a run is in its data: enough to go on from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Counted from 0.
    pub epoch: u64,
    /// Place in the epoch's order that is looked at next; past its end, the order has begun again.
    pub position: u64,
    /// Pictures that the epoch has given.
    pub given: u64,
}

/// Which part of the order this process takes: every `count`-th sample, from `index` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Counted from 0.
    pub index: usize,
    /// Processes.
    pub count: usize,
}

impl Default for Shard {
    /// All of it.
    fn default() -> Shard {
        Shard { index: 0, count: 1 }
    }
}

impl Shard {
    /// How many of the places `start..end` of an order are this process's.
    pub fn share(&self, start: usize, end: usize) -> usize {
        let before = |place: usize| (place + self.count - 1 - self.index) / self.count;
        before(end) - before(start)
    }
}

/// How samples follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// Each once, in the order of the file.
    Once,
    /// Each from this one on, in the order of the file.
    From {
        /// The first.
        first: u32,
    },
    /// So many of them, drawn with a seed: each at most once, in the order of the file.
    Drawn {
        /// How many; all, where there are fewer.
        count: usize,
        /// Which ones.
        seed: u64,
    },
    /// Epoch after epoch.
    Epochs {
        /// The run's.
        seed: u64,
        /// How they are drawn.
        sampling: Sampling,
        /// Which of them.
        shard: Shard,
        /// Whether an epoch's first pictures stand in for those that cannot be read.
        goes_round: bool,
        /// Where to begin.
        from: Cursor,
        /// The epoch that there is no more of.
        until: u64,
    },
}

/// `count` of the samples, ascending: each set of that size is equally likely.
fn drawn(num_samples: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(Purpose::Drawn, &[seed]);
    let mut open = count.min(num_samples);
    let mut taken = Vec::with_capacity(open);
    for sample in 0..num_samples {
        // As many are still to be taken as `open` says, of all that are left.
        if random.below(num_samples - sample) < open {
            taken.push(sample as u32);
            open -= 1;
        }
    }
    taken
}

/// What is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub epoch: u64,
    pub position: u64,
    pub sample: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Read(Place),
    /// It depends on what is being read.
    Unknown,
    End,
}

/// The places of a course, one after the other.
pub(super) struct Stream {
    samples: Arc<Samples>,
    course: Course,
    order: Vec<u32>,
    epoch: u64,
    position: u64,
    /// Pictures of this epoch that could be read, and those that are being read.
    good: u64,
    in_flight: u64,
}

impl Stream {
    pub(super) fn new(samples: Arc<Samples>, course: Course) -> Stream {
        let from = match course {
            Course::Once | Course::From { .. } | Course::Drawn { .. } => Cursor::default(),
            Course::Epochs { from, .. } => from,
        };
        let mut stream = Stream {
            samples,
            course,
            order: Vec::new(),
            epoch: from.epoch,
            position: from.position,
            good: from.given,
            in_flight: 0,
        };
        stream.order = stream.order_of(from.epoch);
        stream
    }

    pub(super) fn samples(&self) -> &Arc<Samples> {
        &self.samples
    }

    fn order_of(&self, epoch: u64) -> Vec<u32> {
        match self.course {
            Course::Once => (0..self.samples.len() as u32).collect(),
            Course::From { first } => (first..self.samples.len() as u32).collect(),
            Course::Drawn { count, seed } => drawn(self.samples.len(), count, seed),
            Course::Epochs {
                seed,
                sampling,
                shard,
                ..
            } => {
                let order = Order::new(seed, epoch, &self.samples, sampling).into_vec();
                match shard.count {
                    1 => order,
                    count => order.into_iter().skip(shard.index).step_by(count).collect(),
                }
            }
        }
    }

    /// Whether this epoch has another place.
    fn has_place(&self) -> bool {
        let all = self.order.len() as u64;
        let goes_round = matches!(
            self.course,
            Course::Epochs {
                goes_round: true,
                ..
            }
        );
        let is_missing = self.good + self.in_flight < all && self.position < 2 * all;
        self.position < all || (goes_round && is_missing)
    }

    fn has_epoch(&self) -> bool {
        match self.course {
            Course::Once | Course::From { .. } | Course::Drawn { .. } => false,
            Course::Epochs { until, .. } => self.epoch + 1 < until && self.good > 0,
        }
    }

    /// Whether all was handed out and settled.
    pub(super) fn is_over(&self) -> bool {
        self.in_flight == 0 && !self.has_place() && !self.has_epoch()
    }

    /// Whether what comes next depends on what is being read.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.position >= self.order.len() as u64
    }

    /// What to read next. Every place handed out must be [settled](Stream::settle).
    pub(super) fn next(&mut self) -> Next {
        let all = self.order.len() as u64;
        if self.has_place() {
            let place = Place {
                epoch: self.epoch,
                position: self.position,
                sample: self.order[(self.position % all) as usize],
            };
            self.position += 1;
            self.in_flight += 1;
            return Next::Read(place);
        }
        if self.in_flight > 0 {
            return Next::Unknown;
        }
        if !self.has_epoch() {
            return Next::End;
        }
        self.epoch += 1;
        self.order = self.order_of(self.epoch);
        (self.position, self.good) = (0, 0);
        self.next()
    }

    /// Tells whether a picture could be read.
    pub(super) fn settle(&mut self, is_good: bool) {
        self.in_flight -= 1;
        self.good += u64::from(is_good);
    }
}

#[cfg(test)]
mod tests {
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
        // 500 each, give or take five standard deviations.
        assert!(
            counts.iter().all(|count| (400..600).contains(count)),
            "{counts:?}"
        );
        let course = Course::Drawn { count: 10, seed: 3 };
        let mut stream = Stream::new(samples(40), course);
        let places = good_places(&mut stream, |_| false, 1, 4);
        let read: Vec<u32> = places.iter().map(|place| place.sample).collect();
        assert_eq!(read, drawn(40, 10, 3));
        assert!(stream.is_over());
    }

    fn epochs(from: Cursor, shard: Shard, goes_round: bool) -> Course {
        Course::Epochs {
            seed: 3,
            sampling: Sampling::Shuffle,
            shard,
            goes_round,
            from,
            until: u64::MAX,
        }
    }

    /// The readable places of the first epochs, read `width` at a time.
    fn good_places(
        stream: &mut Stream,
        is_bad: impl Fn(u32) -> bool,
        epochs: u64,
        width: usize,
    ) -> Vec<Place> {
        let mut good = Vec::new();
        loop {
            let mut reading = Vec::new();
            while reading.len() < width {
                match stream.next() {
                    Next::Read(place) => reading.push(place),
                    Next::Unknown => break,
                    Next::End => return good,
                }
            }
            for place in reading {
                if place.epoch >= epochs {
                    return good;
                }
                stream.settle(!is_bad(place.sample));
                if !is_bad(place.sample) {
                    good.push(place);
                }
            }
        }
    }

    #[test]
    fn broken_pictures_make_room_for_the_next_in_order() {
        let samples = samples(10);
        let order = Order::new(3, 0, &samples, Sampling::Shuffle).into_vec();
        let bad = [order[1], order[4]];
        let mut stream = Stream::new(samples, epochs(Cursor::default(), Shard::default(), true));
        let read = good_places(&mut stream, |sample| bad.contains(&sample), 1, 3);
        let read: Vec<u32> = read.iter().map(|place| place.sample).collect();
        let mut expected: Vec<u32> = order
            .iter()
            .copied()
            .filter(|sample| !bad.contains(sample))
            .collect();
        expected.extend([order[0], order[2]]);
        assert_eq!(read, expected);
    }

    #[test]
    fn an_epoch_that_is_one_step_gets_smaller() {
        let mut stream = Stream::new(
            samples(5),
            epochs(Cursor::default(), Shard::default(), false),
        );
        let read = good_places(&mut stream, |sample| sample == 2, 1, 2);
        assert_eq!(read.len(), 4);
    }

    #[test]
    fn nothing_readable_is_an_end() {
        for goes_round in [false, true] {
            let course = epochs(Cursor::default(), Shard::default(), goes_round);
            let mut stream = Stream::new(samples(5), course);
            assert!(good_places(&mut stream, |_| true, 9, 2).is_empty());
        }
        let mut none = Stream::new(samples(0), Course::Once);
        assert_eq!(none.next(), Next::End);
    }

    #[test]
    fn shards_divide_every_stretch_of_an_order() {
        let shards = |count| (0..count).map(move |index| Shard { index, count });
        for count in 1..5 {
            for (start, end) in [(0, 0), (0, 7), (3, 4), (5, 21)] {
                let shares: Vec<usize> =
                    shards(count).map(|shard| shard.share(start, end)).collect();
                assert_eq!(
                    shares.iter().sum::<usize>(),
                    end - start,
                    "{count}: {shares:?}"
                );
                assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            }
        }
        let samples = samples(11);
        let mut all: Vec<u32> = shards(3)
            .flat_map(|shard| {
                let course = epochs(Cursor::default(), shard, true);
                good_places(
                    &mut Stream::new(Arc::clone(&samples), course),
                    |_| false,
                    1,
                    2,
                )
            })
            .map(|place| place.sample)
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..11).collect::<Vec<u32>>());
    }

    proptest! {
        #[test]
        fn how_many_read_at_a_time_changes_nothing_and_a_cursor_goes_on(
            count in 1usize..40, bad in proptest::collection::vec(0u32..40, 0..12), width in 1usize..8, stop in 0usize..60,
        ) {
            let is_bad = |sample: u32| bad.contains(&sample);
            let samples = samples(count);
            let stream = |from| Stream::new(Arc::clone(&samples), epochs(from, Shard::default(), true));
            let whole = good_places(&mut stream(Cursor::default()), is_bad, 2, 1);
            prop_assert_eq!(&whole, &good_places(&mut stream(Cursor::default()), is_bad, 2, width));
            let readable = (0..count as u32).filter(|sample| !is_bad(*sample)).count();
            let goes_twice = 2 * readable >= count;
            if goes_twice && readable > 0 {
                prop_assert_eq!(whole.len(), 2 * count);
            }
            if let Some(last) = whole.get(stop) {
                let given = whole[..=stop].iter().filter(|place| place.epoch == last.epoch).count() as u64;
                let from = Cursor { epoch: last.epoch, position: last.position + 1, given };
                let rest = good_places(&mut stream(from), is_bad, 2, width);
                prop_assert_eq!(&whole[stop + 1..], rest.as_slice());
            }
        }
    }
}
