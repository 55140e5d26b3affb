//! In which order an epoch sees the samples: a function of (seed, epoch), so that a resumed run
//! goes on where it stopped.

use serde::{Deserialize, Serialize};

use crate::dice::{Dice, Purpose};
use crate::samples::Samples;

/// How samples are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// Each sample once, shuffled.
    #[default]
    Shuffle,
    /// Each label equally often: rare ones repeat, frequent ones take turns over the epochs.
    Balanced,
}

/// The samples of one epoch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(Vec<u32>);

impl Order {
    /// The order of this epoch.
    pub fn new(seed: u64, epoch: u64, samples: &Samples, sampling: Sampling) -> Order {
        // Rows are numbered in 32 bits, so samples are too.
        let mut order = match sampling {
            Sampling::Shuffle => (0..samples.len() as u32).collect(),
            Sampling::Balanced => match samples.labels() {
                [] => (0..samples.len() as u32).collect(),
                labels => balanced(seed, epoch, labels),
            },
        };
        Dice::new(Purpose::Shuffle, &[seed, epoch]).shuffle(&mut order);
        Order(order)
    }

    /// Sample numbers, in order.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// Sample numbers, in order.
    pub fn into_vec(self) -> Vec<u32> {
        self.0
    }
}

/// As many draws as samples. Those without a label come once; the rest of the draws goes to the
/// labels in turn, each through its own shuffled samples, around and around.
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
    let mut dice = Dice::new(Purpose::Balance, &[seed, epoch]);
    for samples in &mut of_label {
        dice.shuffle(samples);
    }
    // Which labels come once more when the draws do not divide evenly.
    dice.shuffle(&mut of_label);
    let open = label_of.len() - order.len();
    for draw in 0..open {
        let samples = &of_label[draw % of_label.len()];
        order.push(samples[draw / of_label.len() % samples.len()]);
    }
    order
}

/// What each label's loss is multiplied with so that all labels weigh the same: n / (C x count), n
/// labelled samples, C labels. A label without samples gets 0.
pub fn balanced_class_weights(label_of: &[i32], num_labels: usize) -> Vec<f32> {
    let mut counts = vec![0usize; num_labels];
    for &label in label_of {
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
    use crate::target::TargetValues;

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
