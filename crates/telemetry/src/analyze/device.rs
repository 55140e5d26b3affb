//! Statistics of a device's samples, in a fixed amount of memory.

use super::budget::Budget;
use super::histogram::Histogram;
use super::progress::Progress;
use super::series::{Channel, Per, Series};
use crate::log::Sample;
use crate::memory_log::Phase;

/// Share of the device from which on memory counts as full.
pub(super) const FULL: f64 = 0.93;
/// Share of the device below which memory counts as not full.
const NOT_FULL: f64 = 0.90;
/// Utilization, in percent, up to which a GPU counts as idle.
pub(super) const NOTHING_TO_DO: f64 = 5.0;

/// Share of the largest held memory, and number of bytes, below which nothing is loaded: a capture by another process continues
/// after the run.
const LOADED: f64 = 0.2;
const LOADED_BYTES: f64 = 100e6;

/// Number of largest samples that are kept per channel.
const NUM_TOP: usize = 8;

/// Statistics of a device, from which the findings are made.
pub(super) struct DeviceLog {
    pub name: String,
    /// Every sample.
    pub all: Series,
    /// By phase; the last entry is for samples without a phase.
    pub phases: [Option<Box<PhaseLog>>; Phase::ALL.len() + 1],
    /// Histograms of the channels, in the order of [`Channel::ALL`].
    pub levels: [Histogram; Channel::ALL.len()],
    pub tops: [Vec<Sample>; Channel::ALL.len()],
    /// Device memory: the user's limit, or else the largest total in the log.
    pub total: Option<f64>,
    /// The largest total in the log.
    pub said_total: Option<f64>,
    /// The sample that was furthest over the budget.
    pub over_budget: Option<OverBudget>,
    pub planned: Option<f64>,
    /// Held memory, as a share of the device.
    pub held_share: Histogram,
    /// Needed memory as a share of the device: held memory without what a caching allocator would free.
    pub needed_share: Histogram,
    pub busy: Busy,
    pub waited: Waited,
    pub batch_size: Option<f64>,
    /// Milliseconds per step, while memory is full and while it is not.
    pub step_seconds_full: Histogram,
    pub step_seconds_free: Histogram,
    /// The first sample with full memory.
    pub first_full: Option<Sample>,
    /// Relative changes of allocated memory between successive samples.
    pub allocated_changes: Mean,
    /// Seconds between successive samples.
    pub seconds: Mean,
    pub first: Sample,
    pub last: Sample,
    pub num_samples: u64,
    pub num_epochs: u64,
    /// High-water mark of allocated memory.
    pub peak: HighWaterMark,
    pub num_clock_backwards: u64,
    progress: Progress,
    previous_train: Option<Sample>,
    most_held: f64,
}

/// High-water mark of allocated memory from the log, or else of reserved memory, and its largest rise after a steady time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HighWaterMark {
    most: f64,
    num_steady: u64,
    is_reserved: bool,
    pub rise: Option<PeakRise>,
}

/// A rise of a high-water mark that was steady before.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeakRise {
    pub channel: Channel,
    pub from: f64,
    pub to: f64,
    pub sample: Sample,
    /// Whether an epoch ended between this sample and the previous one.
    pub is_at_epoch_end: bool,
}

impl HighWaterMark {
    /// Samples that a mark must be steady for, because the first steps raise it.
    const FEWEST_STEADY: u64 = 20;
    /// Factor up to which a rise counts as steady.
    const STEADY: f64 = 1.02;

