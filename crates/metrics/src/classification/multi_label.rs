//! Multi-label classification: each label is a binary decision, positive where its logit is at least 0, a probability of 0.5.

use serde::Serialize;

use super::{Hits, PrecisionRecall, ScoreTable, mean};

/// Accumulates multi-label predictions.
#[derive(Clone, Debug)]
pub struct MultiLabel {
    hits: Vec<Hits>,
    table: ScoreTable,
    /// A row of logits, NaN where the target is unknown.
    known: Vec<f32>,
    samples: u64,
    unknown: u64,
    not_finite: u64,
}

/// Multi-label metrics. Means are over the labels for which the value is defined.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiLabelMetrics {
    pub samples: u64,
    /// Targets left out because they are unknown (NaN), over all labels.
    pub unknown: u64,
    /// NaN logits: each counts as a wrong answer.
    pub not_finite: u64,
    /// F1 of the pooled counts of all labels.
    pub micro_f1: Option<f64>,
    /// Mean F1 of the labels that occur or are predicted.
    pub macro_f1: Option<f64>,
    /// Mean of the labels' average precision.
    pub mean_average_precision: Option<f64>,
    /// Mean of the labels' AUROC.
    pub auroc: Option<f64>,
    /// Whether scores were counted in bins because they did not fit the memory allowed.
    pub ranking_is_approximate: bool,
    /// One entry per label.
    pub labels: Vec<LabelMetrics>,
}

/// Metrics of one label.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LabelMetrics {
    #[serde(flatten)]
    pub counts: PrecisionRecall,
    /// Mean of the precision at each positive.
    pub average_precision: Option<f64>,
    /// AUROC of samples with the label against samples without it.
    pub auroc: Option<f64>,
}

impl MultiLabel {
    /// An empty accumulator. Scores of `num_samples` samples stay exact if they fit into `memory_bytes`.
    pub fn new(num_labels: usize, num_samples: usize, memory_bytes: u64) -> MultiLabel {
        MultiLabel {
            hits: vec![Hits::default(); num_labels],
            table: ScoreTable::new(num_labels, num_samples, memory_bytes),
            known: vec![0.0; num_labels],
            samples: 0,
            unknown: 0,
            not_finite: 0,
        }
    }

    /// Adds a batch: one row of logits and one of targets per sample. A target of at least 0.5 is positive; NaN is unknown.
    pub fn add(&mut self, logits_bl: &[f32], targets_bl: &[f32]) {
        let num_labels = self.hits.len();
        assert_eq!(logits_bl.len(), targets_bl.len(), "a target per logit");
        assert_eq!(logits_bl.len() % num_labels.max(1), 0, "whole rows");
        let rows = logits_bl.chunks_exact(num_labels);
        for (logits, targets) in rows.zip(targets_bl.chunks_exact(num_labels)) {
            self.samples += 1;
            for (label, (&logit, &target)) in logits.iter().zip(targets).enumerate() {
                self.add_answer(label, logit, target);
                self.known[label] = if target.is_nan() { f32::NAN } else { logit };
            }
            self.table.add(&self.known, |label| targets[label] >= 0.5);
        }
    }

    fn add_answer(&mut self, label: usize, logit: f32, target: f32) {
        if target.is_nan() {
            self.unknown += 1;
            return;
        }
        let is_positive = target >= 0.5;
        let is_predicted = if logit.is_nan() {
            !is_positive
        } else {
            logit >= 0.0
        };
        self.not_finite += u64::from(logit.is_nan());
        let hits = &mut self.hits[label];
        hits.support += u64::from(is_positive);
        hits.predicted += u64::from(is_predicted);
        hits.correct += u64::from(is_positive && is_predicted);
    }

    /// Metrics over all samples so far.
    pub fn metrics(&self) -> MultiLabelMetrics {
        let rankings = self.table.metrics();
        let labels: Vec<LabelMetrics> = (self.hits.iter().zip(rankings))
            .map(|(hits, ranking)| LabelMetrics {
                counts: hits.metrics(),
                average_precision: ranking.average_precision,
                auroc: ranking.auroc,
            })
            .collect();
        MultiLabelMetrics {
            samples: self.samples,
            unknown: self.unknown,
            not_finite: self.not_finite,
            micro_f1: self.hits.iter().copied().sum::<Hits>().metrics().f1,
            macro_f1: mean(labels.iter().map(|label| label.counts.f1)),
            mean_average_precision: mean(labels.iter().map(|label| label.average_precision)),
            auroc: mean(labels.iter().map(|label| label.auroc)),
            ranking_is_approximate: self.table.is_approximate(),
            labels,
        }
    }
}
