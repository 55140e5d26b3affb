//! Lines of `metrics.jsonl`. Losses and metrics are recognised by the form of a line, not by their names.
//!
//! ```text
//! step         K is a loss if and only if the line has K_chance; `lr` and `lr_*` are learning rates
//! evaluation   a number with a fraction is a metric (0.5, 1.0), an integer is a count (1); an object is a group of metrics;
//!              chance_X or X_chance is the score of guessing for X, or for every Y_X; a group's `chance` is of its first metric
//! ```

use serde::Serialize;
use serde_json::{Map, Value};

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricsLine {
    Step(StepLine),
    Evaluation(EvaluationLine),
    /// A kind of line that this version does not know.
    Other,
}

/// An optimizer step; fields that the line lacks are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLine {
    /// Counted from 1.
    pub step: Option<u64>,
    /// Counted from 1.
    pub epoch: Option<u64>,
    /// Sum of the weighted losses; `None` if it is not finite.
    pub loss: Option<f64>,
    /// Each loss, in the order of the line.
    pub losses: Vec<Loss>,
    /// Learning rates and their keys, `lr` first.
    pub rates: Vec<(String, f64)>,
    /// Norm before clipping.
    pub gradient_norm: Option<f64>,
    /// Loss scale.
    pub loss_scale: Option<f64>,
    /// Samples in this step.
    pub samples: Option<f64>,
    /// Duration of the step, waiting for data included.
    pub seconds: Option<f64>,
    /// Seconds of the step spent waiting for data.
    pub waited_for_data: Option<f64>,
    /// With several processes: timing and memory of the previous step per process.
    pub processes: Option<ProcessesOfStep>,
}

/// A step of several processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessesOfStep {
    /// Number of processes.
    pub processes: u64,
    /// Rank of the process that the others waited for most.
    pub slowest_rank: Option<u64>,
    /// Host of that process.
    pub slowest_host: Option<String>,
    /// Its step time relative to the mean of the other processes.
    pub slowest_ratio: Option<f64>,
    /// Memory of each process, by rank.
    pub process_bytes: Vec<Option<u64>>,
}

impl ProcessesOfStep {
    fn new(fields: &Map<String, Value>) -> Option<ProcessesOfStep> {
        let field = |key: &str| fields.get(key);
        let bytes = field("process_bytes").and_then(Value::as_array);
        let host = field("slowest_host").and_then(Value::as_str);
        Some(ProcessesOfStep {
            processes: field("processes")?.as_u64()?,
            slowest_rank: field("slowest_rank").and_then(Value::as_u64),
            slowest_host: host.map(str::to_owned),
            slowest_ratio: field("slowest_ratio").and_then(Value::as_f64),
            process_bytes: bytes.map_or(Vec::new(), |all| all.iter().map(Value::as_u64).collect()),
        })
    }
}

/// A loss of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    /// Key in the line.
    pub name: String,
    /// Mean over the step; `None` if it is not finite.
    pub value: Option<f64>,
    /// Loss of random guessing, if known.
    pub chance: Option<f64>,
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationLine {
    /// Completed optimizer steps.
    pub step: Option<u64>,
    /// Evaluated samples: `validation` or `train`.
    pub on: Option<String>,
    /// Metrics of the line itself, then those of its groups.
    pub metrics: Vec<Metric>,
    /// Scores of random guessing, by their keys without `chance`.
    chances: Vec<(String, f64)>,
    /// All fields of the line.
    pub fields: Map<String, Value>,
}

/// A metric of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Key of the object that contains the metric.
    pub group: Option<String>,
    /// Key of the metric.
    pub name: String,
    pub value: f64,
    /// Score of random guessing, if known.
    pub chance: Option<f64>,
}

impl MetricsLine {
    pub fn parse(line: &[u8]) -> Result<MetricsLine, serde_json::Error> {
        let fields: Map<String, Value> = serde_json::from_slice(line)?;
        Ok(match fields.get("kind").and_then(Value::as_str) {
            Some("step") => MetricsLine::Step(StepLine::new(&fields)),
            Some("evaluation") => MetricsLine::Evaluation(EvaluationLine::new(fields)),
            _ => MetricsLine::Other,
        })
    }
}