    fn add(&mut self, sample: &Sample, last: &Sample) {
        let (peak, channel) = match (sample.allocated_peak, sample.reserved) {
            (Some(peak), _) => (peak, Channel::AllocatedPeak),
            (None, Some(reserved)) => (reserved, Channel::Reserved),
            (None, None) => return,
        };
        let is_reserved = channel == Channel::Reserved;
        if is_reserved != self.is_reserved {
            *self = HighWaterMark {
                is_reserved,
                ..HighWaterMark::default()
            };
        }
        self.num_steady += 1;
        if peak <= self.most {
            return;
        }
        let most_risen = self.rise.map_or(0.0, |rise| rise.to - rise.from);
        let ends = matches!(sample.phase, Some(Phase::Evaluate | Phase::Save));
        let is_at_epoch_end = ends || sample.epoch != last.epoch;
        // Fragmentation raises reserved memory too; only at the end of an epoch does a rise indicate a spike.
        let is_told = is_at_epoch_end || !is_reserved;
        if self.num_steady > Self::FEWEST_STEADY && is_told && peak - self.most > most_risen {
            self.rise = Some(PeakRise {
                channel,
                from: self.most,
                to: peak,
                sample: *sample,
                is_at_epoch_end,
            });
        }
        if peak > Self::STEADY * self.most {
            self.num_steady = 0;
        }
        self.most = peak;
    }
}

/// A sample above the budget of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverBudget {
    pub held: f64,
    pub limit: f64,
    pub budget: Budget,
    pub sample: Sample,
}

/// Share of the time spent waiting for data.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waited {
    seconds: f64,
    of_seconds: f64,
    pub count: u64,
}

impl Waited {
    fn add(&mut self, share: f64, seconds: f64) {
        self.seconds += share * seconds;
        self.of_seconds += seconds;
        self.count += 1;
    }

    /// The share; `None` with fewer than `fewest` samples.
    pub fn of(&self, fewest: u64) -> Option<f64> {
        (self.count >= fewest && self.of_seconds > 0.0).then(|| self.seconds / self.of_seconds)
    }
}

/// Samples of a phase, one by one and by epoch.
pub(super) struct PhaseLog {
    pub samples: Series,
    pub epochs: Series,
}

/// Sum and count of a mean.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    pub sum: f64,
    pub count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// The mean; `None` with fewer than `fewest` values.
    pub fn of(&self, fewest: u64) -> Option<f64> {
        (self.count >= fewest.max(1)).then(|| self.sum / self.count as f64)
    }
}

/// Utilization of the GPU while something is loaded on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    pub utilization: Mean,
    pub num_nothing_to_do: u64,
    /// The longest idle stretch.
    pub longest: Stretch,
    current: Stretch,
    /// Idle samples with nothing loaded.
    pub num_empty: u64,
    /// Idle samples before the first busy one, while the run starts.
    pub num_before: u64,
}

/// Successive idle samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stretch {
    pub num_samples: u64,
    pub first: Sample,
    pub seconds: f64,
}

impl DeviceLog {
    pub fn new(name: &str, first: &Sample) -> DeviceLog {
        DeviceLog {
            name: name.to_owned(),
            all: Series::new(Per::Sample),
            phases: [const { None }; Phase::ALL.len() + 1],
            levels: std::array::from_fn(|_| Histogram::new()),
            tops: [const { Vec::new() }; Channel::ALL.len()],
            total: None,
            said_total: None,
            over_budget: None,
            planned: None,
            held_share: Histogram::new(),
            needed_share: Histogram::new(),
            busy: Busy::default(),
            waited: Waited::default(),
            batch_size: None,
            step_seconds_full: Histogram::new(),
            step_seconds_free: Histogram::new(),
            first_full: None,
            allocated_changes: Mean::default(),
            seconds: Mean::default(),
            first: *first,
            last: *first,
            num_samples: 0,
            num_epochs: 0,
            peak: HighWaterMark::default(),
            num_clock_backwards: 0,
            progress: Progress::default(),
            previous_train: None,
            most_held: 0.0,
        }
    }

