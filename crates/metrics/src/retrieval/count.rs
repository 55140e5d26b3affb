//! Counts on the CPU how many items score above each threshold.
//!
//! The gallery is split into digits and packed, as much of it as memory allows; then threads take blocks of queries, pack
//! them too, and count tile by tile. Pairs that the first product leaves open are decided in f64, and those still open
//! without rounding. A thread's list of open pairs is bounded: a full list is decided on the spot.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering as Memory};

use holdall_device::cpu::digits::{self, COLUMNS, Counts, Kernel, Lines, ROWS};
use rayon::prelude::*;

use super::best_positives::BestPositives;
use super::exact_comparison::{ExactComparison, RowScratch, Score};
use super::feature_scan::{FeatureScan, products_are_exact};
use super::{Decided, Go, Job, Progress, RetrievalError};
use crate::features::Features;

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
    pub kernel: Kernel,
}

/// Numbers of rows packed at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Queries per block, a multiple of [`ROWS`].
    pub queries: usize,
    /// Gallery items packed at once, a multiple of [`COLUMNS`].
    pub gallery: usize,
}

/// Capacity of a thread's list of open pairs.
const PENDING: usize = 1 << 13;

/// Upper bound of the effect of rounding to f32 on a product, a unit or a bound, relative to the norms of both rows.
const ROUNDING: f64 = 1.0 / (1u64 << 21) as f64;

/// Memory of a packed row.
pub fn line_bytes(dimension: usize) -> usize {
    dimension.next_multiple_of(2) * size_of::<i16>() + size_of::<Lines<1>>()
}

/// Memory of a thread's block and list.
pub fn thread_bytes(dimension: usize, queries: usize) -> usize {
    queries * line_bytes(dimension)
        + PENDING * size_of::<Pending>()
        + 5 * dimension * size_of::<f32>()
}

/// Rows of one side, packed for the kernel.
pub struct Packed<const N: usize> {
    digits: Vec<i16>,
    lines: Vec<Lines<N>>,
    /// Largest residual that the digits of a row leave out, relative to its norm.
    left_out: f64,
}

impl Packed<ROWS> {
    /// Buffers for this many rows.
    pub fn empty(rows: usize, dimension: usize) -> Self {
        let panels = rows / ROWS;
        Packed {
            digits: vec![0; panels * digits::panel_len::<ROWS>(dimension)],
            lines: vec![Lines::default(); panels],
            left_out: 0.0,
        }
    }

    /// Packs the first `panels` panels, from row `first` on; `relative` maps this side's left-out share to the error bound against the
    /// gallery.
    pub fn fill(
        &mut self,
        side: &Packing<'_>,
        (first, panels): (usize, usize),
        threshold: impl Fn(usize) -> Score,
        relative: impl Fn(f64) -> f32,
    ) {
        let len = digits::panel_len::<ROWS>(side.features.dimension());
        self.left_out = 0.0;
        let each = self.digits.chunks_exact_mut(len).zip(&mut self.lines);
        for (panel, to) in each.enumerate().take(panels) {
            let left_out = pack_panel(side, first + panel * ROWS, &threshold, to);
            self.left_out = self.left_out.max(left_out);
        }
        let relative = relative(self.left_out);
        for lines in &mut self.lines[..panels] {
            for line in 0..ROWS {
                lines.size[line] *= relative;
                lines.size_in_units[line] *= relative;
            }
        }
    }

    pub fn lines_mut(&mut self, panel: usize) -> &mut Lines<ROWS> {
        &mut self.lines[panel]
    }
}

/// Relative error bound: |q.g - d.c| <= (left out of q + left out of g) |q| |g|, plus rounding to f32.
pub fn relative_bound(left_out_of_queries: f64, left_out_of_gallery: f64) -> f32 {
    above(left_out_of_queries + left_out_of_gallery + ROUNDING)
}

