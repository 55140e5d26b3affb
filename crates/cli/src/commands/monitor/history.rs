//! Past samples in bounded memory: the machine's last minutes, and a whole run.

use std::collections::VecDeque;

use super::readings::Readings;

/// Samples kept: ten minutes at one per second.
const REMEMBERED: usize = 600;

/// Most points of a run's curve.
const MAX_POINTS: usize = 512;

/// The last readings of one quantity, with their times.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    values: VecDeque<(f64, f64)>,
}

impl Ring {
    /// Adds a reading at a time in seconds; an unknown value leaves a gap.
    pub fn push(&mut self, time: f64, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else {
            return;
        };
        if self.values.len() == REMEMBERED {
            self.values.pop_front();
        }
        self.values.push_back((time, value));
    }

    /// Points (seconds relative to `now`, value), oldest first.
    pub fn points(&self, now: f64) -> Vec<(f64, f64)> {
        let values = self.values.iter();
        values.map(|(time, value)| (time - now, *value)).collect()
    }

    /// Minimum and maximum.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        bounds(self.values.iter().map(|(_, value)| *value))
    }
}

/// Past readings of a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuHistory {
    pub memory_bytes: Ring,
    pub utilization_percent: Ring,
    pub power_watts: Ring,
    pub temperature_celsius: Ring,
}

/// Past readings of the machine.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub cpu_percent: Ring,
    pub memory_bytes: Ring,
    /// One entry per GPU index.
    pub gpus: Vec<GpuHistory>,
}

impl History {
    /// Adds a sample.
    pub fn record(&mut self, readings: &Readings) {
        let time = readings.time;
        let host = &readings.host;
        self.cpu_percent.push(time, host.cpu_percent);
        self.memory_bytes
            .push(time, readings.host_used_bytes().map(|bytes| bytes as f64));
        let gpus = readings.gpus.as_deref().unwrap_or_default();
        if self.gpus.len() < gpus.len() {
            self.gpus.resize_with(gpus.len(), GpuHistory::default);
        }
        for (history, gpu) in self.gpus.iter_mut().zip(gpus) {
            let used = gpu.memory.map(|memory| memory.used_bytes as f64);
            history.memory_bytes.push(time, used);
            let busy = gpu.utilization_percent.map(f64::from);
            history.utilization_percent.push(time, busy);
            history.power_watts.push(time, gpu.power_watts);
            let degrees = gpu.temperature_celsius.map(f64::from);
            history.temperature_celsius.push(time, degrees);
        }
    }
}

/// A quantity over the steps of a run, in bounded memory: each point is the mean of `steps_per_point` steps.
#[derive(Clone, Debug)]
pub struct Curve {
    points: Vec<(f64, f64)>,
    steps_per_point: usize,
    /// Steps not in a point yet: count, sum of step numbers, sum of values.
    open: (usize, f64, f64),
}

impl Default for Curve {
    fn default() -> Curve {
        Curve {
            points: Vec::new(),
            steps_per_point: 1,
            open: (0, 0.0, 0.0),
        }
    }
}

impl Curve {
    /// Adds a step's value. A step number that was seen before, as after a resume, discards the old points from there on.
    pub fn push(&mut self, step: f64, value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else {
            return;
        };
        if self.points.last().is_some_and(|(last, _)| *last >= step) {
            self.points.retain(|(before, _)| *before < step);
            self.open = (0, 0.0, 0.0);
        }
        let (count, steps, values) = &mut self.open;
        (*count, *steps, *values) = (*count + 1, *steps + step, *values + value);
        if *count < self.steps_per_point {
            return;
        }
        let number = *count as f64;
        self.points.push((*steps / number, *values / number));
        self.open = (0, 0.0, 0.0);
        if self.points.len() == MAX_POINTS {
            let pairs = self.points.chunks(2);
            let mean = |pair: &[(f64, f64)]| {
                let number = pair.len() as f64;
                let sum = |of: fn(&(f64, f64)) -> f64| pair.iter().map(of).sum::<f64>() / number;
                (sum(|point| point.0), sum(|point| point.1))
            };
            self.points = pairs.map(mean).collect();
            self.steps_per_point *= 2;
        }
    }

    /// Points (step, value), in order.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Minimum and maximum.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        bounds(self.points.iter().map(|(_, value)| *value))
    }
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_forgets_the_oldest_and_skips_what_is_not_known() {
        let mut ring = Ring::default();
        assert_eq!(ring.bounds(), None);
        for second in 0..1000 {
            ring.push(
                f64::from(second),
                (second % 2 == 0).then_some(f64::from(second)),
            );
            ring.push(f64::from(second), Some(f64::NAN));
        }
        assert_eq!(ring.values.len(), 500);
        for second in 1000..3000 {
            ring.push(f64::from(second), Some(1.0));
        }
        assert_eq!(ring.values.len(), REMEMBERED);
        assert_eq!(ring.bounds(), Some((1.0, 1.0)));
        assert_eq!(ring.points(2999.0).last(), Some(&(0.0, 1.0)));
    }

    #[test]
    fn a_curve_of_any_length_stays_bounded_and_keeps_its_mean() {
        let mut curve = Curve::default();
        let steps = 100_000;
        for step in 1..=steps {
            curve.push(f64::from(step), Some(f64::from(step)));
            assert!(curve.points().len() < MAX_POINTS);
        }
        assert!(curve.points().len() >= MAX_POINTS / 4);
        assert!(curve.points().is_sorted_by_key(|point| point.0));
        for (step, value) in curve.points() {
            assert!((step - value).abs() < 1e-6);
        }
    }

    #[test]
    fn steps_that_come_again_take_the_place_of_the_old_ones() {
        let mut curve = Curve::default();
        for step in 1..=10 {
            curve.push(f64::from(step), Some(1.0));
        }
        curve.push(6.0, Some(2.0));
        curve.push(7.0, None);
        assert_eq!(curve.points().len(), 6);
        assert_eq!(curve.points().last(), Some(&(6.0, 2.0)));
        assert_eq!(curve.bounds(), Some((1.0, 2.0)));
    }
}
