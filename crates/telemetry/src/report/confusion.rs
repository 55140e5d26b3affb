//! `confusion.json`: counts of true and predicted classes, limited to what a page can show.

use serde::{Deserialize, Serialize};

/// Classes in the matrix.
const MAX_CLASSES: usize = 200;
/// Rows in the table of classes.
const MAX_ROWS: usize = 2000;
const MAX_MISTAKES: usize = 24;

/// Contents of `confusion.json`, which is written at every best evaluation.
#[derive(Deserialize, Serialize)]
pub struct Confusion {
    /// Completed optimizer steps.
    pub step: Option<u64>,
    /// Evaluated samples.
    on: Option<String>,
    targets: Vec<ConfusionTarget>,
}

/// A target of the classifier, such as the breed.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct ConfusionTarget {
    name: String,
    labels: Vec<String>,
    /// True class, predicted class, count.
    counts: Vec<(usize, usize, u64)>,
    /// Samples of each class, including those predicted as a class that is left out.
    totals: Vec<u64>,
    per_class: Vec<ClassRow>,
    mistakes: Vec<Mistake>,
    /// Number of classes that are not in the matrix.
    left_out: u64,
}

#[derive(Deserialize, Serialize)]
struct ClassRow {
    label: String,
    support: Option<u64>,
    precision: Option<f64>,
    recall: Option<f64>,
    f1: Option<f64>,
}

/// A picture with a wrong prediction.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Mistake {
    image: String,
    /// In base64.
    jpeg: Option<String>,
    expected: String,
    found: String,
    /// Predicted probability, 0 to 1.
    share: Option<f64>,
}

impl Confusion {
    /// Limits classes, rows and pictures to what a page can show.
    pub fn bounded(mut self) -> Confusion {
        for target in &mut self.targets {
            target.bound();
        }
        self
    }
}

impl ConfusionTarget {
    fn bound(&mut self) {
        let num_labels = self.labels.len();
        self.counts
            .retain(|&(expected, found, count)| expected.max(found) < num_labels && count > 0);
        let mut totals = vec![0_u64; num_labels];
        for &(expected, _, count) in &self.counts {
            totals[expected] = totals[expected].saturating_add(count);
        }
        // The classes with the most samples, in the order of the file.
        let mut kept: Vec<usize> = (0..num_labels).collect();
        kept.sort_by_key(|&class| std::cmp::Reverse(totals[class]));
        kept.truncate(MAX_CLASSES);
        kept.sort_unstable();
        self.left_out += (num_labels - kept.len()) as u64;
        let place = |class: usize| kept.binary_search(&class).ok();
        let counts = self.counts.iter();
        self.counts = counts
            .filter_map(|&(expected, found, count)| Some((place(expected)?, place(found)?, count)))
            .collect();
        self.labels = kept
            .iter()
            .map(|&class| std::mem::take(&mut self.labels[class]))
            .collect();
        self.totals = kept.iter().map(|&class| totals[class]).collect();
        self.per_class.truncate(MAX_ROWS);
        self.mistakes.truncate(MAX_MISTAKES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_200_classes_and_says_how_many_it_has_not() {
        let labels: Vec<String> = (0..300).map(|class| format!("c{class}")).collect();
        // Class c has c samples, all predicted as the last class.
        let counts: Vec<(usize, usize, u64)> =
            (0..300).map(|class| (class, 299, class as u64)).collect();
        // Class 0 has no samples; one count is for a class without a name.
        let mut bad = counts.clone();
        bad.push((0, 300, 5));
        let file = serde_json::json!({"step": 3, "on": "validation", "targets": [{"name": "t", "labels": labels, "counts": bad}]});
        let file: Confusion = serde_json::from_value(file).unwrap();
        let bounded = file.bounded();
        let target = &bounded.targets[0];
        assert_eq!((target.labels.len(), target.left_out), (200, 100));
        assert_eq!((target.labels[0].as_str(), target.totals[0]), ("c100", 100));
        assert_eq!(target.counts[0], (0, 199, 100));
        assert_eq!(target.counts.len(), 200);
    }
}
