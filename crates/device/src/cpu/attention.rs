//! Attention, one sample and head per task, queries in tiles: scratch is linear in the number of keys.

use holdall_graph::Write;
use holdall_graph::ops::attention::{Attention, mask_index};
use holdall_graph::ops::dropout::Dropout;
use rayon::prelude::*;

use super::cross_attention;
use super::operands::{Operands, Rows};
use super::product::{Factor, Panels, small_product};
use super::real::{Real, dot, exp_in_place, largest, sum, vectorised};

/// Queries per tile.
pub(super) const QUERY_TILE: usize = 128;

/// Shapes for both the forward and the backward pass.
struct Heads {
    num_heads: usize,
    head_width: usize,
    queries: usize,
    keys: usize,
    causal: bool,
    scale: f64,
}

/// Dropout masks of probabilities, drawn from sample ids and the random stream.
pub(super) struct Masks<'o> {
    pub op: &'o Dropout,
    samples: Rows<i64>,
    stream: [i64; 2],
}

impl<'o> Masks<'o> {
    /// Reads the last two inputs; `None` without dropout.
    pub fn new(op: &'o Attention, o: &Operands<'_>) -> Option<Masks<'o>> {
        let op = op.dropout.as_ref()?;
        let [samples, stream] = [2, 1].map(|from_end| {
            let index = o.num_inputs() - from_end;
            o.input::<i64>(index).flat()
        });
        let stream = [0, 1].map(|index| stream.row(0)[index]);
        Some(Masks {
            op,
            samples,
            stream,
        })
    }

    /// Seed of the masks of a sample.
    pub fn seed(&self, sample: usize) -> u64 {
        self.op.key(self.stream, self.samples.row(0)[sample])
    }

    /// Dropout factors of a row of probabilities, from the first key on.
    #[inline(always)]
    fn row<T: Real>(&self, sample: usize, head: usize, query: usize) -> impl Iterator<Item = T> {
        let key = self.seed(sample);
        let (first, threshold) = (mask_index(head, query, 0), self.op.threshold());
        let scale = T::of(self.op.scale());
        (first..).map(move |index| {
            if Dropout::keeps(key, index, threshold) {
                scale
            } else {
                T::ZERO
            }
        })
    }
}

/// Rows of one sample and columns of one head.
fn head<T: Real>(all: Rows<T>, sample: usize, head: usize, tokens: usize, width: usize) -> Rows<T> {
    all.slice(sample * tokens, tokens)
        .columns(head * width, width)
}

impl Heads {
    fn new(op: &Attention, o: &Operands<'_>, q: usize, k: usize) -> Heads {
        let (q, k) = (o.input_place(q).shape, o.input_place(k).shape);
        Heads {
            num_heads: op.num_heads,
            head_width: q.width() / op.num_heads,
            queries: q.dims()[1],
            keys: k.dims()[1],
            causal: op.causal,
            scale: op.scale,
        }
    }

    fn of<T: Real>(&self, all: Rows<T>, sample: usize, index: usize, tokens: usize) -> Rows<T> {
        head(all, sample, index, tokens, self.head_width)
    }

    fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let queries = self.queries;
        (0..queries.div_ceil(QUERY_TILE)).map(move |tile| {
            let start = tile * QUERY_TILE;
            (start, QUERY_TILE.min(queries - start))
        })
    }

    /// Number of keys that a query attends to.
    fn visible(&self, query: usize, length: usize) -> usize {
        let keys = length.min(self.keys);
        if self.causal {
            keys.min(query + 1)
        } else {
            keys
        }
    }
}

/// Elements of scratch for this many matrices of scores per thread.
pub(super) fn scratch_elements(num_threads: usize, num_matrices: usize, keys: usize) -> usize {
    num_threads * num_matrices * QUERY_TILE * keys
}

/// Matrices of scores that the backward pass needs: probabilities, their gradient and, with dropout, probabilities after dropout.
pub(super) fn backward_matrices(op: &Attention) -> usize {
    match op.dropout {
        Some(_) => 3,
        None => 2,
    }
}

