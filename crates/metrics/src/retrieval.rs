//! Exact retrieval ranks in both directions, without storing the similarities.
//!
//! A score is the dot product of two rows in exact arithmetic, and a rank counts the items with a higher score:
//!
//! ```text
//! s_ij = q_i . g_j         t_i = max over positives p of s_ip
//! above_i = #{ j : s_ij > t_i }      level_i = #{ j not positive : s_ij = t_i }
//! rank_i = 1 + above_i + (0, level_i / 2 or level_i, by the tie policy)
//! ```
//!
//! One pass ranks both directions: gallery items for queries, queries for gallery items. Scores are compared without rounding,
//! so the result depends on the features only: not on tiles, threads or device.

mod best_positives;
mod count;
mod exact_comparison;
mod exact_dot;
mod feature_scan;
mod gpu;
mod neighbours;
pub mod pair_file;
mod pairs;
mod rank_statistics;
mod tiles;
mod tiling;

pub use crate::side::Side;
pub use gpu::OnGpu;
pub use pairs::Pairs;
pub use rank_statistics::{Entry, Ranked, Ranks, Ties};
pub use tiling::{Sizes, Tiling};

use holdall_device::cuda::Cuda;

use crate::features::Features;
use best_positives::BestPositives;
use count::{Count, Counting, Direction};
use exact_comparison::ExactComparison;
use tiles::Tiles;

/// Evaluation of items with several positives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The best positive counts; the other positives are no distractors.
    #[default]
    Best,
    /// Each positive counts by itself: R@k is the share of an item's positives among the first k, averaged over items; the other
    /// statistics are over all positives.
    Recall,
}

/// Input of a ranking.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The set that searches.
    pub queries: &'a Features<'a>,
    /// The set that is searched.
    pub gallery: &'a Features<'a>,
    /// Positive pairs. Items without a positive have no rank, but still are distractors.
    pub pairs: &'a Pairs,
}

impl<'a> Job<'a> {
    fn features(&self, side: Side) -> &'a Features<'a> {
        match side {
            Side::Query => self.queries,
            Side::Gallery => self.gallery,
        }
    }

    /// Number of pairs of a query and a gallery item.
    pub fn num_scores(&self) -> u64 {
        self.queries.num_rows() as u64 * self.gallery.num_rows() as u64
    }
}

/// Options of a ranking.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Evaluation of items with several positives.
    pub rule: Rule,
    /// Memory limit, excluding mapped features; `None` for as much as is useful.
    pub memory_bytes: Option<u64>,
    /// Number of nearest gallery items to return for each query; 0 for none.
    pub neighbours: usize,
}

/// Progress callback; returns false to stop.
pub type Go<'a> = dyn FnMut(Progress) -> bool + Send + 'a;

/// Progress of a ranking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Compared pairs of a query and a gallery item.
    pub done: u64,
    /// All pairs.
    pub total: u64,
}

/// Numbers of comparisons by the precision that decided them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// By the first product, within its error bound.
    pub at_once: u64,
    /// Repeated in f64.
    pub in_f64: u64,
    /// Repeated without rounding.
    pub exactly: u64,
}

impl std::ops::Add for Decided {
    type Output = Decided;

    fn add(self, other: Decided) -> Decided {
        Decided {
            at_once: self.at_once + other.at_once,
            in_f64: self.in_f64 + other.in_f64,
            exactly: self.exactly + other.exactly,
        }
    }
}

/// The nearest gallery items of each query.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbours {
    /// Number per query.
    pub count: usize,
    /// Gallery items, nearest first, ties by number; `count` per query.
    pub items: Vec<u32>,
    /// Their scores, rounded to f32.
    pub scores: Vec<f32>,
}

/// Result of a ranking.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Ranks of gallery items, per query.
    pub to_gallery: Ranked,
    /// Ranks of queries, per gallery item.
    pub to_query: Ranked,
    /// `None` unless [`Options::neighbours`] is above 0.
    pub neighbours: Option<Neighbours>,
    pub decided: Decided,
    /// Duration of each stage, in order.
    pub seconds: Vec<(&'static str, f64)>,
}

