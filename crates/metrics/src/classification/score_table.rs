//! AUROC and average precision from the scores of all samples for each class.
//!
//! ```text
//! AUROC = P(score of a positive > score of a negative), ties half
//! average precision = sum over thresholds of (recall - recall at the threshold before) * precision
//! ```
//!
//! Both need only the numbers of positives and negatives at each score. Scores are stored and sorted while
//! `samples x classes` f32 fit the bytes allowed; otherwise each class counts them in equal bins from -32 to 32 (logits and log odds
//! rarely leave that range), up to 2^16 of them, and scores within one bin are ties.

use rayon::prelude::*;
use serde::Serialize;

const MOST_BINS: usize = 1 << 16;
const FEWEST_BINS: usize = 64;
/// Bins cover the range from minus this to this.
const LARGEST_BINNED: f32 = 32.0;

/// Ranking metrics of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankingMetrics {
    /// `None` without a positive or without a negative.
    pub auroc: Option<f64>,
    /// `None` without a positive.
    pub average_precision: Option<f64>,
}

/// Scores of all samples for all classes.
#[derive(Clone, Debug)]
pub struct ScoreTable {
    num_classes: usize,
    scores: Scores,
}

#[derive(Clone, Debug)]
enum Scores {
    Exact {
        /// A row of class scores per sample; NaN where a sample does not count for a class.
        rows: Vec<f32>,
        /// One bit per score.
        positives: Vec<u64>,
    },
    Binned {
        num_bins: usize,
        /// `[positives, negatives]` per class and bin.
        counts: Vec<[u32; 2]>,
    },
}

impl ScoreTable {
    /// A table for `num_samples` rows within `memory_bytes`; each class has at least 64 bins, 512 bytes.
    pub fn new(num_classes: usize, num_samples: usize, memory_bytes: u64) -> ScoreTable {
        let num_scores = num_samples * num_classes;
        let num_words = num_scores.div_ceil(64);
        let exact_bytes = size_of::<f32>() * num_scores + size_of::<u64>() * num_words;
        let scores = if exact_bytes as u64 <= memory_bytes {
            Scores::Exact {
                rows: Vec::with_capacity(num_scores),
                positives: Vec::with_capacity(num_words),
            }
        } else {
            let class_bytes = memory_bytes / num_classes.max(1) as u64;
            let affordable = (class_bytes as usize / size_of::<[u32; 2]>()).max(1);
            let num_bins = (1 << affordable.ilog2()).clamp(FEWEST_BINS, MOST_BINS);
            Scores::Binned {
                num_bins,
                counts: vec![[0; 2]; num_classes * num_bins],
            }
        };
        ScoreTable {
            num_classes,
            scores,
        }
    }

    pub fn is_approximate(&self) -> bool {
        matches!(self.scores, Scores::Binned { .. })
    }

    /// Adds a sample: a score per class, NaN where the sample does not count for the class.
    pub fn add(&mut self, row: &[f32], is_positive: impl Fn(usize) -> bool) {
        assert_eq!(row.len(), self.num_classes, "a score per class");
        match &mut self.scores {
            Scores::Exact { rows, positives } => {
                let start = rows.len();
                rows.extend_from_slice(row);
                positives.resize(rows.len().div_ceil(64), 0);
                for class in (0..row.len()).filter(|&class| is_positive(class)) {
                    let at = start + class;
                    positives[at / 64] |= 1 << (at % 64);
                }
            }
            Scores::Binned { num_bins, counts } => {
                for (class, &score) in row.iter().enumerate().filter(|(_, score)| !score.is_nan()) {
                    let share = (score + LARGEST_BINNED) / (2.0 * LARGEST_BINNED);
                    // A cast saturates: scores out of range go to the first or the last bin.
                    let bin = ((share * *num_bins as f32) as usize).min(*num_bins - 1);
                    let count =
                        &mut counts[class * *num_bins + bin][usize::from(!is_positive(class))];
                    *count = count.saturating_add(1);
                }
            }
        }
    }

    /// Metrics per class. Classes are sorted in parallel, each thread with a copy of one class's scores.
    pub fn metrics(&self) -> Vec<RankingMetrics> {
        let classes = (0..self.num_classes).into_par_iter();
        match &self.scores {
            Scores::Exact { rows, positives } => classes
                .map(|class| exact(rows, positives, class, self.num_classes))
                .collect(),
            Scores::Binned { num_bins, counts } => classes
                .map(|class| {
                    let bins = &counts[class * num_bins..][..*num_bins];
                    let groups = bins.iter().rev();
                    ranking(groups.map(|counts| counts.map(u64::from)))
                })
                .collect(),
        }
    }
}

fn exact(rows: &[f32], positives: &[u64], class: usize, num_classes: usize) -> RankingMetrics {
    let places = (class..rows.len()).step_by(num_classes);
    let is_positive = |at: usize| positives[at / 64] >> (at % 64) & 1 == 1;
    let mut scores: Vec<(f32, bool)> = places
        .filter(|&at| !rows[at].is_nan())
        .map(|at| (rows[at], is_positive(at)))
        .collect();
    scores.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let groups = scores.chunk_by(|a, b| a.0 == b.0);
    ranking(groups.map(|group| {
        let num_positives = group.iter().filter(|(_, is_positive)| *is_positive).count();
        [num_positives as u64, (group.len() - num_positives) as u64]
    }))
}

/// Metrics from `[positives, negatives]` per score, highest score first.
pub(crate) fn ranking(groups: impl Iterator<Item = [u64; 2]>) -> RankingMetrics {
    // Both sums: pairs of a positive above a negative, ties counting half; and positives times their precision.
    let (mut pairs, mut precisions) = (0.0, 0.0);
    let (mut above, mut below) = (0, 0);
    for [positives, negatives] in groups {
        pairs += negatives as f64 * (above as f64 + positives as f64 / 2.0);
        above += positives;
        below += negatives;
        if positives > 0 {
            precisions += positives as f64 * (above as f64 / (above + below) as f64);
        }
    }
    RankingMetrics {
        auroc: (above > 0 && below > 0).then(|| pairs / (above as f64 * below as f64)),
        average_precision: (above > 0).then(|| precisions / above as f64),
    }
}
