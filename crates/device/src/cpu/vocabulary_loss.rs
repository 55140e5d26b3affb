//! Cross-entropy over a vocabulary without storing all logits: rows in tiles, and the vocabulary in chunks.
//!
//! A tile gathers only rows that count: padding costs nothing. Only the logits of one chunk of the vocabulary exist at a time, and stay
//! in the cache: forward, they are folded into running maxima and sums; backward, they become gradients, and each chunk of the weight's
//! gradient is visited once per tile.

use holdall_graph::Write;
use holdall_graph::ops::vocabulary_loss::{VocabularyLoss, VocabularyLossGrad};

use super::elements::for_rows;
use super::operands::{Operands, Rows};
use super::product::{Factor, Panels, product};
use super::real::{Real, exp_in_place, largest, sum};

/// Maximum number of rows per tile.
const MOST_ROWS: usize = 512;
/// Tokens per chunk: the logits of a chunk and a whole tile are two megabytes in f32.
const CHUNK: usize = 1024;
/// Numbers per row that are kept between chunks: the largest logit, the sum of exponentials, the label's logit, the sum of logits.
const STATISTICS: usize = 4;

/// Maximum number of rows per tile.
fn tile_rows(rows: usize, tile: usize) -> usize {
    tile.min(MOST_ROWS).min(rows).max(1)
}

fn chunks(vocabulary: usize) -> impl Iterator<Item = (usize, usize)> {
    let starts = (0..vocabulary).step_by(CHUNK);
    starts.map(move |start| (start, CHUNK.min(vocabulary - start)))
}

/// Bytes of scratch: row indices of the tile, their `x`, the gradient of `x`, logits of a chunk, statistics.
pub(super) fn scratch_bytes(
    [rows, width, vocabulary]: [usize; 3],
    tile: usize,
    element: usize,
) -> usize {
    let rows = tile_rows(rows, tile);
    let each = 2 * width + vocabulary.min(CHUNK) + STATISTICS;
    rows * (size_of::<i64>() + each * element)
}

/// The largest products of a tile, `m x k` by `k x n`.
pub(super) fn products(
    [rows, width, vocabulary]: [usize; 3],
    tile: usize,
    is_backward: bool,
) -> Vec<[usize; 3]> {
    let (rows, columns) = (tile_rows(rows, tile), vocabulary.min(CHUNK));
    let logits = [rows, width, columns];
    if is_backward {
        vec![logits, [rows, columns, width], [columns, rows, width]]
    } else {
        vec![logits]
    }
}

struct Tile<T> {
    /// Indices in the batch of the rows of the tile.
    numbers: Rows<i64>,
    x: Rows<T>,
    dx: Rows<T>,
    logits: Rows<T>,
    statistics: Rows<T>,
    panels: Panels,
}

/// Operands of the forward and the backward pass.
struct Loss<T> {
    x: Rows<T>,
    weight: Rows<T>,
    labels: Rows<i64>,
    token_weights: Rows<T>,
    sample_weights: Rows<T>,
    tile: Tile<T>,
}

impl<T: Real> Loss<T> {
    /// `first` is the index of input `x`.
    fn new(o: &Operands<'_>, first: usize, tile: usize) -> Loss<T> {
        let (x, weight) = (o.input::<T>(first), o.input::<T>(first + 1));
        let shape = [x.rows, x.width, weight.rows];
        let rows = tile_rows(x.rows, tile);
        let bytes = scratch_bytes(shape, tile, size_of::<T>());
        let all = o.workspace::<T>(bytes / size_of::<T>()).slice(0, 1);
        let mut start = rows * size_of::<i64>() / size_of::<T>();
        let mut part = |width: usize| {
            let part = all.columns(start, rows * width).reshape(width);
            start += rows * width;
            part
        };
        Loss {
            labels: o.input::<i64>(first + 2).flat(),
            token_weights: o.input::<T>(first + 3).flat(),
            sample_weights: o.input::<T>(first + 4).flat(),
            tile: Tile {
                numbers: o.workspace::<i64>(rows).slice(0, 1),
                x: part(x.width),
                dx: part(x.width),
                logits: part(weight.rows.min(CHUNK)),
                statistics: part(STATISTICS),
                panels: o.panels(bytes),
            },
            x,
            weight,
        }
    }

    fn weight_of(&self, row: usize) -> T {
        let tokens = self.x.rows / self.sample_weights.width;
        self.token_weights.row(0)[row] * self.sample_weights.row(0)[row / tokens]
    }

    /// The label of a row; `None` if the row does not count.
    fn label_of(&self, row: usize) -> Option<usize> {
        let label = self.labels.row(0)[row];
        if label < 0 || self.weight_of(row) == T::ZERO {
            return None;
        }
        assert!(
            label < self.weight.rows as i64,
            "label {label} of a vocabulary of {}",
            self.weight.rows
        );
        Some(label as usize)
    }

    /// Gathers the next rows that count, from `cursor` on, and returns their number: zero at the end.
    fn gather(&self, cursor: &mut usize) -> usize {
        let Tile { numbers, x, .. } = &self.tile;
        let numbers = numbers.row_mut(0);
        let mut count = 0;
        while count < x.rows && *cursor < self.x.rows {
            if self.label_of(*cursor).is_some() {
                numbers[count] = *cursor as i64;
                count += 1;
            }
            *cursor += 1;
        }
        let numbers = &*numbers;
        for_rows(count, |row| {
            x.row_mut(row)
                .copy_from_slice(self.x.row(numbers[row] as usize))
        });
        count
    }

