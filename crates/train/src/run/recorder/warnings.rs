//! Warnings about a run's memory, each printed once: a run inside its plan prints none.

use holdall_device::cuda::memory::Holder;
use holdall_telemetry::memory_log::{MemorySample, Phase};

use crate::config::budget::show_bytes;

/// Percent of the forecast above which a warning follows: the forecast is promised within 1%.
const MOST_OF_PLAN: u64 = 101;
/// Percent of GPU memory in use above which other processes are reported.
const NEARLY_FULL: u64 = 90;
/// Percent of GPU memory by which other processes must have grown since the start: a desktop's windows come and go.
const GROWN: u64 = 1;
/// Maximum number of other processes named.
const MOST_NAMED: usize = 3;

/// Warnings that were given, and the state to compare with.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    has_told_plan: bool,
    has_told_budget: bool,
    has_told_others: bool,
    /// GPU memory of other processes at the time of planning.
    others_at_first: Option<u64>,
}

impl Warnings {
    /// Returns warnings for a sample; `others` lists the other processes on the GPU, and is called only for a warning about
    /// them.
    pub fn judge(
        &mut self,
        sample: &MemorySample,
        others: impl FnOnce() -> Vec<Holder>,
    ) -> Vec<String> {
        let is_under_way = !matches!(sample.phase, None | Some(Phase::Start | Phase::Plan));
        if !is_under_way {
            return Vec::new();
        }
        let mut told = Vec::new();
        told.extend(self.judge_budget(sample));
        told.extend(self.judge_plan(sample));
        told.extend(self.judge_others(sample, others));
        told
    }

    /// Compares the high-water mark, which includes peaks between two samples.
    fn judge_budget(&mut self, sample: &MemorySample) -> Option<String> {
        let (peak, budget) = (sample.process_peak_bytes?, sample.budget_bytes?);
        if peak <= budget || std::mem::replace(&mut self.has_told_budget, true) {
            return None;
        }
        Some(format!(
            "WARNING: memory was above the budget: {} held, {} allowed{}\n\
             hint: this should not happen, so please report it with plan.json and memory.jsonl; a larger --memory, or a machine with more",
            show_bytes(peak),
            show_bytes(budget),
            at_step(sample)
        ))
    }

    fn judge_plan(&mut self, sample: &MemorySample) -> Option<String> {
        let (held, planned) = (sample.process_bytes?, sample.planned_bytes?);
        let is_above = percent_exceeds(held, planned, MOST_OF_PLAN);
        if !is_above || std::mem::replace(&mut self.has_told_plan, true) {
            return None;
        }
        Some(format!(
            "WARNING: memory is above the plan: {} held, {} planned{}\n\
             hint: memory.jsonl shows since when; the forecast should not be wrong, so please report it with plan.json",
            show_bytes(held),
            show_bytes(planned),
            at_step(sample)
        ))
    }

    fn judge_others(
        &mut self,
        sample: &MemorySample,
        others: impl FnOnce() -> Vec<Holder>,
    ) -> Option<String> {
        // Host memory is shared by design, so a CPU run does not report other processes.
        if sample.device.as_deref() == Some("cpu") {
            return None;
        }
        let (used, total) = (sample.used_bytes?, sample.total_bytes?);
        let theirs = used.saturating_sub(sample.process_bytes?);
        let at_first = *self.others_at_first.get_or_insert(theirs);
        let has_grown = theirs > at_first + total / 100 * GROWN;
        let is_full = percent_exceeds(used, total, NEARLY_FULL);
        if !(is_full && has_grown) || std::mem::replace(&mut self.has_told_others, true) {
            return None;
        }
        let mut text = format!(
            "WARNING: the card is {}% full: others hold {} of it, {} when the run began{}",
            used / (total / 100).max(1),
            show_bytes(theirs),
            show_bytes(at_first),
            at_step(sample)
        );
        for holder in others().into_iter().take(MOST_NAMED) {
            let name = if holder.name.is_empty() {
                String::new()
            } else {
                format!(" ({})", holder.name)
            };
            let held = holder
                .bytes
                .map_or("an unknown amount".to_owned(), show_bytes);
            text.push_str(&format!("\n  process {}{name} holds {held}", holder.pid));
        }
        text.push_str(
            "\nhint: this run has what it needs; a later one will find less, unless they end",
        );
        Some(text)
    }
}