/// Why a ranking failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetrievalError {
    /// Queries and gallery have different row lengths.
    #[error(
        "expected rows of one length, found {queries} values for queries and {gallery} for gallery items"
    )]
    Dimensions {
        /// Values per query.
        queries: usize,
        gallery: usize,
    },
    /// Pairs and features have different numbers of rows.
    #[error("expected pairs of {expected} {side} rows, found pairs of {found}")]
    Rows {
        side: Side,
        /// Rows of the features.
        expected: usize,
        /// Items of the pairs.
        found: usize,
    },
    /// A side without rows.
    #[error("expected at least one {side}, found none")]
    Empty {
        /// The empty side.
        side: Side,
    },
    /// A value is NaN or infinite.
    #[error("{side} {row}, value {column}: expected a finite number, found {value}")]
    NotFinite {
        side: Side,
        /// Counted from 0.
        row: usize,
        /// Counted from 0.
        column: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A pair has an index out of range.
    #[error("pair {pair}: {side} {item}: expected one of 0 to {}", count.saturating_sub(1))]
    PairOutOfRange {
        /// Counted from 0.
        pair: usize,
        side: Side,
        /// The index.
        item: u32,
        /// Number of items.
        count: usize,
    },
    /// Numbers of items or pairs exceed 32 bits.
    #[error("expected at most {} items and pairs, found {found}", u32::MAX)]
    TooMany {
        /// How many.
        found: usize,
    },
    /// The memory limit is too small even for the smallest tiles.
    #[error("expected a limit of at least {needed_bytes} bytes, found {limit_bytes}")]
    DoesNotFit {
        /// Memory of the smallest tiles.
        needed_bytes: u64,
        limit_bytes: u64,
    },
    /// A GPU error.
    #[error("{0}")]
    Device(String),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// Hardware that counts.
#[derive(Clone, Copy)]
pub enum Engine<'a> {
    /// The threads of rayon's current pool.
    Cpu,
    /// A GPU; comparisons that it cannot decide, and neighbours, run on the CPU threads.
    Gpu(&'a Cuda),
}

/// Ranks both directions. `go_on` gets the progress, and returns false to stop.
///
/// # Errors
/// See [`RetrievalError`].
pub fn rank(
    engine: Engine<'_>,
    job: &Job<'_>,
    options: &Options,
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
    check(job)?;
    let tiling = Tiling::new(job, options)?;
    let mut count = |job: &Job<'_>, go_on: &mut Go<'_>| match engine {
        Engine::Cpu => count_with(job, tiling.tiles, go_on),
        Engine::Gpu(card) => OnGpu::new(card, job, options)?.rank(go_on),
    };
    let mut found = match options.rule {
        Rule::Best => count(job, go_on)?,
        Rule::Recall => recall(job, &mut count, go_on)?,
    };
    if options.neighbours > 0 {
        found.neighbours = Some(neighbours::neighbours(
            job,
            tiling.tiles,
            options.neighbours,
            go_on,
        )?);
    }
    Ok(found)
}

/// Estimate of the CPU time of counting, measured on a small part of the job; quick.
///
/// # Errors
/// Like [`rank`], for that part.
pub fn estimate_seconds(job: &Job<'_>) -> Result<f64, RetrievalError> {
    check(job)?;
    let [queries, gallery] = [(job.queries, 1024), (job.gallery, 4096)].map(|(features, most)| {
        let rows = features.num_rows().min(most) as u32;
        features.select((0..rows).collect())
    });
    let gallery_of: Vec<u32> = (0..queries.num_rows() as u32)
        .map(|query| query % gallery.num_rows() as u32)
        .collect();
    let part = Job {
        queries: &queries,
        gallery: &gallery,
        pairs: &Pairs::one_each(&gallery_of, gallery.num_rows())?,
    };
    let began = std::time::Instant::now();
    let tiling = Tiling::new(&part, &Options::default())?;
    count_with(&part, tiling.tiles, &mut |_| true)?;
    let share = job.num_scores() as f64 / part.num_scores() as f64;
    Ok(began.elapsed().as_secs_f64() * share)
}

/// [`Rule::Recall`]: one query per pair with one positive each; then the same for gallery items.
fn recall(
    job: &Job<'_>,
    count: &mut dyn FnMut(&Job<'_>, &mut Go<'_>) -> Result<Found, RetrievalError>,
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
    // Checked here, where sides have their true names, so that errors about non-finite values name the right one.
    feature_scan::scan(job.queries, Side::Query)?;
    feature_scan::scan(job.gallery, Side::Gallery)?;
    let pairs = job.pairs.len() as u64;
    let halves = [job.gallery, job.queries].map(|others| pairs * others.num_rows() as u64);
    let total = halves[0] + halves[1];
    let mut both = [Side::Query, Side::Gallery].map(|side| (side, job.pairs.in_order(side)));
    let mut found: Option<Found> = None;
    for (half, (side, pairs)) in both.iter_mut().enumerate() {
        let own = usize::from(*side == Side::Gallery);
        let owners: Vec<u32> = pairs.iter().map(|pair| pair[own]).collect();
        let others: Vec<u32> = pairs.iter().map(|pair| pair[1 - own]).collect();
        let others_of = job.features(side.other());
        // Both halves run as queries: in the second half, the queries are gallery items.
        let one_each = Job {
            queries: &job.features(*side).select(owners.clone()),
            gallery: others_of,
            pairs: &Pairs::one_each(&others, others_of.num_rows())?,
        };
        let before = if half == 0 { 0 } else { halves[0] };
        let mut tell = |progress: Progress| {
            go_on(Progress {
                done: before + progress.done,
                total,
            })
        };
        let mut of_half = count(&one_each, &mut tell)?;
        for entry in &mut of_half.to_gallery.entries {
            entry.item = owners[entry.item as usize];
        }
        found = Some(match found {
            None => of_half,
            Some(first) => Found {
                to_query: of_half.to_gallery,
                decided: first.decided + of_half.decided,
                seconds: [first.seconds, of_half.seconds].concat(),
                ..first
            },
        });
    }
    Ok(found.expect("two halves"))
}

/// Counts with the given tiles, which do not change the result.
fn count_with(job: &Job<'_>, tiles: Tiles, go_on: &mut Go<'_>) -> Result<Found, RetrievalError> {
    check(job)?;
    let mut clock = Clock::start();
    let scans = [
        feature_scan::scan(job.queries, Side::Query)?,
        feature_scan::scan(job.gallery, Side::Gallery)?,
    ];
    clock.lap("scan");
    let comparison = ExactComparison::new(job, feature_scan::sums(&scans[0], &scans[1]));
    let thresholds =
        [Side::Query, Side::Gallery].map(|side| BestPositives::new(job, &comparison, side));
    clock.lap("positives");
    let counts = [Side::Query, Side::Gallery].map(|side| Count::zeros(job.pairs.num_items(side)));
    let direction = |side: usize| Direction {
        thresholds: &thresholds[side],
        counts: &counts[side],
    };
    let decided = Counting {
        job,
        comparison: &comparison,
        scans,
        to_gallery: direction(0),
        to_query: direction(1),
        tiles,
    }
    .run(go_on)?;
    clock.lap("count");
    let [to_gallery, to_query] = [0, 1].map(|side| thresholds[side].ranked(&counts[side]));
    Ok(Found {
        to_gallery,
        to_query,
        neighbours: None,
        decided,
        seconds: clock.laps,
    })
}

/// Durations of the stages.
struct Clock {
    last: std::time::Instant,
    laps: Vec<(&'static str, f64)>,
}

impl Clock {
    fn start() -> Clock {
        Clock {
            last: std::time::Instant::now(),
            laps: vec![],
        }
    }

    /// Books the time since the last lap on `name`.
    fn lap(&mut self, name: &'static str) {
        let now = std::time::Instant::now();
        self.laps.push((name, (now - self.last).as_secs_f64()));
        self.last = now;
    }
}

/// Checks features and pairs for consistency.
fn check(job: &Job<'_>) -> Result<(), RetrievalError> {
    let (queries, gallery) = (job.queries.dimension(), job.gallery.dimension());
    if queries != gallery {
        return Err(RetrievalError::Dimensions { queries, gallery });
    }
    for (side, features) in [(Side::Query, job.queries), (Side::Gallery, job.gallery)] {
        let (expected, found) = (features.num_rows(), job.pairs.num_items(side));
        if expected != found {
            return Err(RetrievalError::Rows {
                side,
                expected,
                found,
            });
        }
        if expected == 0 {
            return Err(RetrievalError::Empty { side });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
