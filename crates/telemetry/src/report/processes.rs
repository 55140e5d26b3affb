//! Several processes: how often each was the slowest, and its memory.

use serde::Serialize;

use crate::run_files::ProcessesOfStep;

/// Ranks that are shown.
const MAX_RANKS: u64 = 1024;

/// Steps since the number of processes last changed: a run may be resumed with more or fewer.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Processes {
    count: u64,
    /// Number of steps that name the slowest process.
    num_steps: u64,
    /// By rank.
    ranks: Vec<Rank>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Rank {
    /// Number of steps in which this process was the slowest.
    slowest_in: u64,
    /// Largest memory seen at a step.
    peak_bytes: Option<u64>,
}

impl Processes {
    /// Adds a step.
    pub fn add(&mut self, step: &ProcessesOfStep) {
        if step.processes != self.count {
            let num_ranks = step.processes.min(MAX_RANKS) as usize;
            *self = Processes {
                count: step.processes,
                num_steps: 0,
                ranks: vec![Rank::default(); num_ranks],
            };
        }
        for (rank, bytes) in self.ranks.iter_mut().zip(&step.process_bytes) {
            rank.peak_bytes = rank.peak_bytes.max(*bytes);
        }
        let slowest = step
            .slowest_rank
            .and_then(|rank| usize::try_from(rank).ok());
        if let Some(rank) = slowest.and_then(|rank| self.ranks.get_mut(rank)) {
            rank.slowest_in += 1;
            self.num_steps += 1;
        }
    }

    /// `None` for a single process.
    pub fn if_several(self) -> Option<Processes> {
        (self.count > 1).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(processes: u64, slowest_rank: u64, bytes: &[u64]) -> ProcessesOfStep {
        ProcessesOfStep {
            processes,
            slowest_rank: Some(slowest_rank),
            process_bytes: bytes.iter().map(|&bytes| Some(bytes)).collect(),
            ..ProcessesOfStep::default()
        }
    }

    #[test]
    fn another_number_of_processes_begins_anew() {
        let mut processes = Processes::default();
        for line in [
            step(2, 0, &[9, 9]),
            step(3, 2, &[5, 6, 7]),
            step(3, 2, &[6, 5, 8]),
            step(3, 0, &[4, 4, 4]),
        ] {
            processes.add(&line);
        }
        let rank = |slowest_in, bytes| Rank {
            slowest_in,
            peak_bytes: Some(bytes),
        };
        let expected = Processes {
            count: 3,
            num_steps: 3,
            ranks: vec![rank(1, 6), rank(0, 6), rank(2, 8)],
        };
        assert_eq!(processes.if_several(), Some(expected));
    }

    #[test]
    fn numbers_that_no_run_has_take_no_memory() {
        let mut processes = Processes::default();
        processes.add(&step(u64::MAX, u64::MAX, &[1]));
        assert_eq!(processes.ranks.len() as u64, MAX_RANKS);
        assert_eq!(processes.num_steps, 0);
        assert_eq!(Processes::default().if_several(), None);
    }
}
