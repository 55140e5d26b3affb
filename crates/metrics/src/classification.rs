//! Classification metrics from logits, batch by batch.
//!
//! ```text
//! SingleLabel   one class per sample     accuracy, top-5, macro F1, AUROC one against the rest, confusion
//! MultiLabel    any number of labels     micro and macro F1 at a probability of 0.5, mean average precision, AUROC
//! ```
//!
//! Memory for counts grows with classes, not with samples. AUROC and average precision need the order of all scores of a class: scores
//! stay in f32 while they fit the bytes that the caller allows, and are counted in bins otherwise ([`ScoreTable`]); results say
//! which. Samples without a label are left out and counted; a NaN logit counts as a wrong answer.

mod confusion;
mod labels;
mod multi_label;
mod score_table;
mod single_label;
#[cfg(test)]
mod tests;
mod top_k;

pub use confusion::Confusion;
pub use labels::{LabelCounts, LabelFrequencies};
pub use multi_label::{LabelMetrics, MultiLabel, MultiLabelMetrics};
pub(crate) use score_table::ranking;
pub use score_table::{RankingMetrics, ScoreTable};
pub use single_label::{ClassMetrics, SingleLabel, SingleLabelMetrics};
pub use top_k::{rank_of, top_k};

use serde::Serialize;

/// Counts of right and wrong answers for one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hits {
    /// True positives.
    correct: u64,
    support: u64,
    /// Samples predicted as the class.
    predicted: u64,
}

/// Precision, recall and their harmonic mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrecisionRecall {
    /// `None` where nothing was predicted.
    pub precision: Option<f64>,
    /// `None` where the class does not occur.
    pub recall: Option<f64>,
    /// `2 correct / (support + predicted)`; `None` where both are zero.
    pub f1: Option<f64>,
    pub support: u64,
}

impl Hits {
    fn metrics(self) -> PrecisionRecall {
        PrecisionRecall {
            precision: share(self.correct, self.predicted),
            recall: share(self.correct, self.support),
            f1: share(2 * self.correct, self.support + self.predicted),
            support: self.support,
        }
    }
}

impl std::iter::Sum for Hits {
    fn sum<I: Iterator<Item = Hits>>(hits: I) -> Hits {
        hits.fold(Hits::default(), |a, b| Hits {
            correct: a.correct + b.correct,
            support: a.support + b.support,
            predicted: a.predicted + b.predicted,
        })
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Mean of the defined values.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u64);
    for value in values.flatten() {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / count as f64)
}
