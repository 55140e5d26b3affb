//! Counts on the CPU how many items score above each threshold.
//!
//! As much of the gallery as memory allows is read at once; then threads take blocks of queries and count tile by tile. Pairs that
//! the product in f32 leaves open are decided in f64, and those still open without rounding.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering as Memory};

use rayon::prelude::*;

use super::best_positives::BestPositives;
use super::exact_comparison::{ExactComparison, RowScratch};
use super::feature_scan::{FeatureScan, f32_sums_are_exact};
use super::tiles::{self, RowsOf, ScaledRows, ScoreTile, Tiles};
use super::{Decided, Go, Job, Progress, RetrievalError};

/// Counts of one item, positives included. Integers: the order of additions does not matter.
#[derive(Debug, Default)]
pub struct Count {
    above: AtomicU32,
    level: AtomicU32,
}

impl Count {
    /// Items with a higher score.
    pub fn above(&self) -> u32 {
        self.above.load(Memory::Relaxed)
    }

    /// Items with the same score.
    pub fn level(&self) -> u32 {
        self.level.load(Memory::Relaxed)
    }

    /// One zero count per item.
    pub fn zeros(items: usize) -> Vec<Count> {
        (0..items).map(|_| Count::default()).collect()
    }

    /// Adds counts from elsewhere.
    pub fn add_many(&self, above: u32, level: u32) {
        self.above.fetch_add(above, Memory::Relaxed);
        self.level.fetch_add(level, Memory::Relaxed);
    }

    /// Counts one item by its order relative to the threshold.
    pub fn add(&self, order: Ordering) {
        match order {
            Ordering::Greater => self.above.fetch_add(1, Memory::Relaxed),
            Ordering::Equal => self.level.fetch_add(1, Memory::Relaxed),
            Ordering::Less => 0,
        };
    }

    fn add_above(&self, above: u32) {
        if above > 0 {
            self.above.fetch_add(above, Memory::Relaxed);
        }
    }
}

/// Thresholds and counts of one side.
pub struct Direction<'a> {
    pub thresholds: &'a BestPositives,
    pub counts: &'a [Count],
}

/// State shared by the threads.
pub struct Counting<'a> {
    pub job: &'a Job<'a>,
    pub comparison: &'a ExactComparison<'a>,
    pub scans: [FeatureScan; 2],
    pub to_gallery: Direction<'a>,
    pub to_query: Direction<'a>,
    pub tiles: Tiles,
}

/// Capacity of a thread's list of open pairs; a full list is decided on the spot.
const PENDING: usize = 1 << 13;

/// Memory of a thread's block, products and list.
pub fn thread_bytes(dimension: usize, queries: usize) -> usize {
    tiles::thread_bytes(dimension, queries) + PENDING * size_of::<Pending>()
}

