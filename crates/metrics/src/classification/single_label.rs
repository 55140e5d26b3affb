//! One class per sample.

use serde::Serialize;

use super::{Confusion, Hits, PrecisionRecall, ScoreTable, mean, rank_of, share};

/// Answers so far.
#[derive(Clone, Debug)]
pub struct SingleLabel {
    hits: Vec<Hits>,
    confusion: Confusion,
    table: ScoreTable,
    /// A row of log odds.
    odds: Vec<f32>,
    samples: u64,
    top5: u64,
    unlabelled: u64,
    unseen: u64,
    not_finite: u64,
}

/// What they are worth. Shares are `None` where there is nothing to take them of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SingleLabelMetrics {
    /// Samples with a known label.
    pub samples: u64,
    /// Samples left out, for want of a known label.
    pub unlabelled: u64,
    /// Samples among the known ones whose label is none of the classes: whatever is predicted is wrong.
    pub unseen: u64,
    /// Samples with a logit that is not a number: no class is predicted, which counts as wrong.
    pub not_finite: u64,
    /// Share of samples whose class has the highest logit; of equal logits the first is the prediction.
    pub accuracy: Option<f64>,
    /// Share whose class is among the five highest; `None` of five classes or fewer.
    pub top5: Option<f64>,
    /// Mean F1 of the classes that occur or are predicted.
    pub macro_f1: Option<f64>,
    /// Mean of the classes' AUROC, each against the rest, by softmax probability.
    pub auroc: Option<f64>,
    /// Whether scores were counted in bins, because they would not have fitted.
    pub auroc_is_approximate: bool,
    /// In the order of classes.
    pub classes: Vec<ClassMetrics>,
    /// Which class was taken for which.
    pub confusion: Confusion,
}

/// Of one class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassMetrics {
    /// From counts of right and wrong answers.
    #[serde(flatten)]
    pub counts: PrecisionRecall,
    /// Against the rest.
    pub auroc: Option<f64>,
}

impl SingleLabel {
    /// None yet. `num_samples` are expected; their scores are kept if they fit into `memory_bytes`.
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

    /// A batch: a row of logits per sample. A label that is none of the classes is unknown.
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

    /// A sample of a class that the model does not have: what it is taken for counts against that class.
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

    /// What the answers are worth.
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

/// The class of the highest logit, the first of equals. No logit is NaN.
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

/// `log(p / (1 - p))` of each class's softmax probability: the same order, without the ties of what rounds to 0 or 1.
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
