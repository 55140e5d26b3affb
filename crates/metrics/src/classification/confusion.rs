use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// Confusion counts: samples by true and predicted class. Sparse, because a dense matrix of 20,000 classes would not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confusion {
    counts: BTreeMap<(u32, u32), u64>,
}

impl Confusion {
    /// Adds one sample.
    pub fn add(&mut self, truth: u32, predicted: u32) {
        *self.counts.entry((truth, predicted)).or_default() += 1;
    }

    /// Samples of class `truth` that were predicted as class `predicted`.
    pub fn count(&self, truth: u32, predicted: u32) -> u64 {
        self.counts.get(&(truth, predicted)).copied().unwrap_or(0)
    }

    /// True class, predicted class and count, in the order of classes; without zero counts.
    pub fn entries(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        self.counts
            .iter()
            .map(|(&(truth, predicted), &count)| (truth, predicted, count))
    }

    /// The most frequent mistakes, largest count first.
    pub fn mistakes(&self, most: usize) -> Vec<(u32, u32, u64)> {
        let mut mistakes: Vec<_> = self
            .entries()
            .filter(|(truth, predicted, _)| truth != predicted)
            .collect();
        mistakes.sort_by_key(|&(_, _, count)| std::cmp::Reverse(count));
        mistakes.truncate(most);
        mistakes
    }
}

/// Serialised as a list of `[true, predicted, samples]`.
impl Serialize for Confusion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.entries())
    }
}
