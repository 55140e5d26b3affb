//! First pass of retrieval: rows as 16-bit integers ("digits"), with exact dot products in 32 bits.
//!
//! ```text
//! x = 2^e d + residual     d whole, |d_k| < 2^15, |d| <= 46340     (| | is the 2-norm)
//! ```
//!
//! By Cauchy and Schwarz no sum of products, and no partial sum, exceeds 32 bits; and the dot product of two rows is
//!
//! ```text
//! | q.g - 2^(e+f) d.c |  <=  |residual of q| |g|  +  |2^e d| |residual of g|
//! ```
//!
//! [`count`] computes a tile of such products, compares each with the thresholds of its row and of its column, counts those that are
//! certainly above and lists those within the error bound.
//!
//! Legend: a tile is `ROWS` x `COLUMNS`; digits are stored in pairs of neighbours, because the processor multiplies pairs.

mod split;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use split::{Split, Survey, split, survey};

/// Rows per tile.
pub const ROWS: usize = 12;
/// Columns per tile.
pub const COLUMNS: usize = 32;

/// Scales, error bounds and thresholds of `N` rows or columns, in units of their digits.
#[derive(Clone, Debug)]
pub struct Lines<const N: usize> {
    /// 2^e, relative to the largest of all rows (or columns).
    pub unit: [f32; N],
    /// Size of the error: the error bound of a pair is the product of both sizes.
    pub size: [f32; N],
    /// `size * unit`.
    pub size_in_units: [f32; N],
    /// Threshold, in the line's own unit times the largest unit of the other side. A score above `high` by more than the error is certainly
    /// above.
    pub high: [f32; N],
    /// A score below `low` by more than the error is certainly below.
    pub low: [f32; N],
}

impl<const N: usize> Default for Lines<N> {
    /// Lines that do not exist: no comparison with a NaN holds.
    fn default() -> Self {
        Lines {
            unit: [f32::NAN; N],
            size: [0.0; N],
            size_in_units: [0.0; N],
            high: [f32::NAN; N],
            low: [f32::NAN; N],
        }
    }
}

impl<const N: usize> Lines<N> {
    /// Sets line `index`; for the unit of the thresholds see [`Lines::high`].
    pub fn set(&mut self, index: usize, unit: f32, size: f32, [low, high]: [f32; 2]) {
        self.unit[index] = unit;
        self.size[index] = size;
        self.size_in_units[index] = size * unit;
        self.low[index] = low;
        self.high[index] = high;
    }
}

/// A pair whose score is within the error of the threshold of its row, of its column, or of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsure {
    /// Row of the tile.
    pub row: u8,
    /// Column of the tile.
    pub column: u8,
    /// Undecided for the row's threshold.
    pub of_row: bool,
    /// Undecided for the column's threshold.
    pub of_column: bool,
}

/// Results of a tile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pairs certainly above the threshold, per row.
    pub above_row: [u32; ROWS],
    /// Pairs certainly above the threshold, per column.
    pub above_column: [u32; COLUMNS],
    /// Undecided pairs, by row and column; cleared at the start of each tile.
    pub unsure: Vec<Unsure>,
}

/// Instruction set of a tile's computation. A value exists only for instructions that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Instructions);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    /// AVX-512 with VNNI: 32 products per instruction.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// AVX2: 16 products in two instructions.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Portable code, vectorised by the compiler.
    Portable,
}

impl Kernel {
    /// Kernels that run on this processor, the fastest first.
    pub fn available() -> Vec<Kernel> {
        let mut kernels = vec![];
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_vnni() {
                kernels.push(Kernel(Instructions::Vnni));
            }
            if x86::has_avx2() {
                kernels.push(Kernel(Instructions::Avx2));
            }
        }
        kernels.push(Kernel(Instructions::Portable));
        kernels
    }

    /// The fastest kernel that runs on this processor.
    pub fn best() -> Kernel {
        Kernel::available()[0]
    }
}

/// Length of a panel, the digits of `N` lines pair by pair: `[pair][line][2]`, with half as many pairs as the dimension, rounded up.
pub fn panel_len<const N: usize>(dimension: usize) -> usize {
    dimension.div_ceil(2) * 2 * N
}

/// Writes a line's digits into a panel.
pub fn pack<const N: usize>(panel: &mut [i16], line: usize, digits: &[i16]) {
    for (pair, digits) in digits.chunks(2).enumerate() {
        let to = &mut panel[(pair * N + line) * 2..][..2];
        to[0] = digits[0];
        to[1] = digits.get(1).copied().unwrap_or(0);
    }
}

