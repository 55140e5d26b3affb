//! Curves over steps and over time, for the page.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};

use super::thin::{Curve, six_digits, smoothed};
use crate::memory_log::MemorySample;
use crate::run_files::StepLine;

/// Changes of phase that are shown.
const MAX_PHASES: usize = 400;
/// Shorter curves are not smoothed.
const LEAST_SMOOTHED: usize = 100;
/// A longer gap between two samples is a pause: the run was stopped and resumed.
const LONGEST_PAUSE_S: f64 = 60.0;

type Points = Vec<(f64, Option<f64>)>;

/// Data of all steps: collected as points, then thinned to curves.
#[derive(Default, Serialize)]
pub struct StepCurves {
    num_steps: usize,
    last_step: Option<u64>,
    last_epoch: Option<u64>,
    totals: Totals,
    /// Names of the losses; their curves are `loss:NAME` and `chance:NAME`.
    losses: Vec<String>,
    /// Whether there is a single loss that equals the total.
    is_one_loss: bool,
    /// Keys of the learning rates; their curves are `rate:KEY`.
    rates: Vec<String>,
    /// Curves over steps, by key.
    steps: Map<String, Value>,
    #[serde(skip)]
    points: Vec<(String, Points)>,
    /// Largest chance of each loss, which is that of a full batch.
    #[serde(skip)]
    largest_chances: HashMap<String, f64>,
}

/// Sums over all steps.
#[derive(Default, Serialize)]
struct Totals {
    samples: f64,
    seconds: f64,
    waited: f64,
}

impl StepCurves {
    /// Adds a step.
    pub fn add(&mut self, line: &StepLine) {
        self.is_one_loss = line.is_one_loss() && (self.is_one_loss || self.num_steps == 0);
        self.num_steps += 1;
        self.last_step = line.step;
        self.last_epoch = line.epoch;
        self.totals.samples += line.samples.unwrap_or(0.0);
        self.totals.seconds += line.seconds.unwrap_or(0.0);
        self.totals.waited += line.waited_for_data.unwrap_or(0.0);
        let Some(step) = line.step.map(|step| step as f64) else {
            return;
        };
        // The last step of an epoch may be short: its contrastive loss has fewer candidates and would put teeth into the curve.
        let largest = &mut self.largest_chances;
        let is_short = line.losses.iter().any(|loss| {
            let Some(chance) = loss.chance else {
                return false;
            };
            let known = largest.entry(loss.name.clone()).or_insert(chance);
            *known = known.max(chance);
            chance < *known
        });
        let mut put = |key: &str, value: Option<f64>| {
            let at = self.points.iter().position(|(name, _)| name == key);
            let at = at.unwrap_or_else(|| {
                self.points.push((key.to_owned(), Points::new()));
                self.points.len() - 1
            });
            self.points[at].1.push((step, value));
        };
        if !is_short {
            put("loss", line.loss);
        }
        put("gradient_norm", line.gradient_norm);
        put("loss_scale", line.loss_scale);
        put("samples_per_s", line.samples_per_s());
        put("waited", line.waited_share());
        let slowest = line.processes.as_ref().and_then(|each| each.slowest_ratio);
        put("slowest", slowest.map(|ratio| ratio - 1.0));
        // Training time up to a step, to compare runs by time.
        put("elapsed", Some(self.totals.seconds));
        for loss in line.losses.iter().filter(|_| !is_short) {
            put(&format!("loss:{}", loss.name), loss.value);
            put(&format!("chance:{}", loss.name), loss.chance);
        }
        for (key, rate) in &line.rates {
            put(&format!("rate:{key}"), Some(*rate));
        }
    }

    /// Thins the curves to a number of points that can be drawn.
    pub fn thinned(mut self) -> StepCurves {
        for (key, points) in std::mem::take(&mut self.points) {
            put(&mut self.steps, &key, &points);
            let jumps_about = key.starts_with("loss:") || JUMPING.contains(&key.as_str());
            if jumps_about && points.len() > LEAST_SMOOTHED {
                put(
                    &mut self.steps,
                    &format!("{key}_smooth"),
                    &smoothed(&points),
                );
            }
            let name = |prefix: &str| key.strip_prefix(prefix).map(str::to_owned);
            self.losses.extend(name("loss:"));
            self.rates.extend(name("rate:"));
        }
        self
    }
}

/// Noisy curves, which are smoothed besides the losses.
const JUMPING: [&str; 4] = ["loss", "samples_per_s", "waited", "slowest"];

fn put(curves: &mut Map<String, Value>, key: &str, points: &Points) {
    if points.iter().any(|(_, y)| y.is_some()) {
        let curve = serde_json::to_value(Curve::thinned(points));
        curves.insert(key.to_owned(), curve.expect("a curve is plain data"));
    }
}

/// Seconds since the first sample, without pauses and backward jumps of the clock.
pub fn without_pauses(samples: &[MemorySample]) -> Vec<f64> {
    let mut elapsed = 0.0;
    let mut times = Vec::with_capacity(samples.len());
    let mut before = samples.first().map_or(0.0, |sample| sample.time);
    for sample in samples {
        let since = sample.time - before;
        if (0.0..LONGEST_PAUSE_S).contains(&since) {
            elapsed += since;
        }
        before = sample.time;
        times.push(elapsed);
    }
    times
}

/// Key and value of a curve over the memory samples.
type SampleField = (&'static str, fn(&MemorySample) -> Option<f64>);

const SAMPLED: [SampleField; 5] = [
    ("used_bytes", |sample| number(sample.used_bytes)),
    ("process_bytes", |sample| number(sample.process_bytes)),
    ("arena_bytes", |sample| number(sample.arena_bytes)),
    ("host_rss_bytes", |sample| number(sample.host_rss_bytes)),
    ("gpu_utilization", |sample| sample.gpu_utilization),
];

fn number(bytes: Option<u64>) -> Option<f64> {
    bytes.map(|bytes| bytes as f64)
}

/// Curves of the memory log, by key.
pub fn memory_curves(samples: &[MemorySample], times: &[f64]) -> Map<String, Value> {
    let mut curves = Map::new();
    for (key, number) in SAMPLED {
        let points = times.iter().zip(samples);
        let points = points.map(|(&time, sample)| (time, number(sample)));
        put(&mut curves, key, &points.collect());
    }
    curves
}

/// Start and name of each phase.
pub fn phases(samples: &[MemorySample], times: &[f64]) -> Vec<(f64, &'static str)> {
    let mut found: Vec<(f64, &str)> = Vec::new();
    let named = times
        .iter()
        .zip(samples)
        .filter_map(|(&time, sample)| Some((time, sample.phase?.name())));
    for (time, phase) in named {
        let is_new = found.last().is_none_or(|(_, last)| *last != phase);
        if is_new && found.len() < MAX_PHASES {
            found.push((six_digits(time), phase));
        }
    }
    found
}
