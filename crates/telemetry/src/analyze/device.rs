//! Statistics of a device's samples, in a fixed amount of memory.

use super::budget::OverBudget;
use super::histogram::Histogram;
use super::idle::Busy;
use super::progress::LogProgress;
use super::series::{Per, Series};
use super::spike::HighWaterMark;
use crate::log::{Meaning, Sample};
use crate::memory_log::Phase;

/// Share of the device from which on memory counts as full.
pub(super) const FULL: f64 = 0.93;
/// Share of the device below which memory counts as not full.
const NOT_FULL: f64 = 0.90;

/// Share of the largest held memory, and number of bytes, below which nothing is loaded: a capture by another process continues
/// after the run.
const LOADED: f64 = 0.2;
const LOADED_BYTES: f64 = 100e6;

/// Statistics of a device, from which the findings are made.
pub(super) struct DeviceLog {
    pub name: String,
    pub memory: MemoryStatistics,
    /// Device memory: the user's limit, or else the largest total in the log.
    pub total: Option<f64>,
    /// The largest total in the log.
    pub said_total: Option<f64>,
    pub planned: Option<f64>,
    pub batch_size: Option<f64>,
    /// The sample that was furthest over the budget.
    pub over_budget: Option<OverBudget>,
    pub peak: HighWaterMark,
    pub training: TrainingStatistics,
    /// Share of the time spent waiting for data.
    pub waited: Mean,
    /// Seconds between successive samples.
    pub seconds: Mean,
    pub num_clock_backwards: u64,
    pub num_epochs: u64,
    pub first: Sample,
    last: Option<Sample>,
}

/// Memory of all samples, by channel.
pub(super) struct MemoryStatistics {
    pub all: Series,
    /// By phase; the last entry is for samples without a phase.
    phases: [Option<Box<PhaseLog>>; Phase::ALL.len() + 1],
    levels: [Histogram; Meaning::CHANNELS.len()],
    largest: [Option<Sample>; Meaning::CHANNELS.len()],
    /// Relative changes of allocated memory between successive samples.
    pub allocated_changes: Mean,
    progress: LogProgress,
}

/// Samples of a phase, one by one and by epoch.
pub(super) struct PhaseLog {
    pub samples: Series,
    pub epochs: Series,
}

/// Statistics of the samples taken while training, or in no known phase.
#[derive(Default)]
pub(super) struct TrainingStatistics {
    /// Held memory, as a share of the device.
    pub held_share: Histogram,
    /// Needed memory as a share of the device: held memory without what a caching allocator would free.
    pub needed_share: Histogram,
    pub busy: Busy,
    /// Milliseconds per step, while memory is full and while it is not.
    pub step_ms_full: Histogram,
    pub step_ms_free: Histogram,
    /// The first sample with full memory.
    pub first_full: Option<Sample>,
    most_held: f64,
    previous: Option<Sample>,
}

/// A weighted mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub sum: f64,
    weight: f64,
    pub count: u64,
}

impl Mean {
    pub fn add(&mut self, value: f64) {
        self.add_weighted(value, 1.0);
    }

    pub fn add_weighted(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
        self.count += 1;
    }

