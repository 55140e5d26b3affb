//! Prediction targets besides captions: one label, several labels, or a number per picture. The name of a target is that of
//! its head.

use serde::{Deserialize, Serialize};

use crate::config::UnseenLabels;

/// A target with its labels or statistics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Name in the config: `label`, or a key of `targets`.
    pub name: String,
    pub kind: TargetKind,
}

/// Labels or statistics of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TargetKind {
    /// One label: those of the training rows, sorted, or those of a trained head, in its order.
    Class {
        /// Label names, by index.
        names: Vec<String>,
    },
    /// Any number of labels.
    Classes {
        /// Label names, by index.
        names: Vec<String>,
    },
    /// A number.
    Number {
        /// Mean over the training rows.
        #[serde(with = "exact_number")]
        mean: f64,
        /// Standard deviation over the training rows; 1 where they are all equal.
        #[serde(with = "exact_number")]
        std: f64,
    },
}

impl TargetKind {
    /// Label names; empty for a number.
    pub fn names(&self) -> &[String] {
        match self {
            TargetKind::Class { names } | TargetKind::Classes { names } => names,
            TargetKind::Number { .. } => &[],
        }
    }

    /// Description for messages.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            TargetKind::Class { .. } => "one label per picture",
            TargetKind::Classes { .. } => "several labels per picture",
            TargetKind::Number { .. } => "a number",
        }
    }
}

/// Index of a label without a class: every prediction is wrong.
pub const UNSEEN: i32 = -2;

/// Values of a target for each sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TargetValues {
    /// Index of the label, -1 for none, [`UNSEEN`] for one that was not trained on.
    Class(Vec<i32>),
    /// Indices of the labels.
    Classes(ClassRows),
    /// The number, NaN for none.
    Number(#[serde(with = "exact_numbers")] Vec<f32>),
}

