//! Verdicts on what keeps a run from being fast: waiting for data, spill to host memory, a slow process.

use std::collections::HashMap;

use super::device::{DeviceLog, FULL, held};
use super::finding::{Finding, Severity, Symptom, first_at, place};
use super::statistics::{median, quantile};
use crate::log::{Meaning, Sample};
use crate::memory_log::Phase;
use crate::run_files::ProcessesOfStep;
use crate::words::{counted, percent, show_duration};

/// Utilization, in percent, up to which a GPU has nothing to do.
const IDLE_UTILIZATION: f64 = 5.0;
const FEWEST_SAMPLES: usize = 20;

/// Mean utilization while the run has memory.
pub(super) fn gpu_utilization(log: &DeviceLog) -> Option<f64> {
    let samples = loaded(log);
    let known = samples
        .iter()
        .filter_map(|sample| sample.get(Meaning::Utilization));
    (samples.len() >= FEWEST_SAMPLES).then(|| known.sum::<f64>() / samples.len() as f64)
}

/// Training samples with a utilization, from the first busy one on, while something is loaded: a capture by another process begins
/// before the run and continues after it.
fn loaded(log: &DeviceLog) -> Vec<&Sample> {
    /// Share of the largest held memory, and number of bytes, below which nothing is loaded.
    const MIN_SHARE: f64 = 0.2;
    const MIN_BYTES: f64 = 100e6;
    let samples = log.training().map(|group| &group.mean);
    let most = samples.clone().filter_map(held).fold(0.0, f64::max);
    let is_loaded = |bytes: f64| bytes > MIN_BYTES && bytes > MIN_SHARE * most;
    let known = samples.filter(|sample| {
        sample.get(Meaning::Utilization).is_some() && held(sample).is_none_or(is_loaded)
    });
    let known: Vec<&Sample> = known.collect();
    let first_busy = known
        .iter()
        .position(|sample| !is_idle(sample))
        .unwrap_or(0);
    known[first_busy..].to_vec()
}

fn is_idle(sample: &Sample) -> bool {
    sample
        .get(Meaning::Utilization)
        .is_some_and(|utilization| utilization <= IDLE_UTILIZATION)
}

/// Waiting: the GPU is not busy because data or the host is too slow. By the log's own waiting times if it has them, or else by the
/// utilization.
pub(super) fn waiting_for_data(log: &DeviceLog) -> Option<Finding> {
    const BUSY: f64 = 70.0;
    const HARDLY_BUSY: f64 = 35.0;
    /// Smallest share of the log, and number of samples, without a break that counts by itself.
    const LONG: f64 = 0.1;
    const FEWEST_IN_A_ROW: usize = 10;
    if let Some(waited) = waited_share(log) {
        return waited_for(waited);
    }
    let samples = loaded(log);
    let utilization = gpu_utilization(log)?;
    let idle = samples.iter().filter(|sample| is_idle(sample)).count();
    let idle_share = idle as f64 / samples.len() as f64;
    let in_a_row = samples.chunk_by(|a, b| is_idle(a) == is_idle(b));
    let in_a_row = in_a_row.filter(|stretch| is_idle(stretch[0]));
    let longest = in_a_row
        .max_by_key(|stretch| stretch.len())
        .filter(|stretch| {
            stretch.len() >= FEWEST_IN_A_ROW && stretch.len() as f64 >= LONG * samples.len() as f64
        });
    if utilization >= BUSY && longest.is_none() {
        return None;
    }
    let nothing = match idle_share {
        share if share >= 0.05 => {
            format!(", with nothing to do in {} of the samples", percent(share))
        }
        _ => String::new(),
    };
    let stretch = longest.map(|stretch| in_a_row_in_words(log, stretch));
    let message = format!(
        "the GPU is busy {utilization:.0}% of the time{nothing}{}: it waits for data or for the host",
        stretch.unwrap_or_default()
    );
    let severity = Severity::problem_if(utilization < HARDLY_BUSY);
    let finding = Finding::new(Symptom::WaitingForData, severity, message)
        .with("gpu_utilization", utilization)
        .with("nothing_to_do_share", idle_share);
    Some(match longest {
        Some(stretch) => finding.at_step(stretch[0].step()).advising(
            "look at what the run waited for there: data, a lock, a download, a debugger; more loader workers if it was data; \
             or end it and free the memory",
        ),
        None => finding,
    })
}