impl StepLine {
    fn new(fields: &Map<String, Value>) -> StepLine {
        let number = |key: &str| fields.get(key).and_then(Value::as_f64);
        let whole = |key: &str| fields.get(key).and_then(Value::as_u64);
        let losses = fields.keys().filter_map(|key| {
            let chance = fields.get(&format!("{key}_chance"))?.as_f64();
            let value = number(key);
            let name = key.clone();
            // Both are null for a loss that the task could have and this run lacks.
            let is_there = value.is_some() || chance.is_some();
            is_there.then_some(Loss {
                name,
                value,
                chance,
            })
        });
        let rates = fields
            .keys()
            .filter(|key| *key == "lr" || key.starts_with("lr_"))
            .filter_map(|key| Some((key.clone(), number(key)?)));
        StepLine {
            step: whole("step"),
            epoch: whole("epoch"),
            loss: number("loss"),
            losses: losses.collect(),
            rates: rates.collect(),
            gradient_norm: number("gradient_norm"),
            loss_scale: number("loss_scale"),
            samples: number("samples"),
            seconds: number("seconds"),
            waited_for_data: number("waited_for_data"),
            processes: ProcessesOfStep::new(fields),
        }
    }

    pub fn samples_per_s(&self) -> Option<f64> {
        Some(self.samples? / self.seconds.filter(|seconds| *seconds > 0.0)?)
    }

    /// Share of the step spent waiting for data, 0 to 1.
    pub fn waited_share(&self) -> Option<f64> {
        let seconds = self.seconds.filter(|seconds| *seconds > 0.0)?;
        Some((self.waited_for_data? / seconds).clamp(0.0, 1.0))
    }

    /// Whether the line has a single loss that equals the total.
    pub fn is_one_loss(&self) -> bool {
        matches!(&self.losses[..], [one] if one.value == self.loss)
    }
}

/// The key without `chance`; `None` for keys that are not about guessing.
fn of_chance(key: &str) -> Option<&str> {
    key.strip_prefix("chance_")
        .or(key.strip_suffix("_chance"))
        .or((key == "chance").then_some(""))
}

/// Keys for the position of a line, which are not metrics.
const PLACE: [&str; 4] = ["step", "epoch", "seconds", "time"];

/// Key for the number of clips in a group, which is not a metric.
const NUM_CLIPS: &str = "clips";

impl EvaluationLine {
    fn new(fields: Map<String, Value>) -> EvaluationLine {
        let mut line = EvaluationLine {
            step: fields.get("step").and_then(Value::as_u64),
            on: fields.get("on").and_then(Value::as_str).map(str::to_owned),
            ..EvaluationLine::default()
        };
        let chances = |fields: &Map<String, Value>| -> Vec<(String, f64)> {
            let all = fields.iter();
            all.filter_map(|(key, value)| Some((of_chance(key)?.to_owned(), value.as_f64()?)))
                .collect()
        };
        line.chances = chances(&fields);
        for (key, value) in &fields {
            let is_place = PLACE.contains(&key.as_str());
            let is_count = value.is_u64() || value.is_i64();
            if let Some(value) = value.as_f64()
                && !(is_place || is_count || of_chance(key).is_some())
            {
                line.metrics.push(Metric {
                    group: None,
                    chance: line.chance(key),
                    name: key.clone(),
                    value,
                });
            }
        }
        for (group, fields) in fields.iter().filter_map(|(k, v)| Some((k, v.as_object()?))) {
            let own = chances(fields);
            let mut is_first = true;
            let is_metric = |key: &str| of_chance(key).is_none() && key != NUM_CLIPS;
            for (key, value) in fields.iter().filter(|(key, _)| is_metric(key)) {
                let Some(value) = value.as_f64() else {
                    continue;
                };
                let of = |name: &str| own.iter().find(|(of, _)| of == name).map(|(_, y)| *y);
                let first = std::mem::take(&mut is_first).then(|| of("")).flatten();
                line.metrics.push(Metric {
                    group: Some(group.clone()),
                    chance: of(key).or(first).or(line.chance(key)),
                    name: key.clone(),
                    value,
                });
            }
        }
        // The first target's metrics are copied into the line itself.
        let copies: Vec<Metric> = line.metrics.clone();
        for metric in line.metrics.iter_mut().filter(|one| one.group.is_none()) {
            let is_same = |one: &&Metric| (&one.name, one.value) == (&metric.name, metric.value);
            let chance = copies.iter().filter(is_same).find_map(|one| one.chance);
            metric.chance = metric.chance.or(chance);
        }
        line.fields = fields;
        line
    }

    /// Score of guessing for a metric of this name, or for a metric whose name ends in `_` and a key that has one.
    pub fn chance(&self, name: &str) -> Option<f64> {
        let is_of = |of: &str| {
            let before = name.strip_suffix(of);
            before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
        };
        let of = |(of, _): &&(String, f64)| !of.is_empty() && is_of(of);
        self.chances.iter().find(of).map(|(_, chance)| *chance)
    }

