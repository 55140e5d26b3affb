//! What a classifier is worth on samples: every picture once, forward alone; counts and scores are collected as it goes.

use holdall_data::target::{TargetKind, TargetValues};
use holdall_metrics::classification::{MultiLabel, PrecisionRecall, SingleLabel};
use holdall_metrics::regression::Regression;
use serde_json::{Map, Value, json};

use super::examples::{EXAMPLES_BYTES, Examples};
use super::step::{LOGITS, PROGRAM, PROGRAM_PIXELS};
use super::{ClassifyTask, Head};
use crate::error::TrainError;
use crate::loader_budget::read_once;
use crate::scores::{Direction, Scores};
use crate::similarity::percent;
use crate::task::{Evaluated, Evaluation, Unfinished, nothing_readable};

/// What the scores of one head may take; beyond it they are counted in bins, and the AUROC is approximate.
const SCORE_BYTES: u64 = 32 << 20;

/// Answers of one head.
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

    /// A sample's outputs of this head, as the model is saved: numbers are not standardised.
    fn add(&mut self, outputs: &[f32], values: &TargetValues, sample: usize) {
        match (self, values) {
            (Tally::Class(tally), TargetValues::Class(labels)) => {
                tally.add(outputs, [usize::try_from(labels[sample]).ok()]);
            }
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

    /// The figures, leading one first; with details where they are wanted.
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
                // What always answering the most frequent label gives.
                set("chance_accuracy", json!(share));
                set("labelled", json!(metrics.samples));
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

    /// What `confusion.json` says of a head with one label per picture.
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

/// What a class is told as, in JSON.
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

/// Bytes that an evaluation holds on the host.
pub(super) fn host_bytes(task: &ClassifyTask, num_samples: usize) -> u64 {
    let heads = task.heads.iter().map(|head| match head.kind {
        TargetKind::Number { .. } => 0,
        TargetKind::Class { .. } | TargetKind::Classes { .. } => {
            let outputs = head.num_outputs() as u64;
            // A score and a bit each, a class's scores once more while they are sorted; or bins.
            let exact = num_samples as u64 * outputs * 5 + num_samples as u64 * 16;
            let counts = outputs * 256;
            exact.min(SCORE_BYTES.max(outputs * 512)) + counts
        }
    });
    heads.sum::<u64>() + EXAMPLES_BYTES
}

/// Evaluates samples. What cannot be read is left out, and named.
pub(super) fn evaluate(
    task: &ClassifyTask,
    evaluation: Evaluation<'_>,
) -> Result<Evaluated, Unfinished> {
    let Evaluation {
        mut forward,
        pictures,
        subset,
        samples,
        step,
        stop,
        is_wanted,
        tell,
        ..
    } = evaluation;
    let heads = &task.heads;
    let num_outputs = task.num_outputs();
    let mut tallies: Vec<Tally> = heads
        .iter()
        .map(|head| Tally::new(head, samples.len()))
        .collect();
    let mut examples = step.map(|_| Examples::of(samples));
    let mut done = 0;
    let mut not_finite = None;
    let batch = forward.rows(PROGRAM_PIXELS).min(pictures.num_rows());
    let read = read_once(pictures, samples, batch, stop, |read, rows| {
        forward.feed_pictures(PROGRAM_PIXELS, rows);
        forward.run(PROGRAM)?;
        let mut outputs = forward.read_rows(LOGITS, rows.len())?.into_owned();
        for (row, (&sample, outputs)) in
            read.iter().zip(outputs.chunks_mut(num_outputs)).enumerate()
        {
            if let Some(value) = outputs.iter().find(|value| !value.is_finite()) {
                not_finite.get_or_insert((sample, *value));
            }
            let mut first = 0;
            for ((head, tally), values) in heads.iter().zip(&mut tallies).zip(samples.targets()) {
                let own = &mut outputs[first..first + head.num_outputs()];
                first += own.len();
                if let TargetKind::Number { mean, std } = head.kind {
                    own[0] = (f64::from(own[0]) * std + mean) as f32;
                }
                tally.add(own, values, sample as usize);
            }
            if let Some(examples) = &mut examples {
                examples.see(heads, samples, sample, &rows[row], outputs);
            }
        }
        done += rows.len();
        tell(done, samples.len());
        Ok::<bool, Unfinished>(is_wanted() && not_finite.is_none())
    })?;
    if let Some((sample, value)) = not_finite {
        return Err(Unfinished::NotFinite(format!(
            "the outputs for {} are not finite: found {value}",
            samples.image(sample as usize)
        )));
    }
    let skipped = read.ok_or(Unfinished::Stopped)?;
    if done == 0 {
        return Err(nothing_readable(samples, &skipped).into());
    }
    let each = heads.iter().zip(&tallies);
    let mut scores = match heads.as_slice() {
        [head] => tallies[0].scores(head, step.is_none()),
        _ => each
            .clone()
            .map(|(head, tally)| {
                let scores = tally.scores(head, step.is_none());
                (head.name.clone(), Value::Object(scores))
            })
            .collect(),
    };
    scores.insert("pictures".to_owned(), json!(done));
    scores.insert("skipped".to_owned(), json!(samples.len() - done));
    let mut files = Vec::new();
    if let (Some(examples), Some(step)) = (examples, step) {
        let confusions = each.map(|(head, tally)| tally.confusion(head)).collect();
        files = examples.files(step, subset, samples, heads, confusions);
    }
    Ok(Evaluated {
        scores: Scores::of(&Value::Object(scores)),
        skipped,
        files,
    })
}

/// The metrics of a head, leading one first.
fn metrics_of(head: &Head) -> &'static [(&'static str, Direction)] {
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

pub(super) fn best_metric(
    task: &ClassifyTask,
    asked: Option<&str>,
) -> Result<(String, Direction), TrainError> {
    let known: Vec<(String, Direction)> = task
        .heads
        .iter()
        .flat_map(|head| {
            let metrics = metrics_of(head).iter();
            metrics.map(|&(metric, direction)| match task.heads.len() {
                1 => (metric.to_owned(), direction),
                _ => (format!("{}.{metric}", head.name), direction),
            })
        })
        .collect();
    match asked {
        None => Ok(known[0].clone()),
        Some(asked) => {
            let found = known.iter().find(|(name, _)| name == asked);
            found.cloned().ok_or_else(|| {
                let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                TrainError::Config(format!(
                    "train.best_metric: {asked}, expected one of {}\nhint: leave it out for {}",
                    names.join(", "),
                    names[0]
                ))
            })
        }
    }
}

/// A line for each head; a table of classes where details are there.
pub(super) fn describe_scores(task: &ClassifyTask, scores: &Scores) -> String {
    let mut lines = Vec::new();
    for head in &task.heads {
        let prefix = match task.heads.len() {
            1 => String::new(),
            _ => format!("{}.", head.name),
        };
        let number = |name: &str| scores.number(&format!("{prefix}{name}"));
        let words = metrics_of(head).iter().filter_map(|&(metric, _)| {
            let value = number(metric)?;
            let shown = match metric {
                "mean_absolute_error" | "root_mean_squared_error" => format!("{value:.3}"),
                "auroc" | "r2" => format!("{value:.3}"),
                _ => percent(value),
            };
            let chance = match (metric, number("chance_accuracy")) {
                ("accuracy", Some(chance)) => {
                    format!(" (always the most frequent label: {})", percent(chance))
                }
                _ => String::new(),
            };
            Some(format!("{} {shown}{chance}", metric.replace('_', " ")))
        });
        let words: Vec<String> = words.collect();
        lines.push(format!("  {:13} {}", head.name, words.join(", ")));
        lines.extend(class_table(scores, &prefix, head));
    }
    lines.join("\n")
}

/// Classes that are printed, at most.
const MOST_CLASSES: usize = 40;

fn class_table(scores: &Scores, prefix: &str, head: &Head) -> Vec<String> {
    let path = format!("{prefix}classes");
    let Some(classes) = scores.list(&path) else {
        return Vec::new();
    };
    let widest = classes.iter().filter_map(|class| class["label"].as_str());
    let widest = widest.map(|label| label.chars().count()).max().unwrap_or(0);
    let widest = widest.clamp(5, 32);
    let mut lines = vec![format!(
        "    {:widest$}  support  precision  recall      F1",
        "label"
    )];
    let share = |value: &Value| value.as_f64().map_or("-".to_owned(), percent);
    for class in classes.iter().take(MOST_CLASSES) {
        let label: String = class["label"]
            .as_str()
            .unwrap_or("")
            .chars()
            .take(widest)
            .collect();
        lines.push(format!(
            "    {label:widest$}  {:>7}  {:>9}  {:>6}  {:>6}",
            class["support"].as_u64().unwrap_or(0),
            share(&class["precision"]),
            share(&class["recall"]),
            share(&class["f1"])
        ));
    }
    if classes.len() > MOST_CLASSES {
        let more = classes.len() - MOST_CLASSES;
        lines.push(format!("    and {more} more: --json has them all"));
    }
    lines.extend(worst_confusions(scores, prefix, head));
    lines
}

/// Pairs of labels that are taken for one another most often.
fn worst_confusions(scores: &Scores, prefix: &str, head: &Head) -> Option<String> {
    let entries = scores.list(&format!("{prefix}confusion"))?;
    let name = |value: &Value| {
        let index = value.as_u64()? as usize;
        head.kind.names().get(index).map(String::as_str)
    };
    let mut mistakes: Vec<(u64, &str, &str)> = entries
        .iter()
        .filter(|entry| entry[0] != entry[1])
        .filter_map(|entry| Some((entry[2].as_u64()?, name(&entry[0])?, name(&entry[1])?)))
        .collect();
    mistakes.sort_by(|a, b| b.cmp(a));
    let words: Vec<String> = mistakes
        .iter()
        .take(3)
        .map(|(count, truth, found)| format!("{truth} taken for {found} ({count})"))
        .collect();
    (!words.is_empty()).then(|| format!("    most frequent mistakes: {}", words.join(", ")))
}
