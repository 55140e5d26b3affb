//! Memory against speed: what each budget buys.
//!
//! ```text
//! step time
//!   |*
//!   |  *
//!   |     *  knee: from here on memory buys less and less
//!   |             *
//!   |                            *          *
//!   +------------------------------------------> memory, by factors
//! ```

use crate::search::{Candidate, Choice};

/// Budgets that the curve is asked for.
const LEVELS: usize = 20;

/// Beyond this many times the budget nobody looks.
const MOST_BUDGETS: u64 = 16;

/// What is this close to the fastest is as fast: more memory buys nothing.
const AS_FAST: f64 = 1.01;

/// A knee is at least this share of the height or the width away from the straight line.
const LEAST_BEND: f64 = 0.1;

/// Predicted times within this are the same: what `plan` prints as +0%.
const SAME_TIME: f64 = 1.005;

/// A candidate: the least bytes that it takes on the device, its state in host memory, its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub bytes: u64,
    pub host_bytes: u64,
    pub seconds: f64,
}

/// Those of `points`, fastest first, that are as fast as one of them and have no more state in host memory: the smallest first, that one
/// among them.
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

/// Indices of points on the curve among these, fastest first: for evenly spaced budgets, by factors, the thriftiest of the fastest
/// that may fit.
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

/// Ascending in memory and descending in time: what another beats in both is left out, and what the chosen one ties with.
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

/// Which point of a curve is its knee: the one furthest below the line from its smallest to its fastest, memory by factors.
/// `None` where there is no bend to speak of.
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
