//! Attention of one token over a cache: one row and head per task.

use holdall_graph::Write;
use holdall_graph::ops::cached_attention::CachedAttention;
use rayon::prelude::*;

use super::operands::Operands;
use super::real::{Real, dot, exp_in_place, largest, vectorised};

/// Elements of scratch: the scores of every row and head.
pub(super) fn scratch_elements(rows: usize, num_heads: usize, longest: usize) -> usize {
    rows * num_heads * longest
}

pub(super) fn forward<T: Real>(op: &CachedAttention, o: &Operands<'_>) {
    let [q, k, v] = [0, 1, 2].map(|index| o.input::<T>(index));
    let ancestors = o.input::<i64>(3);
    let position = o.input::<i64>(4).scalar();
    let (out, _) = o.result::<T>(0);
    let [keys, values] = [1, 2].map(|index| {
        let (cache, mode) = o.result::<T>(index);
        assert_eq!(mode, Write::Accumulate, "a cache is read and written");
        cache
    });
    let longest = ancestors.width;
    assert!(
        (0..longest as i64).contains(&position),
        "step {position} of {longest}"
    );
    let (position, rows) = (position as usize, out.rows);
    let scores = o.workspace::<T>(longest);
    let width = out.width / op.num_heads;
    (0..rows * op.num_heads).into_par_iter().for_each(|task| {
        let (row, head) = (task / op.num_heads, task % op.num_heads);
        let [q, k, v, out, keys, values] =
            [q, k, v, out, keys, values].map(|all| all.columns(head * width, width));
        let place = |step: usize| {
            let from = if step == position {
                row as i64
            } else {
                ancestors.row(row)[step]
            };
            assert!(
                (0..rows as i64).contains(&from),
                "row {from} of {rows} at step {step}"
            );
            from as usize * longest + step
        };
        // No other task reads this step of this row.
        keys.row_mut(place(position)).copy_from_slice(k.row(row));
        values.row_mut(place(position)).copy_from_slice(v.row(row));
        vectorised(|| {
            let scores = &mut scores.row_mut(task)[..=position];
            for (step, score) in scores.iter_mut().enumerate() {
                *score = T::of(op.scale) * dot(q.row(row), keys.row(place(step)));
            }
            let inverse = T::ONE / exp_in_place(scores, largest(scores));
            let out = out.row_mut(row);
            out.fill(T::ZERO);
            for (step, &score) in scores.iter().enumerate() {
                let share = score * inverse;
                for (out, &value) in out.iter_mut().zip(values.row(place(step))) {
                    *out += share * value;
                }
            }
        });
    });
}