    /// Metrics that represent the evaluation: the first one of the line itself, and the first one in a group if it differs. Losses
    /// are excluded.
    pub fn leading(&self) -> Vec<&Metric> {
        let metrics = || self.metrics.iter().filter(|metric| !metric.is_loss());
        let own = metrics().find(|metric| metric.group.is_none());
        let is_other = |metric: &&Metric| {
            metric.group.is_some()
                && own.is_none_or(|own| (&own.name, own.value) != (&metric.name, metric.value))
        };
        let grouped = metrics().find(|metric| metric.group.is_some());
        own.into_iter().chain(grouped.filter(is_other)).collect()
    }
}

/// Sum of the weighted losses of an evaluation.
pub const LOSS: &str = "loss";
/// Mean training loss of the epoch, in an evaluation's line.
pub const TRAIN_LOSS: &str = "train_loss";
/// Group of an evaluation's losses.
pub const LOSSES: &str = "losses";

impl Metric {
    /// Whether the metric is a loss.
    pub fn is_loss(&self) -> bool {
        match self.group.as_deref() {
            None => [LOSS, TRAIN_LOSS].contains(&self.name.as_str()),
            group => group == Some(LOSSES),
        }
    }

    /// Group and key in words.
    pub fn title(&self) -> String {
        match &self.group {
            Some(group) => format!("{} {}", in_words(group), in_words(&self.name)),
            None => in_words(&self.name),
        }
    }
}

/// Whether a metric is a share, shown as a percentage: all values within 0 and 1, and no name with a unit of its own.
pub fn is_share(name: &str, values: impl IntoIterator<Item = f64>) -> bool {
    let has_unit = ["error", "loss", "rank", "hd95", "cider_d", "perplexity"]
        .iter()
        .any(|unit| name.ends_with(unit));
    !has_unit && values.into_iter().all(|value| (0.0..=1.0).contains(&value))
}

/// Keys with a spelling of their own.
const SPELLINGS: [(&str, &str); 14] = [
    ("dice", "Dice"),
    ("iou", "IoU"),
    ("mcc", "MCC"),
    ("auc", "AUC"),
    ("hd95", "HD95"),
    ("cldice", "clDice"),
    ("mrr", "MRR"),
    ("ndcg5", "NDCG@5"),
    ("bleu1", "BLEU-1"),
    ("bleu2", "BLEU-2"),
    ("bleu3", "BLEU-3"),
    ("bleu4", "BLEU-4"),
    ("rouge_l", "ROUGE-L"),
    ("cider_d", "CIDEr-D"),
];

/// A key in words: `macro_f1` becomes `macro F1`, `label_top5` becomes `label top-5`, `iou` becomes `IoU`.
pub fn in_words(key: &str) -> String {
    let spelling = |word: &str| SPELLINGS.iter().find(|(key, _)| *key == word);
    if let Some((_, spelling)) = spelling(key) {
        return (*spelling).to_owned();
    }
    let word = |word: &str| {
        if let Some((_, spelling)) = spelling(word) {
            return (*spelling).to_owned();
        }
        let digits = word.trim_start_matches(|c: char| c.is_alphabetic());
        let letters = &word[..word.len() - digits.len()];
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        match letters.chars().count() {
            1 if is_number => format!("{}{digits}", letters.to_uppercase()),
            2.. if is_number => format!("{letters}-{digits}"),
            _ => word.to_owned(),
        }
    };
    key.split('_').map(word).collect::<Vec<_>>().join(" ")
}

