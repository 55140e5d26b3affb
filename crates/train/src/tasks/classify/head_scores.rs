//! Metrics of heads, from streaming counts of their outputs.

use holdall_data::samples::{Samples, TargetKind, TargetValues, UNSEEN};
use holdall_metrics::classification::{MultiLabel, PrecisionRecall, SingleLabel};
use holdall_metrics::regression::Regression;
use serde_json::{Map, Value, json};

use super::Head;
use super::head_losses::evaluated;
use super::heads::losses_of;
use crate::engine::scores::{Direction, EvaluatedLoss};
use crate::engine::similarity::percent;
use crate::engine::step::LossSum;

/// Memory for the scores of one head; beyond it, scores are counted in bins and the AUROC is approximate.
const SCORE_BYTES: u64 = 32 << 20;

/// Counts of one head.
enum Tally {
    Class(SingleLabel),
    Classes(MultiLabel),
    Number(Regression),
}

impl Tally {
    fn new(head: &Head, num_samples: usize) -> Tally {
        match &head.kind {
            TargetKind::Class { names } => {
                Tally::Class(SingleLabel::new(names.len(), num_samples, SCORE_BYTES))
            }
            TargetKind::Classes { names } => {
                Tally::Classes(MultiLabel::new(names.len(), num_samples, SCORE_BYTES))
            }
            TargetKind::Number { .. } => Tally::Number(Regression::new(1)),
        }
    }

    /// Adds a sample's outputs of this head; numbers are in the unit of the data.
    fn add(&mut self, outputs: &[f32], values: &TargetValues, sample: usize) {
        match (self, values) {
            (Tally::Class(tally), TargetValues::Class(labels)) => match labels[sample] {
                UNSEEN => tally.add_unseen(outputs),
                label => tally.add(outputs, [usize::try_from(label).ok()]),
            },
            (Tally::Classes(tally), TargetValues::Classes(rows)) => {
                let mut targets = vec![f32::NAN; outputs.len()];
                if let Some(labels) = rows.get(sample) {
                    targets.fill(0.0);
                    labels
                        .iter()
                        .for_each(|&label| targets[label as usize] = 1.0);
                }
                tally.add(outputs, &targets);
            }
            (Tally::Number(tally), TargetValues::Number(numbers)) => {
                tally.add(outputs, &numbers[sample..=sample]);
            }
            _ => unreachable!("values are of the head's kind"),
        }
    }

    /// The metrics, leading one first; `detailed` adds those of each class.
    fn scores(&self, head: &Head, detailed: bool) -> Map<String, Value> {
        let mut scores = Map::new();
        let mut set = |name: &str, value: Value| scores.insert(name.to_owned(), value);
        match self {
            Tally::Class(tally) => {
                let metrics = tally.metrics();
                set("accuracy", json!(metrics.accuracy));
                if metrics.top5.is_some() {
                    set("top5", json!(metrics.top5));
                }
                set("macro_f1", json!(metrics.macro_f1));
                set("auroc", json!(metrics.auroc));
                let largest = metrics
                    .classes
                    .iter()
                    .map(|class| class.counts.support)
                    .max();
                let share = largest.unwrap_or(0) as f64 / metrics.samples.max(1) as f64;
                // Accuracy of always predicting the most frequent label.
                set("chance_accuracy", json!(share));
                set("labelled", json!(metrics.samples));
                if metrics.unseen > 0 {
                    set("unseen", json!(metrics.unseen));
                }
                if detailed {
                    let names = head.kind.names().iter();
                    let classes = names.zip(&metrics.classes);
                    let classes: Vec<Value> = classes
                        .map(|(name, class)| class_row(name, &class.counts, class.auroc))
                        .collect();
                    set("classes", Value::Array(classes));
                    let entries: Vec<_> = metrics.confusion.entries().collect();
                    set("confusion", json!(entries));
                    set("auroc_is_approximate", json!(metrics.auroc_is_approximate));
                }
            }
            Tally::Classes(tally) => {
                let metrics = tally.metrics();
                set(
                    "mean_average_precision",
                    json!(metrics.mean_average_precision),
                );
                set("micro_f1", json!(metrics.micro_f1));
                set("macro_f1", json!(metrics.macro_f1));
                set("auroc", json!(metrics.auroc));
                set("labelled", json!(metrics.samples));
                if detailed {
                    let names = head.kind.names().iter();
                    let labels: Vec<Value> = names
                        .zip(&metrics.labels)
                        .map(|(name, label)| class_row(name, &label.counts, label.auroc))
                        .collect();
                    set("classes", Value::Array(labels));
                }
            }
            Tally::Number(tally) => {
                let metrics = tally.metrics();
                set("mean_absolute_error", json!(metrics.mean_absolute_error));
                set(
                    "root_mean_squared_error",
                    json!(metrics.root_mean_squared_error),
                );
                set("r2", json!(metrics.r2));
                let known = metrics.outputs.iter().map(|output| output.samples);
                set("labelled", json!(known.sum::<u64>()));
            }
        }
        scores
    }

    /// The entry of `confusion.json` for a head with one label per picture.
    fn confusion(&self, head: &Head) -> Option<Value> {
        let Tally::Class(tally) = self else {
            return None;
        };
        let metrics = tally.metrics();
        let names = head.kind.names();
        let per_class: Vec<Value> = names
            .iter()
            .zip(&metrics.classes)
            .map(|(name, class)| class_row(name, &class.counts, class.auroc))
            .collect();
        let counts: Vec<_> = metrics.confusion.entries().collect();
        Some(json!({
            "name": head.name,
            "labels": names,
            "counts": counts,
            "per_class": per_class,
        }))
    }
}

