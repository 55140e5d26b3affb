//! Speed as a function of memory.
//!
//! ```text
//! step time
//!   |*
//!   |  *
//!   |     *  knee: from here on more memory gains less and less
//!   |             *
//!   |                            *          *
//!   +------------------------------------------> memory, by factors
//! ```

use crate::candidate::{Candidate, Choice};

/// Number of budgets on the curve.
const LEVELS: usize = 20;

/// Largest budget on the curve, as a multiple of the run's budget.
const MOST_BUDGETS: u64 = 16;

/// Times within this factor of the fastest count as equal: more memory gains nothing.
const AS_FAST: f64 = 1.01;

/// Smallest distance of a knee from the straight line, as a share of the height or the width.
const LEAST_BEND: f64 = 0.1;

/// Predicted times within this factor are equal: `plan` prints them as +0%.
const SAME_TIME: f64 = 1.005;

/// A candidate's lower bound of device memory, its state in host memory, and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub bytes: u64,
    pub host_bytes: u64,
    pub seconds: f64,
}

/// Candidates as fast as `fastest` with no more state in host memory, smallest first; includes `fastest`. `points` are sorted
/// fastest first.
pub(crate) fn thriftiest(points: &[Point], fastest: usize) -> Vec<usize> {
    let Point {
        host_bytes,
        seconds,
        ..
    } = points[fastest];
    let mut found: Vec<usize> = (fastest..points.len())
        .take_while(|&index| points[index].seconds <= SAME_TIME * seconds)
        .filter(|&index| points[index].host_bytes <= host_bytes)
        .collect();
    found.sort_by_key(|&index| points[index].bytes);
    found
}

/// Indices of the points on the curve, fastest first: for budgets in a geometric series, the smallest of the fastest
/// candidates that may fit.
pub(crate) fn levels(points: &[Point], budget_bytes: u64) -> Vec<usize> {
    let Some(smallest) = points.iter().map(|point| point.bytes).min() else {
        return Vec::new();
    };
    let most = match budget_bytes {
        u64::MAX => u64::MAX,
        budget => budget.max(smallest).saturating_mul(MOST_BUDGETS),
    };
    let within = |limit: u64| {
        let fastest = points.iter().position(|point| point.bytes <= limit)?;
        let as_fast = thriftiest(points, fastest);
        as_fast
            .into_iter()
            .find(|&index| points[index].bytes <= limit)
    };
    let Some(fastest) = within(most) else {
        return Vec::new();
    };
    let slowest = AS_FAST * points[fastest].seconds;
    let as_fast = points.iter().filter(|point| point.seconds <= slowest);
    let largest = as_fast.map(|point| point.bytes).min().unwrap_or(smallest);
    let ratio = largest as f64 / smallest.max(1) as f64;
    let mut found: Vec<usize> = (0..=LEVELS)
        .filter_map(|level| {
            let limit = match level {
                0 => smallest,
                LEVELS => largest,
                level => (smallest as f64 * ratio.powf(level as f64 / LEVELS as f64)) as u64,
            };
            within(limit)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Sorts a curve ascending in memory and descending in time. Candidates that are worse than another in both are left out, as
/// are ties with the chosen one.
pub fn without_dominated(mut curve: Vec<Candidate>, chosen: &Choice) -> Vec<Candidate> {
    let known = curve.iter().find(|one| one.choice == *chosen);
    let known = known.map(|one| (one.process_bytes, one.step_ms));
    curve.retain(|one| {
        let beats = |(bytes, ms): (u64, f64)| {
            let is_smaller = one.process_bytes < bytes && one.step_ms > ms;
            let is_faster = one.process_bytes > bytes && one.step_ms < ms;
            is_smaller || is_faster
        };
        one.choice == *chosen || known.is_none_or(beats)
    });
    curve.sort_by(|a, b| {
        a.process_bytes
            .cmp(&b.process_bytes)
            .then(a.step_ms.total_cmp(&b.step_ms))
    });
    let mut fastest = f64::INFINITY;
    curve.retain(|one| {
        let is_faster = one.step_ms < fastest;
        fastest = fastest.min(one.step_ms);
        is_faster
    });
    curve
}

/// Index of the knee of a curve: the point furthest below the line from its smallest to its fastest candidate, with memory on
/// a logarithmic scale. `None` if the bend is too small.
pub fn knee(curve: &[Candidate]) -> Option<usize> {
    let (first, last) = (curve.first()?, curve.last()?);
    let width = (last.process_bytes as f64 / first.process_bytes as f64).ln();
    let height = first.step_ms - last.step_ms;
    let below = |one: &Candidate| {
        let x = (one.process_bytes as f64 / first.process_bytes as f64).ln() / width;
        let y = (one.step_ms - last.step_ms) / height;
        1.0 - x - y
    };
    let depths = curve.iter().map(below).enumerate();
    let (index, depth) = depths
        .filter(|(_, depth)| depth.is_finite())
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    (depth > LEAST_BEND).then_some(index)
}