fn percent_exceeds(part: u64, whole: u64, percent: u64) -> bool {
    u128::from(part) * 100 > u128::from(whole) * u128::from(percent)
}

fn at_step(sample: &MemorySample) -> String {
    sample
        .step
        .map_or(String::new(), |step| format!(" (step {step})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn sample(used: u64, process: u64) -> MemorySample {
        MemorySample {
            step: Some(7),
            phase: Some(Phase::Train),
            device: Some("cuda:0".to_owned()),
            used_bytes: Some(used),
            total_bytes: Some(10 * GIB),
            process_bytes: Some(process),
            planned_bytes: Some(4 * GIB),
            ..MemorySample::default()
        }
    }

    fn nobody() -> Vec<Holder> {
        panic!("asked although nothing is told")
    }

    #[test]
    fn a_run_inside_its_plan_is_silent() {
        let mut warnings = Warnings::default();
        for process in [0, 3 * GIB, 4 * GIB, 4 * GIB + 40 * (1 << 20)] {
            let told = warnings.judge(&sample(process, process), nobody);
            assert!(told.is_empty(), "{told:?}");
        }
        // Memory held before planning is not compared with the plan.
        let before = MemorySample {
            phase: Some(Phase::Plan),
            ..sample(9 * GIB, 9 * GIB)
        };
        assert!(warnings.judge(&before, nobody).is_empty());
    }

    #[test]
    fn above_the_plan_is_told_once() {
        let mut warnings = Warnings::default();
        let above = 4 * GIB + 42 * (1 << 20);
        let [told] = &warnings.judge(&sample(above, above), nobody)[..] else {
            panic!("one warning")
        };
        for part in ["4.04 GiB held, 4.00 GiB planned (step 7)", "\nhint: "] {
            assert!(told.contains(part), "{told}");
        }
        assert!(warnings.judge(&sample(above, above), nobody).is_empty());
    }

    #[test]
    fn above_the_budget_is_told_once_by_the_high_water_mark() {
        let mut warnings = Warnings::default();
        let mut over = sample(GIB, GIB);
        over.budget_bytes = Some(4 * GIB);
        over.process_peak_bytes = Some(4 * GIB);
        assert!(warnings.judge(&over, nobody).is_empty());
        over.process_peak_bytes = Some(5 * GIB);
        let [told] = &warnings.judge(&over, nobody)[..] else {
            panic!("one warning")
        };
        for part in ["5.00 GiB held, 4.00 GiB allowed (step 7)", "\nhint: "] {
            assert!(told.contains(part), "{told}");
        }
        assert!(warnings.judge(&over, nobody).is_empty());
    }

    #[test]
    fn others_that_fill_the_card_are_named_once() {
        let mut warnings = Warnings::default();
        // A GPU that was full from the beginning gives no warning: the plan accounts for it.
        assert!(warnings.judge(&sample(4 * GIB, 3 * GIB), nobody).is_empty());
        assert!(warnings.judge(&sample(8 * GIB, 3 * GIB), nobody).is_empty());
        let holder = |pid, name: &str, bytes| Holder {
            pid,
            name: name.to_owned(),
            bytes,
        };
        let who = || vec![holder(11, "python3", Some(6 * GIB)), holder(12, "", None)];
        let [told] = &warnings.judge(&sample(9 * GIB + GIB / 2, 3 * GIB), who)[..] else {
            panic!("one warning")
        };
        for part in [
            "95% full",
            "others hold 6.50 GiB",
            "1.00 GiB when the run began",
            "process 11 (python3) holds 6.00 GiB",
            "process 12 holds an unknown amount",
            "\nhint: ",
        ] {
            assert!(told.contains(part), "{told}");
        }
        assert!(
            warnings
                .judge(&sample(10 * GIB, 3 * GIB), nobody)
                .is_empty()
        );
    }

    #[test]
    fn a_full_card_without_growth_and_a_full_host_are_nobodys_business() {
        let mut warnings = Warnings::default();
        for used in [9 * GIB + GIB / 2, 9 * GIB + GIB / 2 + (1 << 20)] {
            assert!(warnings.judge(&sample(used, 3 * GIB), nobody).is_empty());
        }
        let mut warnings = Warnings::default();
        for used in [4 * GIB, 10 * GIB] {
            let host = MemorySample {
                device: Some("cpu".to_owned()),
                ..sample(used, 3 * GIB)
            };
            assert!(warnings.judge(&host, nobody).is_empty());
        }
    }
}
