//! Counts scores above thresholds on the card, for queries and gallery items, in one pass over the tiles.
//!
//! Rows are on the card as f32. Each is split into two halves (`kernels/ranks.cu` has the equations), which tensor cores multiply.
//! Comparisons within the error bound are repeated in f64. The host decides comparisons that f64 leaves open.

use std::cell::RefCell;

use super::Cuda;
use super::compile;
use super::driver::{Argument, Buffer, Event, Follows, Function, Module, Stream};
use super::kernels;
use super::progress::told_if_slow;
use crate::DeviceError;

const FILE: (&str, &str) = ("ranks.cu", include_str!("kernels/ranks.cu"));
/// The number format that the kernel file is compiled for.
const HALVES: u32 = 1;

const TILE_Q: usize = 128;
const TILE_G: usize = 256;
const CHUNK: usize = 32;
const THREADS: usize = 256;
const STAGE_BYTES: usize = 2 * (TILE_Q + TILE_G) * CHUNK * size_of::<u16>();
const MOST_STAGES: usize = 4;
const COUNTERS: usize = 8;

/// Counters of a count, 32-bit words by their names in `ranks.cu`.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Counter {
    Listed = 0,
    Open = 2,
    /// A 64-bit number in two words.
    InF64 = 4,
    QueriesLow = 6,
    GalleryLow = 7,
}

/// Queries whose halves are in memory at a time.
const QUERIES: usize = 128 * TILE_Q;
/// Maximum length of the list of comparisons that wait for f64.
const LIST: usize = 1 << 21;
/// Maximum number of comparisons that f64 leaves open.
const OPEN: usize = 1 << 20;

/// Rows in card memory.
pub struct DeviceRows {
    buffer: Buffer,
    rows: usize,
    dimension: usize,
}

impl DeviceRows {
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Range of the values of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Exponent of the largest value: all values are below 2^(exponent + 1). `None` if a value is not finite.
    pub exponent: Option<i32>,
    /// Exponent of the lowest set bit of any value; large if all values are zero.
    pub lowest_bit: i32,
}

/// A score and its error bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Threshold {
    /// Score in f64.
    pub value: f64,
    /// Bound on the distance to the exact score.
    pub error: f64,
}

/// Queries or gallery items of a count.
#[derive(Clone, Copy)]
pub struct RankSide<'a> {
    pub rows: &'a DeviceRows,
    /// Index of the first row.
    pub first: usize,
    /// Threshold of each row.
    pub thresholds: &'a [Threshold],
    /// For each row, the index on the other side of the row whose score is the threshold.
    pub positives: &'a [u32],
    /// Exponent of the largest value.
    pub exponent: i32,
}

/// A comparison that f64 leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Index among the queries.
    pub query: usize,
    /// Index among the gallery items.
    pub item: usize,
    /// Whether the query's threshold is open; otherwise the gallery item's.
    pub of_query: bool,
}

/// Results of a count, for `[queries, gallery items]`.
#[derive(Clone, Debug, Default)]
pub struct RankCounts {
    /// Number of scores above the threshold.
    pub above: [Vec<u32>; 2],
    /// Number of scores equal to the threshold, the positive's score included.
    pub level: [Vec<u32>; 2],
    /// Comparisons that are in neither number.
    pub open: Vec<Open>,
    /// Number of comparisons in f64.
    pub in_f64: u64,
    /// Time on the card.
    pub seconds: RankSeconds,
}

/// Seconds on the card, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankSeconds {
    /// Splitting rows into halves.
    pub split: f64,
    /// Products of halves, comparisons and counts.
    pub first: f64,
    /// Comparisons repeated in f64.
    pub again: f64,
}

/// The loaded kernels, and a stream to run them in.
pub struct Ranks<'a> {
    cuda: &'a Cuda,
    scan: Function,
    split: Function,
    bounds: Function,
    count: Function,
    recheck: Function,
    dense: Function,
    pairs: Function,
    stages: usize,
    stream: Stream,
    /// Scratch of counts, kept from one count to the next.
    work: RefCell<Option<Buffer>>,
    // Dropped last: the functions belong to the module.
    _module: Module,
}

