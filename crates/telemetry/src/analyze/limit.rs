//! Near the limit: the needed memory leaves too little room for one large batch. A planned run within its plan is not reported.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::Meaning;
use crate::words::{percent, show_bytes};

const NEAR: f64 = 0.95;
const TOO_NEAR: f64 = 0.985;
/// Tolerance for the driver's rounding.
const WITHIN_PLAN: f64 = 1.01;

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let total = log.total?;
    let share = log.training.needed_share.quantile(0.99)?.min(1.0);
    if share < NEAR {
        return None;
    }
    let has_own_limit = log.said_total != log.total;
    if let (Some(planned), Some(most)) = (log.planned, log.memory.most(Meaning::Process))
        && !has_own_limit
        && most <= planned * WITHIN_PLAN
    {
        return None;
    }
    let severity = Severity::problem_if(share >= TOO_NEAR);
    let since = log
        .training
        .first_full
        .as_ref()
        .map_or(String::new(), |first| {
            format!(", first {}", place(log, first))
        });
    let message = format!(
        "{} of {} is in use{since}: {} left",
        percent(share),
        show_bytes(total),
        show_bytes(total * (1.0 - share))
    );
    Some(
        Finding::new(
            Symptom::NearLimit,
            severity,
            message,
            "a smaller batch with more accumulation, recomputation, or half precision; `holdall plan` shows what each would buy",
        )
        .at_step(log.training.first_full.and_then(|sample| sample.step()))
        .with("used_share", share)
        .with("total_bytes", total),
    )
}
