//! Attention of a few queries over the many keys of another sequence: one sample and head per task, scores with a row per key.
//!
//! Queries are side by side in vectors, so that a softmax is the same arithmetic in every lane, products copy nothing, and missing
//! keys are skipped. Lanes after the last query hold arbitrary numbers that nothing reads.
//!
//! Legend: `s` keys, `t` queries, `l` lanes (`t` rounded up to whole vectors), `w` width of a head.

use holdall_graph::ops::attention::{Attention, mask_index};
use holdall_graph::ops::dropout::Dropout;
use holdall_graph::{Shape, Write};
use rayon::prelude::*;

use super::attention::Masks;
use super::operands::{Operands, Rows};
use super::product::{Factor, direct_product};
use super::real::{Real, vectorised};
use super::vectors::UNIT;

/// Maximum number of queries: with more of them, copies of factors are worth their cost.
const MOST_QUERIES: usize = 64;

/// Whether this module computes an attention. A single query and self-attention stay with `attention`, whose softmax sums in another
/// order: results of existing CLIP models would change.
pub(super) fn takes(op: &Attention, [q, k]: [Shape; 2]) -> bool {
    let (queries, keys) = (q.dims()[1], k.dims()[1]);
    (2..=MOST_QUERIES).contains(&queries)
        && queries != keys
        && !op.causal
        && (q.width() / op.num_heads).is_multiple_of(UNIT)
}

/// Elements of scratch per thread: matrices of scores, and queries (and their gradient) with a row per column.
pub(super) fn scratch_elements(
    op: &Attention,
    [q, k]: [Shape; 2],
    num_threads: usize,
    num_matrices: usize,
) -> usize {
    let lanes = q.dims()[1].next_multiple_of(UNIT);
    let width = q.width() / op.num_heads;
    num_threads * lanes * (num_matrices * k.dims()[1] + 2 * width)
}

/// Operands and sizes for both the forward and the backward pass.
struct Heads<'o> {
    op: &'o Attention,
    queries: usize,
    keys: usize,
    lanes: usize,
    width: usize,
    lengths: Option<Rows<i64>>,
    masks: Option<Masks<'o>>,
    num_matrices: usize,
}

/// Scratch of the thread that runs a task.
struct AttentionScratch<T> {
    /// `[s, l]` each; the last is repeated if there are fewer.
    matrices: [Rows<T>; 3],
    /// `[w, l]`.
    columns: [Rows<T>; 2],
}

impl<'o> Heads<'o> {
    /// `first` is the index of input `q`; `lengths` is the index that the key lengths would have.
    fn new(
        op: &'o Attention,
        o: &Operands<'_>,
        first: usize,
        lengths: usize,
        num_matrices: usize,
    ) -> Heads<'o> {
        let [q, k] = [first, first + 1].map(|index| o.input_place(index).shape);
        Heads {
            op,
            queries: q.dims()[1],
            keys: k.dims()[1],
            lanes: q.dims()[1].next_multiple_of(UNIT),
            width: q.width() / op.num_heads,
            lengths: op.key_lengths.then(|| o.input::<i64>(lengths).flat()),
            masks: Masks::new(op, o),
            num_matrices,
        }
    }

    /// Sample, head and number of keys of a task.
    fn task(&self, task: usize) -> (usize, usize, usize) {
        let (sample, head) = (task / self.op.num_heads, task % self.op.num_heads);
        let length = self.lengths.map_or(self.keys, |lengths| {
            lengths.row(0)[sample].clamp(0, self.keys as i64) as usize
        });
        (sample, head, length)
    }

    fn scratch<T: Real>(&self, o: &Operands<'_>) -> AttentionScratch<T> {
        let thread = rayon::current_thread_index().unwrap_or(0);
        let rows = self.num_matrices * self.keys + 2 * self.width;
        let own = o.workspace::<T>(self.lanes).slice(thread * rows, rows);
        let matrix = |index: usize| {
            let index = index.min(self.num_matrices - 1);
            own.slice(index * self.keys, self.keys)
        };
        let columns = own.slice(self.num_matrices * self.keys, 2 * self.width);
        AttentionScratch {
            matrices: [0, 1, 2].map(matrix),
            columns: [0, 1].map(|index| columns.slice(index * self.width, self.width)),
        }
    }

    /// Rows of one sample and columns of one head.
    fn of<T: Real>(&self, all: Rows<T>, sample: usize, head: usize, tokens: usize) -> Rows<T> {
        all.slice(sample * tokens, tokens)
            .columns(head * self.width, self.width)
    }

    /// `scale * rows . (query of each lane)`.
    fn scores<T: Real>(
        &self,
        scores: Rows<T>,
        scale: f64,
        rows: Rows<T>,
        queries: Rows<T>,
        columns: Rows<T>,
    ) {
        for column in 0..self.width {
            let lanes = columns.row_mut(column);
            lanes[queries.rows..].fill(T::ZERO);
            for (query, lane) in lanes.iter_mut().take(queries.rows).enumerate() {
                *lane = queries.row(query)[column];
            }
        }
        direct_product(
            scores,
            Write::Overwrite,
            scale,
            Factor::Plain(rows),
            columns,
        );
    }

    /// Multiplies rows by their dropout masks; `each` gets the index of a key, a lane and the factor.
    fn with_masks<T: Real>(
        &self,
        sample: usize,
        head: usize,
        keys: usize,
        mut each: impl FnMut(usize, usize, T),
    ) {
        let Some(masks) = &self.masks else { return };
        let (seed, threshold) = (masks.seed(sample), masks.op.threshold());
        let scale = T::of(masks.op.scale());
        for key in 0..keys {
            for query in 0..self.queries {
                let index = mask_index(head, query, key);
                let is_kept = Dropout::keeps(seed, index, threshold);
                each(key, query, if is_kept { scale } else { T::ZERO });
            }
        }
    }
}

