//! Over the budget: the process held more than its budget, by the system's high-water mark if the log has it. A single sample
//! suffices.

use super::device::{DeviceLog, held_by_run};
use super::finding::{Finding, Severity, Symptom, place};
use crate::log::{Meaning, Sample};
use crate::words::{percent, show_bytes};

/// A sample above the budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverBudget {
    held: f64,
    budget: f64,
    /// Source of the budget in words: the log, or `--limit`.
    whose: &'static str,
    sample: Sample,
}

impl OverBudget {
    /// The one further over its budget: the worst sample until now, or this one.
    pub fn worse_of(
        worst: Option<OverBudget>,
        sample: &Sample,
        limit: Option<f64>,
    ) -> Option<OverBudget> {
        let process = || sample.largest_of(&[Meaning::ProcessPeak, Meaning::Process]);
        let (held, budget, whose) = match limit {
            Some(limit) => (held_by_run(sample), Some(limit), "the --limit"),
            None => (process(), sample.get(Meaning::Budget), "its budget"),
        };
        let most = worst.map_or(0.0, |worst| worst.held - worst.budget);
        let over = held.zip(budget).map(|(held, budget)| OverBudget {
            held,
            budget,
            whose,
            sample: *sample,
        });
        over.filter(|over| over.held - over.budget > most).or(worst)
    }
}

pub(super) fn find(log: &DeviceLog) -> Option<Finding> {
    let over = log.over_budget.as_ref()?;
    let at = format!(" {}", place(log, &over.sample));
    let finding = finding(&at, over.held, over.budget, over.whose);
    Some(finding.at(&over.sample))
}

pub(super) fn finding(at: &str, held: f64, budget: f64, whose: &str) -> Finding {
    let message = format!(
        "held {}{at}: {} ({}) over {whose} of {}",
        show_bytes(held),
        show_bytes(held - budget),
        percent((held - budget) / budget),
        show_bytes(budget)
    );
    let advice = "allow what it held, or need less: a smaller batch with more accumulation, recomputation, smaller pictures; \
                  `holdall plan --memory` shows what fits";
    Finding::new(Symptom::OverBudget, Severity::Problem, message, advice)
        .with("peak_bytes", held)
        .with("budget_bytes", budget)
}
