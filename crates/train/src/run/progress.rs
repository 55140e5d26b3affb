//! Progress within a long step, and the remaining time of the step and of the epoch.
//!
//! Predicted times give the share of a step that is done, the clock gives the rest: `left = elapsed x (1 - share) / share`.
//! After the first complete step, its measured time is used instead.

use holdall_plan::{MemoryMap, Stage, StepPlan};

/// A step in progress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepProgress {
    /// Counted from 1.
    pub step: u64,
    /// Current pass over the micro-batches, counted from 1.
    pub pass: usize,
    /// Number of passes in a step.
    pub passes: usize,
    /// Finished micro-batches of the pass.
    pub done: usize,
    /// Micro-batches of the step.
    pub total: usize,
    /// Seconds since the step began.
    pub elapsed: f64,
    /// Estimated seconds of the whole step.
    pub step_seconds: f64,
    /// Estimated seconds until the end of the epoch, the rest of this step included.
    pub epoch_seconds_left: f64,
    /// Samples of the step over its estimated seconds.
    pub samples_per_s: f64,
}

impl StepProgress {
    /// Estimated seconds until the end of the step.
    pub fn step_seconds_left(&self) -> f64 {
        (self.step_seconds - self.elapsed).max(0.0)
    }
}

pub(crate) struct Passes {
    /// Stage, runs, seconds of a run.
    programs: Vec<(Stage, usize, f64)>,
    accumulation: usize,
    /// Seconds of the last complete step, or as planned.
    step_seconds: f64,
    is_known: bool,
}

impl Passes {
    /// Passes of a plan, with the predicted or measured time of a step.
    pub fn new(plan: &StepPlan, map: &MemoryMap, step_seconds: f64) -> Passes {
        let mut programs: Vec<(Stage, usize, f64)> = Vec::new();
        for run in plan.passes() {
            match programs.last_mut() {
                Some((stage, runs, _)) if *stage == run.stage => *runs += 1,
                _ => programs.push((run.stage, 1, seconds_of(map, run.stage))),
            }
        }
        Passes {
            programs,
            accumulation: plan.accumulation,
            step_seconds,
            is_known: false,
        }
    }

    /// Records the time of a complete step.
    pub fn finished(&mut self, seconds: f64) {
        (self.step_seconds, self.is_known) = (seconds, true);
    }

    /// Seconds of the last complete step, or as planned.
    pub fn step_seconds(&self) -> f64 {
        self.step_seconds
    }

    /// Progress of a step with `samples` samples after so many runs, with `steps_after` more steps in the epoch.
    pub fn progress(
        &self,
        step: u64,
        runs_done: usize,
        elapsed: f64,
        samples: usize,
        steps_after: u64,
    ) -> StepProgress {
        let (mut before, mut share, mut all) = (0, 0.0, 0.0);
        let (mut pass, mut done) = (1, 0);
        let mut passes = 1;
        for &(stage, runs, seconds) in &self.programs {
            let done_here = runs_done.saturating_sub(before).min(runs);
            before += runs;
            share += done_here as f64 * seconds;
            all += runs as f64 * seconds;
            match stage {
                Stage::Loss if all > 0.0 && self.has_first_pass() => {
                    passes = 2;
                    if done_here > 0 {
                        (pass, done) = (2, 0);
                    }
                }
                _ if stage.is_per_micro_batch() => done += done_here,
                _ => {}
            }
        }
        let share = if all > 0.0 { share / all } else { 0.0 };
        let by_share = elapsed / share;
        let step_seconds = if self.is_known && self.step_seconds > elapsed {
            self.step_seconds
        } else if share < 1e-3 || !by_share.is_finite() {
            // Too little is done for an estimate.
            self.step_seconds.max(elapsed)
        } else {
            by_share
        };
        StepProgress {
            step,
            pass,
            passes,
            done,
            total: self.accumulation,
            elapsed,
            step_seconds,
            epoch_seconds_left: (step_seconds - elapsed).max(0.0)
                + steps_after as f64 * step_seconds,
            samples_per_s: samples as f64 / step_seconds.max(1e-9),
        }
    }

    fn has_first_pass(&self) -> bool {
        let mut stages = self.programs.iter().map(|&(stage, ..)| stage);
        stages.any(|stage| matches!(stage, Stage::FirstPass | Stage::KeptForward))
    }
}

fn seconds_of(map: &MemoryMap, stage: Stage) -> f64 {
    let operations = map.operations.iter().filter(|one| one.stage == stage);
    operations.map(|one| one.seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four micro-batches, one of which keeps its activations.
    fn passes() -> Passes {
        Passes {
            programs: vec![
                (Stage::Begin, 1, 0.0),
                (Stage::FirstPass, 3, 1.0),
                (Stage::KeptForward, 1, 1.0),
                (Stage::Loss, 1, 0.0),
                (Stage::KeptBackward, 1, 2.0),
                (Stage::ForwardBackward, 3, 3.0),
            ],
            accumulation: 4,
            step_seconds: 30.0,
            is_known: false,
        }
    }

    fn at(passes: &Passes, runs_done: usize, elapsed: f64) -> StepProgress {
        passes.progress(7, runs_done, elapsed, 64, 2)
    }

    #[test]
    fn micro_batches_are_counted_in_each_pass() {
        let places: Vec<(usize, usize)> = (0..=10)
            .map(|runs| at(&passes(), runs, 1.0))
            .map(|found| (found.pass, found.done))
            .collect();
        let first = [(1, 0), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4)];
        let second = [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4)];
        assert_eq!(places, [&first[..], &second].concat());
        assert_eq!(
            (at(&passes(), 3, 1.0).passes, at(&passes(), 3, 1.0).total),
            (2, 4)
        );
        let mut once = passes();
        once.programs = vec![
            (Stage::Begin, 1, 0.0),
            (Stage::Loss, 1, 0.0),
            (Stage::ForwardBackward, 4, 3.0),
        ];
        let found = at(&once, 4, 1.0);
        assert_eq!((found.pass, found.passes, found.done), (1, 1, 2));
    }

    #[test]
    fn what_is_left_is_told_by_the_clock_then_by_the_last_step() {
        let mut passes = passes();
        // Before the first run: the planned time.
        let found = at(&passes, 0, 2.0);
        assert_eq!(
            (found.step_seconds, found.step_seconds_left()),
            (30.0, 28.0)
        );
        // 5 of 15 predicted seconds took 20.
        let found = at(&passes, 6 + 1 - 1, 20.0);
        assert!((found.step_seconds - 75.0).abs() < 1e-9, "{found:?}");
        assert!((found.epoch_seconds_left - (55.0 + 2.0 * 75.0)).abs() < 1e-9);
        assert!((found.samples_per_s - 64.0 / 75.0).abs() < 1e-9);
        passes.finished(40.0);
        assert_eq!(at(&passes, 6, 20.0).step_seconds_left(), 20.0);
        // Longer than the last step.
        assert!(at(&passes, 8, 50.0).step_seconds > 50.0);
    }
}
