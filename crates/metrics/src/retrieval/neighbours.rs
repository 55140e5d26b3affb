//! The nearest gallery items of each query, in exact order.
//!
//! Each query keeps its best items so far, and the score of the last of them is its threshold: the first product lists every item that
//! may be above it, f64 scores those items, and items that f64 cannot order are compared without rounding.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering as Memory};

use holdall_device::cpu::digits::{self, COLUMNS, Counts, Kernel, ROWS};
use rayon::prelude::*;

use super::count::{Packed, Packing, Tiles, below, pack_parallel, relative_bound};
use super::exact_comparison::{ExactComparison, RowScratch, Score};
use super::feature_scan::{self, FeatureScan};
use super::{Go, Job, Neighbours, Progress, RetrievalError, Side};

/// A candidate neighbour of a query.
#[derive(Clone, Copy)]
struct Near {
    score: Score,
    item: u32,
}

/// Memory of a neighbour during the search.
pub const BYTES: usize = size_of::<Near>();

/// Threshold of the gallery rows: all scores are below it, so only the queries' thresholds list items.
const NO_THRESHOLD: Score = Score {
    value: f64::INFINITY,
    error: 0.0,
};

pub fn neighbours(
    job: &Job<'_>,
    tiles: Tiles,
    count: usize,
    go_on: &mut Go<'_>,
) -> Result<Neighbours, RetrievalError> {
    let scans = [
        feature_scan::scan(job.queries, Side::Query)?,
        feature_scan::scan(job.gallery, Side::Gallery)?,
    ];
    let comparison = ExactComparison::new(job, feature_scan::sums(&scans[0], &scans[1]));
    let [num_queries, num_gallery] = [job.queries.num_rows(), job.gallery.num_rows()];
    let count = count.min(num_gallery);
    let nowhere = Near {
        score: Score {
            value: f64::NEG_INFINITY,
            error: 0.0,
        },
        item: u32::MAX,
    };
    let mut best = vec![nowhere; count * num_queries];
    let total = job.num_scores();
    let (stopped, teller) = (AtomicBool::new(false), Mutex::new((0, go_on)));
    for first in (0..num_gallery).step_by(tiles.gallery) {
        let items = tiles.gallery.min(num_gallery - first);
        let side = Packing {
            features: job.gallery,
            scan: &scans[1],
            other: &scans[0],
        };
        let gallery = pack_parallel(&side, first, items, |_| NO_THRESHOLD);
        let blocks = best.par_chunks_mut(count * tiles.queries).enumerate();
        blocks.for_each_init(
            || Thread {
                job,
                comparison: &comparison,
                scans: &scans,
                queries: Packed::empty(tiles.queries, job.queries.dimension()),
                counts: Counts::default(),
                scratch: RowScratch::default(),
            },
            |thread, (block, best)| {
                if stopped.load(Memory::Relaxed) {
                    return;
                }
                thread.block(block * tiles.queries, best, count, (&gallery, first, items));
                let pairs = (best.len() / count * items) as u64;
                let mut teller = teller
                    .lock()
                    .expect("never poisoned: the caller's word does not panic");
                let (done, go_on) = &mut *teller;
                *done += pairs;
                if !go_on(Progress { done: *done, total }) {
                    stopped.store(true, Memory::Relaxed);
                }
            },
        );
        if stopped.load(Memory::Relaxed) {
            return Err(RetrievalError::Stopped);
        }
    }
    Ok(Neighbours {
        count,
        items: best.iter().map(|near| near.item).collect(),
        scores: best.iter().map(|near| near.score.value as f32).collect(),
    })
}

struct Thread<'a> {
    job: &'a Job<'a>,
    comparison: &'a ExactComparison<'a>,
    scans: &'a [FeatureScan; 2],
    queries: Packed<ROWS>,
    counts: Counts,
    scratch: RowScratch,
}

impl Thread<'_> {
    /// Searches the packed part of the gallery for a block of queries, each with `count` entries of `best`.
    fn block(
        &mut self,
        first_query: usize,
        best: &mut [Near],
        count: usize,
        (gallery, first, items): (&Packed<COLUMNS>, usize, usize),
    ) {
        let side = Packing {
            features: self.job.queries,
            scan: &self.scans[0],
            other: &self.scans[1],
        };
        let panels = (best.len() / count).div_ceil(ROWS);
        let last = |best: &[Near], query: usize| best[(query + 1) * count - 1].score;
        self.queries.fill(
            &side,
            (first_query, panels),
            |row| last(best, row - first_query),
            |left_out| relative_bound(left_out, gallery.left_out()),
        );
        for panel in 0..panels {
            // With an infinite upper bound the kernel counts nothing, and lists every item that is not below the threshold.
            self.queries.lines_mut(panel).high = [f32::INFINITY; ROWS];
        }
        for item_panel in 0..items.div_ceil(COLUMNS) {
            for panel in 0..panels {
                digits::count(
                    Kernel::best(),
                    self.queries.panel(panel),
                    gallery.panel(item_panel),
                    &mut self.counts,
                );
                let unsure = std::mem::take(&mut self.counts.unsure);
                for open in &unsure {
                    let query = panel * ROWS + usize::from(open.row);
                    let item = first + item_panel * COLUMNS + usize::from(open.column);
                    let best = &mut best[query * count..][..count];
                    self.offer(first_query + query, item as u32, best);
                    let lines = self.queries.lines_mut(panel);
                    let score = best[count - 1].score;
                    if score.value.is_finite() {
                        // The threshold in units of the digits, like the packed rows.
                        let row = usize::from(open.row);
                        let unit = lines.unit[row];
                        let unit = f64::from(unit)
                            * 2f64.powi(self.scans[0].exponent + self.scans[1].exponent);
                        lines.low[row] = below((score.value - score.error) / unit);
                    }
                }
                self.counts.unsure = unsure;
            }
        }
    }

    /// Inserts an item into the sorted list of the best. Items arrive in order: among equal scores, an earlier item comes first.
    fn offer(&mut self, query: usize, item: u32, best: &mut [Near]) {
        let pair = [query, item as usize];
        let score = self.comparison.score(pair, &mut self.scratch);
        let mut place = best.len();
        while place > 0 {
            let other = best[place - 1];
            let order = match other.item {
                u32::MAX => Ordering::Greater,
                _ => {
                    let order = self.comparison.compare(score, other.score);
                    order.unwrap_or_else(|| {
                        let other = [query, other.item as usize];
                        self.comparison.exactly(pair, other, &mut self.scratch)
                    })
                }
            };
            if order != Ordering::Greater {
                break;
            }
            place -= 1;
        }
        if place < best.len() {
            best[place..].rotate_right(1);
            best[place] = Near { score, item };
        }
    }
}
