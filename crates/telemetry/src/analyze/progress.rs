//! Progress of a run at each sample: in samples, steps and seconds. It never decreases, even if the log's own counters restart.

use crate::log::Sample;

/// A gap of at least this many seconds, and this many times the usual gap, is a pause: the run was stopped and resumed.
const PAUSE_SECONDS: f64 = 60.0;
const PAUSE_GAPS: f64 = 20.0;

/// Position of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Position {
    pub samples: f64,
    pub steps: Option<f64>,
    pub seconds: Option<f64>,
}

/// Axis of growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    Steps,
    Seconds,
    Samples,
}

impl Axis {
    pub const ALL: [Axis; 3] = [Axis::Steps, Axis::Seconds, Axis::Samples];
}

impl Position {
    pub fn along(&self, axis: Axis) -> Option<f64> {
        match axis {
            Axis::Steps => self.steps,
            Axis::Seconds => self.seconds,
            Axis::Samples => Some(self.samples),
        }
    }
}

/// Tracks the position through the log.
#[derive(Clone, Debug, Default)]
pub(super) struct LogProgress {
    position: Position,
    step: Option<u64>,
    /// Step difference of the last two samples with different steps.
    usual_steps: f64,
    time: Option<f64>,
    gap_seconds: f64,
    num_gaps: f64,
}

impl LogProgress {
    pub fn next(&mut self, sample: &Sample) -> Position {
        self.position.samples += 1.0;
        if let Some(step) = sample.step() {
            let more = match self.step {
                None => 0.0,
                Some(before) if step >= before => {
                    let more = (step - before) as f64;
                    if more > 0.0 {
                        self.usual_steps = more;
                    }
                    more
                }
                // Steps restart in each epoch, or after a resume from a checkpoint: assumes the usual progress.
                Some(_) => self.usual_steps,
            };
            self.step = Some(step);
            self.position.steps = Some(self.position.steps.unwrap_or(0.0) + more);
        }
        if let Some(time) = sample.time() {
            let more = self.time.map_or(0.0, |before| (time - before).max(0.0));
            let usual = self.gap_seconds / self.num_gaps.max(1.0);
            let is_pause = self.num_gaps > 0.0 && more > PAUSE_SECONDS.max(PAUSE_GAPS * usual);
            let more = if is_pause { usual } else { more };
            if self.time.is_some() && !is_pause {
                self.gap_seconds += more;
                self.num_gaps += 1.0;
            }
            self.time = Some(time);
            self.position.seconds = Some(self.position.seconds.unwrap_or(0.0) + more);
        }
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Meaning;

    fn positions(samples: &[(u64, f64)]) -> Vec<(f64, f64)> {
        let mut progress = LogProgress::default();
        let at = samples.iter().map(|(step, time)| {
            let sample = Sample::default().with(Meaning::Step, *step as f64);
            let sample = sample.with(Meaning::Time, *time);
            let position = progress.next(&sample);
            (position.steps.unwrap(), position.seconds.unwrap())
        });
        at.collect()
    }

    #[test]
    fn counters_that_begin_anew_and_clocks_that_pause() {
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
    }
}
