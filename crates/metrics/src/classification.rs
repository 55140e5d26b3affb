//! What a classifier is worth, from logits batch by batch.
//!
//! ```text
//! SingleLabel   one class per sample     accuracy, top-5, macro F1, AUROC one against the rest, confusion
//! MultiLabel    any number of labels     micro and macro F1 at a probability of 0.5, mean average precision, AUROC
//! ```
//!
//! Counts take memory by class, not by sample. AUROC and average precision need the order of all scores of a class: scores are
//! kept in f32 while they fit the bytes that the caller allows, and are counted in bins beyond ([`ScoreTable`]); results say
//! which. What has no label is left out and counted; a logit that is not a number counts as a wrong answer.

mod confusion;
mod multi_label;
mod score_table;
mod single_label;
#[cfg(test)]
mod tests;
mod top_k;

pub use confusion::Confusion;
pub use multi_label::{LabelMetrics, MultiLabel, MultiLabelMetrics};
pub(crate) use score_table::ranking;
pub use score_table::{RankingMetrics, ScoreTable};
pub use single_label::{ClassMetrics, SingleLabel, SingleLabelMetrics};
pub use top_k::{rank_of, top_k};

use serde::Serialize;

/// Right and wrong answers about one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Hits {
    /// Samples of the class that were predicted as such.
    correct: u64,
    /// Samples of the class.
    support: u64,
    /// Samples that were predicted as the class.
    predicted: u64,
}

/// Precision, recall and their harmonic mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrecisionRecall {
    /// Share of what was predicted that is right; `None` where nothing was predicted.
    pub precision: Option<f64>,
    /// Share of what is there that was predicted; `None` where nothing is there.
    pub recall: Option<f64>,
    /// `2 correct / (support + predicted)`; `None` where both are zero.
    pub f1: Option<f64>,
    /// Samples of the class.
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

/// The mean of those that are defined.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u64);
    for value in values.flatten() {
        sum += value;
        count += 1;
    }
    (count > 0).then(|| sum / count as f64)
}
