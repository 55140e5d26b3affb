//! The largest logits of each row, by insertion into a short sorted list.

use rayon::prelude::*;

use super::operands::Operands;
use super::real::{Real, largest, sum, vectorised};

pub(super) fn top_tokens<T: Real>(count: usize, o: &Operands<'_>) {
    let (logits, banned) = (o.input::<T>(0), o.input::<i64>(1));
    let [values, ids] = [0, 1].map(|index| {
        let (result, _) = o.result::<T>(index);
        assert_eq!(result.width, count, "as many as asked for");
        result
    });
    let (lse, _) = o.result::<T>(2);
    let lse = lse.flat().row_per_element();
    (0..logits.rows).into_par_iter().for_each(|row| {
        let (logits, banned) = (logits.row(row), banned.row(row));
        vectorised(|| {
            let peak = largest(logits);
            let total = sum(logits, |logit| (logit - peak).exp());
            lse.row_mut(row)[0] = peak + total.ln();
        });
        let (values, ids) = (values.row_mut(row), ids.row_mut(row));
        values.fill(T::NEG_INFINITY);
        ids.fill(-T::ONE);
        for (id, &logit) in logits.iter().enumerate() {
            // Nearly all tokens fail this test. Among equal logits, the first has the smaller id.
            if logit > values[count - 1] && !banned.contains(&(id as i64)) {
                let place = values.partition_point(|&value| value >= logit);
                values[place..].rotate_right(1);
                ids[place..].rotate_right(1);
                values[place] = logit;
                ids[place] = T::of(id as f64);
            }
        }
    });
}
