//! Measures waiting times, and derives the number of workers.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Workers, seconds_since};

/// Times of all workers, summed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub busy: f64,
    pub without_room: f64,
    pub pictures: u64,
    pub pixels: u64,
}

impl Times {
    /// Counts a picture that a worker has read or failed to read.
    pub fn count(&mut self, seconds: f64) {
        self.busy += seconds;
        self.pictures += 1;
    }
}

/// Waiting times of the trainer and of the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// Measured time, in seconds.
    pub seconds: f64,
    /// Seconds in which the trainer waited for pictures.
    pub for_data: f64,
    /// Seconds in which workers read, summed over workers.
    pub reading: f64,
    /// Seconds in which workers waited for free rows, summed over workers.
    pub for_room: f64,
    /// Pictures read.
    pub pictures: u64,
    /// Pixels decoded; 0 where pictures need no decoding, or were not counted.
    pub pixels: u64,
    /// Number of active workers, now.
    pub workers: usize,
}

/// The limit on a run's speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bottleneck {
    /// Computing: pictures are ready before the trainer needs them.
    Compute,
    /// Reading: all workers together read no faster than the trainer could compute.
    Reading,
    /// Read-ahead: too few rows, so that trainer and workers wait in turns.
    Room,
}

/// A trainer that waits less than this share of its time is not limited by data.
const HELD_UP: f64 = 0.02;
/// Reading is the bottleneck if all workers together read at most this much faster than the trainer computes.
const LITTLE_TO_SPARE: f64 = 1.1;

impl Waits {
    /// Share of the time in which the trainer waited.
    pub fn waiting(&self) -> f64 {
        self.for_data / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Share of the active workers' time that was spent reading.
    pub fn busy(&self) -> f64 {
        self.reading / (self.reading + self.for_room).max(f64::MIN_POSITIVE)
    }

    /// Seconds of one worker per picture.
    pub fn seconds_per_picture(&self) -> Option<f64> {
        (self.pictures > 0).then(|| self.reading / self.pictures as f64)
    }

    /// Number of workers that would read as fast as the trainer computes when it does not wait.
    pub fn needed_workers(&self) -> f64 {
        self.reading / (self.seconds - self.for_data).max(f64::MIN_POSITIVE)
    }

    /// The limit on the run's speed. It ignores how long workers waited for rows: they also wait while a checkpoint is written.
    pub fn bottleneck(&self) -> Bottleneck {
        if self.waiting() <= HELD_UP {
            Bottleneck::Compute
        } else if self.workers as f64 <= LITTLE_TO_SPARE * self.needed_workers() {
            Bottleneck::Reading
        } else {
            Bottleneck::Room
        }
    }
}

/// Interval of measurements, in seconds.
const LOOK_EVERY: f64 = 1.0;

/// Consecutive measurements that must find workers idle before some are paused: writing a checkpoint idles workers only for a while. A
/// trainer that waits gets all of them back at once.
const IDLE_LOOKS: usize = 10;

/// Adds up waiting times, and proposes a number of workers.
pub(super) struct Pace {
    workers: usize,
    allowed: Workers,
    began: Instant,
    at_start: Times,
    for_data: f64,
    looked: Instant,
    at_look: Times,
    for_data_since: f64,
    idle_looks: usize,
}

impl Pace {
    pub(super) fn new(workers: usize, allowed: Workers) -> Pace {
        let now = Instant::now();
        Pace {
            workers,
            allowed,
            began: now,
            at_start: Times::default(),
            for_data: 0.0,
            looked: now,
            at_look: Times::default(),
            for_data_since: 0.0,
            idle_looks: 0,
        }
    }

    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    pub(super) fn restart(&mut self, times: &Times) {
        *self = Pace {
            at_start: *times,
            at_look: *times,
            ..Pace::new(self.workers, self.allowed)
        };
    }

    pub(super) fn waits(&self, times: &Times) -> Waits {
        let seconds = seconds_since(self.began);
        self.between(&self.at_start, times, seconds, self.for_data)
    }

    fn between(&self, from: &Times, to: &Times, seconds: f64, for_data: f64) -> Waits {
        Waits {
            seconds,
            for_data,
            reading: to.busy - from.busy,
            for_room: to.without_room - from.without_room,
            pictures: to.pictures - from.pictures,
            pixels: to.pixels - from.pixels,
            workers: self.workers,
        }
    }

