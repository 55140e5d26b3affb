//! Regression metrics per output, in constant memory.
//!
//! ```text
//! MAE = mean |p - y|      RMSE = sqrt(mean (p - y)^2)      R2 = 1 - sum (p - y)^2 / sum (y - mean y)^2
//! ```

use serde::Serialize;

/// Accumulates the errors of all outputs.
#[derive(Clone, Debug)]
pub struct Regression {
    outputs: Vec<Sums>,
}

/// Sums of one output, in f64.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    samples: u64,
    unknown: u64,
    not_finite: u64,
    absolute: f64,
    squares: f64,
    /// Mean of the targets.
    mean: f64,
    /// Sum of squared differences of the targets from their mean.
    spread: f64,
}

/// Regression metrics: means over the outputs for which the value is defined, and each output by itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegressionMetrics {
    /// Mean absolute error.
    pub mean_absolute_error: Option<f64>,
    /// Root mean squared error: the root per output, then the mean over outputs.
    pub root_mean_squared_error: Option<f64>,
    /// Explained share of the targets' variance.
    pub r2: Option<f64>,
    /// One entry per output.
    pub outputs: Vec<OutputMetrics>,
}

/// Metrics of one output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OutputMetrics {
    /// Samples with a target and a finite prediction.
    pub samples: u64,
    /// Samples left out because their target is unknown (NaN).
    pub unknown: u64,
    /// Samples left out because their prediction is not finite.
    pub not_finite: u64,
    pub mean_absolute_error: Option<f64>,
    pub root_mean_squared_error: Option<f64>,
    /// `None` where all targets are equal.
    pub r2: Option<f64>,
}

impl Regression {
    /// An empty accumulator.
    pub fn new(num_outputs: usize) -> Regression {
        Regression {
            outputs: vec![Sums::default(); num_outputs],
        }
    }

    /// Adds a batch: one row of predictions and one of targets per sample. NaN is an unknown target.
    pub fn add(&mut self, predictions_bo: &[f32], targets_bo: &[f32]) {
        let num_outputs = self.outputs.len();
        assert_eq!(
            predictions_bo.len(),
            targets_bo.len(),
            "a target per prediction"
        );
        assert_eq!(predictions_bo.len() % num_outputs.max(1), 0, "whole rows");
        for (at, (&prediction, &target)) in predictions_bo.iter().zip(targets_bo).enumerate() {
            self.outputs[at % num_outputs].add(f64::from(prediction), f64::from(target));
        }
    }

    /// Metrics over all samples so far.
    pub fn metrics(&self) -> RegressionMetrics {
        let outputs: Vec<OutputMetrics> = self.outputs.iter().map(Sums::metrics).collect();
        let mean = |of: fn(&OutputMetrics) -> Option<f64>| {
            let values: Vec<f64> = outputs.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        RegressionMetrics {
            mean_absolute_error: mean(|output| output.mean_absolute_error),
            root_mean_squared_error: mean(|output| output.root_mean_squared_error),
            r2: mean(|output| output.r2),
            outputs,
        }
    }
}

impl Sums {
    fn add(&mut self, prediction: f64, target: f64) {
        if target.is_nan() {
            self.unknown += 1;
        } else if !prediction.is_finite() {
            self.not_finite += 1;
        } else {
            let error = prediction - target;
            self.samples += 1;
            self.absolute += error.abs();
            self.squares += error * error;
            // Welford's update: sums of squares of large targets would cancel.
            let from_mean = target - self.mean;
            self.mean += from_mean / self.samples as f64;
            self.spread += from_mean * (target - self.mean);
        }
    }

    fn metrics(&self) -> OutputMetrics {
        let mean = |sum: f64| (self.samples > 0).then(|| sum / self.samples as f64);
        OutputMetrics {
            samples: self.samples,
            unknown: self.unknown,
            not_finite: self.not_finite,
            mean_absolute_error: mean(self.absolute),
            root_mean_squared_error: mean(self.squares).map(f64::sqrt),
            r2: (self.spread > 0.0).then(|| 1.0 - self.squares / self.spread),
        }
    }
}
