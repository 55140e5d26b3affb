//! Waiting: the GPU is not busy because data or the host is too slow.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom};
use crate::words::percent;

/// Shares of the time spent waiting, if the log has them.
const MUCH: f64 = 0.15;
const MOST: f64 = 0.4;
/// Utilization in percent, for logs without waiting times.
const BUSY: f64 = 70.0;
const HARDLY_BUSY: f64 = 35.0;

/// Fewest samples with a waiting time; the first sample of a run always has a wait.
const FEWEST_THAT_SAY: u64 = 3;
const OF_DATA: &str = "more loader workers and prefetch, smaller or pre-decoded files; `holdall bench loader` times them alone; \
                       a larger batch would only wait longer";

/// Finding about the share of the time spent waiting.
pub(super) fn of_share(waited: f64) -> Option<Finding> {
    if waited < MUCH {
        return None;
    }
    let severity = Severity::problem_if(waited >= MOST);
    let message = format!("{} of the time was spent waiting for data", percent(waited));
    let finding = Finding::new(Symptom::WaitingForData, severity, message, OF_DATA);
    Some(finding.with("waited_share", waited))
}

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    if let Some(waited) = log.waited.of(FEWEST_THAT_SAY) {
        return of_share(waited);
    }
    let busy = &log.training.busy;
    let (utilization, nothing) = (busy.utilization_otherwise()?, busy.idle_share());
    if utilization >= BUSY || nothing >= 0.9 {
        return None;
    }
    let severity = Severity::problem_if(utilization < HARDLY_BUSY);
    let gaps = match nothing {
        n if n >= 0.05 => format!(", with nothing to do in {} of the samples", percent(n)),
        _ => String::new(),
    };
    let message = format!(
        "the GPU is busy {utilization:.0}% of the time{gaps}: it waits for data or for the host"
    );
    Some(
        Finding::new(Symptom::WaitingForData, severity, message, OF_DATA)
            .with("gpu_utilization", utilization)
            .with("nothing_to_do_share", nothing),
    )
}
