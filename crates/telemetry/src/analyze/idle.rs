//! Idle GPU: idle for nearly all of the log, or for one long stretch of it, while memory is held.

use super::device::{DeviceLog, Mean};
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::Sample;
use crate::words::{counted, percent, show_duration};

/// Utilization, in percent, up to which a GPU counts as idle.
const IDLE_UTILIZATION: f64 = 5.0;
const FEWEST_SAMPLES: u64 = 20;
/// Share of idle samples from which on the whole log counts as idle.
const NEARLY_ALL: f64 = 0.9;
/// Smallest share of the log that counts as a long stretch.
const LONG: f64 = 0.1;

/// Utilization of the GPU while something is loaded on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    pub utilization: Mean,
    num_idle: u64,
    longest: Stretch,
    current: Stretch,
    /// Idle samples with nothing loaded.
    pub num_empty: u64,
    /// Idle samples before the first busy one, while the run starts.
    num_before: u64,
}

/// Successive idle samples.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    num_samples: u64,
    first: Option<Sample>,
    seconds: f64,
}

impl Busy {
    pub fn add(&mut self, sample: &Sample, utilization: f64, is_loaded: bool, seconds: f64) {
        let is_idle = utilization <= IDLE_UTILIZATION;
        if !is_idle || !is_loaded {
            self.current = Stretch::default();
        }
        if !is_loaded {
            self.num_empty += u64::from(is_idle);
            return;
        }
        if is_idle && self.utilization.count == 0 {
            self.num_before += 1;
            return;
        }
        self.utilization.add(utilization);
        if is_idle {
            self.num_idle += 1;
            self.current.first.get_or_insert(*sample);
            self.current.num_samples += 1;
            self.current.seconds += seconds;
            if self.current.num_samples > self.longest.num_samples {
                self.longest = self.current;
            }
        }
    }

    /// Share of the samples at which the GPU had nothing to do.
    pub fn idle_share(&self) -> f64 {
        self.num_idle as f64 / self.utilization.count as f64
    }

    /// The longest idle stretch, if it is long and has most of the idle time.
    fn long_stretch(&self) -> Option<&Stretch> {
        let length = self.longest.num_samples as f64;
        let is_long = length >= 10.0 && length >= LONG * self.utilization.count as f64;
        (is_long && length >= 0.5 * self.num_idle as f64).then_some(&self.longest)
    }

    /// Mean utilization outside of a long idle stretch.
    pub fn utilization_otherwise(&self) -> Option<f64> {
        let in_stretch = self.long_stretch().map_or(0, |stretch| stretch.num_samples);
        let count = self.utilization.count - in_stretch;
        (count >= FEWEST_SAMPLES).then(|| self.utilization.sum / count as f64)
    }
}

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let busy = &log.training.busy;
    let count = busy.utilization.count;
    let advice = "look at what the run waited for there: a lock, a download, a debugger; or end it and free the memory";
    let finding =
        |severity, message: String| Finding::new(Symptom::Idle, severity, message, advice);
    let is_most = |samples: u64| samples >= FEWEST_SAMPLES && samples > 4 * count;
    if is_most(busy.num_before) {
        let samples = counted(busy.num_before, "sample");
        let message = format!("the GPU had nothing to do in the first {samples}, with memory held");
        return Some(
            finding(Severity::Problem, message).with("idle_samples", busy.num_before as f64),
        );
    }
    if is_most(busy.num_empty) {
        let samples = counted(busy.num_empty, "sample");
        let message = format!("nothing ran: {samples} with nothing loaded and nothing to do");
        let advice = "check that the run found this GPU: CUDA_VISIBLE_DEVICES, --device";
        let finding = Finding::new(Symptom::Idle, Severity::Warning, message, advice);
        return Some(finding.with("idle_samples", busy.num_empty as f64));
    }
    let utilization = busy.utilization.of(FEWEST_SAMPLES)?;
    let share = busy.idle_share();
    if share >= NEARLY_ALL {
        let message = format!(
            "the GPU had nothing to do in {} of the samples, with memory held; {utilization:.0}% busy on average",
            percent(share)
        );
        let finding = finding(Severity::Problem, message).with("idle_share", share);
        return Some(finding.with("gpu_utilization", utilization));
    }
    let stretch = busy.long_stretch()?;
    let first = stretch.first?;
    let length = if stretch.seconds > 0.0 {
        show_duration(stretch.seconds)
    } else {
        counted(stretch.num_samples, "sample")
    };
    let share = stretch.num_samples as f64 / count as f64;
    let message = format!(
        "the GPU had nothing to do for {length} in a row ({} of the log), from {}",
        percent(share),
        place(log, &first).trim_start_matches("at ")
    );
    Some(
        finding(Severity::Warning, message)
            .at_step(first.step())
            .with("idle_share", share)
            .with("idle_samples", stretch.num_samples as f64)
            .with("idle_seconds", stretch.seconds),
    )
}
