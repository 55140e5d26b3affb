//! The contrastive loss in tiles: the scores of a tile are computed, used and dropped.
//!
//! A tile is a product on all threads; its rows and then its columns are folded into running maxima and sums.
//! Legend: `i` image rows, `j` text rows.

use std::ops::Range;

use holdall_graph::Write;
use holdall_graph::ops::collective::Processes;
use holdall_graph::ops::contrastive::{Contrastive, ContrastiveGrad};
use rayon::prelude::*;

use super::elements::for_rows;
use super::operands::{Operands, Rows};
use super::product::{Factor, Panels, product};
use super::real::{Real, exp_in_place, largest, sum, vectorised};

/// Columns per thread at a time.
const TASK_COLUMNS: usize = 64;

/// Elements of scratch: two tiles, and per row of the batch a diagonal, and a maximum and a sum per direction.
pub(super) fn scratch_elements(rows: usize, tile: usize) -> usize {
    let tile = tile.min(rows);
    2 * tile * tile + 5 * rows
}

struct ContrastiveScratch<T> {
    scores: Rows<T>,
    again: Rows<T>,
    diagonal: Rows<T>,
    row_peak: Rows<T>,
    row_sum: Rows<T>,
    column_peak: Rows<T>,
    column_sum: Rows<T>,
    panels: Panels,
}

fn scratch<T: Real>(o: &Operands<'_>, rows: usize, tile: usize) -> ContrastiveScratch<T> {
    let tile = tile.min(rows);
    let tiles = o.workspace::<T>(tile);
    let elements = scratch_elements(rows, tile);
    let flat = o.workspace::<T>(elements).slice(0, 1);
    let vector = |index: usize| flat.columns(2 * tile * tile + index * rows, rows);
    ContrastiveScratch {
        scores: tiles.slice(0, tile),
        again: tiles.slice(tile, tile),
        diagonal: vector(0),
        row_peak: vector(1),
        row_sum: vector(2),
        column_peak: vector(3),
        column_sum: vector(4),
        panels: o.panels(elements * size_of::<T>()),
    }
}

/// Tiles along the rows, cut at the borders of this process's rows: first row, number of rows, and whether this process owns them.
fn tiles(
    rows: usize,
    tile: usize,
    processes: Processes,
) -> impl Iterator<Item = (usize, usize, bool)> {
    let (tile, own) = (tile.min(rows).max(1), processes.own(rows));
    let parts = [0..own.start, own.clone(), own.end..rows];
    let of_part = move |part: Range<usize>| {
        let (is_own, end) = (part == own, part.end);
        part.step_by(tile)
            .map(move |first| (first, tile.min(end - first), is_own))
    };
    parts.into_iter().flat_map(of_part)
}

/// Scores of a tile, in the top-left corner of the tile buffer.
fn scores<T: Real>(
    s: &ContrastiveScratch<T>,
    scale: f64,
    [image, text]: [Rows<T>; 2],
    (i, rows): (usize, usize),
    (j, columns): (usize, usize),
) -> Rows<T> {
    let tile = s.scores.slice(0, rows).columns(0, columns);
    product(
        tile,
        Write::Overwrite,
        scale,
        Factor::Plain(image.slice(i, rows)),
        Factor::Transposed(text.slice(j, columns)),
        s.panels,
    );
    tile
}

/// Groups of rows that are positives of each other; absent if the only positive of a row is its own pair.
struct PositiveGroups<T> {
    groups: Rows<i64>,
    shares: Rows<T>,
}

impl<T: Real> PositiveGroups<T> {
    /// `first` is the index that the groups would have among the inputs.
    fn new(o: &Operands<'_>, first: usize) -> Option<PositiveGroups<T>> {
        (o.num_inputs() > first).then(|| PositiveGroups {
            groups: o.input::<i64>(first).flat(),
            shares: o.input::<T>(first + 1).flat(),
        })
    }

