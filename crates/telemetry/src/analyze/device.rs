//! The samples of one device: each of them in a short log, groups of neighbours in a long one.
//!
//! When there are too many groups, groups of the same phase are merged and later ones take twice as many samples. So memory is
//! constant, every sample counts, and a short log is kept exactly.

use crate::log::{Meaning, Sample};
use crate::memory_log::Phase;

const MOST_GROUPS: usize = 2048;
/// A sample joins the last group of its phase if that is one of this many: one more than there are phases.
const LOOK_BACK: usize = Phase::ALL.len() + 2;

/// Share of the device from which on memory counts as full.
pub(super) const FULL: f64 = 0.93;

/// Neighbouring samples of one phase. Both summaries have the line, the step and the time of the first.
#[derive(Clone, Debug)]
pub(super) struct Group {
    count: u64,
    pub mean: Sample,
    /// The largest of each quantity.
    pub peak: Sample,
}

impl Group {
    fn merge(&mut self, next: &Group) {
        let (own, more) = (self.count as f64, next.count as f64);
        let mean = |a: f64, b: f64| (own * a + more * b) / (own + more);
        self.mean.merge(&next.mean, mean);
        self.peak.merge(&next.peak, f64::max);
        self.count += next.count;
    }
}

/// A device's part of a log, from which the findings are made.
pub(super) struct DeviceLog {
    pub name: String,
    /// The user's limit of device memory.
    pub limit: Option<f64>,
    /// The largest total in the log.
    pub said_total: Option<f64>,
    /// In the order of the log.
    pub groups: Vec<Group>,
    group_size: u64,
    pub progress: Progress,
}

impl DeviceLog {
    pub fn new(name: &str, limit: Option<f64>) -> DeviceLog {
        DeviceLog {
            name: name.to_owned(),
            limit,
            said_total: None,
            groups: Vec::new(),
            group_size: 1,
            progress: Progress::default(),
        }
    }

    pub fn add(&mut self, mut sample: Sample) {
        self.progress.add(&mut sample);
        let total = sample.get(Meaning::Total);
        self.said_total = total.into_iter().chain(self.said_total).reduce(f64::max);
        while self.groups.len() == MOST_GROUPS {
            self.group_size *= 2;
            for group in std::mem::take(&mut self.groups) {
                self.join(group);
            }
        }
        self.join(Group {
            count: 1,
            mean: sample,
            peak: sample,
        });
    }

    fn join(&mut self, group: Group) {
        let mut recent = self.groups.iter_mut().rev().take(LOOK_BACK);
        match recent.find(|known| known.mean.phase == group.mean.phase) {
            Some(open) if open.count + group.count <= self.group_size => open.merge(&group),
            _ => self.groups.push(group),
        }
    }

    /// Means of the groups that have the quantity.
    pub fn means(&self, meaning: Meaning) -> Vec<f64> {
        let groups = self.groups.iter();
        groups.filter_map(|group| group.mean.get(meaning)).collect()
    }

    pub fn peaks(&self, meaning: Meaning) -> Vec<f64> {
        let groups = self.groups.iter();
        groups.filter_map(|group| group.peak.get(meaning)).collect()
    }

    /// The first sample with the largest value.
    pub fn largest(&self, meaning: Meaning) -> Option<&Sample> {
        let known = self.groups.iter().map(|group| &group.peak);
        let known = known.filter(|sample| sample.get(meaning).is_some());
        known.reduce(|most, next| {
            if next.get(meaning) > most.get(meaning) {
                next
            } else {
                most
            }
        })
    }

    pub fn most(&self, meaning: Meaning) -> Option<f64> {
        self.largest(meaning)?.get(meaning)
    }

    /// Device memory: the user's limit, or else the largest total in the log.
    pub fn total(&self) -> Option<f64> {
        self.limit.or(self.said_total)
    }

    /// Groups taken while training, or in no known phase.
    pub fn training(&self) -> impl Iterator<Item = &Group> + Clone {
        let is_training = |group: &&Group| matches!(group.mean.phase, None | Some(Phase::Train));
        self.groups.iter().filter(is_training)
    }

    /// Memory in use while training, as shares of the device; of the run alone if the user set a limit.
    pub fn held_shares(&self) -> Vec<f64> {
        let training = self.training();
        training
            .filter_map(|group| self.held_share(group))
            .collect()
    }

