//! The tile computation with x86 vector instructions.

use std::arch::x86_64::*;

use super::{COLUMNS, Counts, Lines, ROWS, Tile, Unsure, compare};

pub fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("popcnt")
}

pub fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Lanes of a 512-bit register.
const LANES: usize = 16;
/// Registers per row of the tile.
const HALVES: usize = COLUMNS / LANES;

/// # Safety
/// The processor must have these instructions; each panel must hold `pairs` pairs for each line.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,popcnt")]
pub unsafe fn count_vnni(
    pairs: usize,
    row_panel: &[i16],
    rows: &Lines<ROWS>,
    column_panel: &[i16],
    columns: &Lines<COLUMNS>,
    counts: &mut Counts,
) {
    let mut tile = [[_mm512_setzero_si512(); HALVES]; ROWS];
    let (row_digits, column_digits) = (row_panel.as_ptr(), column_panel.as_ptr());
    for pair in 0..pairs {
        // SAFETY: the panels hold `pairs` pairs, as the caller promised.
        let columns: [__m512i; HALVES] = std::array::from_fn(|half| unsafe {
            _mm512_loadu_si512(
                column_digits
                    .add((pair * COLUMNS + half * LANES) * 2)
                    .cast(),
            )
        });
        for (row, sums) in tile.iter_mut().enumerate() {
            // SAFETY: as above.
            let digits = unsafe {
                row_digits
                    .add((pair * ROWS + row) * 2)
                    .cast::<i32>()
                    .read_unaligned()
            };
            let digits = _mm512_set1_epi32(digits);
            for (sum, &columns) in sums.iter_mut().zip(&columns) {
                *sum = _mm512_dpwssd_epi32(*sum, digits, columns);
            }
        }
    }
    let one = _mm512_set1_epi32(1);
    // SAFETY: an array of `COLUMNS` values, read by halves.
    let read = |values: &[f32; COLUMNS], half: usize| unsafe {
        _mm512_loadu_ps(values.as_ptr().add(half * LANES))
    };
    let zero = _mm512_setzero_ps();
    for half in 0..HALVES {
        let unit = read(&columns.unit, half);
        let size = read(&columns.size, half);
        let size_in_units = read(&columns.size_in_units, half);
        let low = read(&columns.low, half);
        let high = read(&columns.high, half);
        let mut above_column = _mm512_setzero_si512();
        for (row, sums) in tile.iter().enumerate() {
            let product = _mm512_cvtepi32_ps(sums[half]);
            let score = _mm512_mul_ps(product, unit);
            let error = _mm512_mul_ps(_mm512_set1_ps(rows.size[row]), size_in_units);
            let over = _mm512_sub_ps(score, _mm512_set1_ps(rows.high[row]));
            let under = _mm512_sub_ps(score, _mm512_set1_ps(rows.low[row]));
            let is_above = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(over, error);
            let may_be = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(under, _mm512_sub_ps(zero, error));

            let score = _mm512_mul_ps(product, _mm512_set1_ps(rows.unit[row]));
            let error = _mm512_mul_ps(_mm512_set1_ps(rows.size_in_units[row]), size);
            let over = _mm512_sub_ps(score, high);
            let under = _mm512_sub_ps(score, low);
            let is_above_column = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(over, error);
            let may_be_column = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(under, _mm512_sub_ps(zero, error));

            counts.above_row[row] += is_above.count_ones();
            above_column = _mm512_mask_add_epi32(above_column, is_above_column, above_column, one);
            let (of_row, of_column) = (may_be & !is_above, may_be_column & !is_above_column);
            let mut unsure = of_row | of_column;
            while unsure != 0 {
                let lane = unsure.trailing_zeros();
                unsure &= unsure - 1;
                counts.unsure.push(Unsure {
                    row: row as u8,
                    column: (half * LANES) as u8 + lane as u8,
                    of_row: of_row >> lane & 1 == 1,
                    of_column: of_column >> lane & 1 == 1,
                });
            }
        }
        let to = counts.above_column[half * LANES..][..LANES].as_mut_ptr();
        // SAFETY: a slice of `LANES` 32-bit numbers.
        unsafe {
            let sum = _mm512_add_epi32(_mm512_loadu_si512(to.cast()), above_column);
            _mm512_storeu_si512(to.cast(), sum);
        }
    }
}

/// Rows whose sums fit into 16 registers.
const GROUP: usize = 3;
/// 256-bit registers per row of the tile.
const QUARTERS: usize = COLUMNS / 8;

/// # Safety
/// Like [`count_vnni`].
#[target_feature(enable = "avx2")]
pub unsafe fn count_avx2(
    pairs: usize,
    row_panel: &[i16],
    rows: &Lines<ROWS>,
    column_panel: &[i16],
    columns: &Lines<COLUMNS>,
    counts: &mut Counts,
) {
    let mut tile: Tile = [[0; COLUMNS]; ROWS];
    let (row_digits, column_digits) = (row_panel.as_ptr(), column_panel.as_ptr());
    for (group, tile) in tile.chunks_exact_mut(GROUP).enumerate() {
        let mut sums = [[_mm256_setzero_si256(); QUARTERS]; GROUP];
        for pair in 0..pairs {
            // SAFETY: the panels hold `pairs` pairs, as the caller promised.
            let digits: [__m256i; GROUP] = std::array::from_fn(|row| unsafe {
                let row = group * GROUP + row;
                let digits = row_digits.add((pair * ROWS + row) * 2).cast::<i32>();
                _mm256_set1_epi32(digits.read_unaligned())
            });
            for quarter in 0..QUARTERS {
                // SAFETY: as above.
                let columns = unsafe {
                    let from = column_digits.add((pair * COLUMNS + quarter * 8) * 2);
                    _mm256_loadu_si256(from.cast())
                };
                for (sums, &digits) in sums.iter_mut().zip(&digits) {
                    let products = _mm256_madd_epi16(digits, columns);
                    sums[quarter] = _mm256_add_epi32(sums[quarter], products);
                }
            }
        }
        for (tile, sums) in tile.iter_mut().zip(sums) {
            for (tile, sum) in tile.chunks_exact_mut(8).zip(sums) {
                // SAFETY: a chunk of eight 32-bit numbers.
                unsafe { _mm256_storeu_si256(tile.as_mut_ptr().cast(), sum) };
            }
        }
    }
    compare(&tile, rows, columns, counts);
}