    /// Adds the scores of a tile's positives of nonzero weight to each row's sum.
    fn add_positives(&self, tile: Rows<T>, sums: Rows<T>, weights: &[T], [i, j]: [usize; 2]) {
        let groups = self.groups.row(0);
        let sums = sums.row_per_element();
        for_rows(tile.rows, |row| {
            let own = groups[i + row];
            let columns = groups[j..].iter().zip(&weights[j..]);
            for (&score, (&group, &weight)) in tile.row(row).iter().zip(columns) {
                if group == own && weight != T::ZERO {
                    sums.row_mut(i + row)[0] += score;
                }
            }
        });
    }
}

pub(super) fn forward<T: Real>(op: &Contrastive, o: &Operands<'_>) {
    let &Contrastive { tile, processes } = op;
    let features = [o.input::<T>(0), o.input::<T>(1)];
    let weights = o.input::<T>(2).flat();
    let groups = PositiveGroups::<T>::new(o, 4);
    let scale = o.input::<T>(3).scalar().f64().exp();
    let rows = features[0].rows;
    let s = scratch::<T>(o, rows, tile);
    for peak in [s.row_peak, s.column_peak] {
        peak.row_mut(0).fill(T::NEG_INFINITY);
    }
    for sum in [s.row_sum, s.column_sum, s.diagonal] {
        sum.row_mut(0).fill(T::ZERO);
    }
    for (i, num_rows, own_rows) in tiles(rows, tile, processes) {
        for (j, num_columns, own_columns) in tiles(rows, tile, processes) {
            if !own_rows && !own_columns {
                continue;
            }
            let tile = scores(&s, scale, features, (i, num_rows), (j, num_columns));
            match &groups {
                Some(groups) => groups.add_positives(tile, s.diagonal, weights.row(0), [i, j]),
                None if i == j => {
                    for row in 0..num_rows {
                        s.diagonal.row_mut(0)[i + row] = tile.row(row)[row];
                    }
                }
                None => {}
            }
            mask(tile, &weights.row(0)[i..], &weights.row(0)[j..]);
            if own_columns {
                fold_columns(
                    tile,
                    s.column_peak.columns(j, num_columns),
                    s.column_sum.columns(j, num_columns),
                );
            }
            if own_rows {
                fold_rows(
                    tile,
                    s.row_peak.columns(i, num_rows),
                    s.row_sum.columns(i, num_rows),
                );
            }
        }
    }
    let mut total = 0.0;
    let lse = |peak: Rows<T>, sum: Rows<T>, row: usize| peak.row(0)[row] + sum.row(0)[row].ln();
    for row in processes.own(rows) {
        let (along, across) = (
            lse(s.row_peak, s.row_sum, row),
            lse(s.column_peak, s.column_sum, row),
        );
        for (index, value) in [(1, along), (2, across)] {
            if let Some((out, _)) = o.output::<T>(index) {
                out.flat().row_mut(0)[row] = value;
            }
        }
        if weights.row(0)[row] != T::ZERO {
            let share = groups.as_ref().map_or(T::ONE, |g| g.shares.row(0)[row]);
            let positives = s.diagonal.row(0)[row].f64() * share.f64();
            total += 0.5 * (along.f64() + across.f64()) - positives;
        }
    }
    let (sum, _) = o.result::<T>(0);
    sum.row_mut(0)[0] = T::of(sum.scalar().f64() + total);
}

/// Sets the scores of padding to minus infinity.
fn mask<T: Real>(tile: Rows<T>, row_weights: &[T], column_weights: &[T]) {
    let masked = |weights: &[T], count: usize| weights[..count].contains(&T::ZERO);
    if !masked(row_weights, tile.rows) && !masked(column_weights, tile.width) {
        return;
    }
    for_rows(tile.rows, |row| {
        for (score, &weight) in tile.row_mut(row).iter_mut().zip(column_weights) {
            if weight == T::ZERO || row_weights[row] == T::ZERO {
                *score = T::NEG_INFINITY;
            }
        }
    });
}

