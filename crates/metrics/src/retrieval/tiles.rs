//! Tiles of scores in f32, compared with the thresholds of their rows and columns.
//!
//! ```text
//! | fl(q.g) - q.g |  <=  error_bound |q| |g|  <=  size of q * size of g
//! ```
//!
//! A score that is further above a threshold than its error is counted; one within the error is listed as open. Rows are scaled by a
//! power of two for each side, so that no product leaves the range of f32.

use std::ops::Range;

use holdall_device::cpu::dot_products::{dot_products, error_bound, scratch_bytes};
use rayon::prelude::*;

use super::Job;
use super::exact_comparison::Score;
use super::feature_scan::{FeatureScan, f32_sums_are_exact, norm};
use crate::features::Features;

/// Numbers of rows read at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Queries per block.
    pub queries: usize,
    /// Gallery items held at once.
    pub gallery: usize,
}

/// Fewest queries per block; blocks are multiples.
pub const ROWS: usize = 12;
/// Fewest gallery items held at once; parts are multiples.
pub const COLUMNS: usize = 32;

/// Gallery items per tile.
const PANEL: usize = 256;

/// Columns that are compared at once.
const LANES: usize = 16;

/// Memory of a row with its bounds.
pub fn row_bytes(dimension: usize) -> usize {
    (dimension + 3) * size_of::<f32>()
}

/// Memory of a thread: a block of queries, a tile, and the scratch of its product.
pub fn thread_bytes(dimension: usize, queries: usize) -> usize {
    let tile = queries * (PANEL + 1) + PANEL;
    queries * row_bytes(dimension)
        + (tile + 4 * dimension) * size_of::<f32>()
        + scratch_bytes(PANEL, dimension)
}

/// The rows of one side, and how they are scaled.
pub struct RowsOf<'a> {
    features: &'a Features<'a>,
    /// Factor of this side's values.
    scale: f64,
    /// Factor of both sides' products.
    product_scale: f64,
    /// Error of a product relative to the norms; 1 for the gallery, so that the product of both sizes is the bound.
    relative: f64,
}

/// Added to the size of every row: more than what is lost below the range of f32.
const UNDERFLOW: f64 = 1.0 / (1u64 << 60) as f64;

impl<'a> RowsOf<'a> {
    /// Queries and gallery.
    pub fn both(job: &Job<'a>, scans: &[FeatureScan; 2]) -> [RowsOf<'a>; 2] {
        let scales = scans.map(|scan| 2f64.powi(-scan.largest_exponent()));
        // The comparison rounds as well: a few times, and relative to the norms.
        let rounding = error_bound(job.queries.dimension()) + 16.0 * error_bound(1);
        let is_exact = f32_sums_are_exact(&scans[0], &scans[1]);
        let relative = if is_exact { 0.0 } else { rounding };
        let side = |features, scale, relative| RowsOf {
            features,
            scale,
            product_scale: scales[0] * scales[1],
            relative,
        };
        [
            side(job.queries, scales[0], relative),
            side(job.gallery, scales[1], 1.0),
        ]
    }

    /// Reads a row into `values`; returns its size and its bounds, the threshold minus and plus its error.
    fn read(&self, row: usize, threshold: Score, values: &mut [f32]) -> [f32; 3] {
        let mut room = Vec::new();
        let stored = self.features.row(row, &mut room);
        for (value, &stored) in values.iter_mut().zip(stored) {
            // A power of two: rounds only below the range of f32.
            *value = (f64::from(stored) * self.scale) as f32;
        }
        let size = if self.relative > 0.0 {
            self.relative * norm(values) + UNDERFLOW
        } else {
            0.0
        };
        let Score { value, error } = threshold;
        [
            above(size),
            below((value - error) * self.product_scale),
            above((value + error) * self.product_scale),
        ]
    }

    /// A threshold's lower bound in the units of the tiles.
    pub fn low(&self, threshold: Score) -> f32 {
        below((threshold.value - threshold.error) * self.product_scale)
    }
}

/// Converts to f32, rounding up.
fn above(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded) < value {
        rounded.next_up()
    } else {
        rounded
    }
}

/// Converts to f32, rounding down.
fn below(value: f64) -> f32 {
    -above(-value)
}

/// Rows of one side with their error bounds and thresholds.
pub struct ScaledRows {
    dimension: usize,
    num_rows: usize,
    values: Vec<f32>,
    /// The error bound of a pair is the product of both sizes.
    sizes: Vec<f32>,
    /// A score below `low` by more than the error is certainly below the threshold.
    pub low: Vec<f32>,
    /// A score above `high` by more than the error is certainly above the threshold.
    pub high: Vec<f32>,
}

impl ScaledRows {
    /// Buffers for this many rows. Those that are not filled do not exist: no comparison with NaN holds.
    pub fn new(rows: usize, dimension: usize) -> ScaledRows {
        let lines = rows.next_multiple_of(LANES);
        ScaledRows {
            dimension,
            num_rows: rows,
            values: vec![0.0; lines * dimension],
            sizes: vec![f32::NAN; lines],
            low: vec![f32::NAN; lines],
            high: vec![f32::NAN; lines],
        }
    }

