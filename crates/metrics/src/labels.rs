//! Label accuracy, sample by sample as logits come.

/// Right answers so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelCounts {
    /// Samples with a label.
    pub samples: usize,
    /// Whose label had the highest logit.
    pub top1: usize,
    /// Whose label was among the five highest.
    pub top5: usize,
}

impl LabelCounts {
    /// Takes note of one sample. Equal logits count against the label: a head that says the same of all classes
    /// knows nothing.
    pub fn add(&mut self, logits: &[f32], label: usize) {
        let own = logits[label];
        let others = logits
            .iter()
            .enumerate()
            .filter(|&(class, _)| class != label);
        // What is not a number is never smaller, so it counts against the label as well.
        let ahead = others.filter(|&(_, other)| {
            !matches!(other.partial_cmp(&own), Some(std::cmp::Ordering::Less))
        });
        let ahead = ahead.count();
        self.samples += 1;
        self.top1 += usize::from(ahead < 1);
        self.top5 += usize::from(ahead < 5);
    }

    /// Takes note of a sample whose label is none of the classes: no answer is right.
    pub fn add_unseen(&mut self) {
        self.samples += 1;
    }

    /// Shares of right answers: top-1, top-5; `None` without samples.
    pub fn accuracy(&self) -> Option<[f64; 2]> {
        let share = |right: usize| right as f64 / self.samples as f64;
        (self.samples > 0).then(|| [share(self.top1), share(self.top5)])
    }
}

/// How often each label is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelFrequencies(Vec<u32>);

impl LabelFrequencies {
    /// Counts one sample.
    pub fn add(&mut self, label: usize) {
        if self.0.len() <= label {
            self.0.resize(label + 1, 0);
        }
        self.0[label] += 1;
    }

    /// Share of right answers of a model that always says the most frequent label, among all samples that are scored: those whose
    /// label no model knows too. `None` without samples.
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