/// Compares the products of two panels with the thresholds of one tile.
///
/// # Panics
/// If the panels have different dimensions.
pub fn count(
    kernel: Kernel,
    (row_panel, rows): (&[i16], &Lines<ROWS>),
    (column_panel, columns): (&[i16], &Lines<COLUMNS>),
    counts: &mut Counts,
) {
    let pairs = row_panel.len() / (2 * ROWS);
    assert_eq!(
        (row_panel.len(), column_panel.len()),
        (pairs * 2 * ROWS, pairs * 2 * COLUMNS),
        "panels of one dimension"
    );
    counts.unsure.clear();
    match kernel.0 {
        #[cfg(target_arch = "x86_64")]
        Instructions::Vnni => {
            // SAFETY: the processor has these instructions: only `available` creates this kernel. The length of the panels was checked
            // above.
            unsafe { x86::count_vnni(pairs, row_panel, rows, column_panel, columns, counts) }
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => {
            // SAFETY: as above.
            unsafe { x86::count_avx2(pairs, row_panel, rows, column_panel, columns, counts) }
        }
        Instructions::Portable => {
            let mut tile = [[0; COLUMNS]; ROWS];
            products(row_panel, column_panel, &mut tile);
            compare(&tile, rows, columns, counts);
        }
    }
}

type Tile = [[i32; COLUMNS]; ROWS];

/// Dot products of all pairs of rows and columns.
#[inline(always)]
fn products(row_panel: &[i16], column_panel: &[i16], tile: &mut Tile) {
    let row_pairs = row_panel.as_chunks::<{ 2 * ROWS }>().0;
    let column_pairs = column_panel.as_chunks::<{ 2 * COLUMNS }>().0;
    for (rows, columns) in row_pairs.iter().zip(column_pairs) {
        for (row, sums) in tile.iter_mut().enumerate() {
            let [a, b] = [rows[2 * row], rows[2 * row + 1]].map(i32::from);
            for (column, sum) in sums.iter_mut().enumerate() {
                *sum += a * i32::from(columns[2 * column]) + b * i32::from(columns[2 * column + 1]);
            }
        }
    }
}

/// Compares one product with a threshold: whether it is certainly above, and whether it may be above.
#[inline(always)]
fn test(product: f32, other_unit: f32, error: f32, low: f32, high: f32) -> (bool, bool) {
    // A unit is a power of two: this multiplication does not round.
    let score = product * other_unit;
    (score - high > error, score - low >= -error)
}

/// Compares all products of a tile with their thresholds.
#[inline(always)]
fn compare(tile: &Tile, rows: &Lines<ROWS>, columns: &Lines<COLUMNS>, counts: &mut Counts) {
    for (row, products) in tile.iter().enumerate() {
        let (mut above, mut unsure) = (0, 0);
        let mut column_above = [0; COLUMNS];
        let both = |column: usize| {
            let product = products[column] as f32;
            let of_row = test(
                product,
                columns.unit[column],
                rows.size[row] * columns.size_in_units[column],
                rows.low[row],
                rows.high[row],
            );
            let of_column = test(
                product,
                rows.unit[row],
                rows.size_in_units[row] * columns.size[column],
                columns.low[column],
                columns.high[column],
            );
            (of_row, of_column)
        };
        for (column, column_above) in column_above.iter_mut().enumerate() {
            let ((is_above, may_be), (is_above_column, may_be_column)) = both(column);
            above += u32::from(is_above);
            *column_above = u32::from(is_above_column);
            unsure += u32::from(may_be & !is_above) + u32::from(may_be_column & !is_above_column);
        }
        counts.above_row[row] += above;
        for (sum, above) in counts.above_column.iter_mut().zip(column_above) {
            *sum += above;
        }
        if unsure == 0 {
            continue;
        }
        for column in 0..COLUMNS {
            let ((is_above, may_be), (is_above_column, may_be_column)) = both(column);
            let (of_row, of_column) = (may_be & !is_above, may_be_column & !is_above_column);
            if of_row | of_column {
                counts.unsure.push(Unsure {
                    row: row as u8,
                    column: column as u8,
                    of_row,
                    of_column,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Rows have the maximum norm, so that sums reach the ends of 32 bits; thresholds are anywhere among the sums, or missing.
        #[test]
        fn every_kernel_counts_and_lists_the_same(
            dimension in 1usize..40,
            values in prop::collection::vec(-1f32..1.0, 40 * (ROWS + COLUMNS)),
            thresholds in prop::collection::vec(prop::option::of(-1f64..1.0), ROWS + COLUMNS),
        ) {
            fn packed<const N: usize>(values: &[f32], dimension: usize, thresholds: &[Option<f64>]) -> (Vec<i16>, Lines<N>) {
                let mut panel = vec![0; panel_len::<N>(dimension)];
                let (mut lines, mut digits) = (Lines::default(), vec![0; dimension]);
                for (line, threshold) in thresholds.iter().enumerate() {
                    let row = &values[line * dimension..][..dimension];
                    let found = survey(row);
                    let split = split(row, found.norm, found.exponent, &mut digits);
                    assert!(digits.iter().map(|&d| f64::from(d).powi(2)).sum::<f64>() <= 46340.0 * 46340.0);
                    pack::<N>(&mut panel, line, &digits);
                    // The last line does not exist.
                    if line + 1 < N {
                        let at = threshold.map_or(f32::INFINITY, |t| (t * split.norm * 30_000.0) as f32);
                        lines.set(line, 1.0, split.norm as f32 * 1e-2, [at, at]);
                    }
                }
                (panel, lines)
            }
            let rows = packed::<ROWS>(&values, dimension, &thresholds[..ROWS]);
            let columns = packed::<COLUMNS>(&values[40 * ROWS..], dimension, &thresholds[ROWS..]);
            let count = |kernel| {
                let mut counts = Counts::default();
                count(kernel, (&rows.0, &rows.1), (&columns.0, &columns.1), &mut counts);
                counts.unsure.sort_by_key(|unsure| (unsure.row, unsure.column));
                counts
            };
            let expected = count(Kernel(Instructions::Portable));
            prop_assert!(expected.unsure.iter().all(|unsure| usize::from(unsure.row) + 1 < ROWS && usize::from(unsure.column) + 1 < COLUMNS));
            for kernel in Kernel::available() {
                prop_assert_eq!(&count(kernel), &expected, "{:?}", kernel);
            }
        }
    }
}