/// Writes a number by its bits: JSON readers may change its last digit.
mod exact_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &f64, to: S) -> Result<S::Ok, S::Error> {
        number.to_bits().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

/// Like [`exact_number`], for a list; JSON has no NaN.
mod exact_numbers {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(numbers: &[f32], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(numbers.iter().map(|number| number.to_bits()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        let bits = Vec::<u32>::deserialize(from)?;
        Ok(bits.into_iter().map(f32::from_bits).collect())
    }
}

impl TargetValues {
    pub fn len(&self) -> usize {
        match self {
            TargetValues::Class(values) => values.len(),
            TargetValues::Classes(rows) => rows.len(),
            TargetValues::Number(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a sample has a value.
    pub fn is_known(&self, sample: usize) -> bool {
        match self {
            TargetValues::Class(values) => values[sample] >= 0,
            TargetValues::Classes(rows) => rows.get(sample).is_some(),
            TargetValues::Number(values) => !values[sample].is_nan(),
        }
    }

    /// Values of samples without any.
    pub(crate) fn unknown(kind: &TargetKind, num_samples: usize) -> TargetValues {
        match kind {
            TargetKind::Class { .. } => TargetValues::Class(vec![-1; num_samples]),
            TargetKind::Number { .. } => TargetValues::Number(vec![f32::NAN; num_samples]),
            TargetKind::Classes { .. } => {
                let mut rows = ClassRows::default();
                (0..num_samples).for_each(|_| rows.push(None));
                TargetValues::Classes(rows)
            }
        }
    }

    /// Values of these samples.
    pub(crate) fn of(&self, samples: &[usize]) -> TargetValues {
        let samples = samples.iter().copied();
        match self {
            TargetValues::Class(values) => {
                TargetValues::Class(samples.map(|sample| values[sample]).collect())
            }
            TargetValues::Number(values) => {
                TargetValues::Number(samples.map(|sample| values[sample]).collect())
            }
            TargetValues::Classes(rows) => {
                let mut chosen = ClassRows::default();
                samples.for_each(|sample| chosen.push(rows.get(sample)));
                TargetValues::Classes(chosen)
            }
        }
    }
}

/// Several labels per sample, concatenated: 4 bytes per sample and 4 per label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRows {
    classes: Vec<u32>,
    ends: Vec<u32>,
}

/// Marks a row whose labels are unknown.
const UNKNOWN: u32 = u32::MAX;

impl ClassRows {
    /// Adds a sample and sorts its labels; `None` for unknown labels.
    pub fn push(&mut self, classes: Option<&[u32]>) {
        let start = self.classes.len();
        self.classes
            .extend_from_slice(classes.unwrap_or(&[UNKNOWN]));
        self.classes[start..].sort_unstable();
        self.ends.push(self.classes.len() as u32);
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A sample's labels, sorted; `None` where they are unknown.
    pub fn get(&self, sample: usize) -> Option<&[u32]> {
        let start = match sample {
            0 => 0,
            _ => self.ends[sample - 1] as usize,
        };
        let classes = &self.classes[start..self.ends[sample] as usize];
        (classes != [UNKNOWN]).then_some(classes)
    }

    /// Highest label plus one.
    pub(crate) fn num_labels(&self) -> usize {
        let labels = self.classes.iter().filter(|class| **class != UNKNOWN);
        labels.max().map_or(0, |last| *last as usize + 1)
    }

    /// The rows with other label indices. Labels without a new index are dropped, or make their row unknown.
    pub(crate) fn renumbered(&self, new_of: &[Option<u32>], unseen: UnseenLabels) -> ClassRows {
        let mut renumbered = ClassRows::default();
        for sample in 0..self.len() {
            let row = self.get(sample).and_then(|row| {
                let new = row.iter().map(|label| new_of[*label as usize]);
                let is_left_out =
                    unseen == UnseenLabels::Skip && new.clone().any(|new| new.is_none());
                (!is_left_out).then(|| new.flatten().collect::<Vec<u32>>())
            });
            renumbered.push(row.as_deref());
        }
        renumbered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other processes receive them as JSON, and every process must train with the same bits.
    #[test]
    fn numbers_survive_json_bit_for_bit() {
        let kind = TargetKind::Number {
            mean: 1.0 / 3.0,
            std: f64::from_bits(0x3fd5_5555_5555_5557),
        };
        let text = serde_json::to_vec(&kind).unwrap();
        assert_eq!(serde_json::from_slice::<TargetKind>(&text).unwrap(), kind);
        let sent = TargetValues::Number(vec![0.1, -0.0, f32::NAN, f32::MIN_POSITIVE / 2.0]);
        let text = serde_json::to_vec(&sent).unwrap();
        let received: TargetValues = serde_json::from_slice(&text).unwrap();
        let [TargetValues::Number(sent), TargetValues::Number(received)] = [&sent, &received]
        else {
            panic!("{received:?}");
        };
        let bits =
            |numbers: &[f32]| -> Vec<u32> { numbers.iter().map(|one| one.to_bits()).collect() };
        assert_eq!(bits(sent), bits(received));
    }

    #[test]
    fn rows_of_several_labels() {
        let mut rows = ClassRows::default();
        for row in [Some(&[2, 0][..]), None, Some(&[]), Some(&[1])] {
            rows.push(row);
        }
        assert_eq!(rows.len(), 4);
        assert_eq!(rows.get(0), Some(&[0, 2][..]));
        assert_eq!((rows.get(1), rows.get(2)), (None, Some(&[][..])));
        let rows = rows.renumbered(&[Some(5), Some(1), Some(3)], UnseenLabels::Wrong);
        assert_eq!(rows.get(0), Some(&[3, 5][..]));
        assert_eq!((rows.get(1), rows.get(3)), (None, Some(&[1][..])));
        // A label that was not trained on.
        let unseen = [None, None, None, Some(0), None, Some(1)];
        let skipped = rows.renumbered(&unseen, UnseenLabels::Skip);
        assert_eq!((skipped.get(0), skipped.get(3)), (Some(&[0, 1][..]), None));
        let kept = rows.renumbered(&unseen, UnseenLabels::Wrong);
        assert_eq!(kept.get(3), Some(&[][..]));
        let some = TargetValues::Classes(rows).of(&[1, 3]);
        assert_eq!(some.len(), 2);
        assert!(!some.is_known(0) && some.is_known(1));
    }
}