impl<'a> Ranks<'a> {
    /// Compiles the kernels, or reads them from disk, and loads them.
    pub fn new(cuda: &'a Cuda) -> Result<Ranks<'a>, DeviceError> {
        match cuda.capability {
            // The kernel for Hopper runs on Hopper alone.
            90 => Ranks::compiled(cuda, "sm_90a", "rank_count_wide"),
            _ => Ranks::narrow(cuda),
        }
    }

    /// Uses the kernel that runs on every card.
    pub fn narrow(cuda: &'a Cuda) -> Result<Ranks<'a>, DeviceError> {
        Ranks::compiled(cuda, &format!("sm_{}", cuda.capability), "rank_count")
    }

    fn compiled(cuda: &'a Cuda, architecture: &str, count: &str) -> Result<Ranks<'a>, DeviceError> {
        cuda.bind()?;
        let (name, text) = FILE;
        let source = compile::source(name, text);
        let compiled = told_if_slow("Compiling the kernels of retrieval (once)", || {
            compile::cached(&source, name, architecture, HALVES)
        });
        let image = compiled.map_err(|error| DeviceError::Failed(error.to_string()))?;
        let module = Module::new(&image)?;
        let function = |name: &str| kernels::find(std::slice::from_ref(&module), name);
        let count = function(count)?;
        let stages = cuda.context.shared_bytes()? / STAGE_BYTES;
        let stages = stages.clamp(1, MOST_STAGES);
        count.allow_shared(stages * STAGE_BYTES)?;
        Ok(Ranks {
            cuda,
            scan: function("rank_scan")?,
            split: function("rank_split")?,
            bounds: function("rank_bounds")?,
            count,
            recheck: function("rank_recheck")?,
            dense: function("rank_dense")?,
            pairs: function("rank_pairs")?,
            stages,
            stream: Stream::new()?,
            work: RefCell::default(),
            _module: module,
        })
    }

    /// Card memory that [`Ranks::count`] needs in addition to the rows.
    pub fn work_bytes(queries: usize, gallery: usize, dimension: usize) -> u64 {
        Work::new(0, [queries, gallery], dimension).bytes
    }

    /// Card memory of the scratch of counts.
    pub fn held_bytes(&self) -> u64 {
        self.work.borrow().as_ref().map_or(0, |work| work.bytes)
    }

    /// Allocates the scratch for counts of this size.
    pub fn hold(
        &self,
        queries: usize,
        gallery: usize,
        dimension: usize,
    ) -> Result<(), DeviceError> {
        self.cuda.bind()?;
        self.work(Ranks::work_bytes(queries, gallery, dimension))?;
        Ok(())
    }

    /// Address of scratch of at least this many bytes.
    fn work(&self, bytes: u64) -> Result<u64, DeviceError> {
        let mut work = self.work.borrow_mut();
        if work.as_ref().is_none_or(|work| work.bytes < bytes) {
            *work = None;
            *work = Some(self.cuda.reserve(bytes)?);
        }
        Ok(work.as_ref().expect("reserved above").address)
    }

    /// Copies rows to the card; `read` fills the rows from an index on, block by block.
    pub fn upload(
        &self,
        rows: usize,
        dimension: usize,
        mut read: impl FnMut(usize, &mut [f32]),
    ) -> Result<DeviceRows, DeviceError> {
        self.cuda.bind()?;
        let buffer = self
            .cuda
            .reserve((rows * dimension * size_of::<f32>()) as u64)?;
        let at_once = ((1 << 22) / dimension).max(1);
        let mut staging = vec![0f32; at_once.min(rows) * dimension];
        for first in (0..rows).step_by(at_once) {
            let values = &mut staging[..at_once.min(rows - first) * dimension];
            read(first, values);
            let to = buffer.address + (first * dimension * size_of::<f32>()) as u64;
            self.send(to, values)?;
            // The staging memory is filled again: wait for the copy.
            self.stream.wait()?;
        }
        Ok(DeviceRows {
            buffer,
            rows,
            dimension,
        })
    }

    fn send<T: Copy>(&self, to: u64, values: &[T]) -> Result<(), DeviceError> {
        self.stream
            .upload(to, values.as_ptr().cast(), size_of_val(values))
    }

    fn fetch<T: Copy + Default>(&self, from: u64, count: usize) -> Result<Vec<T>, DeviceError> {
        let mut values = vec![T::default(); count];
        let bytes = size_of_val(&values[..]);
        self.stream
            .download(values.as_mut_ptr().cast(), from, bytes)?;
        // The host reads the values: wait for the copy.
        self.stream.wait()?;
        Ok(values)
    }

    fn launch(
        &self,
        function: &Function,
        blocks: usize,
        threads: usize,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        let grid = [blocks.max(1), 1, 1];
        function.launch(&self.stream, grid, threads, Follows::AtItsEnd, arguments)
    }

    /// Computes the range of the values.
    pub fn scan(&self, rows: &DeviceRows) -> Result<Scan, DeviceError> {
        self.cuda.bind()?;
        let found = self.work(8)?;
        self.send(found, &[0i32, i32::MAX])?;
        self.launch(
            &self.scan,
            8 * self.cuda.num_processors,
            THREADS,
            &[
                rows.buffer.address.into(),
                ((rows.rows * rows.dimension) as i64).into(),
                found.into(),
                (found + 4).into(),
            ],
        )?;
        let found: Vec<i32> = self.fetch(found, 2)?;
        let largest = f32::from_bits(found[0] as u32);
        let exponent = (largest.to_bits() >> 23) as i32 - 127;
        Ok(Scan {
            exponent: largest.is_finite().then_some(exponent),
            lowest_bit: found[1],
        })
    }

    /// Scores of pairs (query, gallery item); `exact` if f64 rounds no sum of these rows.
    pub fn pair_scores(
        &self,
        queries: &DeviceRows,
        gallery: &DeviceRows,
        pairs: &[[u32; 2]],
        exact: bool,
    ) -> Result<Vec<Threshold>, DeviceError> {
        self.cuda.bind()?;
        let bytes = pairs.len() * (size_of::<Threshold>() + size_of::<[u32; 2]>());
        let to = self.work(bytes as u64)?;
        let from = to + (pairs.len() * size_of::<Threshold>()) as u64;
        self.send(from, pairs)?;
        self.launch(
            &self.pairs,
            pairs.len().div_ceil(THREADS / 32),
            THREADS,
            &[
                queries.buffer.address.into(),
                gallery.buffer.address.into(),
                (queries.dimension as i32).into(),
                from.into(),
                (pairs.len() as i32).into(),
                i32::from(exact).into(),
                to.into(),
            ],
        )?;
        self.fetch(to, pairs.len())
    }

    /// Counts all queries against all gallery items; `exact` if f64 rounds no sum of these rows. `go_on` gets the number of finished
    /// queries and returns whether to continue; `None` if it stopped the count.
    pub fn count(
        &self,
        queries: RankSide<'_>,
        gallery: RankSide<'_>,
        exact: bool,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<RankCounts>, DeviceError> {
        self.cuda.bind()?;
        let count = Count::new(self, queries, gallery, exact)?;
        let Work {
            queries: q,
            gallery: g,
            ..
        } = &count.work;
        let [num_queries, num_items] = count.extents;
        self.stream
            .clear(count.work.counters, 4 * COUNTERS as u64)?;
        let exponent = scale(queries.exponent) + scale(gallery.exponent);
        q.begin(self, queries, exponent)?;
        g.begin(self, gallery, exponent)?;
        let any_low = count.counter(Counter::GalleryLow);
        g.split(self, gallery, 0, num_items, any_low)?;
        let mut clocks: Vec<[Event; 4]> = vec![];
        for first in (0..num_queries).step_by(QUERIES) {
            let block = QUERIES.min(num_queries - first);
            let clock = count.launch_block(first, block)?;
            // At most one more block is queued, so that the user can interrupt the count.
            if let Some(last) = clocks.last() {
                last[3].wait()?;
            }
            clocks.push(clock);
            if !go_on(first + block) {
                self.stream.wait()?;
                return Ok(None);
            }
        }
        count.results(&clocks).map(Some)
    }
}

/// A count of all queries against all gallery items.
struct Count<'a> {
    ranks: &'a Ranks<'a>,
    queries: RankSide<'a>,
    gallery: RankSide<'a>,
    exact: bool,
    work: Work,
    /// Number of queries and of gallery items.
    extents: [usize; 2],
}

impl<'a> Count<'a> {
    /// Reserves the scratch.
    fn new(
        ranks: &'a Ranks<'a>,
        queries: RankSide<'a>,
        gallery: RankSide<'a>,
        exact: bool,
    ) -> Result<Count<'a>, DeviceError> {
        let extents = [queries.rows.rows, gallery.rows.rows];
        let work = |address| Work::new(address, extents, queries.rows.dimension);
        let address = ranks.work(work(0).bytes)?;
        Ok(Count {
            ranks,
            queries,
            gallery,
            exact,
            work: work(address),
            extents,
        })
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.work.counters + 4 * counter as u64
    }

    /// Launches the count of a block of queries: its split into halves, the count by products, and the comparisons that were too close.
    /// Returns the events between these.
    fn launch_block(&self, first: usize, count: usize) -> Result<[Event; 4], DeviceError> {
        let stream = &self.ranks.stream;
        let clock = [
            Event::with_clock()?,
            Event::with_clock()?,
            Event::with_clock()?,
            Event::with_clock()?,
        ];
        clock[0].record(stream)?;
        let any_low = self.counter(Counter::QueriesLow);
        // The numbers of listed pairs and of listed tiles, which are neighbours.
        stream.clear(self.counter(Counter::Listed), 8)?;
        stream.clear(any_low, 4)?;
        let queries = &self.work.queries;
        queries.split(self.ranks, self.queries, first, count, any_low)?;
        clock[1].record(stream)?;
        self.launch_products(first, count)?;
        clock[2].record(stream)?;
        self.launch_rechecks(first)?;
        clock[3].record(stream)?;
        Ok(clock)
    }

    /// Counts pairs that products decide; lists those that are too close, and tiles with too many of them.
    fn launch_products(&self, first: usize, count: usize) -> Result<(), DeviceError> {
        let Work {
            queries: q,
            gallery: g,
            list,
            tiles,
            counters,
            ..
        } = &self.work;
        let (ranks, [_, num_items]) = (self.ranks, self.extents);
        ranks.count.launch_with(
            &ranks.stream,
            [count.div_ceil(TILE_Q) * num_items.div_ceil(TILE_G), 1, 1],
            THREADS,
            ranks.stages * STAGE_BYTES,
            Follows::AtItsEnd,
            &[
                q.high.into(),
                q.low.into(),
                q.sizes.into(),
                (q.bounds_low + 4 * first as u64).into(),
                (q.bounds_high + 4 * first as u64).into(),
                (q.above + 4 * first as u64).into(),
                (count as i32).into(),
                g.high.into(),
                g.low.into(),
                g.sizes.into(),
                g.bounds_low.into(),
                g.bounds_high.into(),
                g.above.into(),
                (num_items as i32).into(),
                (q.padded as i32).into(),
                (ranks.stages as i32).into(),
                bound(q.padded).into(),
                PER_PRODUCT.into(),
                (first as i32).into(),
                (*list).into(),
                (LIST as i32).into(),
                (*tiles).into(),
                (*counters).into(),
            ],
        )
    }

    /// Compares listed pairs, then all pairs of listed tiles, in f64.
    fn launch_rechecks(&self, first: usize) -> Result<(), DeviceError> {
        let (work, ranks) = (&self.work, self.ranks);
        let rows = [
            self.queries.rows.buffer.address.into(),
            self.gallery.rows.buffer.address.into(),
            (self.queries.rows.dimension as i32).into(),
        ];
        let sides: Vec<Argument> = [&work.queries, &work.gallery]
            .into_iter()
            .flat_map(|side| {
                [&side.thresholds, &side.positives, &side.above, &side.level]
                    .map(|&address| Argument::from(address))
            })
            .collect();
        let places = [self.queries.first as i64, self.gallery.first as i64].map(Argument::from);
        let ends = [
            i32::from(self.exact).into(),
            work.open.into(),
            (OPEN as i32).into(),
            work.counters.into(),
        ];
        let listed = [work.list.into(), (LIST as i32).into()];
        let extents = self.extents.map(|extent| Argument::from(extent as i64));
        let arguments = [&rows[..], &listed, &sides, &places, &extents, &ends].concat();
        let blocks = 16 * ranks.cuda.num_processors;
        ranks.launch(&ranks.recheck, blocks, THREADS, &arguments)?;
        let listed = [work.tiles.into(), (first as i32).into()];
        let extents = self.extents.map(|extent| Argument::from(extent as i32));
        let arguments = [&rows[..], &listed, &sides, &places, &extents, &ends].concat();
        let blocks = 4 * ranks.cuda.num_processors;
        ranks.launch(&ranks.dense, blocks, THREADS, &arguments)
    }

    /// Waits for all blocks and fetches what they counted.
    fn results(&self, clocks: &[[Event; 4]]) -> Result<RankCounts, DeviceError> {
        let (work, ranks) = (&self.work, self.ranks);
        let [num_queries, num_items] = self.extents;
        let counted: Vec<u32> = ranks.fetch(work.counters, COUNTERS)?;
        let mut seconds = RankSeconds::default();
        for clock in clocks {
            seconds.split += clock[1].seconds_since(&clock[0])?;
            seconds.first += clock[2].seconds_since(&clock[1])?;
            seconds.again += clock[3].seconds_since(&clock[2])?;
        }
        let in_f64 = Counter::InF64 as usize;
        let num_open = counted[Counter::Open as usize] as usize;
        if num_open > OPEN {
            return Err(DeviceError::Memory {
                found: format!(
                    "features too much alike: f64 leaves {num_open} comparisons open, the list of the card holds {OPEN}"
                ),
                hint: "`--device cpu` needs no list".to_owned(),
            });
        }
        let open: Vec<u64> = ranks.fetch(work.open, num_open)?;
        let open = open.into_iter().map(|entry| Open {
            query: (entry >> 32) as usize,
            item: (entry as u32 >> 2) as usize,
            of_query: entry & 1 == 1,
        });
        Ok(RankCounts {
            above: [
                ranks.fetch(work.queries.above, num_queries)?,
                ranks.fetch(work.gallery.above, num_items)?,
            ],
            level: [
                ranks.fetch(work.queries.level, num_queries)?,
                ranks.fetch(work.gallery.level, num_items)?,
            ],
            open: open.collect(),
            in_f64: u64::from(counted[in_f64]) | u64::from(counted[in_f64 + 1]) << 32,
            seconds,
        })
    }
}

/// Error of a tensor-core product, which adds 16 terms to a sum, in units of the sizes of both rows. Each term, and the result, is
/// assumed to be truncated at 24 bits of the largest; Turing needs two products for 16 terms.
const PER_PRODUCT: f32 = 20.0 * 1.01 / (1u32 << 23) as f32;

/// The rest of the error bound: sums of parts in f32, the product of both low halves, the residual of both splits, and the rounding of
/// the comparison.
fn bound(padded: usize) -> f32 {
    let sums = (padded / 16 + 1) as f32 / (1u32 << 24) as f32;
    let left_out = 3.0 / (1u32 << 22) as f32;
    let comparison = 1.0 / (1u32 << 20) as f32;
    1.01 * (sums + left_out + comparison)
}

/// Exponent by which rows are scaled: the largest value becomes less than 2^13, well within the range of a half.
fn scale(exponent: i32) -> i32 {
    12 - exponent
}

/// Addresses of a count's scratch: one allocation, cut into parts.
struct Work {
    queries: SideScratch,
    gallery: SideScratch,
    list: u64,
    open: u64,
    tiles: u64,
    counters: u64,
    bytes: u64,
}

impl Work {
    fn new(address: u64, [queries, gallery]: [usize; 2], dimension: usize) -> Work {
        let padded = dimension.next_multiple_of(CHUNK);
        let mut end = address;
        let mut take = |count: usize, bytes: usize| {
            let start = end.next_multiple_of(256);
            end = start + (count * bytes) as u64;
            start
        };
        let at_once = queries.min(QUERIES);
        let tiles = at_once.div_ceil(TILE_Q) * gallery.div_ceil(TILE_G);
        Work {
            queries: SideScratch::new(&mut take, queries, at_once, padded),
            gallery: SideScratch::new(&mut take, gallery, gallery, padded),
            list: take(LIST, 8),
            open: take(OPEN, 8),
            tiles: take(tiles, 4),
            counters: take(COUNTERS, 4),
            bytes: end - address,
        }
    }
}

/// Addresses of one side's scratch.
struct SideScratch {
    high: u64,
    low: u64,
    sizes: u64,
    bounds_low: u64,
    bounds_high: u64,
    thresholds: u64,
    positives: u64,
    above: u64,
    level: u64,
    padded: usize,
}

impl SideScratch {
    /// Takes one word for each of `rows`, and memory for the halves of `at_once` rows.
    fn new(
        take: &mut impl FnMut(usize, usize) -> u64,
        rows: usize,
        at_once: usize,
        padded: usize,
    ) -> SideScratch {
        SideScratch {
            high: take(at_once * padded, 2),
            low: take(at_once * padded, 2),
            sizes: take(at_once, 4),
            bounds_low: take(rows, 4),
            bounds_high: take(rows, 4),
            thresholds: take(rows, size_of::<Threshold>()),
            positives: take(rows, 4),
            above: take(rows, 4),
            level: take(rows, 4),
            padded,
        }
    }

    /// Copies thresholds to the card, in units of products scaled by 2^`exponent`, and sets counts to zero.
    fn begin(
        &self,
        ranks: &Ranks<'_>,
        side: RankSide<'_>,
        exponent: i32,
    ) -> Result<(), DeviceError> {
        let rows = side.rows.rows;
        ranks.send(self.thresholds, side.thresholds)?;
        ranks.send(self.positives, side.positives)?;
        for counts in [self.above, self.level] {
            ranks.stream.clear(counts, 4 * rows as u64)?;
        }
        let arguments = [
            self.thresholds.into(),
            (rows as i32).into(),
            exponent.into(),
            self.bounds_low.into(),
            self.bounds_high.into(),
        ];
        ranks.launch(&ranks.bounds, rows.div_ceil(THREADS), THREADS, &arguments)
    }

    fn split(
        &self,
        ranks: &Ranks<'_>,
        side: RankSide<'_>,
        first: usize,
        count: usize,
        any_low: u64,
    ) -> Result<(), DeviceError> {
        let DeviceRows {
            buffer, dimension, ..
        } = side.rows;
        let from = buffer.address + (first * dimension * size_of::<f32>()) as u64;
        let arguments = [
            from.into(),
            (count as i32).into(),
            (*dimension as i32).into(),
            (self.padded as i32).into(),
            scale(side.exponent).into(),
            self.high.into(),
            self.low.into(),
            self.sizes.into(),
            any_low.into(),
        ];
        let blocks = count.div_ceil(THREADS / 32);
        ranks.launch(&ranks.split, blocks, THREADS, &arguments)
    }
}