impl Counting<'_> {
    fn sides(&self) -> [RowsOf<'_>; 2] {
        RowsOf::both(self.job, &self.scans)
    }

    /// Runs the whole count.
    pub fn run(&self, go_on: &mut Go<'_>) -> Result<Decided, RetrievalError> {
        let [num_queries, num_gallery] = [self.job.queries.num_rows(), self.job.gallery.num_rows()];
        let total = num_queries as u64 * num_gallery as u64;
        let (stopped, teller) = (AtomicBool::new(false), Mutex::new((0, go_on)));
        let tallies = [const { AtomicU64::new(0) }; 2];
        for first in (0..num_gallery).step_by(self.tiles.gallery) {
            let items = self.tiles.gallery.min(num_gallery - first);
            let mut gallery = ScaledRows::new(items, self.job.gallery.dimension());
            let threshold = |row| self.to_query.thresholds.score(row);
            gallery.fill_parallel(&self.sides()[1], first, threshold);
            let blocks = (0..num_queries.div_ceil(self.tiles.queries)).into_par_iter();
            blocks.for_each_init(
                || Thread::new(self),
                |thread, block| {
                    if stopped.load(Memory::Relaxed) {
                        return;
                    }
                    let queries = block * self.tiles.queries;
                    let queries = queries..(queries + self.tiles.queries).min(num_queries);
                    let pairs = (queries.len() * items) as u64;
                    thread.block(queries, &gallery, first);
                    for (tally, decided) in tallies.iter().zip(&mut thread.decided) {
                        tally.fetch_add(std::mem::take(decided), Memory::Relaxed);
                    }
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
        let [in_f64, exactly] = tallies.map(AtomicU64::into_inner);
        Ok(Decided {
            at_once: 2 * total - in_f64,
            in_f64: in_f64 - exactly,
            exactly,
        })
    }
}

/// A pair that is still open.
#[derive(Clone, Copy)]
struct Pending {
    query: u32,
    item: u32,
    of_query: bool,
    of_item: bool,
}

/// Buffers of a thread, reused between blocks.
struct Thread<'a, 'b> {
    counting: &'b Counting<'a>,
    queries: ScaledRows,
    tile: ScoreTile,
    pending: Vec<Pending>,
    scratch: RowScratch,
    exact: bool,
    /// Comparisons in f64, and how many of them were repeated without rounding.
    decided: [u64; 2],
}

impl<'a, 'b> Thread<'a, 'b> {
    fn new(counting: &'b Counting<'a>) -> Self {
        let dimension = counting.job.queries.dimension();
        let [queries, gallery] = &counting.scans;
        Thread {
            counting,
            queries: ScaledRows::new(counting.tiles.queries, dimension),
            tile: ScoreTile::default(),
            pending: Vec::with_capacity(PENDING),
            scratch: RowScratch::default(),
            exact: f32_sums_are_exact(queries, gallery),
            decided: [0; 2],
        }
    }

    /// Counts a block of queries against a part of the gallery, which begins with item `first`.
    fn block(&mut self, queries: std::ops::Range<usize>, gallery: &ScaledRows, first: usize) {
        let Counting {
            to_gallery,
            to_query,
            ..
        } = self.counting;
        let threshold = |row| to_gallery.thresholds.score(row);
        self.queries
            .fill(&self.counting.sides()[0], queries.clone(), threshold);
        let mut above = vec![0; queries.len()];
        for columns in gallery.panels() {
            self.tile.compare(&self.queries, gallery, columns.clone());
            for (sum, above) in above.iter_mut().zip(&self.tile.above_row) {
                *sum += above;
            }
            let counts = &to_query.counts[first + columns.start..];
            for (count, above) in counts.iter().zip(&self.tile.above_column) {
                count.add_above(*above);
            }
            for at in 0..self.tile.open.len() {
                let open = self.tile.open[at];
                self.pending.push(Pending {
                    query: queries.start as u32 + open.row,
                    item: (first + columns.start) as u32 + open.column,
                    of_query: open.of_row,
                    of_item: open.of_column,
                });
                if self.pending.len() == PENDING {
                    self.decide();
                }
            }
        }
        self.decide();
        for (count, above) in to_gallery.counts[queries].iter().zip(above) {
            count.add_above(above);
        }
    }

    /// Decides all open pairs.
    fn decide(&mut self) {
        let Counting {
            comparison,
            to_gallery,
            to_query,
            ..
        } = self.counting;
        for pending in &self.pending {
            let pair = [pending.query as usize, pending.item as usize];
            let directions = [
                (to_gallery, pair[0], pending.of_query),
                (to_query, pair[1], pending.of_item),
            ];
            if self.exact {
                for (direction, own, _) in directions.into_iter().filter(|(.., open)| *open) {
                    direction.counts[own].add(Ordering::Equal);
                }
                continue;
            }
            let score = comparison.score(pair, &mut self.scratch);
            for (direction, own, _) in directions.into_iter().filter(|(.., open)| *open) {
                self.decided[0] += 1;
                let order = comparison.compare(score, direction.thresholds.score(own));
                let order = order.unwrap_or_else(|| {
                    self.decided[1] += 1;
                    comparison.exactly(pair, direction.thresholds.pair(own), &mut self.scratch)
                });
                direction.counts[own].add(order);
            }
        }
        self.pending.clear();
    }
}