    pub fn held_share(&self, group: &Group) -> Option<f64> {
        let held = match self.limit {
            Some(_) => held_by_run(&group.peak),
            None => held(&group.peak),
        };
        Some(held? / self.total()?)
    }

    /// The first training sample with full memory.
    pub fn first_full(&self) -> Option<&Sample> {
        let is_full = |group: &&Group| self.held_share(group).is_some_and(|share| share >= FULL);
        self.training().find(is_full).map(|group| &group.mean)
    }

    /// The channel to judge the run by: the closest to the memory that the run itself holds.
    pub fn primary(&self) -> Option<Meaning> {
        use Meaning::{Allocated, AllocatedPeak, Process, Reserved, Used};
        let counts = [Allocated, Process, Used, Reserved, AllocatedPeak]
            .map(|channel| (channel, self.means(channel).len()));
        let most = counts.iter().map(|(_, count)| *count).max()?;
        let is_usual = |(_, count): &&(Meaning, usize)| *count > 0 && count * 2 >= most;
        counts.iter().find(is_usual).map(|(channel, _)| *channel)
    }

    /// The phase whose samples are compared with each other: training, or else the one with the most samples.
    pub fn main_phase(&self, channel: Meaning) -> Option<Phase> {
        const ENOUGH: usize = 24;
        let count = |phase: &Option<Phase>| {
            let of_phase = self
                .groups
                .iter()
                .filter(|group| group.mean.phase == *phase);
            of_phase
                .filter(|group| group.mean.get(channel).is_some())
                .count()
        };
        if count(&Some(Phase::Train)) >= ENOUGH {
            return Some(Phase::Train);
        }
        Phase::ALL
            .into_iter()
            .map(Some)
            .chain([None])
            .max_by_key(count)?
    }
}

/// Memory in use on the device, by any process.
pub(super) fn held(sample: &Sample) -> Option<f64> {
    use Meaning::{Allocated, AllocatedPeak, Process, Reserved, Used};
    sample.first_of(&[Used, Reserved, Process, AllocatedPeak, Allocated])
}

/// Memory of the run itself, as well as the log has it, to compare with a budget.
pub(super) fn held_by_run(sample: &Sample) -> Option<f64> {
    use Meaning::{Allocated, AllocatedPeak, Process, ProcessPeak, Reserved, Used};
    let process = sample.largest_of(&[ProcessPeak, Process]);
    process.or_else(|| sample.first_of(&[Reserved, AllocatedPeak, Allocated, Used]))
}

/// Tracks steps and seconds through the log. They never decrease, even if the log's own counters restart.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    num_samples: f64,
    steps: f64,
    /// Step difference of the last two samples with different steps.
    usual_steps: f64,
    last_step: Option<f64>,
    last_time: Option<f64>,
    /// Seconds of the log without pauses, and the number of gaps between samples that they are made of.
    running_seconds: f64,
    num_gaps: f64,
    /// Seconds of the log with pauses.
    pub seconds: f64,
    pub num_clock_backwards: u64,
}

/// A gap of at least this many seconds, and this many times the usual gap, is a pause: the run was stopped and resumed.
const PAUSE_SECONDS: f64 = 60.0;
const PAUSE_GAPS: f64 = 20.0;
const DAY_SECONDS: f64 = 86_400.0;

impl Progress {
    /// Sets the sample's position in the log, and what follows from it: the time per step and the share of it spent waiting.
    fn add(&mut self, sample: &mut Sample) {
        self.num_samples += 1.0;
        sample.set(Meaning::Row, Some(self.num_samples));
        let (steps, seconds) = (
            self.steps_since_last(sample),
            self.seconds_since_last(sample),
        );
        sample.set(Meaning::Progress, sample.step().map(|_| self.steps));
        sample.set(Meaning::Clock, sample.time().map(|_| self.running_seconds));
        let by_clock = (steps > 0.0 && seconds > 0.0).then_some(seconds / steps);
        if let Some((wait, step)) = sample.get(Meaning::DataTime).zip(by_clock) {
            let waited = sample.get(Meaning::Waited);
            sample.set(Meaning::Waited, waited.or(Some((wait / step).min(1.0))));
        }
        let rate = sample.get(Meaning::SamplesPerSecond);
        let step_time = sample.get(Meaning::StepTime);
        let step_time = step_time.or(rate.map(|rate| 1.0 / rate)).or(by_clock);
        sample.set(Meaning::StepTime, step_time);
    }