/// All numbers of a value with their names; nested ones as `outer/inner`. Lists are left out.
pub fn flatten(value: &Value) -> Vec<(String, f64)> {
    fn collect(name: &str, value: &Value, found: &mut Vec<(String, f64)>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    let name = match name {
                        "" => key.clone(),
                        name => format!("{name}/{key}"),
                    };
                    collect(&name, value, found);
                }
            }
            value => found.extend(value.as_f64().map(|number| (name.to_owned(), number))),
        }
    }
    let mut found = Vec::new();
    collect("", value, &mut found);
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(line: Value) -> StepLine {
        match MetricsLine::parse(line.to_string().as_bytes()).unwrap() {
            MetricsLine::Step(step) => step,
            other => panic!("{other:?}"),
        }
    }

    fn evaluation(line: Value) -> EvaluationLine {
        match MetricsLine::parse(line.to_string().as_bytes()).unwrap() {
            MetricsLine::Evaluation(line) => line,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_loss_is_what_has_a_chance_beside_it() {
        let line = step(json!({
            "kind": "step", "step": 3, "loss": 2.5, "tags": 1.5, "tags_chance": null, "age": null, "age_chance": 4.0,
            "label": null, "label_chance": null, "lr": 1e-3, "lr_head": 2e-3, "lr_none": null, "gradient_norm": 7.0,
        }));
        let losses: Vec<_> = line
            .losses
            .iter()
            .map(|loss| (loss.name.as_str(), loss.value, loss.chance))
            .collect();
        assert_eq!(
            losses,
            [("tags", Some(1.5), None), ("age", None, Some(4.0))]
        );
        assert_eq!(
            line.rates,
            [("lr".to_owned(), 1e-3), ("lr_head".to_owned(), 2e-3)]
        );
        assert!(!line.is_one_loss());
        let one = step(json!({"kind": "step", "loss": 1.5, "label": 1.5, "label_chance": 2.0}));
        assert!(one.is_one_loss());
    }

    #[test]
    fn metrics_are_told_from_counts_and_chances() {
        let line = evaluation(json!({
            "kind": "evaluation", "step": 9, "epoch": 1, "on": "validation", "pictures": 40, "skipped": 0,
            "image_to_text": {"r1": 0.25, "median_rank": 3.0}, "chance_r1": 0.025, "label_top1": 1.0, "chance_top1": 0.1,
            "label_top5": null, "seconds": 1.5,
        }));
        let found: Vec<_> = line
            .metrics
            .iter()
            .map(|metric| (metric.title(), metric.value, metric.chance))
            .collect();
        assert_eq!(
            found,
            [
                ("label top-1".to_owned(), 1.0, Some(0.1)),
                ("image to text R1".to_owned(), 0.25, Some(0.025)),
                ("image to text median rank".to_owned(), 3.0, None),
            ]
        );
        assert_eq!(line.chance("mean_r1"), Some(0.025));
        assert_eq!(line.chance("mean_r10"), None);
        let leading: Vec<_> = line.leading().iter().map(|metric| metric.title()).collect();
        assert_eq!(leading, ["label top-1", "image to text R1"]);
    }

    #[test]
    fn a_groups_chance_is_of_its_first_metric() {
        let line = evaluation(json!({
            "kind": "evaluation", "accuracy": 0.5, "macro_f1": 0.25,
            "breed": {"accuracy": 0.5, "macro_f1": 0.25, "chance": 0.125},
            "age": {"mean_absolute_error": 3.5, "root_mean_squared_error": 4.5, "root_mean_squared_error_chance": 9.0, "chance": 6.0},
        }));
        let grouped = line
            .metrics
            .iter()
            .filter(|metric| metric.group.is_some())
            .map(|metric| metric.chance);
        assert_eq!(
            grouped.collect::<Vec<_>>(),
            [Some(0.125), None, Some(6.0), Some(9.0)]
        );
        let leading: Vec<_> = line.leading().iter().map(|metric| metric.title()).collect();
        assert_eq!(leading, ["accuracy"], "the first target's is the line's");
        assert_eq!(line.leading()[0].chance, Some(0.125));
    }

    #[test]
    fn words_and_shares() {
        for (key, expected) in [
            ("macro_f1", "macro F1"),
            ("label_top5", "label top-5"),
            ("auroc", "auroc"),
            ("mean_iou", "mean IoU"),
            ("hd95", "HD95"),
            ("rouge_l", "ROUGE-L"),
            ("video_to_text_ndcg5", "video to text NDCG@5"),
            ("größe_2", "größe 2"),
            ("", ""),
        ] {
            assert_eq!(in_words(key), expected);
        }
        assert!(is_share("accuracy", [0.0, 1.0]));
        assert!(!is_share("accuracy", [0.5, 1.5]));
        assert!(!is_share("mean_absolute_error", [0.5]));
        assert!(!is_share("hd95", [0.5]));
    }

    #[test]
    fn every_number_is_flattened_under_its_name() {
        let value = json!({"a": 1, "b": {"c": 0.5, "d": {"e": 2}}, "f": [3], "g": null, "h": "4"});
        let found = flatten(&value);
        let found: Vec<_> = found.iter().map(|(name, y)| (name.as_str(), *y)).collect();
        assert_eq!(found, [("a", 1.0), ("b/c", 0.5), ("b/d/e", 2.0)]);
    }
}
