//! Curves of all metrics over evaluations, and the best evaluation.

use serde::Serialize;
use serde_json::Value;

use super::thin::six_digits;
use crate::run_files::{self, EvaluationLine, LOSS, LOSSES, TRAIN_LOSS, in_words, is_share};

/// A metric over the evaluations of one subset of the data.
#[derive(Debug, PartialEq, Serialize)]
pub struct MetricCurve {
    /// Metrics of one group share a chart; empty for single metrics.
    group: String,
    name: String,
    /// Evaluated samples.
    on: String,
    /// Whether the metric is shown as a percentage.
    is_share: bool,
    x: Vec<f64>,
    y: Vec<f64>,
    /// Score of random guessing.
    chance: Option<f64>,
    #[serde(skip)]
    key: (Option<String>, String),
}

#[derive(Serialize)]
pub struct Best {
    name: String,
    value: f64,
    is_share: bool,
    step: u64,
    chance: Option<f64>,
}

/// Settings that an evaluation chooses, which are not metrics; shown with the masks of a segmentation.
const CHOICES: [&str; 2] = ["threshold", "best_threshold"];

/// One curve per metric and subset of the data.
pub fn metric_curves(lines: &[EvaluationLine]) -> Vec<MetricCurve> {
    let mut curves: Vec<MetricCurve> = Vec::new();
    for line in lines {
        let Some(step) = line.step else {
            continue;
        };
        let on = line.on.as_deref().unwrap_or_default();
        let is_found = |metric: &&run_files::Metric| !CHOICES.contains(&metric.name.as_str());
        for metric in line.metrics.iter().filter(is_found) {
            let is_of = |curve: &MetricCurve| {
                curve.on == on && (&curve.key.0, &curve.key.1) == (&metric.group, &metric.name)
            };
            let at = curves.iter().position(is_of).unwrap_or_else(|| {
                curves.push(MetricCurve {
                    group: in_words(metric.group.as_deref().unwrap_or_default()),
                    name: in_words(&metric.name),
                    on: on.to_owned(),
                    is_share: false,
                    x: Vec::new(),
                    y: Vec::new(),
                    chance: metric.chance,
                    key: (metric.group.clone(), metric.name.clone()),
                });
                curves.len() - 1
            });
            curves[at].x.push(step as f64);
            curves[at].y.push(six_digits(metric.value));
        }
    }
    // The first target's metrics are copied into the line itself.
    let is_copy = |curve: &MetricCurve, other: &MetricCurve| {
        curve.key.0.is_none()
            && other.key.0.is_some()
            && (&curve.name, &curve.on, &curve.y) == (&other.name, &other.on, &other.y)
    };
    let copies: Vec<bool> = curves
        .iter()
        .map(|curve| curves.iter().any(|other| is_copy(curve, other)))
        .collect();
    let mut copies = copies.into_iter();
    curves.retain(|_| !copies.next().unwrap_or_default());
    let shares: Vec<bool> = curves
        .iter()
        .map(|curve| {
            let same = curves.iter().filter(|other| other.key == curve.key);
            let is_loss = curve.key.0.as_deref() == Some(LOSSES);
            !is_loss && is_share(&curve.key.1, same.flat_map(|other| other.y.iter().copied()))
        })
        .collect();
    for (curve, is_share) in curves.iter_mut().zip(shares) {
        curve.is_share = is_share;
    }
    group_by_first_words(&mut curves);
    // Evaluation loss and training loss share a chart.
    for curve in curves.iter_mut().filter(|curve| curve.key.0.is_none()) {
        let name = match curve.key.1.as_str() {
            LOSS => "evaluation",
            TRAIN_LOSS => "training steps of the epoch",
            _ => continue,
        };
        (curve.group, curve.name) = (LOSS.to_owned(), name.to_owned());
    }
    curves
}

/// Groups single metrics by their first words: `label_top1` and `label_top5` belong together.
fn group_by_first_words(curves: &mut [MetricCurve]) {
    let prefix = |curve: &MetricCurve| match (&curve.key.0, curve.key.1.rsplit_once('_')) {
        (None, Some((first, _))) => Some(first.to_owned()),
        _ => None,
    };
    let prefixes: Vec<Option<String>> = curves.iter().map(prefix).collect();
    let names: Vec<String> = curves.iter().map(|curve| curve.key.1.clone()).collect();
    for (at, curve) in curves.iter_mut().enumerate() {
        let others = prefixes.iter().zip(&names);
        let has_other = others
            .clone()
            .any(|(prefix, name)| *prefix == prefixes[at] && *name != names[at]);
        if let (Some(first), true) = (&prefixes[at], has_other) {
            curve.group = in_words(first);
            curve.name = in_words(&names[at][first.len() + 1..]);
        }
    }
}