    /// Computes the logits of the rows of a tile and a chunk of the vocabulary.
    fn logits(&self, rows: usize, (start, columns): (usize, usize)) -> Rows<T> {
        let logits = self.tile.logits.slice(0, rows).columns(0, columns);
        product(
            logits,
            Write::Overwrite,
            1.0,
            Factor::Plain(self.tile.x.slice(0, rows)),
            Factor::Transposed(self.weight.slice(start, columns)),
            self.tile.panels,
        );
        logits
    }
}

pub(super) fn forward<T: Real>(op: &VocabularyLoss, o: &Operands<'_>) {
    let loss = Loss::<T>::new(o, 0, op.tile);
    let lse = o.output::<T>(1).map(|(lse, _)| lse.flat());
    if let Some(lse) = lse {
        lse.row_mut(0).fill(T::ZERO); // for rows that do not count
    }
    let vocabulary = loss.weight.rows;
    let (numbers, statistics) = (loss.tile.numbers, loss.tile.statistics);
    let (mut cursor, mut total) = (0, 0.0);
    loop {
        let count = loss.gather(&mut cursor);
        if count == 0 {
            break;
        }
        let numbers = numbers.row(0);
        for row in 0..count {
            statistics
                .row_mut(row)
                .copy_from_slice(&[T::NEG_INFINITY, T::ZERO, T::ZERO, T::ZERO]);
        }
        for (start, columns) in chunks(vocabulary) {
            let logits = loss.logits(count, (start, columns));
            for_rows(count, |row| {
                let logits = logits.row_mut(row);
                let [peak, total, own, all] = statistics.row_mut(row) else {
                    unreachable!("as many as there are statistics");
                };
                let label = loss.label_of(numbers[row] as usize);
                let label = label.expect("gathered rows have one").checked_sub(start);
                if let Some(&logit) = label.and_then(|label| logits.get(label)) {
                    *own = logit;
                }
                if op.smoothing > 0.0 {
                    *all += sum(logits, |logit| logit);
                }
                let new = largest(logits).larger(*peak);
                *total = *total * (*peak - new).exp() + exp_in_place(logits, new);
                *peak = new;
            });
        }
        for (row, &number) in numbers[..count].iter().enumerate() {
            let [peak, sum, own, all] = *statistics.row(row) else {
                unreachable!("as many as there are statistics");
            };
            let (number, log_sum) = (number as usize, peak + sum.ln());
            if let Some(lse) = lse {
                lse.row_mut(0)[number] = log_sum;
            }
            let mean = all.f64() / vocabulary as f64;
            let target = (1.0 - op.smoothing) * own.f64() + op.smoothing * mean;
            total += loss.weight_of(number).f64() * (log_sum.f64() - target);
        }
    }
    let (sum, _) = o.result::<T>(0);
    sum.row_mut(0)[0] = T::of(sum.scalar().f64() + total);
}

pub(super) fn backward<T: Real>(op: &VocabularyLossGrad, o: &Operands<'_>) {
    let seed = o.input::<T>(0).scalar();
    let loss = Loss::<T>::new(o, 1, op.tile);
    let lse = o.input::<T>(6).flat();
    let dx = op.x.then(|| o.result::<T>(0));
    let dweight = op.weight.then(|| o.result::<T>(usize::from(op.x)).0);
    if let Some((dx, Write::Overwrite)) = dx {
        for_rows(dx.rows, |row| dx.row_mut(row).fill(T::ZERO));
    }
    let vocabulary = loss.weight.rows;
    let Tile {
        numbers,
        x,
        dx: dx_rows,
        panels,
        ..
    } = loss.tile;
    let mut cursor = 0;
    loop {
        let count = loss.gather(&mut cursor);
        if count == 0 {
            break;
        }
        let numbers = numbers.row(0);
        for (start, columns) in chunks(vocabulary) {
            let logits = loss.logits(count, (start, columns));
            for_rows(count, |row| {
                let gradients = logits.row_mut(row);
                let number = numbers[row] as usize;
                let (scale, shift) = (seed * loss.weight_of(number), lse.row(0)[number]);
                let spread = scale * T::of(op.smoothing / vocabulary as f64);
                for logit in gradients.iter_mut() {
                    *logit = scale * (*logit - shift).exp() - spread;
                }
                let label = loss.label_of(number).expect("gathered rows have one");
                let label = label.checked_sub(start);
                if let Some(own) = label.and_then(|label| gradients.get_mut(label)) {
                    *own -= scale * T::of(1.0 - op.smoothing);
                }
            });
            if dx.is_some() {
                let mode = match start {
                    0 => Write::Overwrite,
                    _ => Write::Accumulate,
                };
                let (left, right) = (logits, loss.weight.slice(start, columns));
                let (left, right) = (Factor::Plain(left), Factor::Plain(right));
                product(dx_rows.slice(0, count), mode, 1.0, left, right, panels);
            }
            if let Some(dweight) = dweight {
                let (left, right) = (logits, x.slice(0, count));
                let (left, right) = (Factor::Transposed(left), Factor::Plain(right));
                let dweight = dweight.slice(start, columns);
                product(dweight, Write::Accumulate, 1.0, left, right, panels);
            }
        }
        if let Some((dx, _)) = dx {
            for_rows(count, |row| {
                let to = dx.row_mut(numbers[row] as usize);
                for (to, &value) in to.iter_mut().zip(dx_rows.row(row)) {
                    *to += value;
                }
            });
        }
    }
}