/// `, for 12 min in a row from step 300`.
fn in_a_row_in_words(log: &DeviceLog, stretch: &[&Sample]) -> String {
    let (first, last) = (stretch[0], stretch[stretch.len() - 1]);
    let clocks = first.get(Meaning::Clock).zip(last.get(Meaning::Clock));
    let length = match clocks {
        Some((from, to)) if to > from => show_duration(to - from),
        _ => counted(stretch.len() as u64, "sample"),
    };
    let from = place(log, first);
    format!(
        ", for {length} in a row from {}",
        from.trim_start_matches("at ")
    )
}

/// Finding about the share of the time spent waiting.
pub(super) fn waited_for(share: f64) -> Option<Finding> {
    const MUCH: f64 = 0.15;
    const MOST: f64 = 0.4;
    let severity = Severity::problem_if(share >= MOST);
    let message = format!("{} of the time was spent waiting for data", percent(share));
    let finding = Finding::new(Symptom::WaitingForData, severity, message);
    (share >= MUCH).then(|| finding.with("waited_share", share))
}

/// Share of the time spent waiting, if the log has it. Evaluations are excluded, because they wait for other data.
fn waited_share(log: &DeviceLog) -> Option<f64> {
    /// The first sample of a run always has a wait.
    const FEWEST: usize = 3;
    let mut last_clock = None;
    let mut times = Vec::new();
    for sample in log.groups.iter().map(|group| &group.mean) {
        let clock = sample.get(Meaning::Clock);
        let seconds = clock.zip(last_clock).map(|(now, before)| now - before);
        last_clock = clock;
        if let Some(share) = sample.get(Meaning::Waited)
            && sample.phase != Some(Phase::Evaluate)
        {
            let seconds = seconds.filter(|seconds| *seconds > 0.0).unwrap_or(1.0);
            times.push((share * seconds, seconds));
        }
    }
    let sum = |part: fn(&(f64, f64)) -> f64| times.iter().map(part).sum::<f64>();
    (times.len() >= FEWEST).then(|| sum(|time| time.0) / sum(|time| time.1))
}

/// Suspected spill: some drivers silently move memory to the host when the GPU is full, and steps take several times as long.
pub(super) fn spill(log: &DeviceLog) -> Option<Finding> {
    /// Share of the device below which memory counts as not full.
    const NOT_FULL: f64 = 0.90;
    /// Smallest slowdown that is reported.
    const SLOWER: f64 = 1.5;
    const FEWEST: usize = 8;
    let steps = log.training().filter_map(|group| {
        let seconds = group.mean.get(Meaning::StepTime)?;
        Some((log.held_share(group)?, seconds))
    });
    let seconds = |is_it: fn(f64) -> bool| -> Vec<f64> {
        let of_share = steps.clone().filter(|(share, _)| is_it(*share));
        of_share.map(|(_, seconds)| seconds).collect()
    };
    let (full, free) = (
        seconds(|share| share >= FULL),
        seconds(|share| share < NOT_FULL),
    );
    if full.len() < FEWEST || free.len() < FEWEST {
        return None;
    }
    let (slow, fast) = (median(full.clone()), median(free.clone()));
    // Nearly all steps must be slower, not just a few.
    let is_apart = quantile(full.clone(), 0.25) > 1.1 * quantile(free, 0.75);
    if slow < SLOWER * fast || !is_apart {
        return None;
    }
    let first = log.first_full();
    let message = format!(
        "steps take {:.1} times as long ({} instead of {}) where memory is more than {} full{}",
        slow / fast,
        show_duration(slow),
        show_duration(fast),
        percent(FULL),
        first_at(log, first),
    );
    Some(
        Finding::new(Symptom::Spill, Severity::Problem, message)
            .at_step(first.and_then(Sample::step))
            .with("slow_step_seconds", slow)
            .with("fast_step_seconds", fast)
            .with("times_slower", slow / fast)
            .with("slow_steps", full.len() as f64),
    )
}