    fn steps_since_last(&mut self, sample: &Sample) -> f64 {
        let Some(step) = sample.step().map(|step| step as f64) else {
            return 0.0;
        };
        let more = match self.last_step.replace(step) {
            None => 0.0,
            Some(before) if step >= before => step - before,
            // Steps restart in each epoch, or after a resume from a checkpoint: assumes the usual progress.
            Some(_) => self.usual_steps,
        };
        if more > 0.0 {
            self.usual_steps = more;
        }
        self.steps += more;
        more
    }

    fn seconds_since_last(&mut self, sample: &Sample) -> f64 {
        let Some(time) = sample.time() else {
            return 0.0;
        };
        let Some(before) = self.last_time.replace(time) else {
            return 0.0;
        };
        // A time of day without a date begins anew at midnight.
        let is_midnight = before < DAY_SECONDS && time < before - DAY_SECONDS / 2.0;
        let time = if is_midnight {
            time + DAY_SECONDS
        } else {
            time
        };
        self.num_clock_backwards += u64::from(time < before);
        let more = (time - before).max(0.0);
        self.seconds += more;
        let usual = self.running_seconds / self.num_gaps.max(1.0);
        if self.num_gaps > 0.0 && more > PAUSE_SECONDS.max(PAUSE_GAPS * usual) {
            self.running_seconds += usual;
            return usual;
        }
        self.running_seconds += more;
        self.num_gaps += 1.0;
        more
    }

    pub fn has_clock(&self) -> bool {
        self.num_gaps > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(samples: impl Iterator<Item = Sample>) -> DeviceLog {
        let mut log = DeviceLog::new("cuda:0", None);
        samples.for_each(|sample| log.add(sample));
        log
    }

    #[test]
    fn counters_that_begin_anew_and_clocks_that_pause() {
        let positions = |samples: &[(u64, f64)]| -> Vec<(f64, f64)> {
            let sample = |(step, time): &(u64, f64)| {
                let sample = Sample::default().with(Meaning::Step, *step as f64);
                sample.with(Meaning::Time, *time)
            };
            let log = log(samples.iter().map(sample));
            let steps = log.means(Meaning::Progress).into_iter();
            steps.zip(log.means(Meaning::Clock)).collect()
        };
        let of_batches = [(0, 10.0), (10, 11.0), (20, 12.0), (0, 13.0), (10, 14.0)];
        let expected = [
            (0.0, 0.0),
            (10.0, 1.0),
            (20.0, 2.0),
            (30.0, 3.0),
            (40.0, 4.0),
        ];
        assert_eq!(positions(&of_batches), expected);
        let paused = [(1, 0.0), (2, 1.0), (3, 5_000.0), (4, 4_000.0), (5, 4_001.0)];
        let expected = [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (3.0, 2.0), (4.0, 3.0)];
        assert_eq!(positions(&paused), expected);
        let midnight = [(1, 86_398.0), (2, 86_399.0), (3, 1.0)];
        assert_eq!(positions(&midnight)[2], (2.0, 3.0));
    }

    /// Phases by turns, and a log that is many times too long: nothing is lost, phases are not mixed, and memory stays bounded.
    #[test]
    fn a_long_log_is_a_bounded_number_of_groups() {
        for length in [3u64, 2048, 100_003] {
            let log = log((0..length).map(|number| {
                let turn = number as usize / 2 % 3;
                let mut sample = Sample::default().with(Meaning::Used, turn as f64 * 1000.0);
                sample.phase = [Some(Phase::Train), Some(Phase::Evaluate), None][turn];
                sample
            }));
            assert!(log.groups.len() <= MOST_GROUPS);
            let count: u64 = log.groups.iter().map(|group| group.count).sum();
            assert_eq!(count, length);
            for group in &log.groups {
                assert_eq!(group.mean.get(Meaning::Used), group.peak.get(Meaning::Used));
            }
            let rows = log.means(Meaning::Row);
            let sum: f64 = log
                .groups
                .iter()
                .zip(rows)
                .map(|(group, row)| group.count as f64 * row)
                .sum();
            let expected = (length * (length + 1) / 2) as f64;
            assert!((sum / expected - 1.0).abs() < 1e-9, "{sum} {expected}");
        }
    }
}