    /// Adds a sample; `limit` is the user's limit of device memory.
    pub fn add(&mut self, sample: &Sample, limit: Option<f64>) {
        self.num_samples += 1;
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
        for channel in Channel::ALL {
            if let Some(value) = channel.of(sample) {
                self.levels[channel as usize].add(value);
                keep_top(&mut self.tops[channel as usize], channel, sample, value);
            }
        }
        if sample.epoch.is_some() && (self.num_samples == 1 || sample.epoch != self.last.epoch) {
            self.num_epochs += 1;
        }
        self.peak.add(sample, &self.last);
        self.said_total = larger(self.said_total, sample.total);
        self.total = limit.or(self.said_total);
        self.planned = larger(self.planned, sample.planned);
        self.add_to_budget(sample, limit);
        self.batch_size = sample.batch_size.or(self.batch_size);
        if let (Some(now), Some(before)) = (sample.allocated, self.last.allocated)
            && self.num_samples > 1
            && sample.phase == self.last.phase
        {
            self.allocated_changes
                .add((now - before).abs() / now.max(before).max(1.0));
        }
        let seconds = self.seconds_since_last(sample);
        self.add_waiting(sample, seconds);
        if is_training(sample) {
            self.add_training(sample, seconds, limit.is_some());
        }
        self.last = *sample;
    }

    fn add_to_budget(&mut self, sample: &Sample, limit: Option<f64>) {
        let process = larger(sample.process_peak, sample.process);
        let over = match (limit, sample.budget) {
            (Some(limit), _) => held_of_budget(sample).map(|held| (held, limit, Budget::Limit)),
            (None, Some(budget)) => process.map(|held| (held, budget, Budget::Log)),
            (None, None) => None,
        };
        let Some((held, limit, budget)) = over.filter(|(held, limit, _)| held > limit) else {
            return;
        };
        let most = self.over_budget.map_or(0.0, |over| over.held - over.limit);
        if held - limit > most {
            self.over_budget = Some(OverBudget {
                held,
                limit,
                budget,
                sample: *sample,
            });
        }
    }

    /// Adds the wait for data. A sample reports the wait of the steps before it, in any phase; evaluations are excluded because
    /// they wait for other data.
    fn add_waiting(&mut self, sample: &Sample, seconds: f64) {
        if sample.phase == Some(Phase::Evaluate) {
            return;
        }
        let of_step = || seconds_per_step(self.previous_train.as_ref()?, sample);
        let share = sample
            .waited
            .or_else(|| Some((sample.data_seconds? / of_step()?).clamp(0.0, 1.0)));
        if let Some(share) = share {
            let seconds = Some(seconds).filter(|seconds| *seconds > 0.0);
            self.waited
                .add(share, sample.step_seconds.or(seconds).unwrap_or(1.0));
        }
    }

    fn seconds_since_last(&mut self, sample: &Sample) -> f64 {
        let (Some(now), Some(before)) = (sample.time, self.last.time) else {
            return 0.0;
        };
        if now < before {
            self.num_clock_backwards += 1;
            return 0.0;
        }
        if self.num_samples > 1 {
            self.seconds.add(now - before);
        }
        now - before
    }

    fn add_training(&mut self, sample: &Sample, seconds: f64, is_budget: bool) {
        let held = if is_budget {
            held_of_budget(sample)
        } else {
            held(sample)
        };
        let share = |bytes: f64| self.total.map(|total| bytes / total);
        let held_share = held.and_then(share);
        if let Some(held_share) = held_share {
            self.held_share.add(held_share);
        }
        let needed = needed(sample).filter(|_| !is_budget).or(held);
        if let Some(needed) = needed.and_then(share) {
            self.needed_share.add(needed);
        }
        self.most_held = self.most_held.max(held.unwrap_or(0.0));
        let is_loaded =
            held.is_none_or(|held| held > LOADED_BYTES && held > LOADED * self.most_held);
        if let Some(utilization) = sample.utilization {
            self.busy.add(sample, utilization, is_loaded, seconds);
        }
        let of_step = sample
            .step_seconds
            .or(sample.samples_per_second.map(|rate| 1.0 / rate))
            .or_else(|| seconds_per_step(self.previous_train.as_ref()?, sample));
        if let (Some(seconds), Some(share)) = (of_step, held_share) {
            match share {
                s if s >= FULL => self.step_seconds_full.add(seconds * 1e3),
                s if s < NOT_FULL => self.step_seconds_free.add(seconds * 1e3),
                _ => {}
            }
        }
        if held_share.is_some_and(|share| share >= FULL) {
            self.first_full.get_or_insert(*sample);
        }
        self.previous_train = Some(*sample);
    }