/// Stragglers: one of several processes is the slowest in most steps, and the others wait for it.
#[derive(Default)]
pub(super) struct Stragglers {
    num_steps: u64,
    slow_by_rank: HashMap<u64, SlowSteps>,
}

#[derive(Default)]
struct SlowSteps {
    count: u64,
    sum_of_ratios: f64,
    host: Option<String>,
}

impl Stragglers {
    /// Step time relative to the mean of the others, from which on a process counts as slow.
    const MUCH_LONGER: f64 = 1.2;
    /// Relative step time from which on the others wait for at least half of the time.
    const TWICE: f64 = 2.0;
    /// With fewer steps, the unusual first one dominates.
    const FEWEST_STEPS: u64 = 5;

    pub(super) fn add(&mut self, step: &ProcessesOfStep) {
        let (Some(rank), Some(ratio)) = (step.slowest_rank, step.slowest_ratio) else {
            return;
        };
        self.num_steps += 1;
        if ratio >= Self::MUCH_LONGER {
            let slow = self.slow_by_rank.entry(rank).or_default();
            slow.count += 1;
            slow.sum_of_ratios += ratio;
            slow.host.clone_from(&step.slowest_host);
        }
    }

    /// Finding about the process that is slow in most steps.
    pub(super) fn find(&self) -> Option<Finding> {
        let mut ranks = self.slow_by_rank.iter();
        let (rank, slow) = ranks.find(|(_, slow)| 2 * slow.count > self.num_steps)?;
        if self.num_steps < Self::FEWEST_STEPS {
            return None;
        }
        let ratio = slow.sum_of_ratios / slow.count as f64;
        let host = slow.host.as_deref().unwrap_or("an unknown machine");
        // The host name comes from an untrusted file.
        let host: String = host.chars().filter(|c| !c.is_control()).take(100).collect();
        let message = format!(
            "rank {rank} on {host} took {} longer than the others in {} of {} steps: they wait for it",
            percent(ratio - 1.0),
            slow.count,
            self.num_steps
        );
        let severity = Severity::problem_if(ratio >= Self::TWICE);
        let finding = Finding::new(Symptom::Straggler, severity, message);
        Some(finding.with("rank", *rank as f64).with("ratio", ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(of: impl Fn(u64) -> (u64, f64)) -> Stragglers {
        let mut stragglers = Stragglers::default();
        for step in 0..20 {
            let (rank, ratio) = of(step);
            stragglers.add(&ProcessesOfStep {
                processes: 4,
                slowest_rank: Some(rank),
                slowest_host: Some("node-b".to_owned()),
                slowest_ratio: Some(ratio),
                process_bytes: Vec::new(),
            });
        }
        stragglers
    }

    #[test]
    fn the_slowest_in_most_steps_is_named() {
        let found = steps(|step| if step % 4 == 0 { (1, 1.3) } else { (3, 1.5) }).find();
        let found = found.unwrap();
        assert_eq!(
            (found.kind, found.severity),
            (Symptom::Straggler, Severity::Warning)
        );
        assert!(
            found
                .message
                .starts_with("rank 3 on node-b took 50% longer than the others in 15 of 20 steps"),
            "{}",
            found.message
        );
        let twice = steps(|_| (2, 2.5)).find().unwrap();
        assert_eq!(twice.severity, Severity::Problem);
    }

    #[test]
    fn turns_and_small_differences_are_none() {
        assert!(steps(|step| (step % 4, 1.6)).find().is_none());
        assert!(steps(|_| (3, 1.15)).find().is_none());
        assert!(Stragglers::default().find().is_none());
    }
}
