//! Verdicts on how much memory is held, and by whom.

use super::device::{DeviceLog, held, held_by_run};
use super::finding::{Finding, Severity, Symptom, first_at, place, share_of_device};
use super::speed::gpu_utilization;
use super::statistics::{median, quantile};
use crate::log::{Meaning, Sample};
use crate::words::{percent, show_bytes, thousands};

/// Fewest samples for a verdict on what is usual.
const FEWEST_SAMPLES: usize = 20;

/// Over the budget: the process held more than its budget, by the system's high-water mark if the log has it. A single sample
/// suffices.
pub(super) fn over_budget(log: &DeviceLog) -> Option<Finding> {
    let over = |sample: &Sample| -> Option<(f64, f64)> {
        let process = || sample.largest_of(&[Meaning::ProcessPeak, Meaning::Process]);
        Some(match log.limit {
            Some(limit) => (held_by_run(sample)?, limit),
            None => (process()?, sample.get(Meaning::Budget)?),
        })
    };
    let peaks = log.groups.iter().map(|group| &group.peak);
    let known = peaks.filter_map(|sample| Some((sample, over(sample)?)));
    let (sample, (held, budget)) =
        known
            .filter(|(_, (held, budget))| held > budget)
            .reduce(|most, next| {
                let excess = |(_, (held, budget)): (&Sample, (f64, f64))| held - budget;
                if excess(next) > excess(most) {
                    next
                } else {
                    most
                }
            })?;
    let whose = if log.limit.is_some() {
        "the --limit"
    } else {
        "its budget"
    };
    Some(over_budget_by(&format!(" {}", place(log, sample)), held, budget, whose).at(sample))
}

pub(super) fn over_budget_by(at: &str, held: f64, budget: f64, whose: &str) -> Finding {
    let message = format!(
        "held {}{at}: {} ({}) over {whose} of {}",
        show_bytes(held),
        show_bytes(held - budget),
        percent((held - budget) / budget),
        show_bytes(budget)
    );
    Finding::new(Symptom::OverBudget, Severity::Problem, message)
        .with("peak_bytes", held)
        .with("budget_bytes", budget)
}

/// Near the limit: the needed memory leaves too little room for one large batch. A planned run within its plan is not reported.
pub(super) fn near_limit(log: &DeviceLog) -> Option<Finding> {
    const NEAR: f64 = 0.95;
    const TOO_NEAR: f64 = 0.985;
    /// Tolerance for the driver's rounding.
    const WITHIN_PLAN: f64 = 1.01;
    let total = log.total()?;
    let needed = |sample: &Sample| match log.limit {
        Some(_) => held_by_run(sample),
        None => needed(sample),
    };
    let shares = log
        .training()
        .filter_map(|group| Some(needed(&group.peak)? / total));
    let share = quantile(shares.collect(), 0.99).min(1.0);
    let planned = log.most(Meaning::Planned).zip(log.most(Meaning::Process));
    let is_planned = planned.is_some_and(|(planned, most)| most <= planned * WITHIN_PLAN);
    if share < NEAR || (is_planned && log.limit.is_none()) || over_budget(log).is_some() {
        return None;
    }
    let first = log.first_full();
    let message = format!(
        "{} of {} is in use{}: {} left",
        percent(share),
        show_bytes(total),
        first_at(log, first),
        show_bytes(total * (1.0 - share))
    );
    let severity = Severity::problem_if(share >= TOO_NEAR);
    let finding = Finding::new(Symptom::NearLimit, severity, message);
    let finding = finding.at_step(first.and_then(Sample::step));
    Some(finding.with("used_share", share).with("total_bytes", total))
}

/// Memory in use without what a caching allocator would free.
fn needed(sample: &Sample) -> Option<f64> {
    let Some(allocated) = sample.largest_of(&[Meaning::Allocated, Meaning::AllocatedPeak]) else {
        return held(sample);
    };
    let others = sample.get(Meaning::Used).zip(sample.get(Meaning::Reserved));
    Some(allocated + others.map_or(0.0, |(used, reserved)| (used - reserved).max(0.0)))
}