    /// The channel to judge the run by: the closest to the memory that the run itself holds.
    pub fn primary(&self) -> Option<Channel> {
        let order = [
            Channel::Allocated,
            Channel::Process,
            Channel::Used,
            Channel::Reserved,
            Channel::AllocatedPeak,
        ];
        let most = order.iter().map(|channel| self.all.count(*channel)).max()?;
        order.into_iter().find(|channel| {
            let count = self.all.count(*channel);
            count > 0 && count * 2 >= most
        })
    }

    pub fn level(&self, channel: Channel) -> &Histogram {
        &self.levels[channel as usize]
    }

    /// The phase whose samples are compared with each other: training, or else the one with the most samples.
    pub fn main_phase(&self, channel: Channel) -> Option<(Option<Phase>, &PhaseLog)> {
        const ENOUGH: u64 = 24;
        let phases = Phase::ALL.into_iter().map(Some).chain([None]);
        let logs = phases
            .zip(&self.phases)
            .filter_map(|(phase, log)| Some((phase, log.as_deref()?)));
        let count = |log: &PhaseLog| log.samples.count(channel);
        let train = logs
            .clone()
            .find(|(phase, log)| *phase == Some(Phase::Train) && count(log) >= ENOUGH);
        train.or_else(|| {
            logs.max_by_key(|(_, log)| count(log))
                .filter(|(_, log)| count(log) > 0)
        })
    }
}

fn keep_top(top: &mut Vec<Sample>, channel: Channel, sample: &Sample, value: f64) {
    let value_of = |sample: &Sample| channel.of(sample).unwrap_or(0.0);
    if top.len() == NUM_TOP && top.last().is_some_and(|least| value <= value_of(least)) {
        return;
    }
    let at = top.partition_point(|other| value_of(other) >= value);
    top.insert(at, *sample);
    top.truncate(NUM_TOP);
}

fn is_training(sample: &Sample) -> bool {
    matches!(sample.phase, None | Some(Phase::Train))
}

/// Memory in use on the device, by any process.
fn held(sample: &Sample) -> Option<f64> {
    sample
        .used
        .or(sample.reserved)
        .or(sample.process)
        .or(sample.allocated_peak)
        .or(sample.allocated)
}

/// Memory of the run itself, as well as the log has it, to compare with a budget.
fn held_of_budget(sample: &Sample) -> Option<f64> {
    larger(sample.process_peak, sample.process)
        .or(sample.reserved)
        .or(sample.allocated_peak)
        .or(sample.allocated)
        .or(sample.used)
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}

fn needed(sample: &Sample) -> Option<f64> {
    let Some(allocated) = sample.allocated.or(sample.allocated_peak) else {
        return held(sample);
    };
    let allocated = allocated.max(sample.allocated_peak.unwrap_or(0.0));
    let beside = match (sample.used, sample.reserved) {
        (Some(used), Some(reserved)) => (used - reserved).max(0.0),
        _ => 0.0,
    };
    Some(allocated + beside)
}

fn seconds_per_step(before: &Sample, now: &Sample) -> Option<f64> {
    let steps = now
        .step?
        .checked_sub(before.step?)
        .filter(|steps| *steps > 0)?;
    let seconds = now.time? - before.time?;
    (seconds > 0.0).then(|| seconds / steps as f64)
}

impl Busy {
    fn add(&mut self, sample: &Sample, utilization: f64, is_loaded: bool, seconds: f64) {
        let has_nothing = utilization <= NOTHING_TO_DO;
        if !is_loaded {
            self.num_empty += u64::from(has_nothing);
            self.current = Stretch::default();
            return;
        }
        if has_nothing && self.utilization.count == 0 {
            self.num_before += 1;
            return;
        }
        self.utilization.add(utilization);
        if !has_nothing {
            self.current = Stretch::default();
            return;
        }
        self.num_nothing_to_do += 1;
        if self.current.num_samples == 0 {
            self.current.first = *sample;
        }
        self.current.num_samples += 1;
        self.current.seconds += seconds;
        if self.current.num_samples > self.longest.num_samples {
            self.longest = self.current;
        }
    }
}
