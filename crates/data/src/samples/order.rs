//! Order of the samples in an epoch: a function of (seed, epoch), so that a resumed run continues where it stopped.

use serde::{Deserialize, Serialize};

use crate::random::{DrawPurpose, Random};
use crate::samples::Samples;
use crate::samples::target::{ClassRows, TargetValues};

/// How samples are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// Each sample once, shuffled.
    #[default]
    Shuffle,
    /// Each label of [`Samples::balance_by`]'s target equally often: rare ones repeat, frequent ones take turns over the
    /// epochs. With several labels per picture, pictures are drawn in proportion to the mean inverse frequency of their
    /// labels.
    Balanced,
}

/// The samples of one epoch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(Vec<u32>);

impl Order {
    pub fn new(seed: u64, epoch: u64, samples: &Samples, sampling: Sampling) -> Order {
        // Rows are numbered in 32 bits, so samples are too.
        let mut order = match sampling {
            Sampling::Shuffle => (0..samples.len() as u32).collect(),
            Sampling::Balanced => match samples.balanced_target() {
                Some(TargetValues::Class(labels)) => balanced(seed, epoch, labels),
                Some(TargetValues::Classes(rows)) => balanced_rows(seed, epoch, rows),
                _ => (0..samples.len() as u32).collect(),
            },
        };
        Random::new(DrawPurpose::Shuffle, &[seed, epoch]).shuffle(&mut order);
        Order(order)
    }

    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    pub fn into_vec(self) -> Vec<u32> {
        self.0
    }
}

/// Balanced draws for one label per sample, as many draws as samples. Samples without a label come once. The other draws
/// are dealt to the labels in turn; each label cycles through its own shuffled samples.
fn balanced(seed: u64, epoch: u64, label_of: &[i32]) -> Vec<u32> {
    let mut order = Vec::with_capacity(label_of.len());
    let mut of_label: Vec<Vec<u32>> = Vec::new();
    for (sample, &label) in label_of.iter().enumerate() {
        let Ok(label) = usize::try_from(label) else {
            order.push(sample as u32);
            continue;
        };
        if of_label.len() <= label {
            of_label.resize_with(label + 1, Vec::new);
        }
        of_label[label].push(sample as u32);
    }
    of_label.retain(|samples| !samples.is_empty());
    let mut random = Random::new(DrawPurpose::Balance, &[seed, epoch]);
    for samples in &mut of_label {
        random.shuffle(samples);
    }
    // The first labels get one draw more when the draws do not divide evenly.
    random.shuffle(&mut of_label);
    let open = label_of.len() - order.len();
    for draw in 0..open {
        let samples = &of_label[draw % of_label.len()];
        order.push(samples[draw / of_label.len() % samples.len()]);
    }
    order
}

/// Balanced draws for several labels per sample, as many draws as samples. The draws are evenly spaced over the cumulative
/// weights, so that each sample is drawn in proportion to its weight, give or take one draw. Samples whose labels are
/// unknown come once; samples with an empty list of labels form a label of their own.
fn balanced_rows(seed: u64, epoch: u64, rows: &ClassRows) -> Vec<u32> {
    let num_labels = rows.num_labels();
    let weights = sample_weights(rows, num_labels);
    let (mut known, mut order): (Vec<u32>, Vec<u32>) =
        (0..rows.len() as u32).partition(|sample| weights[*sample as usize] > 0.0);
    let mut random = Random::new(DrawPurpose::Balance, &[seed, epoch]);
    // The shuffle decides which samples the evenly spaced draws fall on.
    random.shuffle(&mut known);
    let weight = |sample: &u32| f64::from(weights[*sample as usize]);
    let spacing = known.iter().map(weight).sum::<f64>() / known.len() as f64;
    let start = random.unit();
    let (mut drawn, mut total) = (0, 0.0);
    for sample in &known {
        total += weight(sample);
        while drawn < known.len() && (drawn as f64 + start) * spacing < total {
            order.push(*sample);
            drawn += 1;
        }
    }
    // Floating-point rounding can leave the last draw or two undrawn.
    order.extend(
        known
            .last()
            .map(|last| vec![*last; known.len() - drawn])
            .unwrap_or_default(),
    );
    order
}

/// Mean inverse frequency of each sample's labels, `1 / count`; 0 where the labels are unknown. Samples with an empty list
/// of labels form a label of their own.
fn sample_weights(rows: &ClassRows, num_labels: usize) -> Vec<f32> {
    let mut counts = vec![0usize; num_labels + 1];
    for labels in (0..rows.len()).filter_map(|sample| rows.get(sample)) {
        labels.iter().for_each(|label| counts[*label as usize] += 1);
        counts[num_labels] += usize::from(labels.is_empty());
    }
    let inverse = |label: usize| 1.0 / counts[label] as f64;
    let weight = |sample: usize| match rows.get(sample) {
        None => 0.0,
        Some([]) => inverse(num_labels),
        Some(labels) => {
            let all = labels.iter().map(|label| inverse(*label as usize));
            all.sum::<f64>() / labels.len() as f64
        }
    };
    (0..rows.len())
        .map(|sample| weight(sample) as f32)
        .collect()
}

/// Loss weight of each label so that all labels weigh the same: n / (C x count), where n is the number of label occurrences
/// and C the number of labels. A label without samples gets 0; a numeric target has no labels.
pub fn balanced_weights(values: &TargetValues, num_labels: usize) -> Vec<f32> {
    match values {
        TargetValues::Class(labels) => balanced_class_weights(labels, num_labels),
        TargetValues::Classes(rows) => {
            let rows = (0..rows.len()).filter_map(|sample| rows.get(sample));
            weights_of(rows.flatten().map(|label| *label as i32), num_labels)
        }
        TargetValues::Number(_) => Vec::new(),
    }
}