/// Scratch of the thread that runs this task: matrices of scores (the last is repeated if there are fewer), and the scratch of its
/// products.
fn thread_scratch<T: Real>(
    o: &Operands<'_>,
    num_matrices: usize,
    keys: usize,
) -> ([Rows<T>; 3], Panels) {
    let (thread, num_threads) = (
        rayon::current_thread_index().unwrap_or(0),
        rayon::current_num_threads(),
    );
    let all = o.workspace::<T>(keys);
    let matrix = |index| all.slice((thread * num_matrices + index) * QUERY_TILE, QUERY_TILE);
    let elements = scratch_elements(num_threads, num_matrices, keys);
    let panels = o.panels(elements * size_of::<T>()).of_thread();
    (
        [0, 1, 2].map(|index: usize| matrix(index.min(num_matrices - 1))),
        panels,
    )
}

pub(super) fn forward<T: Real>(op: &Attention, o: &Operands<'_>) {
    if cross_attention::takes(op, [0, 1].map(|index| o.input_place(index).shape)) {
        return cross_attention::forward::<T>(op, o);
    }
    let heads = Heads::new(op, o, 0, 1);
    let (q, k, v) = (o.input::<T>(0), o.input::<T>(1), o.input::<T>(2));
    let lengths = op.key_lengths.then(|| o.input::<i64>(3).flat());
    let masks = Masks::new(op, o);
    let (out, _) = o.result::<T>(0);
    let lse = o.output::<T>(1).map(|(lse, _)| lse.flat());
    let samples = o.input_place(0).shape.dims()[0];
    (0..samples * heads.num_heads)
        .into_par_iter()
        .for_each(|task| {
            let (sample, index) = (task / heads.num_heads, task % heads.num_heads);
            let ([scores, ..], panels) = thread_scratch::<T>(o, 1, heads.keys);
            let length =
                lengths.map_or(heads.keys, |lengths| lengths.row(0)[sample].max(0) as usize);
            let q = heads.of(q, sample, index, heads.queries);
            let k = heads.of(k, sample, index, heads.keys);
            let v = heads.of(v, sample, index, heads.keys);
            let out = heads.of(out, sample, index, heads.queries);
            for (start, rows) in heads.tiles() {
                let scores = scores.slice(0, rows);
                let q = q.slice(start, rows);
                small_product(
                    scores,
                    Write::Overwrite,
                    heads.scale,
                    Factor::Plain(q),
                    Factor::Transposed(k),
                    panels,
                );
                vectorised(|| {
                    for row in 0..rows {
                        let (seen, hidden) = scores
                            .row_mut(row)
                            .split_at_mut(heads.visible(start + row, length));
                        let peak = largest(seen);
                        let total = exp_in_place(seen, peak);
                        hidden.fill(T::ZERO);
                        let inverse = if seen.is_empty() {
                            T::ZERO
                        } else {
                            T::ONE / total
                        };
                        for p in seen.iter_mut() {
                            *p *= inverse;
                        }
                        if let Some(masks) = &masks {
                            let masks = masks.row::<T>(sample, index, start + row);
                            for (p, mask) in seen.iter_mut().zip(masks) {
                                *p *= mask;
                            }
                        }
                        if let Some(lse) = lse {
                            lse.row_mut(0)[task * heads.queries + start + row] = peak + total.ln();
                        }
                    }
                });
                small_product(
                    out.slice(start, rows),
                    Write::Overwrite,
                    1.0,
                    Factor::Plain(scores),
                    Factor::Plain(v),
                    panels,
                );
            }
        });
}

/// `ds = p (dp - sum of p dp)`, in place.
///
/// Rows of `ds` add up to zero, and so does the gradient of the key bias. The rounding error of the sum would be the same at each
/// key and add up: a second pass removes what is left of the sum.
#[inline(always)]
fn score_gradients<T: Real>(p: &[T], dp: &mut [T]) {
    let along = dot(p, dp);
    for (dp, &p) in dp.iter_mut().zip(p) {
        *dp = p * (*dp - along);
    }
    let left = sum(dp, |ds| ds);
    for (ds, &p) in dp.iter_mut().zip(p) {
        *ds -= p * left;
    }
}