    /// The mean; `None` with fewer than `fewest` values.
    pub fn of(&self, fewest: u64) -> Option<f64> {
        (self.count >= fewest && self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

impl DeviceLog {
    pub fn new(name: &str, first: &Sample) -> DeviceLog {
        DeviceLog {
            name: name.to_owned(),
            memory: MemoryStatistics {
                all: Series::new(Per::Sample),
                phases: [const { None }; Phase::ALL.len() + 1],
                levels: std::array::from_fn(|_| Histogram::default()),
                largest: [None; Meaning::CHANNELS.len()],
                allocated_changes: Mean::default(),
                progress: LogProgress::default(),
            },
            total: None,
            said_total: None,
            planned: None,
            batch_size: None,
            over_budget: None,
            peak: HighWaterMark::default(),
            training: TrainingStatistics::default(),
            waited: Mean::default(),
            seconds: Mean::default(),
            num_clock_backwards: 0,
            num_epochs: 0,
            first: *first,
            last: None,
        }
    }

    /// Adds a sample; `limit` is the user's limit of device memory.
    pub fn add(&mut self, sample: &Sample, limit: Option<f64>) {
        let last = self.last.as_ref();
        self.memory.add(sample, last);
        let is_new_epoch = last.is_none_or(|last| last.epoch() != sample.epoch());
        self.num_epochs += u64::from(is_new_epoch && sample.epoch().is_some());
        self.peak.add(sample, last);
        self.said_total = larger(self.said_total, sample.get(Meaning::Total));
        self.total = limit.or(self.said_total);
        self.planned = larger(self.planned, sample.get(Meaning::Planned));
        self.batch_size = sample.get(Meaning::BatchSize).or(self.batch_size);
        self.over_budget = OverBudget::worse_of(self.over_budget, sample, limit);
        let seconds = self.seconds_since_last(sample);
        self.add_waiting(sample, seconds);
        if matches!(sample.phase, None | Some(Phase::Train)) {
            let has_limit = limit.is_some();
            self.training.add(sample, seconds, self.total, has_limit);
        }
        self.last = Some(*sample);
    }

    /// Adds the wait for data. A sample reports the wait of the steps before it, in any phase; evaluations are excluded because
    /// they wait for other data.
    fn add_waiting(&mut self, sample: &Sample, seconds: f64) {
        if sample.phase == Some(Phase::Evaluate) {
            return;
        }
        let of_step = || seconds_per_step(self.training.previous.as_ref()?, sample);
        let of_data = || Some((sample.get(Meaning::DataTime)? / of_step()?).clamp(0.0, 1.0));
        if let Some(share) = sample.get(Meaning::Waited).or_else(of_data) {
            let seconds = Some(seconds).filter(|seconds| *seconds > 0.0);
            let seconds = sample.get(Meaning::StepTime).or(seconds);
            self.waited.add_weighted(share, seconds.unwrap_or(1.0));
        }
    }

    fn seconds_since_last(&mut self, sample: &Sample) -> f64 {
        let Some((now, before)) = sample.time().zip(self.last.and_then(|last| last.time())) else {
            return 0.0;
        };
        if now < before {
            self.num_clock_backwards += 1;
            return 0.0;
        }
        self.seconds.add(now - before);
        now - before
    }
}

impl MemoryStatistics {
    fn add(&mut self, sample: &Sample, last: Option<&Sample>) {
        let position = self.progress.next(sample);
        self.all.add(sample, &position);
        let slot = sample
            .phase
            .map_or(Phase::ALL.len(), |phase| phase as usize);
        let phase = self.phases[slot].get_or_insert_with(|| {
            Box::new(PhaseLog {
                samples: Series::new(Per::Sample),
                epochs: Series::new(Per::Epoch),
            })
        });
        phase.samples.add(sample, &position);
        phase.epochs.add(sample, &position);
        for channel in Meaning::CHANNELS {
            let Some(value) = sample.get(channel) else {
                continue;
            };
            self.levels[channel as usize].add(value);
            let largest = &mut self.largest[channel as usize];
            if largest.is_none_or(|largest| Some(value) > largest.get(channel)) {
                *largest = Some(*sample);
            }
        }
        let in_phase = last.filter(|last| last.phase == sample.phase);
        let before = in_phase.and_then(|last| last.get(Meaning::Allocated));
        if let Some((now, before)) = sample.get(Meaning::Allocated).zip(before) {
            let change = (now - before).abs() / now.max(before).max(1.0);
            self.allocated_changes.add(change);
        }
    }

    /// The channel to judge the run by: the closest to the memory that the run itself holds.
    pub fn primary(&self) -> Option<Meaning> {
        let order = [
            Meaning::Allocated,
            Meaning::Process,
            Meaning::Used,
            Meaning::Reserved,
            Meaning::AllocatedPeak,
        ];
        let count = |channel: &Meaning| self.all.count(*channel);
        let most = order.iter().map(count).max()?;
        let is_usual = |channel: &Meaning| count(channel) > 0 && count(channel) * 2 >= most;
        order.into_iter().find(is_usual)
    }

    pub fn level(&self, channel: Meaning) -> &Histogram {
        &self.levels[channel as usize]
    }

    /// The sample with the largest value.
    pub fn largest(&self, channel: Meaning) -> Option<&Sample> {
        self.largest[channel as usize].as_ref()
    }

    pub fn most(&self, channel: Meaning) -> Option<f64> {
        self.largest(channel)?.get(channel)
    }

    /// The phase whose samples are compared with each other: training, or else the one with the most samples.
    pub fn main_phase(&self, channel: Meaning) -> Option<(Option<Phase>, &PhaseLog)> {
        const ENOUGH: u64 = 24;
        let phases = Phase::ALL.into_iter().map(Some).chain([None]);
        let logs = phases.zip(&self.phases);
        let logs = logs.filter_map(|(phase, log)| Some((phase, log.as_deref()?)));
        let count = |log: &PhaseLog| log.samples.count(channel);
        let is_training = |(phase, log): &(Option<Phase>, &PhaseLog)| {
            *phase == Some(Phase::Train) && count(log) >= ENOUGH
        };
        let most = || logs.clone().max_by_key(|(_, log)| count(log));
        let found = logs.clone().find(is_training).or_else(most);
        found.filter(|(_, log)| count(log) > 0)
    }
}

impl TrainingStatistics {
    fn add(&mut self, sample: &Sample, seconds: f64, total: Option<f64>, has_limit: bool) {
        let held = if has_limit {
            held_by_run(sample)
        } else {
            held(sample)
        };
        let share = |bytes: f64| total.map(|total| bytes / total);
        let held_share = held.and_then(share);
        held_share
            .iter()
            .for_each(|share| self.held_share.add(*share));
        let needed = needed(sample).filter(|_| !has_limit).or(held);
        let needed_share = needed.and_then(share);
        needed_share
            .iter()
            .for_each(|share| self.needed_share.add(*share));
        self.most_held = self.most_held.max(held.unwrap_or(0.0));
        let is_loaded =
            held.is_none_or(|held| held > LOADED_BYTES && held > LOADED * self.most_held);
        if let Some(utilization) = sample.get(Meaning::Utilization) {
            self.busy.add(sample, utilization, is_loaded, seconds);
        }
        let rate = sample.get(Meaning::SamplesPerSecond);
        let of_step = sample
            .get(Meaning::StepTime)
            .or(rate.map(|rate| 1.0 / rate))
            .or_else(|| seconds_per_step(self.previous.as_ref()?, sample));
        if let Some((seconds, share)) = of_step.zip(held_share) {
            match share {
                s if s >= FULL => self.step_ms_full.add(seconds * 1e3),
                s if s < NOT_FULL => self.step_ms_free.add(seconds * 1e3),
                _ => {}
            }
        }
        if held_share.is_some_and(|share| share >= FULL) {
            self.first_full.get_or_insert(*sample);
        }
        self.previous = Some(*sample);
    }
}

/// Memory in use on the device, by any process.
fn held(sample: &Sample) -> Option<f64> {
    sample.first_of(&[
        Meaning::Used,
        Meaning::Reserved,
        Meaning::Process,
        Meaning::AllocatedPeak,
        Meaning::Allocated,
    ])
}

/// Memory of the run itself, as well as the log has it, to compare with a budget.
pub(super) fn held_by_run(sample: &Sample) -> Option<f64> {
    let process = sample.largest_of(&[Meaning::ProcessPeak, Meaning::Process]);
    process.or_else(|| {
        sample.first_of(&[
            Meaning::Reserved,
            Meaning::AllocatedPeak,
            Meaning::Allocated,
            Meaning::Used,
        ])
    })
}

fn needed(sample: &Sample) -> Option<f64> {
    let Some(allocated) = sample.largest_of(&[Meaning::Allocated, Meaning::AllocatedPeak]) else {
        return held(sample);
    };
    let other = sample.get(Meaning::Used).zip(sample.get(Meaning::Reserved));
    Some(allocated + other.map_or(0.0, |(used, reserved)| (used - reserved).max(0.0)))
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}

fn seconds_per_step(before: &Sample, now: &Sample) -> Option<f64> {
    let steps = now.step()?.checked_sub(before.step()?)?;
    let seconds = now.time()? - before.time()?;
    (steps > 0 && seconds > 0.0).then(|| seconds / steps as f64)
}