/// Folds each row into its running maximum and sum; destroys the tile.
fn fold_rows<T: Real>(tile: Rows<T>, peaks: Rows<T>, sums: Rows<T>) {
    let (peaks, sums) = (peaks.row_per_element(), sums.row_per_element());
    for_rows(tile.rows, |row| {
        let scores = tile.row_mut(row);
        let (peak, sum) = (&mut peaks.row_mut(row)[0], &mut sums.row_mut(row)[0]);
        let new = largest(scores).larger(*peak);
        if new == T::NEG_INFINITY {
            return;
        }
        *sum = *sum * (*peak - new).exp() + exp_in_place(scores, new);
        *peak = new;
    });
}

/// Folds each column into its running maximum and sum.
fn fold_columns<T: Real>(tile: Rows<T>, peaks: Rows<T>, sums: Rows<T>) {
    (0..tile.width.div_ceil(TASK_COLUMNS))
        .into_par_iter()
        .for_each(|task| {
            let start = task * TASK_COLUMNS;
            let width = TASK_COLUMNS.min(tile.width - start);
            let tile = tile.columns(start, width);
            let (peaks, sums) = (peaks.columns(start, width), sums.columns(start, width));
            let (peaks, sums) = (peaks.row_mut(0), sums.row_mut(0));
            vectorised(|| {
                let mut new = [T::NEG_INFINITY; TASK_COLUMNS];
                new[..width].copy_from_slice(peaks);
                for row in 0..tile.rows {
                    for (new, &score) in new.iter_mut().zip(tile.row(row)) {
                        *new = score.larger(*new);
                    }
                }
                // A column of padding has no maximum: any finite shift leaves its sum at zero.
                let shift = new.map(|new| if new == T::NEG_INFINITY { T::ZERO } else { new });
                let mut total = [T::ZERO; TASK_COLUMNS];
                for column in 0..width {
                    total[column] = sums[column] * (peaks[column] - shift[column]).exp();
                }
                for row in 0..tile.rows {
                    for ((total, &shift), &score) in total.iter_mut().zip(&shift).zip(tile.row(row))
                    {
                        *total += (score - shift).exp();
                    }
                }
                peaks.copy_from_slice(&new[..width]);
                sums.copy_from_slice(&total[..width]);
            });
        });
}

/// Inputs of the gradient of every tile.
struct GradientInputs<T> {
    seed: T,
    weights: Rows<T>,
    row_lse: Rows<T>,
    column_lse: Rows<T>,
    groups: Option<PositiveGroups<T>>,
}