/// [`balanced_weights`] for one label per sample, -1 for none.
pub fn balanced_class_weights(label_of: &[i32], num_labels: usize) -> Vec<f32> {
    weights_of(label_of.iter().copied(), num_labels)
}

fn weights_of(labels: impl Iterator<Item = i32>, num_labels: usize) -> Vec<f32> {
    let mut counts = vec![0usize; num_labels];
    for label in labels {
        let at = usize::try_from(label).ok();
        if let Some(count) = at.and_then(|at| counts.get_mut(at)) {
            *count += 1;
        }
    }
    let labelled: usize = counts.iter().sum();
    let weight = |count| match count {
        0 => 0.0,
        _ => (labelled as f64 / (num_labels * count) as f64) as f32,
    };
    counts.into_iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::samples::SamplesBuilder;
    use crate::samples::target::TargetValues;

    fn samples(labels: &[i32]) -> Samples {
        let mut builder = SamplesBuilder::new(PathBuf::new());
        for row in 0..labels.len() {
            builder.push("x.jpg", None, row as u32 + 2);
        }
        builder.finish(vec![TargetValues::Class(labels.to_vec())])
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let samples = samples(&[0; 50]);
        let order = |seed, epoch| Order::new(seed, epoch, &samples, Sampling::Shuffle);
        assert_eq!(order(0, 0), order(0, 0));
        assert_ne!(order(0, 0), order(0, 1));
        assert_ne!(order(0, 0), order(1, 0));
    }

    #[test]
    fn sampling_is_written_in_lower_case() {
        assert_eq!(
            serde_json::to_string(&Sampling::Balanced).unwrap(),
            "\"balanced\""
        );
    }

    #[test]
    fn weights_make_labels_equal() {
        let weights = balanced_class_weights(&[0, 0, 0, 1, -1], 3);
        assert_eq!(weights, [4.0 / 9.0, 4.0 / 3.0, 0.0]);
        assert!(balanced_class_weights(&[], 0).is_empty());
    }

    #[test]
    fn rare_labels_of_several_are_drawn_as_often_as_frequent_ones() {
        let mut rows = ClassRows::default();
        for sample in 0..1000u32 {
            match sample {
                0..10 => rows.push(None),
                10..110 => rows.push(Some(&[1])),
                110..120 => rows.push(Some(&[0, 1])),
                120..130 => rows.push(Some(&[])),
                _ => rows.push(Some(&[0])),
            }
        }
        let values = TargetValues::Classes(rows.clone());
        let weights = balanced_weights(&values, 2);
        // 880 and 110 of 990 labels.
        assert_eq!(weights, [990.0 / 1760.0, 990.0 / 220.0]);
        let mut builder = SamplesBuilder::new(PathBuf::new());
        (0..1000).for_each(|row| builder.push("x.jpg", None, row + 2));
        let mut samples = builder.finish(vec![TargetValues::Class(vec![0; 1000]), values]);
        samples.balance_by(1);
        let order = Order::new(5, 2, &samples, Sampling::Balanced);
        assert_eq!(order, Order::new(5, 2, &samples, Sampling::Balanced));
        assert_ne!(order, Order::new(5, 3, &samples, Sampling::Balanced));
        let drawn = |range: std::ops::Range<u32>| {
            order
                .as_slice()
                .iter()
                .filter(|s| range.contains(s))
                .count()
        };
        assert_eq!((order.as_slice().len(), drawn(0..10)), (1000, 10));
        // The weights sum to 3: label 0, label 1 and "no label" each get a third of 990 draws.
        let both = 10.0 * (1.0 / 880.0 + 1.0 / 110.0) / 2.0;
        for (range, expected) in [
            (10..110, 100.0 / 110.0),
            (110..120, both),
            (120..130, 1.0),
            (130..1000, 870.0 / 880.0),
        ] {
            let total = 100.0 / 110.0 + both + 1.0 + 870.0 / 880.0;
            let expected = 990.0 * expected / total;
            let found = drawn(range.clone()) as f64;
            // The shuffled order is random: some tens of draws more or less.
            assert!(
                (found - expected).abs() < 0.05 * expected + 10.0,
                "{range:?}: {found}, expected {expected}"
            );
        }
    }

    proptest! {
        #[test]
        fn shuffling_is_a_permutation(n in 0usize..200, seed in any::<u64>(), epoch in any::<u64>()) {
            let samples = samples(&vec![-1; n]);
            for sampling in [Sampling::Shuffle, Sampling::Balanced] {
                let mut order = Order::new(seed, epoch, &samples, sampling).into_vec();
                order.sort_unstable();
                prop_assert_eq!(order, (0..n as u32).collect::<Vec<u32>>());
            }
        }

        #[test]
        fn balanced_draws_every_label_equally_often(
            labels in proptest::collection::vec(-1i32..6, 1..200), seed in any::<u64>(),
        ) {
            let samples = samples(&labels);
            let order = Order::new(seed, 3, &samples, Sampling::Balanced);
            prop_assert_eq!(order.as_slice().len(), labels.len());
            let drawn = |label: i32| order.as_slice().iter().filter(|s| labels[**s as usize] == label).count();
            let given = |label: i32| labels.iter().filter(|l| **l == label).count();
            prop_assert_eq!(drawn(-1), given(-1));
            let present: Vec<usize> = (0..6).filter(|l| given(*l) > 0).map(drawn).collect();
            let (low, high) = (present.iter().min(), present.iter().max());
            prop_assert!(high.unwrap_or(&0) - low.unwrap_or(&0) <= 1);
        }
    }
}