impl<const N: usize> Packed<N> {
    /// Largest residual that the digits of a row leave out, relative to its norm.
    pub fn left_out(&self) -> f64 {
        self.left_out
    }

    pub fn panel(&self, index: usize) -> (&[i16], &Lines<N>) {
        let len = self.digits.len() / self.lines.len();
        (&self.digits[index * len..][..len], &self.lines[index])
    }
}

/// One side's input for packing.
pub struct Packing<'a> {
    pub features: &'a Features<'a>,
    pub scan: &'a FeatureScan,
    /// The other side: thresholds are given in its units.
    pub other: &'a FeatureScan,
}

/// Packs rows from `first` on into a panel; returns the largest residual that digits leave out, relative to the norm of the row.
pub fn pack_panel<const N: usize>(
    side: &Packing<'_>,
    first: usize,
    threshold: impl Fn(usize) -> Score,
    (panel, lines): (&mut [i16], &mut Lines<N>),
) -> f64 {
    let Packing {
        features,
        scan,
        other,
    } = side;
    let (mut room, mut row_digits) = (vec![], vec![0; features.dimension()]);
    let mut left_out = 0f64;
    let usual = 0.5 * (features.dimension() as f64).sqrt() / SHORTEST;
    *lines = Lines::default();
    for line in 0..N {
        let row = first + line;
        if row >= features.num_rows() {
            row_digits.fill(0);
            digits::pack::<N>(panel, line, &row_digits);
            continue;
        }
        let values = features.row(row, &mut room);
        let found = digits::survey(values);
        let split = digits::split(values, found.norm, scan.unit(&found), &mut row_digits);
        digits::pack::<N>(panel, line, &row_digits);
        let Score { value, error } = threshold(row);
        let unit = 2f64.powi(split.exponent + other.exponent);
        let bounds = [below((value - error) / unit), above((value + error) / unit)];
        let unit = 2f32.powi(split.exponent - scan.exponent);
        // A row with a coarser unit than its own survey wants leaves out more than other rows. It counts as longer, so that one relative
        // bound covers all rows, and as long enough for f32 products.
        let size = if split.residual > 0.0 {
            (split.norm + split.residual)
                .max(split.residual / usual)
                .max(LEAST)
        } else {
            split.norm
        };
        if size > 0.0 {
            left_out = left_out.max(split.residual / size);
        }
        lines.set(line, unit, above(size), bounds);
    }
    left_out
}

/// Shortest norm of the digits of a row split in its own unit: half of the longest.
const SHORTEST: f64 = 16000.0;

/// Smallest norm assumed for a row with a residual.
const LEAST: f64 = 1.0 / 1024.0;

/// Converts to f32, rounding up.
pub fn above(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded) < value {
        rounded.next_up()
    } else {
        rounded
    }
}

/// Converts to f32, rounding down.
pub fn below(value: f64) -> f32 {
    -above(-value)
}

/// Packs `items` rows from `first` on, on all threads.
pub fn pack_parallel(
    side: &Packing<'_>,
    first: usize,
    items: usize,
    threshold: impl Fn(usize) -> Score + Sync,
) -> Packed<COLUMNS> {
    let len = digits::panel_len::<COLUMNS>(side.features.dimension());
    let panels = items.div_ceil(COLUMNS);
    let mut digits = vec![0; panels * len];
    let mut lines = vec![Lines::default(); panels];
    let each = digits.par_chunks_exact_mut(len).zip(&mut lines).enumerate();
    let left_out = each
        .map(|(panel, to)| pack_panel(side, first + panel * COLUMNS, &threshold, to))
        .reduce(|| 0.0, f64::max);
    Packed {
        digits,
        lines,
        left_out,
    }
}

