//! Label accuracy, updated per sample.

/// Counts of correct predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelCounts {
    /// Samples with a label.
    pub samples: usize,
    /// Samples whose label had the highest logit.
    pub top1: usize,
    /// Samples whose label was among the five highest logits.
    pub top5: usize,
}

impl LabelCounts {
    /// Counts one sample. Equal logits count against the label: a head with the same output for all classes
    /// knows nothing.
    pub fn add(&mut self, logits: &[f32], label: usize) {
        let own = logits[label];
        let others = logits
            .iter()
            .enumerate()
            .filter(|&(class, _)| class != label);
        // NaN compares as not less, so it counts against the label as well.
        let ahead = others.filter(|&(_, other)| {
            !matches!(other.partial_cmp(&own), Some(std::cmp::Ordering::Less))
        });
        let ahead = ahead.count();
        self.samples += 1;
        self.top1 += usize::from(ahead < 1);
        self.top5 += usize::from(ahead < 5);
    }

    /// Counts a sample whose label is not a class of the model: every prediction is wrong.
    pub fn add_unseen(&mut self) {
        self.samples += 1;
    }

    /// Top-1 and top-5 accuracy; `None` without samples.
    pub fn accuracy(&self) -> Option<[f64; 2]> {
        let share = |right: usize| right as f64 / self.samples as f64;
        (self.samples > 0).then(|| [share(self.top1), share(self.top5)])
    }
}

/// Number of samples per label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelFrequencies(Vec<u32>);

impl LabelFrequencies {
    pub fn add(&mut self, label: usize) {
        if self.0.len() <= label {
            self.0.resize(label + 1, 0);
        }
        self.0[label] += 1;
    }

    /// Accuracy of always predicting the most frequent label, over all scored samples, including those whose label is not a class of
    /// the model. `None` without samples.
    pub fn share_of_largest(&self, num_scored: usize) -> Option<f64> {
        let largest = self.0.iter().max()?;
        Some(f64::from(*largest) / num_scored as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_and_nans_count_against_the_label() {
        let mut counts = LabelCounts::default();
        assert_eq!(counts.accuracy(), None);
        counts.add(&[0.0, 2.0, 1.0], 1);
        counts.add(&[0.0, 2.0, 2.0], 1);
        counts.add(&[f32::NAN; 8], 3);
        counts.add(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 5);
        counts.add(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4);
        assert_eq!((counts.samples, counts.top1, counts.top5), (5, 1, 3));
        counts.add_unseen();
        assert_eq!(counts.accuracy(), Some([1.0 / 6.0, 0.5]));
    }

    #[test]
    fn the_most_frequent_label_is_a_guess_too() {
        let mut frequencies = LabelFrequencies::default();
        assert_eq!(frequencies.share_of_largest(0), None);
        [2, 0, 2, 1]
            .into_iter()
            .for_each(|label| frequencies.add(label));
        assert_eq!(frequencies.share_of_largest(4), Some(0.5));
        assert_eq!(frequencies.share_of_largest(8), Some(0.25));
    }
}
