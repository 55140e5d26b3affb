//! Messages that the processes of a run exchange before a step, one from each to all. A single process sends none.
//!
//! A request to stop or to save is passed on here, so that all processes follow it at the same step. The samples and
//! unreadable images of all processes go into the step's line and into `skipped.csv`, the same on every process.

use std::sync::atomic::Ordering;

use holdall_processes::Group;
use serde::{Deserialize, Serialize};

use super::Trainer;
use crate::config::Subset;
use crate::engine::task::nothing_of;
use crate::error::TrainError;
use crate::planning::digest::digest;
use crate::planning::processes;
use crate::run::report::{Event, ProcessesOfRun, ProcessesOfStep};
use crate::run::requests::Requests;
use crate::run_folder::skipped::SkippedPicture;

/// Message of a process to all others.
#[derive(Serialize, Deserialize)]
struct News {
    stop: bool,
    save: bool,
    /// Samples of its share of the batch.
    samples: Vec<u32>,
    skipped: Vec<SkippedPicture>,
    load: Option<Load>,
}

/// Time and memory of the last step of a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Reading and computing, without waiting for other processes.
    pub seconds: f64,
    pub process_bytes: Option<u64>,
}

/// A batch over all processes.
pub(super) struct WholeBatch {
    pub num_samples: usize,
    pub digest: String,
    pub processes: Option<ProcessesOfStep>,
}

impl Trainer {
    /// Exchanges the batches and requests of all processes; `None` if one was asked to stop. Requests to any process are set
    /// in `heeded`.
    pub(super) fn agree(
        &mut self,
        has_batch: bool,
        requests: &Requests,
        heeded: &Requests,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<WholeBatch>, TrainError> {
        let group = self.planned.device.group().clone();
        if group.size() == 1 && !has_batch {
            return Ok(None);
        }
        let (feed, samples) = (&mut self.planned.feed, &self.planned.prepared.train);
        let skipped = feed.take_skipped();
        let skipped = skipped.iter();
        let own = News {
            stop: !has_batch || requests.stop.load(Ordering::Relaxed),
            save: group.size() > 1 && requests.save.swap(false, Ordering::Relaxed),
            samples: feed.samples().to_vec(),
            skipped: skipped
                .map(|one| SkippedPicture::new(Subset::Train, samples, one))
                .collect(),
            load: self.processes.own.take(),
        };
        let all = match group.size() {
            1 => vec![own],
            _ => processes::share(&group, &own)?,
        };
        if group.size() > 1 {
            let is_to_stop = all.iter().any(|one| one.stop);
            heeded.stop.store(is_to_stop, Ordering::Relaxed);
            if all.iter().any(|one| one.save) {
                heeded.save.store(true, Ordering::Relaxed);
            }
        }
        let skipped: Vec<_> = all.iter().flat_map(|one| one.skipped.clone()).collect();
        self.tell_skipped(&skipped, watch)?;
        if group.size() > 1 && heeded.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let num_samples = all.iter().map(|one| one.samples.len()).sum();
        if num_samples == 0 {
            let first = skipped.first();
            let first = first.map(|one| (one.line.row, one.error.as_str()));
            return Err(nothing_of(self.planned.prepared.train.len(), first));
        }
        let chosen = all.iter().flat_map(|one| one.samples.iter().copied());
        let loads: Option<Vec<Load>> = all.iter().map(|one| one.load).collect();
        Ok(Some(WholeBatch {
            num_samples,
            digest: format!("{:016x}", digest(chosen)),
            processes: loads.map(|loads| self.processes.add(&group, &loads)),
        }))
    }
}

/// Times and memory of the steps, for each process.
#[derive(Default)]
pub(super) struct Processes {
    /// Last step of this process, until it has been exchanged.
    pub own: Option<Load>,
    /// Sums and maxima of this epoch, by rank.
    seconds: Vec<f64>,
    bytes: Vec<Option<u64>>,
    last_epoch: Option<ProcessesOfRun>,
}

impl Processes {
    /// Adds a step.
    fn add(&mut self, group: &Group, loads: &[Load]) -> ProcessesOfStep {
        self.seconds.resize(loads.len(), 0.0);
        self.bytes.resize(loads.len(), None);
        for (rank, load) in loads.iter().enumerate() {
            self.seconds[rank] += load.seconds;
            self.bytes[rank] = self.bytes[rank].max(load.process_bytes);
        }
        let seconds: Vec<f64> = loads.iter().map(|load| load.seconds).collect();
        let (slowest_rank, slowest_ratio) = slowest(&seconds);
        ProcessesOfStep {
            processes: loads.len(),
            slowest_rank,
            slowest_host: group.host(slowest_rank).to_owned(),
            slowest_ratio,
            process_bytes: loads.iter().map(|load| load.process_bytes).collect(),
        }
    }

    /// Ends an epoch and returns its report; `None` for one process, or before two steps.
    pub fn end_epoch(&mut self, group: &Group) -> Option<ProcessesOfRun> {
        if self.seconds.is_empty() {
            return None;
        }
        let (slowest_rank, slowest_ratio) = slowest(&self.seconds);
        self.last_epoch = Some(ProcessesOfRun {
            hosts: (0..group.size())
                .map(|rank| group.host(rank).to_owned())
                .collect(),
            seconds: std::mem::take(&mut self.seconds),
            process_bytes: self.bytes.clone(),
            slowest_rank,
            slowest_ratio,
        });
        self.last_epoch()
    }

    pub fn last_epoch(&self) -> Option<ProcessesOfRun> {
        self.last_epoch.clone()
    }
}

/// The slowest process, and its time as a multiple of the mean of the other processes.
fn slowest(seconds: &[f64]) -> (usize, f64) {
    let rank = (0..seconds.len()).max_by(|&a, &b| seconds[a].total_cmp(&seconds[b]));
    let rank = rank.unwrap_or(0);
    let most = seconds.get(rank).copied().unwrap_or(0.0);
    let others = seconds.iter().sum::<f64>() - most;
    let mean = others / (seconds.len().max(2) - 1) as f64;
    if mean > 0.0 {
        (rank, most / mean)
    } else {
        (rank, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_compared_with_the_others() {
        assert_eq!(slowest(&[1.0, 3.0, 2.0]), (1, 2.0));
        assert_eq!(slowest(&[0.0, 0.0]), (1, 1.0));
        assert_eq!(slowest(&[5.0]), (0, 1.0));
    }
}
