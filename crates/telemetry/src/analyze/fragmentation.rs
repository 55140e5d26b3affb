//! Fragmentation: an allocator that holds far more than was ever in use at once.
//!
//! Reserved memory must be compared with the *peak* of allocated memory: between two steps, when most scripts sample, activations
//! are free and the allocator rightly keeps their memory. Without a peak column, samples that vary were taken within steps, and
//! their maximum is the peak. Constant samples were not, and then only steadily growing reserved memory is evidence.

use super::device::DeviceLog;
use super::finding::{Finding, Severity, Symptom, share_of_device};
use super::series::Stat;
use super::trend::median;
use crate::log::Meaning;
use crate::words::{percent, show_bytes};

/// Smallest gap, as a share of reserved memory.
const LEAST_GAP: f64 = 0.25;
const LEAST_BYTES: f64 = 256e6;
const LEAST_SHARE: f64 = 0.02;
const FEWEST_SAMPLES: u64 = 20;
/// Mean relative change between samples that shows sampling within steps.
const MOVES_ABOUT: f64 = 0.01;
/// Relative growth of reserved memory from the second quarter to the last.
const LEAST_GROWTH: f64 = 0.1;

pub(super) fn find(log: &DeviceLog, notes: &mut Vec<String>) -> Option<Finding> {
    let all = &log.memory.all;
    let num_both = all.count(Meaning::Reserved).min(
        all.count(Meaning::Allocated)
            .max(all.count(Meaning::AllocatedPeak)),
    );
    if num_both < FEWEST_SAMPLES {
        return None;
    }
    let reserved: Vec<&Stat> = all.stats(Meaning::Reserved).collect();
    let quarter = reserved.len().div_ceil(4);
    let late = means(&reserved[reserved.len() - quarter..]);
    let early =
        means(&reserved[quarter.min(reserved.len() - 1)..(2 * quarter).min(reserved.len())]);
    let has_peak = all.count(Meaning::AllocatedPeak) > 0;
    let peak = [Meaning::Allocated, Meaning::AllocatedPeak]
        .into_iter()
        .filter_map(|channel| log.memory.most(channel))
        .fold(0.0, f64::max);
    let gap = late - peak;
    let least = log.total.map_or(LEAST_BYTES, |total| LEAST_SHARE * total);
    if gap < LEAST_GAP * late || gap < least {
        return None;
    }
    let moves_about = log
        .memory
        .allocated_changes
        .of(FEWEST_SAMPLES)
        .is_some_and(|change| change >= MOVES_ABOUT);
    let keeps_growing =
        late >= (1.0 + LEAST_GROWTH) * early && allocated_growth(log) < LEAST_GROWTH / 2.0 * late;
    if !(has_peak || moves_about || keeps_growing) {
        notes.push(format!(
            "{} is reserved and {} allocated at the moments that were logged; log max_memory_allocated() too, to tell \
             fragmentation from activations that are free between steps",
            show_bytes(late),
            show_bytes(peak)
        ));
        return None;
    }
    let severity = Severity::problem_if(log.total.is_some_and(|total| late >= 0.9 * total));
    let message = format!(
        "{} is reserved{} while at most {} was allocated: {} of it lies in holes",
        show_bytes(late),
        share_of_device(log, late),
        show_bytes(peak),
        percent(gap / late)
    );
    let advice = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and shapes that do not change: pad to a few lengths, drop odd last batches";
    Some(
        Finding::new(Symptom::Fragmentation, severity, message, advice)
            .with("reserved_bytes", late)
            .with("peak_allocated_bytes", peak)
            .with("gap_share", gap / late),
    )
}

fn means(stats: &[&Stat]) -> f64 {
    median(stats.iter().map(|stat| stat.mean()).collect())
}

/// Growth of allocated memory from the second quarter to the last, in bytes.
fn allocated_growth(log: &DeviceLog) -> f64 {
    let stats: Vec<&Stat> = log.memory.all.stats(Meaning::Allocated).collect();
    let quarter = stats.len() / 4;
    if quarter == 0 {
        return 0.0;
    }
    means(&stats[stats.len() - quarter..]) - means(&stats[quarter..2 * quarter])
}