/// Sixteen lanes of a row, from `first` on.
#[inline(always)]
fn unit<T: Real>(row: &[T], first: usize) -> [T; UNIT] {
    std::array::from_fn(|lane| row[first + lane])
}

pub(super) fn forward<T: Real>(op: &Attention, o: &Operands<'_>) {
    let heads = Heads::new(op, o, 0, 3, 1);
    let [q, k, v] = [0, 1, 2].map(|index| o.input::<T>(index));
    let (out, _) = o.result::<T>(0);
    let lse = o.output::<T>(1).map(|(lse, _)| lse.flat());
    let samples = o.input_place(0).shape.dims()[0];
    (0..samples * op.num_heads)
        .into_par_iter()
        .for_each(|task| {
            let (sample, head, keys) = heads.task(task);
            let scratch = heads.scratch::<T>(o);
            let scores = scratch.matrices[0].slice(0, keys);
            let [q, out] = [q, out].map(|all| heads.of(all, sample, head, heads.queries));
            let [k, v] = [k, v].map(|all| heads.of(all, sample, head, heads.keys).slice(0, keys));
            heads.scores(scores, op.scale, k, q, scratch.columns[0]);
            let (mut peaks, mut sums) = ([T::ZERO; MOST_QUERIES], [T::ZERO; MOST_QUERIES]);
            vectorised(|| {
                for first in (0..heads.lanes).step_by(UNIT) {
                    let mut peak = [T::NEG_INFINITY; UNIT];
                    for key in 0..keys {
                        let row = unit(scores.row(key), first);
                        for (peak, score) in peak.iter_mut().zip(row) {
                            *peak = score.larger(*peak);
                        }
                    }
                    let mut sum = [T::ZERO; UNIT];
                    for key in 0..keys {
                        let row = &mut scores.row_mut(key)[first..first + UNIT];
                        for lane in 0..UNIT {
                            row[lane] = (row[lane] - peak[lane]).exp();
                            sum[lane] += row[lane];
                        }
                    }
                    peaks[first..first + UNIT].copy_from_slice(&peak);
                    sums[first..first + UNIT].copy_from_slice(&sum);
                }
                heads.with_masks(sample, head, keys, |key, query, mask: T| {
                    scores.row_mut(key)[query] *= mask;
                });
            });
            let shares = Factor::Transposed(scores.columns(0, heads.queries));
            direct_product(out, Write::Overwrite, 1.0, shares, v);
            let each = peaks.iter().zip(&sums).take(heads.queries);
            for (query, (&peak, &sum)) in each.enumerate() {
                if let Some(lse) = lse {
                    lse.row_mut(0)[task * heads.queries + query] = peak + sum.ln();
                }
                if keys > 0 {
                    let inverse = T::ONE / sum;
                    out.row_mut(query)
                        .iter_mut()
                        .for_each(|out| *out *= inverse);
                }
            }
        });
}

