//! Exact retrieval ranks, both ways, without ever holding the similarities.
//!
//! A score is the dot product of two rows in exact arithmetic, and a rank counts whose score is higher:
//!
//! ```text
//! s_ij = q_i . g_j         t_i = max over positives p of s_ip
//! above_i = #{ j : s_ij > t_i }      level_i = #{ j not positive : s_ij = t_i }
//! rank_i = 1 + above_i + what the tie policy makes of level_i
//! ```
//!
//! Gallery items rank queries in the same way, from the same pass. Because scores are compared as if nothing were ever
//! rounded, the result depends on nothing but the features: not on tiles, threads or device.

mod best_positives;
mod count;
mod exact_comparison;
mod feature_scan;
mod gpu;
mod neighbours;
mod rank_statistics;
mod tiling;

pub use gpu::OnGpu;
pub use rank_statistics::{Entry, Ranked, Ranks, Ties};
pub use tiling::{Sizes, Tiling};

use holdall_device::cpu::digits::Kernel;
use holdall_device::cuda::Cuda;

use crate::features::Features;
use crate::pairs::Pairs;
use best_positives::BestPositives;
use count::{Count, Counting, Direction, Tiles};
use exact_comparison::ExactComparison;

/// One of the two sets of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The set that searches.
    Query,
    /// The set that is searched.
    Gallery,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Query => Side::Gallery,
            Side::Gallery => Side::Query,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Query => "query",
            Side::Gallery => "gallery item",
        })
    }
}

/// What counts where an item has several positives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The best of them; the others are not counted as distractors.
    #[default]
    Best,
    /// Each of them by itself: R@k is the share of an item's positives among the first k, averaged over items; the other
    /// statistics are over all positives.
    Recall,
}

/// What to rank.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The set that searches.
    pub queries: &'a Features<'a>,
    /// The set that is searched.
    pub gallery: &'a Features<'a>,
    /// Which items belong to each other. Items without a positive have no rank, and are still distractors.
    pub pairs: &'a Pairs,
}

impl<'a> Job<'a> {
    fn features(&self, side: Side) -> &'a Features<'a> {
        match side {
            Side::Query => self.queries,
            Side::Gallery => self.gallery,
        }
    }

    /// One for each query and each gallery item.
    pub fn num_scores(&self) -> u64 {
        self.queries.num_rows() as u64 * self.gallery.num_rows() as u64
    }
}

/// How to rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Where there are several positives.
    pub rule: Rule,
    /// What may be held, the features aside when they are mapped; `None` for as much as is useful.
    pub memory_bytes: Option<u64>,
    /// Number of nearest gallery items to find for each query; 0 for none.
    pub neighbours: usize,
}

/// Called with the progress; returns whether to go on.
pub type Go<'a> = dyn FnMut(Progress) -> bool + Send + 'a;

/// How far ranking is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Pairs of a query and a gallery item that were compared.
    pub done: u64,
    /// Total number of pairs.
    pub total: u64,
}

/// How many comparisons took how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    /// By the first product, whose error is bounded.
    pub at_once: u64,
    /// Again, in f64.
    pub in_f64: u64,
    /// Again, without rounding.
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

/// The gallery items nearest to each query.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbours {
    /// For each query.
    pub count: usize,
    /// Gallery items, the nearest first, ties by number; `count` for each query.
    pub items: Vec<u32>,
    /// Their scores, rounded.
    pub scores: Vec<f32>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Queries looking for a gallery item.
    pub to_gallery: Ranked,
    /// Gallery items looking for a query.
    pub to_query: Ranked,
    /// `None` unless [`Options::neighbours`] asks for some.
    pub neighbours: Option<Neighbours>,
    /// How comparisons were decided.
    pub decided: Decided,
    /// Seconds of each stage, in their order.
    pub seconds: Vec<(&'static str, f64)>,
}

/// Why there are no ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetrievalError {
    /// Rows that cannot be multiplied.
    #[error(
        "expected rows of one length, found {queries} values for queries and {gallery} for gallery items"
    )]
    Dimensions {
        /// Values of a query.
        queries: usize,
        /// Values of a gallery item.
        gallery: usize,
    },
    /// Pairs of other sets.
    #[error("expected pairs of {expected} {side} rows, found pairs of {found}")]
    Rows {
        /// Which set.
        side: Side,
        /// Rows of its features.
        expected: usize,
        /// Items of the pairs.
        found: usize,
    },
    /// A side without rows.
    #[error("expected at least one {side}, found none")]
    Empty {
        /// Which side.
        side: Side,
    },
    /// Not a number, or infinite.
    #[error("{side} {row}, value {column}: expected a finite number, found {value}")]
    NotFinite {
        /// Which set.
        side: Side,
        /// Counted from 0.
        row: usize,
        /// Counted from 0.
        column: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A pair names what is not there.
    #[error("pair {pair}: {side} {item}: expected one of 0 to {}", count.saturating_sub(1))]
    PairOutOfRange {
        /// Counted from 0.
        pair: usize,
        /// Of which set.
        side: Side,
        /// What it names.
        item: u32,
        /// How many there are.
        count: usize,
    },
    /// More than numbers of 32 bits count.
    #[error("expected at most {} items and pairs, found {found}", u32::MAX)]
    TooMany {
        /// How many.
        found: usize,
    },
    /// The limit is too small even for the smallest tiles.
    #[error("expected a limit of at least {needed_bytes} bytes, found {limit_bytes}")]
    DoesNotFit {
        /// What the smallest tiles would take.
        needed_bytes: u64,
        /// What was allowed.
        limit_bytes: u64,
    },
    /// The GPU.
    #[error("{0}")]
    Device(String),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// What counts.
#[derive(Clone, Copy)]
pub enum Engine<'a> {
    /// The threads of rayon's current pool.
    Cpu,
    /// A GPU; what it leaves open, and neighbours, are for the threads.
    Gpu(&'a Cuda),
}

/// Ranks both ways. `go_on` is called with the progress, and returns whether to go on.
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
        Engine::Cpu => count_with(job, tiling.tiles, Kernel::best(), go_on),
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

/// Seconds that counting would take on the threads, from a small part of the job; quick.
///
/// # Errors
/// As for [`rank`], for that part.
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
    count_with(&part, tiling.tiles, Kernel::best(), &mut |_| true)?;
    let share = job.num_scores() as f64 / part.num_scores() as f64;
    Ok(began.elapsed().as_secs_f64() * share)
}

/// Each positive by itself: as many queries as there are pairs, each with one positive; then as many gallery items.
fn recall(
    job: &Job<'_>,
    count: &mut dyn FnMut(&Job<'_>, &mut Go<'_>) -> Result<Found, RetrievalError>,
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
    // What is not finite is named here, where queries are queries.
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
        // Queries look in both halves: in the second they are gallery items.
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

/// With tiles and instructions of the caller's: the result is the same.
fn count_with(
    job: &Job<'_>,
    tiles: Tiles,
    kernel: Kernel,
    go_on: &mut Go<'_>,
) -> Result<Found, RetrievalError> {
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
        kernel,
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

/// Where time goes.
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

    /// What went by since the last lap was `name`.
    fn lap(&mut self, name: &'static str) {
        let now = std::time::Instant::now();
        self.laps.push((name, (now - self.last).as_secs_f64()));
        self.last = now;
    }
}

/// What must hold of the features and the pairs.
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
