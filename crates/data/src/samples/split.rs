//! Draws the validation rows: a share of each label's rows, determined by the seed alone. Each label's count is within one
//! of its share, and their sum is the share of all rows.

use std::collections::BTreeMap;

use crate::random::{DrawPurpose, Random};

/// Marks the validation rows. At least one row of each label is kept for training; rows without a label (-1) count as one
/// label of their own.
pub fn held_out(label_of: &[i32], share: f64, seed: u64) -> Vec<bool> {
    let mut groups: BTreeMap<i32, Vec<usize>> = BTreeMap::new();
    for (row, &label) in label_of.iter().enumerate() {
        groups.entry(label).or_default().push(row);
    }
    let sizes: Vec<usize> = groups.values().map(Vec::len).collect();
    let mut marks = vec![false; label_of.len()];
    for ((label, mut rows), count) in groups.into_iter().zip(counts(&sizes, share)) {
        let words = [seed, label as u64];
        Random::new(DrawPurpose::Split, &words).shuffle(&mut rows);
        for row in &rows[..count] {
            marks[*row] = true;
        }
    }
    marks
}

/// Marks the validation rows so that all rows of a group are on one side. Groups are tried in an order that depends on the
/// seed alone, and taken if the counts by label come nearer to their shares; no label loses its last training row.
pub fn held_out_groups(label_of: &[i32], group_of: &[u32], share: f64, seed: u64) -> Vec<bool> {
    let mut sizes: BTreeMap<i32, usize> = BTreeMap::new();
    for &label in label_of {
        *sizes.entry(label).or_default() += 1;
    }
    let wanted = counts(&sizes.values().copied().collect::<Vec<usize>>(), share);
    let mut labels: BTreeMap<i32, Share> = BTreeMap::new();
    for ((&label, &left), &wanted) in sizes.iter().zip(&wanted) {
        let wanted = wanted as i64;
        labels.insert(label, Share { wanted, left });
    }
    let num_groups = group_of.iter().max().map_or(0, |last| *last as usize + 1);
    let mut groups: Vec<BTreeMap<i32, usize>> = vec![BTreeMap::new(); num_groups];
    for (&group, &label) in group_of.iter().zip(label_of) {
        *groups[group as usize].entry(label).or_default() += 1;
    }
    let mut order: Vec<usize> = (0..num_groups).collect();
    Random::new(DrawPurpose::Split, &[seed]).shuffle(&mut order);
    let mut is_held = vec![false; num_groups];
    let mut open = wanted.iter().sum::<usize>() as i64;
    // Takes groups that fit, in turn; then moves single groups while that brings the counts nearer to their shares.
    for &group in &order {
        let rows = groups[group].values().sum::<usize>() as i64;
        if rows <= open && gain(&groups[group], 1, &labels, open) > 0 {
            change_sides(&groups[group], 1, &mut labels, &mut open);
            is_held[group] = true;
        }
    }
    for _ in 0..MOST_CHANGES {
        let direction = |group: usize| if is_held[group] { -1 } else { 1 };
        let gains = order.iter().map(|&group| {
            let gain = gain(&groups[group], direction(group), &labels, open);
            (gain, group)
        });
        // Among equal gains, the first.
        let best = gains.rev().max_by_key(|(gain, _)| *gain);
        let Some((_, group)) = best.filter(|(gain, _)| *gain > 0) else {
            break;
        };
        change_sides(&groups[group], direction(group), &mut labels, &mut open);
        is_held[group] = !is_held[group];
    }
    let held = group_of.iter().map(|group| is_held[*group as usize]);
    held.collect()
}

/// Limit of the moves; each one compares all groups.
const MOST_CHANGES: usize = 64;

/// Rows of a label.
struct Share {
    /// Rows still to be held out; negative where too many are.
    wanted: i64,
    /// Rows left for training.
    left: usize,
}

/// Reduction of the squared distances of the counts from their shares, over all labels and the sum, if a group is held out (direction 1) or
/// returned (-1); 0 where a label would lose its last training row.
fn gain(
    group: &BTreeMap<i32, usize>,
    direction: i64,
    labels: &BTreeMap<i32, Share>,
    open: i64,
) -> i64 {
    let nearer = |wanted: i64, rows: i64| wanted * wanted - (wanted - rows) * (wanted - rows);
    let mut total = 0;
    let mut gain = 0;
    for (label, &rows) in group {
        let share = &labels[label];
        if direction > 0 && share.left <= rows {
            return 0;
        }
        let rows = direction * rows as i64;
        gain += nearer(share.wanted, rows);
        total += rows;
    }
    gain + nearer(open, total)
}

fn change_sides(
    group: &BTreeMap<i32, usize>,
    direction: i64,
    labels: &mut BTreeMap<i32, Share>,
    open: &mut i64,
) {
    for (label, &rows) in group {
        let rows = direction * rows as i64;
        if let Some(share) = labels.get_mut(label) {
            share.wanted -= rows;
            share.left = share.left.saturating_add_signed(-rows as isize);
        }
        *open -= rows;
    }
}

/// Rows to hold out of each group: its share rounded down, plus one for the groups with the largest remainders until the
/// sum is right.
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

    #[test]
    fn groups_stay_together_and_the_share_is_met() {
        // 300 patients with 1 to 8 rows each, of three labels.
        let mut labels = Vec::new();
        let mut groups = Vec::new();
        for patient in 0..300u32 {
            for picture in 0..1 + patient % 8 {
                labels.push(((patient / 7 + picture / 3) % 3) as i32);
                groups.push(patient);
            }
        }
        let marks = held_out_groups(&labels, &groups, 0.2, 7);
        assert_eq!(marks, held_out_groups(&labels, &groups, 0.2, 7));
        assert_ne!(marks, held_out_groups(&labels, &groups, 0.2, 8));
        let mut side_of = [None; 300];
        for (&group, &mark) in groups.iter().zip(&marks) {
            assert_eq!(*side_of[group as usize].get_or_insert(mark), mark);
        }
        for label in 0..3 {
            let of_label = |held: bool| {
                let rows = labels.iter().zip(&marks);
                rows.filter(|(l, m)| **l == label && (**m || !held)).count() as f64
            };
            let share = of_label(true) / of_label(false);
            assert!((share - 0.2).abs() < 0.01, "label {label}: {share}");
        }
    }

    #[test]
    fn a_group_with_all_of_a_label_stays_in_training() {
        let marks = held_out_groups(&[0, 0, 1, 1], &[0, 0, 1, 1], 0.5, 0);
        assert_eq!(marks, [false; 4]);
        // One group has nearly all rows and cannot be held out; the small one is.
        let mut groups = vec![0; 90];
        groups.extend([1; 10]);
        let marks = held_out_groups(&[-1; 100], &groups, 0.1, 0);
        assert_eq!(marks.iter().filter(|mark| **mark).count(), 10);
        assert!(!marks[0]);
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