/// The metrics of a class in JSON.
fn class_row(label: &str, counts: &PrecisionRecall, auroc: Option<f64>) -> Value {
    json!({
        "label": label,
        "support": counts.support,
        "precision": counts.precision,
        "recall": counts.recall,
        "f1": counts.f1,
        "auroc": auroc,
    })
}

/// Memory of the counts of all heads over `num_samples` samples, in bytes.
pub(in crate::tasks) fn tally_bytes(heads: &[Head], num_samples: usize) -> u64 {
    let heads = heads.iter().map(|head| match head.kind {
        TargetKind::Number { .. } => 0,
        TargetKind::Class { .. } | TargetKind::Classes { .. } => {
            let outputs = head.num_outputs() as u64;
            // A score and a bit per output, and the scores of one class again for sorting; or bins.
            let exact = num_samples as u64 * outputs * 5 + num_samples as u64 * 16;
            let counts = outputs * 256;
            exact.min(SCORE_BYTES.max(outputs * 512)) + counts
        }
    });
    heads.sum()
}

/// Counts of all heads.
pub(in crate::tasks) struct Tallies<'a> {
    heads: &'a [Head],
    tallies: Vec<Tally>,
    losses: Vec<LossSum>,
}

impl<'a> Tallies<'a> {
    pub fn new(heads: &'a [Head], num_samples: usize) -> Tallies<'a> {
        let tallies = heads.iter().map(|head| Tally::new(head, num_samples));
        Tallies {
            heads,
            tallies: tallies.collect(),
            losses: vec![LossSum::default(); heads.len()],
        }
    }

    /// Counts a sample's outputs, concatenated over the heads.
    pub fn add(&mut self, samples: &Samples, sample: usize, outputs: &[f32]) {
        let heads = self.heads.iter().zip(&mut self.tallies);
        let heads = heads.zip(&mut self.losses);
        let mut first = 0;
        for (((head, tally), loss), values) in heads.zip(samples.targets()) {
            let own = &outputs[first..first + head.num_outputs()];
            first += own.len();
            head.add_loss(own, values, sample, loss);
            match head.number_in_data_units(own) {
                Some(number) => tally.add(&[number], values, sample),
                None => tally.add(own, values, sample),
            }
        }
    }

    /// Metrics of each head, with its name; `detailed` adds those of each class.
    pub fn scores(&self, detailed: bool) -> Vec<(String, Map<String, Value>)> {
        let each = self.heads.iter().zip(&self.tallies);
        each.map(|(head, tally)| (head.name.clone(), tally.scores(head, detailed)))
            .collect()
    }

    /// The metrics as fields: those of the only head, or an object for each head.
    pub fn fields(&self, detailed: bool) -> Map<String, Value> {
        let mut scores = self.scores(detailed);
        if let [_] = self.heads {
            return scores.remove(0).1;
        }
        let each = scores.into_iter();
        each.map(|(name, scores)| (name, Value::Object(scores)))
            .collect()
    }

    pub fn losses(&self) -> Vec<EvaluatedLoss> {
        evaluated(losses_of(self.heads), &self.losses)
    }

    /// The entry of `confusion.json` for each head.
    pub fn confusions(&self) -> Vec<Option<Value>> {
        let each = self.heads.iter().zip(&self.tallies);
        each.map(|(head, tally)| tally.confusion(head)).collect()
    }
}

/// One line with a head's metrics; `number` returns a metric by its name.
pub(in crate::tasks) fn describe_metrics(
    head: &Head,
    number: impl Fn(&str) -> Option<f64>,
) -> String {
    let words = metrics_of(head).iter().filter_map(|&(metric, _)| {
        let value = number(metric)?;
        let shown = match metric {
            "mean_absolute_error" | "root_mean_squared_error" => format!("{value:.3}"),
            "auroc" | "r2" => format!("{value:.3}"),
            _ => percent(value),
        };
        let chance = match (metric, number("chance_accuracy")) {
            ("accuracy", Some(chance)) => {
                let guessed = 1.0 / head.num_outputs() as f64;
                format!(
                    " (chance {}, always the most frequent label: {})",
                    percent(guessed),
                    percent(chance)
                )
            }
            _ => String::new(),
        };
        Some(format!("{} {shown}{chance}", metric.replace('_', " ")))
    });
    let words: Vec<String> = words.collect();
    format!("  {:13} {}", head.name, words.join(", "))
}

/// The metrics of a head, leading one first.
pub(in crate::tasks) fn metrics_of(head: &Head) -> &'static [(&'static str, Direction)] {
    use Direction::{Higher, Lower};
    match head.kind {
        TargetKind::Class { .. } => &[
            ("accuracy", Higher),
            ("top5", Higher),
            ("macro_f1", Higher),
            ("auroc", Higher),
        ],
        TargetKind::Classes { .. } => &[
            ("mean_average_precision", Higher),
            ("micro_f1", Higher),
            ("macro_f1", Higher),
            ("auroc", Higher),
        ],
        TargetKind::Number { .. } => &[
            ("mean_absolute_error", Lower),
            ("root_mean_squared_error", Lower),
            ("r2", Higher),
        ],
    }
}
