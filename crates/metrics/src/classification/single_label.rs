//! Single-label classification: one class per sample.

use serde::Serialize;

use super::{Confusion, Hits, PrecisionRecall, ScoreTable, mean, rank_of, share};

/// Accumulates single-label predictions.
#[derive(Clone, Debug)]
pub struct SingleLabel {
    hits: Vec<Hits>,
    confusion: Confusion,
    table: ScoreTable,
    /// Scratch: the log odds of one sample.
    odds: Vec<f32>,
    samples: u64,
    top5: u64,
    unlabelled: u64,
    unseen: u64,
    not_finite: u64,
}

/// Single-label metrics. Shares are `None` where they would divide by zero.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SingleLabelMetrics {
    /// Samples with a known label.
    pub samples: u64,
    /// Samples left out because their label is unknown.
    pub unlabelled: u64,
    /// Samples among the labelled ones whose label is not a class of the model: every prediction is wrong.
    pub unseen: u64,
    /// Samples with a NaN logit: no class is predicted, which counts as wrong.
    pub not_finite: u64,
    /// Share of samples whose class has the highest logit; of equal logits the first wins.
    pub accuracy: Option<f64>,
    /// Share of samples whose class is among the five highest; `None` with five classes or fewer.
    pub top5: Option<f64>,
    /// Mean F1 of the classes that occur or are predicted.
    pub macro_f1: Option<f64>,
    /// Mean of the classes' one-against-rest AUROC, by softmax probability.
    pub auroc: Option<f64>,
    /// Whether scores were counted in bins because they did not fit the memory allowed.
    pub auroc_is_approximate: bool,
    /// One entry per class.
    pub classes: Vec<ClassMetrics>,
    /// Samples by true and predicted class.
    pub confusion: Confusion,
}

/// Metrics of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassMetrics {
    #[serde(flatten)]
    pub counts: PrecisionRecall,
    /// One-against-rest AUROC.
    pub auroc: Option<f64>,
}

impl SingleLabel {
    /// An empty accumulator. Scores of `num_samples` samples stay exact if they fit into `memory_bytes`.
    pub fn new(num_classes: usize, num_samples: usize, memory_bytes: u64) -> SingleLabel {
        SingleLabel {
            hits: vec![Hits::default(); num_classes],
            confusion: Confusion::default(),
            table: ScoreTable::new(num_classes, num_samples, memory_bytes),
            odds: vec![0.0; num_classes],
            samples: 0,
            top5: 0,
            unlabelled: 0,
            unseen: 0,
            not_finite: 0,
        }
    }

    /// Adds a batch: one row of logits per sample. A label outside the model's classes counts as unknown.
    pub fn add(&mut self, logits_bc: &[f32], labels: impl IntoIterator<Item = Option<usize>>) {
        let num_classes = self.hits.len();
        let mut rows = logits_bc.chunks_exact(num_classes);
        let mut labels = labels.into_iter();
        for (logits, label) in rows.by_ref().zip(labels.by_ref()) {
            match label.filter(|&label| label < num_classes) {
                Some(label) => self.add_sample(logits, label),
                None => self.unlabelled += 1,
            }
        }
        assert!(
            rows.len() == 0 && labels.next().is_none(),
            "a label per row of logits"
        );
    }

    /// Adds a sample of a class that the model does not have: the predicted class gets a false positive.
    pub fn add_unseen(&mut self, logits: &[f32]) {
        self.samples += 1;
        self.unseen += 1;
        if logits.iter().any(|logit| logit.is_nan()) {
            self.not_finite += 1;
            return;
        }
        self.hits[highest(logits)].predicted += 1;
        log_odds(logits, &mut self.odds);
        self.table.add(&self.odds, |_| false);
    }

    fn add_sample(&mut self, logits: &[f32], label: usize) {
        self.samples += 1;
        self.hits[label].support += 1;
        let Some(rank) = rank_of(logits, label) else {
            self.not_finite += 1;
            return;
        };
        let predicted = match rank {
            0 => label,
            _ => highest(logits),
        };
        self.hits[predicted].predicted += 1;
        self.hits[label].correct += u64::from(predicted == label);
        self.top5 += u64::from(rank < 5);
        self.confusion.add(label as u32, predicted as u32);
        log_odds(logits, &mut self.odds);
        self.table.add(&self.odds, |class| class == label);
    }

    /// Metrics over all samples so far.
    pub fn metrics(&self) -> SingleLabelMetrics {
        let rankings = self.table.metrics();
        let classes: Vec<ClassMetrics> = (self.hits.iter().zip(rankings))
            .map(|(hits, ranking)| ClassMetrics {
                counts: hits.metrics(),
                auroc: ranking.auroc,
            })
            .collect();
        SingleLabelMetrics {
            samples: self.samples,
            unlabelled: self.unlabelled,
            unseen: self.unseen,
            not_finite: self.not_finite,
            accuracy: share(
                self.hits.iter().map(|hits| hits.correct).sum(),
                self.samples,
            ),
            top5: share(self.top5, self.samples).filter(|_| classes.len() > 5),
            macro_f1: mean(classes.iter().map(|class| class.counts.f1)),
            auroc: mean(classes.iter().map(|class| class.auroc)),
            auroc_is_approximate: self.table.is_approximate(),
            confusion: self.confusion.clone(),
            classes,
        }
    }
}

/// Class of the highest logit, the first of equals. No logit may be NaN.
fn highest(logits: &[f32]) -> usize {
    let classes = 1..logits.len();
    classes.fold(0, |best, class| {
        if logits[class] > logits[best] {
            class
        } else {
            best
        }
    })
}

/// `log(p / (1 - p))` of each class's softmax probability: the same order, without ties where p rounds to 0 or 1.
fn log_odds(logits: &[f32], odds: &mut [f32]) {
    let first = highest(logits);
    let below = |class: usize| f64::from(logits[class]) - f64::from(logits[first]);
    let others = (0..logits.len()).filter(|&class| class != first);
    let rest: f64 = others.map(|class| below(class).exp()).sum();
    for (class, odds) in odds.iter_mut().enumerate() {
        *odds = if class == first {
            -rest.ln() as f32
        } else {
            (below(class) - (1.0 + rest - below(class).exp()).ln()) as f32
        };
    }
}
