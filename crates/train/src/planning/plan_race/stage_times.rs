//! Estimates the time of a step from a few runs of each of its programs.
//!
//! ```text
//! begin | first pass: 1, 1, 1 + n | kept forward: 1, 1, 1 + n | loss | kept backward: 1, 1, n - 1 | forward and backward: 1, 1, 1 + n | update
//! step = once each of (begin, loss, update) + sum over the others: runs in a step x time of a run
//! ```
//!
//! A group of runs begins with an empty queue and ends with a wait. That overhead is the same in a group of one and in a group of
//! many, so the difference is the time of the runs alone, with inputs copied meanwhile as in a step.
//!
//! The order is that of a step with fewer micro-batches: slots are a stack, and a backward pass finds the activations that its forward pass
//! left.

use holdall_plan::{Run, Stage};

/// Steps of up to this many runs are timed whole.
pub(super) const MOST_RUNS_OF_A_WHOLE_STEP: usize = 16;

/// Maximum number of runs in a group, beside the first. A step is measured with one slot more than this.
pub(super) const MOST_RUNS_OF_A_GROUP: usize = 8;

/// Target time of a group.
const GROUP_SECONDS: f64 = 0.25;

/// From this time on, the first run is accurate enough, even if it includes loading code.
const LONG_RUN_SECONDS: f64 = 0.4;

/// Runs of each program in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunsOfStep {
    /// Micro-batches with a slot for activations.
    pub kept: usize,
    /// Micro-batches without a slot, whose forward pass runs twice.
    pub twice: usize,
    /// Whether micro-batches without a slot have a first pass.
    pub coupled: bool,
}

impl RunsOfStep {
    /// All runs of a step, the update included.
    pub fn count(&self) -> usize {
        let first = if self.coupled { self.twice } else { 0 };
        3 + 2 * self.kept + first + self.twice
    }
}

/// Runs programs one after another and returns the seconds.
pub(super) type TimeRuns<'a, E> = &'a mut dyn FnMut(&[Run]) -> Result<f64, E>;

/// Seconds of a step. `time` runs programs on the device, in an order that a step could have.
pub(super) fn step_seconds<E>(of: RunsOfStep, time: TimeRuns<'_, E>) -> Result<f64, E> {
    let once = |stage: Stage| [run(stage, 0, 0)];
    let mut total = time(&once(Stage::Begin))?;
    let without_slot = |stage: Stage| move |index: usize| run(stage, of.kept + index, 0);
    if of.coupled && of.twice > 0 {
        let (seconds, _) = seconds_of_run(of.twice, &without_slot(Stage::FirstPass), time)?;
        total += of.twice as f64 * seconds;
    }
    let mut filled = 0;
    if of.kept > 0 {
        let forward = |slot: usize| run(Stage::KeptForward, slot, slot);
        let (seconds, runs) = seconds_of_run(of.kept, &forward, time)?;
        total += of.kept as f64 * seconds;
        filled = runs;
    }
    total += time(&once(Stage::Loss))?;
    if filled > 0 {
        total += of.kept as f64 * seconds_of_kept_backward(filled, time)?;
    }
    if of.twice > 0 {
        let (seconds, _) = seconds_of_run(of.twice, &without_slot(Stage::ForwardBackward), time)?;
        total += of.twice as f64 * seconds;
    }
    Ok(total + time(&once(Stage::Update))?)
}

fn run(stage: Stage, micro_batch: usize, slot: usize) -> Run {
    Run {
        program: stage.id(),
        stage,
        micro_batch,
        slot,
        is_last: false,
    }
}

/// Seconds of a run within a group, and the number of runs in the last group. A step has `most` such runs.
fn seconds_of_run<E>(
    most: usize,
    at: &dyn Fn(usize) -> Run,
    time: TimeRuns<'_, E>,
) -> Result<(f64, usize), E> {
    let first = time(&[at(0)])?;
    if first >= LONG_RUN_SECONDS || most == 1 {
        return Ok((first, 1));
    }
    let one = time(&[at(0)])?.min(first);
    let more = (GROUP_SECONDS / one) as usize;
    let more = more.clamp(1, MOST_RUNS_OF_A_GROUP).min(most - 1);
    let runs: Vec<Run> = (0..=more).map(at).collect();
    let many = time(&runs)?;
    Ok((slope(one, many, more), runs.len()))
}

/// The same for kept backward passes, which empty the slots from the last one down.
fn seconds_of_kept_backward<E>(filled: usize, time: TimeRuns<'_, E>) -> Result<f64, E> {
    let mut slots = (0..filled)
        .rev()
        .map(|slot| run(Stage::KeptBackward, slot, slot));
    let mut one = f64::INFINITY;
    for single in slots.by_ref().take(2) {
        one = one.min(time(&[single])?);
    }
    let rest: Vec<Run> = slots.collect();
    match rest.len() {
        0 => Ok(one),
        1 => Ok(one.min(time(&rest)?)),
        count => Ok(slope(one, time(&rest)?, count - 1)),
    }
}

