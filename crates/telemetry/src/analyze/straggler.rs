//! Stragglers: one of several processes is the slowest in most steps, and the others wait for it.

use std::collections::HashMap;

use super::finding::{Finding, Severity, Symptom};
use crate::run_files::ProcessesOfStep;
use crate::words::percent;

/// Step time relative to the mean of the others, from which on a process counts as slow.
const MUCH_LONGER: f64 = 1.2;
/// Relative step time from which on the others wait for at least half of the time.
const TWICE: f64 = 2.0;
/// With fewer steps, the unusual first one dominates.
const FEWEST_STEPS: u64 = 5;

/// Slow steps per rank.
#[derive(Default)]
pub(super) struct Stragglers {
    steps: u64,
    /// Per rank: number of slow steps, sum of their ratios, and host.
    slow: HashMap<u64, (u64, f64, Option<String>)>,
}

impl Stragglers {
    pub(super) fn add(&mut self, step: &ProcessesOfStep) {
        let (Some(rank), Some(ratio)) = (step.slowest_rank, step.slowest_ratio) else {
            return;
        };
        self.steps += 1;
        if ratio >= MUCH_LONGER {
            let slow = self.slow.entry(rank).or_default();
            slow.0 += 1;
            slow.1 += ratio;
            slow.2 = step.slowest_host.clone();
        }
    }

    /// Finding about the process that is slow in most steps.
    pub(super) fn find(&self) -> Option<Finding> {
        let is_most =
            |(_, (steps, ..)): &(&u64, &(u64, f64, Option<String>))| 2 * steps > self.steps;
        let (rank, (steps, sum, host)) = self.slow.iter().find(is_most)?;
        if self.steps < FEWEST_STEPS {
            return None;
        }
        let ratio = sum / *steps as f64;
        let host = host.as_deref().unwrap_or("an unknown machine");
        // The host name comes from an untrusted file.
        let host: String = host.chars().filter(|c| !c.is_control()).take(100).collect();
        let message = format!(
            "rank {rank} on {host} took {} longer than the others in {steps} of {} steps: they wait for it",
            percent(ratio - 1.0),
            self.steps
        );
        let advice = "look at what else runs on that machine, its clock, its disk and its cores; or leave it out";
        let severity = Severity::problem_if(ratio >= TWICE);
        let finding = Finding::new(Symptom::Straggler, severity, message, advice);
        let finding = finding.with("rank", *rank as f64);
        Some(finding.with("ratio", ratio))
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