/// Memory of other processes: the used device memory without the run's own.
pub(super) fn other_processes(log: &DeviceLog) -> Option<Finding> {
    /// The driver's own share is smaller.
    const MIN_SHARE: f64 = 0.05;
    const MIN_BYTES: f64 = 1e9;
    const FEWEST: usize = 5;
    const NEARLY_FULL: f64 = 0.95;
    let levels = log.peaks(Meaning::Others);
    let before = *levels.first()?;
    // A short peak can end a run; the quantile ignores one outlier in a hundred samples.
    let most = quantile(levels.clone(), 0.99);
    let is_much = most >= log.total().map_or(MIN_BYTES, |total| MIN_SHARE * total);
    // A CPU always runs other processes, and a plan covers only the memory of this one.
    if levels.len() < FEWEST || log.name == "cpu" || !is_much {
        return None;
    }
    let has_come = before < most / 2.0;
    let is_late = |sample: &Sample| sample.get(Meaning::Others) >= Some((before + most) / 2.0);
    let came = log.groups.iter().find(|group| is_late(&group.peak));
    let step = came
        .filter(|_| has_come)
        .and_then(|group| group.peak.step());
    let since = match (has_come, step) {
        (false, _) => ", from the beginning".to_owned(),
        (true, None) => format!("; at first it was {}", show_bytes(before)),
        (true, Some(step)) => {
            let (step, before) = (thousands(step), show_bytes(before));
            format!(", from about step {step}; before it was {before}")
        }
    };
    let message = format!(
        "other processes hold {}{}{since}",
        show_bytes(most),
        share_of_device(log, most)
    );
    let severity = Severity::problem_if(quantile(log.held_shares(), 0.99) >= NEARLY_FULL);
    let finding = Finding::new(Symptom::OtherProcesses, severity, message).at_step(step);
    let finding = finding.with("others_bytes", most);
    Some(finding.with("others_at_first_bytes", before))
}

/// Fragmentation: an allocator that holds far more than was ever in use at once.
///
/// Reserved memory must be compared with the *peak* of allocated memory: between two steps, when most scripts sample, activations
/// are free and the allocator rightly keeps their memory. Without a peak column, samples that vary were taken within steps, and
/// their maximum is the peak. Constant samples were not, and then only steadily growing reserved memory is evidence.
pub(super) fn fragmentation(log: &DeviceLog, notes: &mut Vec<String>) -> Option<Finding> {
    /// Smallest gap, as a share of reserved memory.
    const MIN_GAP: f64 = 0.25;
    const MIN_BYTES: f64 = 256e6;
    const MIN_SHARE: f64 = 0.02;
    /// Mean relative change between samples that shows sampling within steps.
    const MOVES_ABOUT: f64 = 0.01;
    /// Relative growth of reserved memory from the second quarter to the last.
    const MIN_GROWTH: f64 = 0.1;
    let (reserved, allocated) = (log.means(Meaning::Reserved), log.means(Meaning::Allocated));
    let has_peak = log.most(Meaning::AllocatedPeak).is_some();
    let peaks = [Meaning::Allocated, Meaning::AllocatedPeak].map(|channel| log.most(channel));
    let peak = peaks.into_iter().flatten().reduce(f64::max)?;
    if reserved.len() < FEWEST_SAMPLES {
        return None;
    }
    let quarters = |values: &[f64]| {
        let quarter = values.len() / 4;
        let early = median(values[quarter..2 * quarter].to_vec());
        (early, median(values[values.len() - quarter..].to_vec()))
    };
    let (early, late) = quarters(&reserved);
    let gap = late - peak;
    let min_bytes = log.total().map_or(MIN_BYTES, |total| MIN_SHARE * total);
    if gap < MIN_GAP * late || gap < min_bytes {
        return None;
    }
    let training: Vec<f64> = log
        .training()
        .filter_map(|group| group.mean.get(Meaning::Allocated))
        .collect();
    let change = |pair: &[f64]| (pair[1] - pair[0]).abs() / pair[0].max(pair[1]).max(1.0);
    let changes: f64 = training.windows(2).map(change).sum();
    let moves_about = changes >= MOVES_ABOUT * training.len() as f64;
    let (allocated_early, allocated_late) = quarters(&allocated);
    let keeps_growing = late >= (1.0 + MIN_GROWTH) * early
        && allocated_late - allocated_early < MIN_GROWTH / 2.0 * late;
    if !(has_peak || moves_about || keeps_growing) {
        notes.push(format!(
            "{} is reserved and {} allocated at the moments that were logged; log max_memory_allocated() too, to tell \
             fragmentation from activations that are free between steps",
            show_bytes(late),
            show_bytes(peak)
        ));
        return None;
    }
    let message = format!(
        "{} is reserved{} while at most {} was allocated: {} of it lies in holes",
        show_bytes(late),
        share_of_device(log, late),
        show_bytes(peak),
        percent(gap / late)
    );
    let severity = Severity::problem_if(log.total().is_some_and(|total| late >= 0.9 * total));
    Some(
        Finding::new(Symptom::Fragmentation, severity, message)
            .with("reserved_bytes", late)
            .with("peak_allocated_bytes", peak)
            .with("gap_share", gap / late),
    )
}

