//! Embedding lookup. Its gradient is computed by column blocks, so that one thread adds all rows of equal ids, in order.

use rayon::prelude::*;

use super::elements::for_rows;
use super::operands::Operands;
use super::real::{Real, vectorised};

/// Columns per thread at a time.
const TASK_COLUMNS: usize = 64;

pub(super) fn forward<T: Real>(o: &Operands<'_>) {
    let ids = o.input::<i64>(0).flat();
    let (table, positions) = (o.input::<T>(1), o.input::<T>(2));
    let (x, _) = o.result::<T>(0);
    let tokens = positions.rows;
    for_rows(x.rows, |row| {
        let id = ids.row(0)[row];
        assert!(
            (0..table.rows as i64).contains(&id),
            "token id {id} of a vocabulary of {}",
            table.rows
        );
        let terms = table
            .row(id as usize)
            .iter()
            .zip(positions.row(row % tokens));
        for (x, (&token, &position)) in x.row_mut(row).iter_mut().zip(terms) {
            *x = token + position;
        }
    });
}

pub(super) fn backward<T: Real>(o: &Operands<'_>) {
    let dx = o.input::<T>(0);
    let ids = o.input::<i64>(1).flat();
    let (dtable, _) = o.result::<T>(0);
    let (dpositions, _) = o.result::<T>(1);
    let tokens = dpositions.rows;
    (0..dx.width.div_ceil(TASK_COLUMNS))
        .into_par_iter()
        .for_each(|task| {
            let start = task * TASK_COLUMNS;
            let width = TASK_COLUMNS.min(dx.width - start);
            let (dx, dtable, dpositions) = (
                dx.columns(start, width),
                dtable.columns(start, width),
                dpositions.columns(start, width),
            );
            vectorised(|| {
                for row in 0..dx.rows {
                    let id = ids.row(0)[row] as usize;
                    for total in [dtable.row_mut(id), dpositions.row_mut(row % tokens)] {
                        for (total, &value) in total.iter_mut().zip(dx.row(row)) {
                            *total += value;
                        }
                    }
                }
            });
        });
}