/// The best evaluation from the summary. Without one, the leading metric of the evaluation at `best_step`, which the best model's
/// pictures are from.
pub fn best(
    summary: Option<&Value>,
    best_step: Option<u64>,
    lines: &[EvaluationLine],
) -> Option<Best> {
    let summary: Option<run_files::Summary> =
        summary.and_then(|summary| serde_json::from_value(summary.clone()).ok());
    if let Some(best) = summary.and_then(|summary| summary.best) {
        let chance = lines.iter().find_map(|line| {
            let is_it = |metric: &&run_files::Metric| metric.name == best.metric;
            let own = line.metrics.iter().find(is_it);
            own.map_or_else(|| line.chance(&best.metric), |metric| metric.chance)
        });
        return Some(Best {
            name: in_words(&best.metric),
            is_share: is_share(&best.metric, [best.value]),
            value: best.value,
            step: best.step,
            chance,
        });
    }
    let step = best_step?;
    let is_it =
        |line: &&EvaluationLine| line.step == Some(step) && line.on.as_deref() != Some("train");
    let line = lines.iter().find(is_it)?;
    let metric = *line.leading().first()?;
    Some(Best {
        name: metric.title(),
        value: metric.value,
        is_share: is_share(&metric.name, [metric.value]),
        step,
        chance: metric.chance,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::run_files::MetricsLine;

    fn lines(all: &[Value]) -> Vec<EvaluationLine> {
        let parse = |line: &Value| match MetricsLine::parse(line.to_string().as_bytes()).unwrap() {
            MetricsLine::Evaluation(line) => line,
            other => panic!("{other:?}"),
        };
        all.iter().map(parse).collect()
    }

    #[test]
    fn whatever_metrics_there_are_become_curves_in_groups() {
        let lines = lines(&[
            json!({"kind": "evaluation", "step": 5, "on": "validation", "pictures": 9, "label_top1": 0.5, "label_top5": 1.0,
                   "chance_top1": 0.1, "image_to_text": {"r1": 0.25, "median_rank": 1.0}, "chance_r1": 0.02}),
            json!({"kind": "evaluation", "step": 9, "on": "validation", "pictures": 9, "label_top1": 0.75, "label_top5": 1.0,
                   "chance_top1": 0.1, "image_to_text": {"r1": 0.5, "median_rank": 3.0}, "chance_r1": 0.02}),
        ]);
        let curves = metric_curves(&lines);
        let found: Vec<_> = curves
            .iter()
            .map(|one| {
                (
                    one.group.as_str(),
                    one.name.as_str(),
                    one.is_share,
                    one.chance,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("label", "top-1", true, Some(0.1)),
                ("label", "top-5", true, None),
                ("image to text", "R1", true, Some(0.02)),
                ("image to text", "median rank", false, None),
            ]
        );
        assert_eq!(
            (&curves[0].x, &curves[0].y),
            (&vec![5.0, 9.0], &vec![0.5, 0.75])
        );
    }

    #[test]
    fn what_the_first_target_has_too_is_drawn_once() {
        let curves = metric_curves(&lines(&[
            json!({"kind": "evaluation", "step": 5, "on": "validation", "accuracy": 0.5, "macro_f1": 0.25, "auroc": 0.75,
                   "breed": {"accuracy": 0.5, "macro_f1": 0.25, "chance": 0.125}, "size": {"accuracy": 0.125}}),
        ]));
        let found: Vec<_> = curves
            .iter()
            .map(|one| (one.group.as_str(), one.name.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("", "auroc"),
                ("breed", "accuracy"),
                ("breed", "macro F1"),
                ("size", "accuracy")
            ]
        );
    }

    #[test]
    fn losses_of_training_and_validation_are_one_chart_and_lead_nothing() {
        let lines = lines(&[
            json!({"kind": "evaluation", "step": 5, "on": "validation", "label": {"accuracy": 0.5}, "loss": 3.5,
                   "losses": {"contrastive": 3.0, "contrastive_chance": 4.0, "label": 1.0}, "train_loss": 2.5}),
        ]);
        let leading: Vec<&str> = lines[0].leading().iter().map(|one| &*one.name).collect();
        assert_eq!(leading, ["accuracy"]);
        let curves = metric_curves(&lines);
        let found: Vec<_> = curves
            .iter()
            .map(|one| {
                (
                    one.group.as_str(),
                    one.name.as_str(),
                    one.is_share,
                    one.chance,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("loss", "evaluation", false, None),
                ("loss", "training steps of the epoch", false, None),
                ("label", "accuracy", true, None),
                ("losses", "contrastive", false, Some(4.0)),
                ("losses", "label", false, None),
            ]
        );
    }

    #[test]
    fn a_threshold_is_no_score() {
        let curves = metric_curves(&lines(&[
            json!({"kind": "evaluation", "step": 5, "on": "validation", "dice": 0.5, "threshold": 0.5, "best_threshold": 0.25,
                   "dice_at_best_threshold": 0.75}),
        ]));
        let found: Vec<_> = curves.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(found, ["Dice", "Dice at best threshold"]);
    }

    #[test]
    fn the_best_is_the_summarys_or_that_of_the_best_models_pictures() {
        let lines = lines(&[
            json!({"kind": "evaluation", "step": 5, "on": "train", "accuracy": 0.9}),
            json!({"kind": "evaluation", "step": 5, "on": "validation", "accuracy": 0.5, "to_text": {"r1": 0.5}, "chance_r1": 0.02}),
        ]);
        let summary = json!({"best": {"metric": "mean_r1", "value": 0.5, "step": 5, "folder": "best-000005"}});
        let found = best(Some(&summary), None, &lines).unwrap();
        assert_eq!(
            (found.name.as_str(), found.value, found.chance),
            ("mean R1", 0.5, Some(0.02))
        );
        let found = best(None, Some(5), &lines).unwrap();
        assert_eq!((found.name.as_str(), found.value), ("accuracy", 0.5));
        assert!(best(None, None, &lines).is_none());
        assert!(best(None, Some(6), &lines).is_none());
    }
}
