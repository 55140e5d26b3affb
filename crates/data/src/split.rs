//! Which rows are held out: a share of each label's, by a throw of dice that depends on the seed
//! alone. Each label's count is within one of its share, and their sum is the share of all.

use std::collections::BTreeMap;

use crate::dice::{Dice, Purpose};

/// Marks the rows that are held out. At least one row of each label is kept for training; rows
/// without a label (-1) count as one label of their own.
pub fn held_out(label_of: &[i32], share: f64, seed: u64) -> Vec<bool> {
    let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (row, &label) in label_of.iter().enumerate() {
        groups.entry(label).or_default().push(row);
    }
    let sizes: Vec<usize> = groups.values().map(Vec::len).collect();
    let mut marks = vec![false; label_of.len()];
    for ((label, mut rows), count) in groups.into_iter().zip(counts(&sizes, share)) {
        let words = [seed, label as u64];
        Dice::new(Purpose::Split, &words).shuffle(&mut rows);
        for row in &rows[..count] {
            marks[*row] = true;
        }
    }
    marks
}

/// How many of each group: its share rounded down, and one more for those that lose most by the
/// rounding, until the sum is right.
fn counts(sizes: &[usize], share: f64) -> Vec<usize> {
    let exact = |size: usize| size as f64 * share;
    let most = |size: usize| size.saturating_sub(1);
    let mut counts: Vec<usize> = sizes
        .iter()
        .map(|&size| (exact(size).floor() as usize).min(most(size)))
        .collect();
    let total = exact(sizes.iter().sum()).round() as usize;
    let mut open = total.saturating_sub(counts.iter().sum());
    let mut by_loss: Vec<usize> = (0..sizes.len()).collect();
    let loss = |at: usize| exact(sizes[at]).fract();
    by_loss.sort_by(|&a, &b| loss(b).total_cmp(&loss(a)));
    for at in by_loss {
        if open > 0 && loss(at) > 0.0 && counts[at] < most(sizes[at]) {
            counts[at] += 1;
            open -= 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tenth_is_a_tenth() {
        let labels: Vec<i32> = (0..2400).map(|row| row % 40).collect();
        let marks = held_out(&labels, 0.1, 0);
        assert_eq!(marks.iter().filter(|mark| **mark).count(), 240);
        assert_eq!(marks, held_out(&labels, 0.1, 0));
        assert_ne!(marks, held_out(&labels, 0.1, 1));
    }

    #[test]
    fn single_rows_stay_in_training() {
        assert_eq!(held_out(&[0, 1, 2], 0.9, 0), [false; 3]);
        assert_eq!(held_out(&[-1], 0.5, 0), [false]);
        assert_eq!(counts(&[2, 2, 2, 2, 2], 0.1), [1, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn stratified_within_one(
            labels in proptest::collection::vec(-1i32..5, 1..300),
            share in 0.01f64..0.99,
            seed in any::<u64>(),
        ) {
            let marks = held_out(&labels, share, seed);
            prop_assert_eq!(marks.len(), labels.len());
            for label in -1..5 {
                let rows = labels.iter().filter(|l| **l == label).count();
                let held = marks.iter().zip(&labels).filter(|(m, l)| **m && **l == label).count();
                prop_assert!((held as f64 - rows as f64 * share).abs() <= 1.0);
                prop_assert!(rows == 0 || held < rows);
            }
        }
    }
}
