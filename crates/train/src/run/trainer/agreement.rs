//! What the processes of a run tell each other before a step: one message each, to all. One process tells nobody.
//!
//! Whoever is asked to stop or to save says so here, so that all do it at the same step. Samples and broken pictures of all make the
//! line of the step and the list of what was left out, the same on every process.

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

/// The message.
#[derive(Serialize, Deserialize)]
struct News {
    stop: bool,
    save: bool,
    /// Of its share of the batch.
    samples: Vec<u32>,
    skipped: Vec<SkippedPicture>,
    load: Option<Load>,
}

/// What the last step was for a process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// Reading and computing; waiting for other processes is left out.
    pub seconds: f64,
    pub process_bytes: Option<u64>,
}

/// A batch, over all processes.
pub(super) struct WholeBatch {
    pub num_samples: usize,
    pub digest: String,
    pub processes: Option<ProcessesOfStep>,
}

impl Trainer {
    /// What all processes have of the batch at hand; `None` where one is asked to stop. What is asked of any is asked of all: `heeded`
    /// has it.
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

/// How steps are for each process.
#[derive(Default)]
pub(super) struct Processes {
    /// Of the last step of this process, until the others have heard.
    pub own: Option<Load>,
    /// Of this epoch, by rank.
    seconds: Vec<f64>,
    bytes: Vec<Option<u64>>,
    /// How the last epoch was.
    last_epoch: Option<ProcessesOfRun>,
}

impl Processes {
    /// Counts a step.
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

    /// An epoch ends: how it was; `None` for one process, or before two steps.
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

    /// How the last epoch was.
    pub fn last_epoch(&self) -> Option<ProcessesOfRun> {
        self.last_epoch.clone()
    }
}

/// Who took longest, and how much longer than the others on average.
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