/// Seconds per additional run of the larger group.
fn slope(one: f64, many: f64, more: usize) -> f64 {
    let each = (many - one) / more as f64;
    let mean = many / (more + 1) as f64;
    // At least half the mean: if a group of one took longer than several runs, the measurement was disturbed.
    each.clamp(mean / 2.0, mean)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::convert::Infallible;

    use super::*;

    /// Simulated seconds of a run.
    fn seconds(stage: Stage) -> f64 {
        match stage {
            Stage::FirstPass => 0.010,
            Stage::KeptForward => 0.012,
            Stage::KeptBackward => 0.020,
            Stage::ForwardBackward => 0.035,
            Stage::Loss => 0.3,
            Stage::Update => 0.05,
            _ => 0.001,
        }
    }
    const GROUP: f64 = 0.004;

    /// Estimate from simulated times, and all runs; panics if a device would compute garbage in this order.
    fn measured(of: RunsOfStep, scale: f64) -> (f64, Vec<Run>) {
        let mut ran: Vec<Run> = Vec::new();
        let mut full: Vec<usize> = Vec::new();
        let mut warm: HashSet<Stage> = HashSet::new();
        let total = step_seconds::<Infallible>(of, &mut |runs| {
            let mut sum = GROUP;
            for run in runs {
                let last = ran.last().map_or(0, |last| last.stage.id().0);
                assert!(run.stage.id().0 >= last, "{:?} after {last}", run.stage);
                match run.stage {
                    Stage::KeptForward => {
                        assert!(run.slot < of.kept && run.slot <= full.len());
                        full.truncate(run.slot);
                        full.push(run.micro_batch);
                    }
                    Stage::KeptBackward => {
                        assert_eq!(
                            (full.len(), full.pop()),
                            (run.slot + 1, Some(run.micro_batch))
                        );
                    }
                    _ => assert_eq!(run.slot, 0),
                }
                if run.stage.is_per_micro_batch() {
                    let has_slot = run.micro_batch < of.kept;
                    assert_eq!(run.stage.has_slot(), has_slot, "{run:?}");
                    assert!(run.micro_batch < of.kept + of.twice);
                }
                // Code is loaded at the first run.
                let loading = if warm.insert(run.stage) { 0.1 } else { 0.0 };
                let loading = if run.stage.is_per_micro_batch() {
                    loading
                } else {
                    0.0
                };
                sum += scale * seconds(run.stage) + loading;
                ran.push(*run);
            }
            Ok(sum)
        });
        assert!(full.is_empty(), "every slot is emptied");
        let Ok(total) = total;
        (total, ran)
    }

    fn predicted(of: RunsOfStep, scale: f64) -> f64 {
        let runs = |stage: Stage| match stage {
            Stage::FirstPass if !of.coupled => 0,
            Stage::FirstPass | Stage::ForwardBackward => of.twice,
            Stage::KeptForward | Stage::KeptBackward => of.kept,
            Stage::Begin | Stage::Loss | Stage::Update => 1,
            _ => 0,
        };
        let stages = Stage::all(0);
        stages
            .map(|stage| runs(stage) as f64 * scale * seconds(stage))
            .sum()
    }

    #[test]
    fn a_few_runs_tell_what_a_step_of_thousands_takes() {
        for (kept, twice, coupled) in [
            (0, 4096, true),
            (0, 4096, false),
            (37, 4059, true),
            (128, 0, true),
            (3, 300, true),
        ] {
            let of = RunsOfStep {
                kept,
                twice,
                coupled,
            };
            let (found, ran) = measured(of, 1.0);
            let expected = predicted(of, 1.0);
            assert!(
                (found / expected - 1.0).abs() < 0.03,
                "{of:?}: {found} {expected}"
            );
            assert!(
                ran.len() <= 4 * (3 + MOST_RUNS_OF_A_GROUP) + 3,
                "{}",
                ran.len()
            );
        }
    }

    #[test]
    fn long_runs_are_run_once() {
        let of = RunsOfStep {
            kept: 2,
            twice: 6,
            coupled: true,
        };
        let (found, ran) = measured(of, 100.0);
        assert_eq!(ran.len(), 3 + 4);
        let expected = predicted(of, 100.0);
        assert!((found / expected - 1.0).abs() < 0.15, "{found} {expected}");
    }

    #[test]
    fn a_disturbed_clock_gives_no_step_without_time() {
        assert_eq!(slope(0.5, 0.4, 4), 0.04);
        assert_eq!(slope(0.1, 0.5, 4), 0.1);
        assert_eq!(slope(0.0, 0.5, 4), 0.1, "no run takes more than the mean");
    }
}
