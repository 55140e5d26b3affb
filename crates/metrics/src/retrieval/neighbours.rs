//! The nearest gallery items of each query, in exact order.
//!
//! Each query keeps its best items so far, and the score of the last of them is its threshold: the first product lists every item that
//! may be above it, f64 scores those items, and items that f64 cannot order are compared without rounding.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering as Memory};

use rayon::prelude::*;

use super::exact_comparison::{ExactComparison, RowScratch, Score};
use super::feature_scan;
use super::tiles::{RowsOf, ScaledRows, ScoreTile, Tiles};
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
    let sides = RowsOf::both(job, &scans);
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
        let mut gallery = ScaledRows::new(items, job.gallery.dimension());
        gallery.fill_parallel(&sides[1], first, |_| NO_THRESHOLD);
        let blocks = best.par_chunks_mut(count * tiles.queries).enumerate();
        blocks.for_each_init(
            || Thread {
                comparison: &comparison,
                side: &sides[0],
                queries: ScaledRows::new(tiles.queries, job.queries.dimension()),
                tile: ScoreTile::default(),
                scratch: RowScratch::default(),
            },
            |thread, (block, best)| {
                if stopped.load(Memory::Relaxed) {
                    return;
                }
                thread.block(block * tiles.queries, best, count, (&gallery, first));
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
    comparison: &'a ExactComparison<'a>,
    side: &'a RowsOf<'a>,
    queries: ScaledRows,
    tile: ScoreTile,
    scratch: RowScratch,
}

impl Thread<'_> {
    /// Searches a part of the gallery, from item `first` on, for a block of queries, each with `count` entries of `best`.
    fn block(
        &mut self,
        first_query: usize,
        best: &mut [Near],
        count: usize,
        (gallery, first): (&ScaledRows, usize),
    ) {
        let last = |best: &[Near], query: usize| best[(query + 1) * count - 1].score;
        let queries = first_query..first_query + best.len() / count;
        let threshold = |row| last(best, row - first_query);
        self.queries.fill(self.side, queries, threshold);
        // With an infinite upper bound nothing is counted, and every item that is not below the threshold is listed.
        self.queries.high.fill(f32::INFINITY);
        for columns in gallery.panels() {
            self.tile.compare(&self.queries, gallery, columns.clone());
            for at in 0..self.tile.open.len() {
                let open = self.tile.open[at];
                let query = open.row as usize;
                let item = columns.start + open.column as usize;
                // The threshold has risen since the comparison.
                let error = self.queries.error(query, gallery, item);
                let low = self.queries.low[query];
                if !self.tile.may_be_above(&open, low, error) {
                    continue;
                }
                let best = &mut best[query * count..][..count];
                self.offer(first_query + query, (first + item) as u32, best);
                self.queries.low[query] = self.side.low(best[count - 1].score);
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