impl Counting<'_> {
    fn pack_gallery(&self, first: usize, items: usize) -> Packed<COLUMNS> {
        let side = Packing {
            features: self.job.gallery,
            scan: &self.scans[1],
            other: &self.scans[0],
        };
        pack_parallel(&side, first, items, |row| {
            self.to_query.thresholds.score(row)
        })
    }

    /// Runs the whole count.
    pub fn run(&self, go_on: &mut Go<'_>) -> Result<Decided, RetrievalError> {
        let [num_queries, num_gallery] = [self.job.queries.num_rows(), self.job.gallery.num_rows()];
        let total = num_queries as u64 * num_gallery as u64;
        let (stopped, teller) = (AtomicBool::new(false), Mutex::new((0, go_on)));
        let tallies = [const { AtomicU64::new(0) }; 2];
        for first in (0..num_gallery).step_by(self.tiles.gallery) {
            let items = self.tiles.gallery.min(num_gallery - first);
            let gallery = self.pack_gallery(first, items);
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
    queries: Packed<ROWS>,
    above: Vec<u32>,
    counts: Counts,
    pending: Vec<Pending>,
    scratch: RowScratch,
    exact: bool,
    /// Comparisons in f64, and how many of them were repeated without rounding.
    decided: [u64; 2],
}

impl<'a, 'b> Thread<'a, 'b> {
    fn new(counting: &'b Counting<'a>) -> Self {
        let dimension = counting.job.queries.dimension();
        Thread {
            counting,
            queries: Packed::empty(counting.tiles.queries, dimension),
            above: vec![0; counting.tiles.queries],
            counts: Counts::default(),
            pending: Vec::with_capacity(PENDING),
            scratch: RowScratch::default(),
            exact: products_are_exact(&counting.scans[0], &counting.scans[1]),
            decided: [0; 2],
        }
    }

    /// Counts a block of queries against the packed part of the gallery, which begins with item `first`.
    fn block(&mut self, queries: std::ops::Range<usize>, gallery: &Packed<COLUMNS>, first: usize) {
        let Counting {
            job, tiles, kernel, ..
        } = self.counting;
        let panels = queries.len().div_ceil(ROWS);
        self.pack_queries(queries.start, panels, gallery.left_out);
        self.above.fill(0);
        let items = job.gallery.num_rows().min(first + tiles.gallery) - first;
        for item_panel in 0..items.div_ceil(COLUMNS) {
            let item = first + item_panel * COLUMNS;
            for panel in 0..panels {
                let query = queries.start + panel * ROWS;
                digits::count(
                    *kernel,
                    self.queries.panel(panel),
                    gallery.panel(item_panel),
                    &mut self.counts,
                );
                let above = std::mem::take(&mut self.counts.above_row);
                for (sum, above) in self.above[panel * ROWS..].iter_mut().zip(above) {
                    *sum += above;
                }
                for unsure in &self.counts.unsure {
                    self.pending.push(Pending {
                        query: (query + usize::from(unsure.row)) as u32,
                        item: (item + usize::from(unsure.column)) as u32,
                        of_query: unsure.of_row,
                        of_item: unsure.of_column,
                    });
                }
                if self.pending.len() > PENDING - ROWS * COLUMNS {
                    self.decide();
                }
            }
            let above = std::mem::take(&mut self.counts.above_column);
            for (count, above) in self.counting.to_query.counts[item..].iter().zip(above) {
                count.add_above(above);
            }
        }
        self.decide();
        for (count, &above) in self.counting.to_gallery.counts[queries.start..]
            .iter()
            .zip(&self.above[..queries.len()])
        {
            count.add_above(above);
        }
    }

    fn pack_queries(&mut self, first: usize, panels: usize, gallery_leaves_out: f64) {
        let Counting {
            job,
            scans,
            to_gallery,
            ..
        } = self.counting;
        let side = Packing {
            features: job.queries,
            scan: &scans[0],
            other: &scans[1],
        };
        let exact = self.exact;
        self.queries.fill(
            &side,
            (first, panels),
            |row| to_gallery.thresholds.score(row),
            |left_out| {
                if exact {
                    0.0
                } else {
                    relative_bound(left_out, gallery_leaves_out)
                }
            },
        );
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