    /// Reads these rows, on this thread.
    pub fn fill(
        &mut self,
        side: &RowsOf<'_>,
        rows: Range<usize>,
        threshold: impl Fn(usize) -> Score,
    ) {
        self.num_rows = rows.len();
        for (line, row) in rows.enumerate() {
            let values = &mut self.values[line * self.dimension..][..self.dimension];
            [self.sizes[line], self.low[line], self.high[line]] =
                side.read(row, threshold(row), values);
        }
    }

    /// Fills all rows, from row `first` on, on all threads.
    pub fn fill_parallel(
        &mut self,
        side: &RowsOf<'_>,
        first: usize,
        threshold: impl Fn(usize) -> Score + Sync,
    ) {
        let bounds = self
            .sizes
            .par_iter_mut()
            .zip(&mut self.low)
            .zip(&mut self.high);
        let rows = self.values.par_chunks_mut(self.dimension).zip(bounds);
        let rows = rows.take(self.num_rows).enumerate();
        rows.for_each(|(line, (values, ((size, low), high)))| {
            let row = first + line;
            [*size, *low, *high] = side.read(row, threshold(row), values);
        });
    }

    /// Error bound of the score of a row of this side and one of the other.
    pub fn error(&self, row: usize, other: &ScaledRows, other_row: usize) -> f32 {
        self.sizes[row] * other.sizes[other_row]
    }

    /// Ranges of rows for the columns of one tile each, whole [`LANES`] long.
    pub fn panels(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.sizes.len();
        let starts = (0..end).step_by(PANEL);
        starts.map(move |start| start..(start + PANEL).min(end))
    }
}

/// A pair whose score is within the error of the threshold of its row, of its column, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPair {
    pub row: u32,
    /// Within the tile.
    pub column: u32,
    pub of_row: bool,
    pub of_column: bool,
}

/// The scores of a tile, and how they compare.
#[derive(Debug, Default)]
pub struct ScoreTile {
    scores: Vec<f32>,
    /// Scratch of the product.
    scratch: Vec<u8>,
    num_columns: usize,
    /// Pairs certainly above the threshold, per row.
    pub above_row: Vec<u32>,
    /// Pairs certainly above the threshold, per column.
    pub above_column: Vec<u32>,
    /// Undecided pairs, by row and column.
    pub open: Vec<OpenPair>,
}

impl ScoreTile {
    /// Compares all rows with some of the columns.
    pub fn compare(&mut self, rows: &ScaledRows, columns: &ScaledRows, panel: Range<usize>) {
        let dimension = rows.dimension;
        self.num_columns = panel.len();
        self.scores.resize(rows.num_rows * panel.len(), 0.0);
        let values = &columns.values[panel.start * dimension..panel.end * dimension];
        let row_values = &rows.values[..rows.num_rows * dimension];
        let ScoreTile {
            scores, scratch, ..
        } = self;
        dot_products(row_values, values, dimension, scores, scratch);
        self.above_row.clear();
        self.above_column.clear();
        self.above_column.resize(panel.len(), 0);
        self.open.clear();
        pulp::Arch::new().dispatch(Comparison {
            tile: self,
            rows,
            columns: [&columns.sizes, &columns.low, &columns.high]
                .map(|values| values[panel.clone()].as_chunks::<LANES>().0),
        });
    }

    /// Whether a score is not certainly below a threshold.
    pub fn may_be_above(&self, open: &OpenPair, low: f32, error: f32) -> bool {
        let score = self.scores[open.row as usize * self.num_columns + open.column as usize];
        score - low >= -error
    }
}

/// A struct rather than a closure: a closure would be compiled without the vector instructions of its caller.
struct Comparison<'a> {
    tile: &'a mut ScoreTile,
    rows: &'a ScaledRows,
    /// Sizes, lower and upper bounds.
    columns: [&'a [[f32; LANES]]; 3],
}

impl pulp::WithSimd for Comparison<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        let Comparison {
            tile,
            rows,
            columns: [sizes, lows, highs],
        } = self;
        let above_column = tile.above_column.as_chunks_mut::<LANES>().0;
        for (row, scores) in tile.scores.chunks_exact(tile.num_columns).enumerate() {
            let (size, low, high) = (rows.sizes[row], rows.low[row], rows.high[row]);
            let mut above = [0u32; LANES];
            for (chunk, scores) in scores.as_chunks::<LANES>().0.iter().enumerate() {
                let (mut open_row, mut open_column) = ([0u32; LANES], [0u32; LANES]);
                let mut any = 0;
                for lane in 0..LANES {
                    let (score, error) = (scores[lane], size * sizes[chunk][lane]);
                    let is_above = score - high > error;
                    let is_above_column = score - highs[chunk][lane] > error;
                    above[lane] += u32::from(is_above);
                    above_column[chunk][lane] += u32::from(is_above_column);
                    open_row[lane] = u32::from((score - low >= -error) & !is_above);
                    open_column[lane] =
                        u32::from((score - lows[chunk][lane] >= -error) & !is_above_column);
                    any |= open_row[lane] | open_column[lane];
                }
                if any == 0 {
                    continue;
                }
                for lane in 0..LANES {
                    if open_row[lane] | open_column[lane] != 0 {
                        tile.open.push(OpenPair {
                            row: row as u32,
                            column: (chunk * LANES + lane) as u32,
                            of_row: open_row[lane] != 0,
                            of_column: open_column[lane] != 0,
                        });
                    }
                }
            }
            tile.above_row.push(above.iter().sum());
        }
    }
}
