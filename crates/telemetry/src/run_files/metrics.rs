//! Lines of `metrics.jsonl`. No loss and no metric is known by its name: a line says what its numbers are.
//!
//! ```text
//! step         K is a loss if and only if the line has K_chance; `lr` and `lr_*` are learning rates
//! evaluation   a number with a fraction is a metric (0.5, 1.0), a whole one a count (1); an object is a group of metrics;
//!              chance_X or X_chance is what guessing gives for X, or for every Y_X; a group's `chance` is of its first metric
//! ```

use serde::Serialize;
use serde_json::{Map, Value};

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricsLine {
    /// Of an optimizer step.
    Step(StepLine),
    /// Of an evaluation.
    Evaluation(EvaluationLine),
    /// Of a kind that this version does not know.
    Other,
}

/// An optimizer step; what the line does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLine {
    /// Counted from 1.
    pub step: Option<u64>,
    /// Counted from 1.
    pub epoch: Option<u64>,
    /// The weighted losses together; `None` where it is not a number.
    pub loss: Option<f64>,
    /// Each loss, in the line's order.
    pub losses: Vec<Loss>,
    /// Learning rates by their keys, `lr` first.
    pub rates: Vec<(String, f64)>,
    /// Before clipping.
    pub gradient_norm: Option<f64>,
    /// What losses are multiplied by.
    pub loss_scale: Option<f64>,
    /// Samples in this step.
    pub samples: Option<f64>,
    /// Of this step, reading included.
    pub seconds: Option<f64>,
    /// Seconds of it that went into reading.
    pub waited_for_data: Option<f64>,
    /// Where several processes share the step: how the one before it was for each.
    pub processes: Option<ProcessesOfStep>,
}

/// How a step was for each of several processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProcessesOfStep {
    /// How many there are.
    pub processes: u64,
    /// The one that the others waited for most.
    pub slowest_rank: Option<u64>,
    /// Its machine.
    pub slowest_host: Option<String>,
    /// What it took over what the others took on average.
    pub slowest_ratio: Option<f64>,
    /// What each holds, by rank.
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
    /// Its key.
    pub name: String,
    /// Mean over the step; `None` where it is not a number.
    pub value: Option<f64>,
    /// What guessing would give, where that is known.
    pub chance: Option<f64>,
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationLine {
    /// Optimizer steps done.
    pub step: Option<u64>,
    /// Which samples: `validation`, `train`.
    pub on: Option<String>,
    /// Those of the line itself, then those of its groups.
    pub metrics: Vec<Metric>,
    /// What guessing gives, by the key without `chance`.
    chances: Vec<(String, f64)>,
    /// The line as it is.
    pub fields: Map<String, Value>,
}

/// A number that an evaluation found.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The object that it is in.
    pub group: Option<String>,
    /// Its key.
    pub name: String,
    /// What was found.
    pub value: f64,
    /// What guessing would give, where that is known.
    pub chance: Option<f64>,
}

impl MetricsLine {
    /// Reads a line.
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
            // Both are null where a run could have a loss and has none.
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

    /// How fast it was.
    pub fn samples_per_s(&self) -> Option<f64> {
        Some(self.samples? / self.seconds.filter(|seconds| *seconds > 0.0)?)
    }

    /// Share of its time that went into reading, 0 to 1.
    pub fn waited_share(&self) -> Option<f64> {
        let seconds = self.seconds.filter(|seconds| *seconds > 0.0)?;
        Some((self.waited_for_data? / seconds).clamp(0.0, 1.0))
    }

    /// Whether there is one loss, and the total is that loss.
    pub fn is_one_loss(&self) -> bool {
        matches!(&self.losses[..], [one] if one.value == self.loss)
    }
}

/// The key without `chance`, where it is one of guessing.
fn of_chance(key: &str) -> Option<&str> {
    key.strip_prefix("chance_")
        .or(key.strip_suffix("_chance"))
        .or((key == "chance").then_some(""))
}

/// Numbers of a line that say where it stands.
const PLACE: [&str; 4] = ["step", "epoch", "seconds", "time"];

/// How many clips a group of metrics is over: no metric.
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
        // The first target's metrics stand in the line itself, too.
        let copies: Vec<Metric> = line.metrics.clone();
        for metric in line.metrics.iter_mut().filter(|one| one.group.is_none()) {
            let is_same = |one: &&Metric| (&one.name, one.value) == (&metric.name, metric.value);
            let chance = copies.iter().filter(is_same).find_map(|one| one.chance);
            metric.chance = metric.chance.or(chance);
        }
        line.fields = fields;
        line
    }

    /// What guessing gives for a metric of the line or, where the line has none of this name, for one that is made of its metrics.
    pub fn chance(&self, name: &str) -> Option<f64> {
        let is_of = |of: &str| {
            let before = name.strip_suffix(of);
            before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
        };
        let of = |(of, _): &&(String, f64)| !of.is_empty() && is_of(of);
        self.chances.iter().find(of).map(|(_, chance)| *chance)
    }

    /// What stands for the evaluation: the first metric of the line itself, and the first of its first group where that is another.
    /// Losses have a place of their own.
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

/// The weighted losses of an evaluation together.
pub const LOSS: &str = "loss";
/// The mean loss of the epoch's training steps, in the line of an evaluation.
pub const TRAIN_LOSS: &str = "train_loss";
/// The group of an evaluation's losses.
pub const LOSSES: &str = "losses";

impl Metric {
    /// Whether it is one of the losses of an evaluation.
    pub fn is_loss(&self) -> bool {
        match self.group.as_deref() {
            None => [LOSS, TRAIN_LOSS].contains(&self.name.as_str()),
            group => group == Some(LOSSES),
        }
    }

    /// The group and the key as people read them.
    pub fn title(&self) -> String {
        match &self.group {
            Some(group) => format!("{} {}", in_words(group), in_words(&self.name)),
            None => in_words(&self.name),
        }
    }
}

/// Whether a metric is a share of a whole, and shown as a percentage: within 0 and 1, and not in a unit of its own.
pub fn is_share(name: &str, values: impl IntoIterator<Item = f64>) -> bool {
    let has_unit = ["error", "loss", "rank", "hd95", "cider_d", "perplexity"]
        .iter()
        .any(|unit| name.ends_with(unit));
    !has_unit && values.into_iter().all(|value| (0.0..=1.0).contains(&value))
}

/// Words that are not written as keys are.
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

/// A key as people read it: `macro_f1` is `macro F1`, `label_top5` is `label top-5`, `iou` is `IoU`.
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

/// Every number of a value under its name, those within objects as `outer/inner`. Lists are no curves and are left out.
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
