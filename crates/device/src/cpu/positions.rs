//! Learned rows that every sample shares: positions added to its tokens, or rows that are tokens themselves.

use holdall_graph::Write;
use rayon::prelude::*;

use super::elements::for_rows;
use super::operands::{Operands, Rows};
use super::real::{Real, vectorised};

/// Columns per thread at a time.
const TASK_COLUMNS: usize = 64;

pub(super) fn add_positions<T: Real>(repeat: usize, o: &Operands<'_>) {
    let (x, table) = (o.input::<T>(0), o.input::<T>(1));
    let (y, _) = o.result::<T>(0);
    for_rows(y.rows, |row| {
        let terms = x.row(row).iter().zip(table.row(row / repeat % table.rows));
        for (y, (&value, &position)) in y.row_mut(row).iter_mut().zip(terms) {
            *y = value + position;
        }
    });
}

pub(super) fn add_positions_grad<T: Real>(repeat: usize, o: &Operands<'_>) {
    let (dtable, mode) = o.result::<T>(0);
    assert_eq!(mode, Write::Accumulate, "a table's gradient is added to");
    add_to_table(o.input::<T>(0), dtable, repeat);
}

pub(super) fn repeat<T: Real>(o: &Operands<'_>) {
    let table = o.input::<T>(0);
    let (y, _) = o.result::<T>(0);
    for_rows(y.rows, |row| {
        y.row_mut(row).copy_from_slice(table.row(row % table.rows));
    });
}

pub(super) fn repeat_grad<T: Real>(o: &Operands<'_>) {
    let (dtable, mode) = o.result::<T>(0);
    assert_eq!(mode, Write::Accumulate, "a table's gradient is added to");
    add_to_table(o.input::<T>(0), dtable, 1);
}

/// Adds each run of `repeat` consecutive rows to the next row of the table; after the last row, starts again at the first. Each run is
/// summed separately first: a table of one row would otherwise accumulate thousands of small numbers one by one.
fn add_to_table<T: Real>(dy: Rows<T>, dtable: Rows<T>, repeat: usize) {
    (0..dy.width.div_ceil(TASK_COLUMNS))
        .into_par_iter()
        .for_each(|task| {
            let start = task * TASK_COLUMNS;
            let width = TASK_COLUMNS.min(dy.width - start);
            let (dy, dtable) = (dy.columns(start, width), dtable.columns(start, width));
            vectorised(|| {
                for run in 0..dy.rows / repeat {
                    let mut sums = [T::ZERO; TASK_COLUMNS];
                    for row in run * repeat..(run + 1) * repeat {
                        for (sum, &value) in sums.iter_mut().zip(dy.row(row)) {
                            *sum += value;
                        }
                    }
                    let total = dtable.row_mut(run % dtable.rows);
                    for (total, &sum) in total.iter_mut().zip(&sums) {
                        *total += sum;
                    }
                }
            });
        });
}
