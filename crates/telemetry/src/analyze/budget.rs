//! Over the budget: the process held more than its budget, by the system's high-water mark if the log has it. A single sample
//! suffices.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, place};
use crate::words::{percent, show_bytes};

/// Source of the budget: the log, or `--limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Budget {
    Log,
    Limit,
}

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let over = log.over_budget.as_ref()?;
    let whose = match over.budget {
        Budget::Log => "its budget",
        Budget::Limit => "the --limit",
    };
    let at = format!(" {}", place(log, &over.sample));
    let finding = finding(&at, over.held, over.limit, whose);
    Some(
        finding
            .at_step(over.sample.step)
            .in_phase(over.sample.phase),
    )
}

pub(super) fn finding(at: &str, held: f64, limit: f64, whose: &str) -> Finding {
    let message = format!(
        "held {}{at}: {} ({}) over {whose} of {}",
        show_bytes(held),
        show_bytes(held - limit),
        percent((held - limit) / limit),
        show_bytes(limit)
    );
    Finding::new(
        Symptom::OverBudget,
        Severity::Problem,
        message,
        "allow what it held, or need less: a smaller batch with more accumulation, recomputation, smaller pictures; \
         `holdall plan --memory` shows what fits",
    )
    .with("peak_bytes", held)
    .with("budget_bytes", limit)
}