/// `ds = p (dp - sum of p dp)` in place on `dp`, lane by lane. As in self-attention, a second pass removes the rounding error of the sum.
#[inline(always)]
fn score_gradients<T: Real>(p: Rows<T>, dp: Rows<T>, keys: usize, first: usize) {
    let (mut along, mut left) = ([T::ZERO; UNIT], [T::ZERO; UNIT]);
    for key in 0..keys {
        let (p, dp) = (unit(p.row(key), first), unit(dp.row(key), first));
        for lane in 0..UNIT {
            along[lane] += p[lane] * dp[lane];
        }
    }
    for key in 0..keys {
        let p = unit(p.row(key), first);
        let dp = &mut dp.row_mut(key)[first..first + UNIT];
        for lane in 0..UNIT {
            dp[lane] = p[lane] * (dp[lane] - along[lane]);
            left[lane] += dp[lane];
        }
    }
    for key in 0..keys {
        let p = unit(p.row(key), first);
        let ds = &mut dp.row_mut(key)[first..first + UNIT];
        for lane in 0..UNIT {
            ds[lane] -= p[lane] * left[lane];
        }
    }
}

pub(super) fn backward<T: Real>(op: &Attention, o: &Operands<'_>) {
    let num_matrices = super::attention::backward_matrices(op);
    let heads = Heads::new(op, o, 1, 6, num_matrices);
    let [dout, q, k, v] = [0, 1, 2, 3].map(|index| o.input::<T>(index));
    let lse = o.input::<T>(5).flat();
    let [(dq, dq_mode), (dk, dk_mode), (dv, dv_mode)] = [0, 1, 2].map(|index| o.result::<T>(index));
    let samples = o.input_place(1).shape.dims()[0];
    (0..samples * op.num_heads)
        .into_par_iter()
        .for_each(|task| {
            let (sample, head, keys) = heads.task(task);
            let scratch = heads.scratch::<T>(o);
            let [p, dp, left] = scratch.matrices.map(|matrix| matrix.slice(0, keys));
            let [q, dq, dout] = [q, dq, dout].map(|all| heads.of(all, sample, head, heads.queries));
            let [k, v, all_dk, all_dv] =
                [k, v, dk, dv].map(|all| heads.of(all, sample, head, heads.keys));
            for (gradient, mode) in [(all_dk, dk_mode), (all_dv, dv_mode)] {
                // Missing keys have a gradient of zero.
                for key in keys..heads.keys {
                    if mode == Write::Overwrite {
                        gradient.row_mut(key).fill(T::ZERO);
                    }
                }
            }
            let [k, v, dk, dv] = [k, v, all_dk, all_dv].map(|all| all.slice(0, keys));
            heads.scores(p, op.scale, k, q, scratch.columns[0]);
            heads.scores(dp, 1.0, v, dout, scratch.columns[1]);
            let mut shifts = [T::ZERO; MOST_QUERIES];
            let first = task * heads.queries;
            shifts[..heads.queries].copy_from_slice(&lse.row(0)[first..first + heads.queries]);
            vectorised(|| {
                for key in 0..keys {
                    for (p, &shift) in p.row_mut(key).iter_mut().zip(&shifts) {
                        *p = (*p - shift).exp();
                    }
                }
                heads.with_masks(sample, head, keys, |key, query, mask: T| {
                    left.row_mut(key)[query] = p.row(key)[query] * mask;
                    dp.row_mut(key)[query] *= mask;
                });
            });
            // Weights of the values: the probabilities, after dropout if there is any.
            let shares = if heads.masks.is_some() { left } else { p };
            let of_queries = |matrix: Rows<T>| matrix.columns(0, heads.queries);
            direct_product(dv, dv_mode, 1.0, Factor::Plain(of_queries(shares)), dout);
            vectorised(|| {
                for first in (0..heads.lanes).step_by(UNIT) {
                    score_gradients(p, dp, keys, first);
                }
            });
            let ds = of_queries(dp);
            direct_product(dq, dq_mode, op.scale, Factor::Transposed(ds), k);
            direct_product(dk, dk_mode, op.scale, Factor::Plain(ds), q);
        });
}