impl<T: Real> GradientInputs<T> {
    /// Gradient of a tile's scores. Overwrites the scores; `shares` gets each row's contribution to the gradient of the temperature.
    fn tile(&self, [i, j]: [usize; 2], tile: Rows<T>, gradient: Rows<T>, shares: Rows<T>) {
        let GradientInputs { seed, weights, .. } = *self;
        let half = seed * T::of(0.5);
        let num_columns = tile.width;
        for_rows(tile.rows, |row| {
            let (scores, gradient) = (tile.row_mut(row), gradient.row_mut(row));
            if weights.row(0)[i + row] == T::ZERO {
                gradient.fill(T::ZERO);
                shares.row_mut(row)[0] = T::ZERO;
                return;
            }
            let along = self.row_lse.row(0)[i + row];
            let across = &self.column_lse.row(0)[j..j + num_columns];
            let counts = &weights.row(0)[j..j + num_columns];
            let own = (i == j && self.groups.is_none())
                .then(|| (scores[row] - along) + (scores[row] - across[row]));
            // Each direction's probabilities add up to one, so scores may be taken relative to their log-sum-exp: the rounding of the
            // log-sum-exps cancels in the gradient of the temperature.
            let columns = across.iter().zip(counts);
            let places = gradient.iter_mut().zip(scores.iter_mut());
            let terms = |score: T, across: T| {
                let (a, b) = (score - along, score - across);
                let (p, q) = (a.exp(), b.exp());
                (p + q, p * a + q * b, a + b)
            };
            match &self.groups {
                None => {
                    for ((gradient, score), (&across, &count)) in places.zip(columns) {
                        let (both, term, _) = terms(*score, across);
                        let counts = count != T::ZERO;
                        *gradient = if counts { half * both } else { T::ZERO };
                        *score = if counts { term } else { T::ZERO };
                    }
                }
                Some(PositiveGroups { groups, shares }) => {
                    let (own, share) = (groups.row(0)[i + row], shares.row(0)[i + row]);
                    let columns = columns.zip(&groups.row(0)[j..]);
                    for ((gradient, score), ((&across, &count), &group)) in places.zip(columns) {
                        let (both, term, logarithm) = terms(*score, across);
                        let target = if group == own { share } else { T::ZERO };
                        let counts = count != T::ZERO;
                        let (by_score, by_scale) =
                            (half * both - seed * target, term - target * logarithm);
                        *gradient = if counts { by_score } else { T::ZERO };
                        *score = if counts { by_scale } else { T::ZERO };
                    }
                }
            }
            let mut share = sum(scores, |term| term);
            if let Some(own) = own {
                gradient[row] -= seed;
                share -= own;
            }
            shares.row_mut(row)[0] = half * share;
        });
    }
}

pub(super) fn backward<T: Real>(op: &ContrastiveGrad, o: &Operands<'_>) {
    let &ContrastiveGrad { tile, processes } = op;
    let features = [o.input::<T>(1), o.input::<T>(2)];
    let scale = o.input::<T>(4).scalar().f64().exp();
    let inputs = GradientInputs {
        seed: o.input::<T>(0).scalar(),
        weights: o.input::<T>(3).flat(),
        row_lse: o.input::<T>(5).flat(),
        column_lse: o.input::<T>(6).flat(),
        groups: PositiveGroups::new(o, 7),
    };
    let (dimage, dimage_mode) = o.result::<T>(0);
    let (dtext, dtext_mode) = o.result::<T>(1);
    let rows = features[0].rows;
    let s = scratch::<T>(o, rows, tile);
    let mut dscale = 0.0;
    for (i, num_rows, own_rows) in tiles(rows, tile, processes) {
        for (j, num_columns, own_columns) in tiles(rows, tile, processes) {
            if !own_rows && !own_columns {
                continue;
            }
            let tile = scores(&s, scale, features, (i, num_rows), (j, num_columns));
            let gradient = s.again.slice(0, num_rows).columns(0, num_columns);
            let shares = s.row_sum.row_per_element();
            inputs.tile([i, j], tile, gradient, shares);
            if own_rows {
                // In order, whichever thread computed them.
                dscale += (0..num_rows)
                    .map(|row| shares.row(row)[0].f64())
                    .sum::<f64>();
            }
            let first = |mode, first: bool| if first { mode } else { Write::Accumulate };
            if own_rows {
                product(
                    dimage.slice(i, num_rows),
                    first(dimage_mode, j == 0),
                    scale,
                    Factor::Plain(gradient),
                    Factor::Plain(features[1].slice(j, num_columns)),
                    s.panels,
                );
            }
            if own_columns {
                product(
                    dtext.slice(j, num_columns),
                    first(dtext_mode, i == 0),
                    scale,
                    Factor::Transposed(gradient),
                    Factor::Plain(features[0].slice(i, num_rows)),
                    s.panels,
                );
            }
        }
    }
    if let Some((total, mode)) = o.output::<T>(2) {
        let before = match mode {
            Write::Overwrite => 0.0,
            Write::Accumulate => total.scalar().f64(),
        };
        total.row_mut(0)[0] = T::of(before + dscale);
    }
}