    /// Takes the waiting time of a batch; returns the new number of workers if it changes.
    pub(super) fn observe(&mut self, waited: f64, times: &Times) -> Option<usize> {
        self.for_data += waited;
        self.for_data_since += waited;
        let seconds = seconds_since(self.looked);
        if seconds < LOOK_EVERY {
            return None;
        }
        let waits = self.between(&self.at_look, times, seconds, self.for_data_since);
        self.looked = Instant::now();
        self.at_look = *times;
        self.for_data_since = 0.0;
        let mut wished = wished(&waits, self.allowed);
        self.idle_looks = if wished < self.workers {
            self.idle_looks + 1
        } else {
            0
        };
        if (1..IDLE_LOOKS).contains(&self.idle_looks) {
            wished = self.workers;
        }
        let is_change = wished != self.workers;
        self.workers = wished;
        is_change.then_some(wished)
    }
}

/// All workers where the trainer waits; where workers are mostly idle, twice as many as the work needs.
fn wished(waits: &Waits, Workers { least, most, .. }: Workers) -> usize {
    let now = waits.workers;
    if waits.bottleneck() != Bottleneck::Compute {
        return most;
    }
    let needed = waits.reading / waits.seconds.max(f64::MIN_POSITIVE);
    let enough = (needed * 2.0).ceil() as usize;
    if waits.waiting() < HELD_UP / 4.0 && waits.busy() < 0.5 && waits.pictures > 0 {
        return enough.clamp(least.min(now), now);
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up_to(most: usize) -> Workers {
        let (least, ahead) = (1, 0);
        Workers { least, most, ahead }
    }

    /// Ten seconds of `workers`.
    fn waits(workers: usize, for_data: f64, reading: f64, for_room: f64) -> Waits {
        Waits {
            seconds: 10.0,
            for_data,
            reading,
            for_room,
            pictures: 1000,
            pixels: 0,
            workers,
        }
    }

    #[test]
    fn a_trainer_that_waits_gets_all_workers() {
        let starved = waits(2, 5.0, 19.0, 0.5);
        assert_eq!(starved.bottleneck(), Bottleneck::Reading);
        assert_eq!(wished(&starved, up_to(8)), 8);
        let by_turns = waits(4, 2.0, 20.0, 20.0);
        assert_eq!(by_turns.bottleneck(), Bottleneck::Room);
        assert_eq!(wished(&by_turns, up_to(8)), 8);
        assert_eq!(wished(&starved, Workers::exactly(2, 0)), 2);
        // The workers read whenever the trainer needed pictures; their idle time during checkpoints is not why it waited.
        let decoding = waits(16, 6.3, 56.0, 104.0);
        assert_eq!(decoding.bottleneck(), Bottleneck::Reading);
    }

    #[test]
    fn workers_that_wait_for_room_become_fewer() {
        let idle = waits(8, 0.0, 12.0, 68.0);
        assert_eq!(idle.bottleneck(), Bottleneck::Compute);
        assert_eq!(wished(&idle, up_to(8)), 3);
        // Busy workers stay.
        assert_eq!(wished(&waits(3, 0.0, 20.0, 10.0), up_to(8)), 3);
        // At least one worker stays, or the configured minimum.
        assert_eq!(wished(&waits(4, 0.0, 0.001, 40.0), up_to(8)), 1);
        assert_eq!(wished(&idle, Workers::exactly(8, 0)), 8);
    }

    #[test]
    fn only_a_habit_sends_workers_home() {
        let mut pace = Pace::new(8, up_to(8));
        let mut times = Times::default();
        let mut look = |pace: &mut Pace, waited: f64| {
            // A second in which eight workers read a tenth of the time.
            times.busy += 0.8;
            times.without_room += 7.2;
            times.pictures += 100;
            pace.looked -= std::time::Duration::from_secs(1);
            pace.observe(waited, &times)
        };
        for _ in 1..IDLE_LOOKS {
            assert_eq!(look(&mut pace, 0.0), None);
        }
        assert_eq!(look(&mut pace, 0.0), Some(2));
        assert_eq!(pace.workers(), 2);
        assert_eq!(look(&mut pace, 0.5), Some(8));
        // After a pause the count of idle measurements restarts.
        for _ in 1..IDLE_LOOKS {
            assert_eq!(look(&mut pace, 0.0), None);
        }
    }
}