pub(super) fn backward<T: Real>(op: &Attention, o: &Operands<'_>) {
    if cross_attention::takes(op, [1, 2].map(|index| o.input_place(index).shape)) {
        return cross_attention::backward::<T>(op, o);
    }
    let heads = Heads::new(op, o, 1, 2);
    let (dout, q, k, v) = (
        o.input::<T>(0),
        o.input::<T>(1),
        o.input::<T>(2),
        o.input::<T>(3),
    );
    let lse = o.input::<T>(5).flat();
    let lengths = op.key_lengths.then(|| o.input::<i64>(6).flat());
    let masks = Masks::new(op, o);
    let num_matrices = backward_matrices(op);
    let (dq, dq_mode) = o.result::<T>(0);
    let (dk, dk_mode) = o.result::<T>(1);
    let (dv, dv_mode) = o.result::<T>(2);
    let samples = o.input_place(1).shape.dims()[0];
    (0..samples * heads.num_heads)
        .into_par_iter()
        .for_each(|task| {
            let (sample, index) = (task / heads.num_heads, task % heads.num_heads);
            let ([p, dp, left], panels) = thread_scratch::<T>(o, num_matrices, heads.keys);
            let length =
                lengths.map_or(heads.keys, |lengths| lengths.row(0)[sample].max(0) as usize);
            let of_queries = |all| heads.of(all, sample, index, heads.queries);
            let of_keys = |all| heads.of(all, sample, index, heads.keys);
            let (q, dq, dout) = (of_queries(q), of_queries(dq), of_queries(dout));
            let (k, v, dk, dv) = (of_keys(k), of_keys(v), of_keys(dk), of_keys(dv));
            for (start, rows) in heads.tiles() {
                let first = |mode| if start == 0 { mode } else { Write::Accumulate };
                let (p, dp) = (p.slice(0, rows), dp.slice(0, rows));
                // Weights of the values: the probabilities, after dropout if there is any.
                let shares = match masks {
                    Some(_) => left.slice(0, rows),
                    None => p,
                };
                let (q, dout) = (q.slice(start, rows), dout.slice(start, rows));
                small_product(
                    p,
                    Write::Overwrite,
                    heads.scale,
                    Factor::Plain(q),
                    Factor::Transposed(k),
                    panels,
                );
                small_product(
                    dp,
                    Write::Overwrite,
                    1.0,
                    Factor::Plain(dout),
                    Factor::Transposed(v),
                    panels,
                );
                vectorised(|| {
                    for row in 0..rows {
                        let visible = heads.visible(start + row, length);
                        let shift = lse.row(0)[task * heads.queries + start + row];
                        let (seen, hidden) = p.row_mut(row).split_at_mut(visible);
                        exp_in_place(seen, shift);
                        hidden.fill(T::ZERO);
                        if let Some(masks) = &masks {
                            let masks = masks.row::<T>(sample, index, start + row);
                            let (left, hidden) = shares.row_mut(row).split_at_mut(visible);
                            hidden.fill(T::ZERO);
                            let gradients = dp.row_mut(row).iter_mut().zip(masks);
                            for ((left, &p), (dp, mask)) in
                                left.iter_mut().zip(&*seen).zip(gradients)
                            {
                                *left = p * mask;
                                *dp *= mask;
                            }
                        }
                    }
                });
                small_product(
                    dv,
                    first(dv_mode),
                    1.0,
                    Factor::Transposed(shares),
                    Factor::Plain(dout),
                    panels,
                );
                vectorised(|| {
                    for row in 0..rows {
                        let visible = heads.visible(start + row, length);
                        let (dp, hidden) = dp.row_mut(row).split_at_mut(visible);
                        score_gradients(&p.row(row)[..visible], dp);
                        hidden.fill(T::ZERO);
                    }
                });
                small_product(
                    dq.slice(start, rows),
                    dq_mode,
                    heads.scale,
                    Factor::Plain(dp),
                    Factor::Plain(k),
                    panels,
                );
                small_product(
                    dk,
                    first(dk_mode),
                    heads.scale,
                    Factor::Transposed(dp),
                    Factor::Plain(q),
                    panels,
                );
            }
        });
}