/// Underused: most memory is free, and the GPU idles between small batches. A run that waits for data is another finding, because
/// a larger batch does not make data arrive faster.
pub(super) fn underused(log: &DeviceLog) -> Option<Finding> {
    /// Share of the device below which memory is underused, if the GPU is busy for less than `BUSY` percent of the time.
    const LITTLE: f64 = 0.5;
    /// The same if the utilization is unknown.
    const VERY_LITTLE: f64 = 0.25;
    const BUSY: f64 = 70.0;
    /// Share of the device that a larger batch may fill.
    const GOAL: f64 = 0.85;
    let total = log.total()?;
    let shares = log.held_shares();
    // A larger batch does not make a CPU faster.
    if shares.len() < FEWEST_SAMPLES || log.name == "cpu" {
        return None;
    }
    // The peak limits the batch size. The quantile ignores a single outlier of samples from outside.
    let peaks = [Meaning::AllocatedPeak, Meaning::Reserved].map(|channel| log.most(channel));
    let peak_shares = peaks.iter().flatten().map(|peak| peak / total);
    let share = peak_shares.fold(quantile(shares, 0.995), f64::max);
    let utilization = gpu_utilization(log);
    let is_underused = match utilization {
        Some(utilization) => share < LITTLE && utilization < BUSY,
        // With nothing loaded, nothing ran.
        None => share < VERY_LITTLE && log.most(Meaning::Utilization).is_none(),
    };
    if !is_underused || super::speed::waiting_for_data(log).is_some() {
        return None;
    }
    let busy = utilization.map_or(String::new(), |utilization| {
        format!(", and the GPU is busy {utilization:.0}% of the time")
    });
    let message = format!(
        "at most {} of {} is used{busy}",
        percent(share),
        show_bytes(total)
    );
    let finding = Finding::new(Symptom::Underused, Severity::Warning, message);
    let mut finding = finding.with("used_share", share).with("total_bytes", total);
    if let Some(utilization) = utilization {
        finding = finding.with("gpu_utilization", utilization);
    }
    // Between steps a script holds little; only a peak shows how much larger a batch may be.
    let outside = [Meaning::Process, Meaning::Used].map(|channel| log.most(channel));
    if peaks.iter().chain(&outside).all(Option::is_none) {
        return Some(finding.advising(
            "the log says what is allocated between steps alone, no peak: add torch.cuda.max_memory_allocated() to it before a larger batch",
        ));
    }
    // Assumes that all memory grows with the batch, although weights do not: the safe side.
    let factor = (GOAL / share).clamp(1.0, 64.0);
    let factor = 2f64.powf(factor.log2().floor()).max(2.0);
    let fits = percent(share * factor);
    let finding = finding.with("batch_size_factor", factor);
    let batch = log
        .groups
        .iter()
        .rev()
        .find_map(|group| group.mean.get(Meaning::BatchSize));
    Some(match batch {
        Some(batch) => finding.with("suggested_batch_size", batch * factor).advising(format!(
            "try a batch size of {:.0} instead of {batch:.0}, with less accumulation: it should fit in {fits}",
            batch * factor
        )),
        None => finding.advising(format!(
            "where it does not wait for data, try {factor:.0} times the batch size, with less accumulation: it should fit in {fits} of the device"
        )),
    })
}
