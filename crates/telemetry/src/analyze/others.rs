//! Memory of other processes: the used device memory without the run's own.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, share_of_device};
use super::series::Bucket;
use crate::log::Meaning;
use crate::words::{show_bytes, thousands};

/// Smallest share of the device that is reported; the driver's own share is smaller.
const LEAST: f64 = 0.05;
const LEAST_BYTES: f64 = 1e9;
const FEWEST_SAMPLES: u64 = 5;
/// Total share of the device above which other processes are a problem.
const NEARLY_FULL: f64 = 0.95;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let levels = log.memory.level(Meaning::Others);
    // A CPU always runs other processes, and a plan covers only the memory of this one.
    if levels.count() < FEWEST_SAMPLES || log.name == "cpu" {
        return None;
    }
    // A short peak can end a run; the quantile ignores one outlier in a hundred samples.
    let most = levels.quantile(0.99)?;
    let least = log.total.map_or(LEAST_BYTES, |total| LEAST * total);
    if most < least {
        return None;
    }
    let buckets = &log.memory.all.buckets;
    let of = |bucket: &Bucket| bucket.stat(Meaning::Others).map(|stat| stat.most);
    let before = buckets.first().and_then(of).unwrap_or(0.0);
    let has_come = before < most / 2.0;
    let came = buckets
        .iter()
        .find(|bucket| of(bucket).is_some_and(|others| others >= (before + most) / 2.0));
    let step = came
        .filter(|_| has_come)
        .and_then(|bucket| bucket.first_step);
    let since = match (has_come, step) {
        (false, _) => ", from the beginning".to_owned(),
        (true, Some(step)) => format!(
            ", from about step {}; before it was {}",
            thousands(step),
            show_bytes(before)
        ),
        (true, None) => format!("; at first it was {}", show_bytes(before)),
    };
    let is_full = log
        .training
        .held_share
        .quantile(0.99)
        .is_some_and(|share| share >= NEARLY_FULL);
    let severity = Severity::problem_if(is_full);
    let message = format!(
        "other processes hold {}{}{since}",
        show_bytes(most),
        share_of_device(log, most)
    );
    Some(
        Finding::new(
            Symptom::OtherProcesses,
            severity,
            message,
            "`nvidia-smi` names them: end them or move to another GPU, or plan with what is left (`memory: auto`)",
        )
        .at_step(step)
        .with("others_bytes", most)
        .with("others_at_first_bytes", before),
    )
}
