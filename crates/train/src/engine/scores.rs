//! Scores of an evaluation as named fields: numbers, and objects of numbers. The fields depend on the task.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Field of the weighted sum of an evaluation's losses; also a `best_metric` of every task.
pub const LOSS: &str = "loss";
/// Field of the single losses, each with `NAME_chance` if that is known.
const LOSSES: &str = "losses";
/// Field of the mean loss over the epoch's training steps so far.
const TRAIN_LOSS: &str = "train_loss";

/// One loss over the evaluated samples.
#[derive(Clone, Debug, PartialEq)]
pub struct EvaluatedLoss {
    pub name: String,
    /// Weight in the sum of all losses.
    pub weight: f64,
    /// Sum over count; `None` if no sample counted.
    pub mean: Option<f64>,
    /// Loss of random guessing, if known.
    pub chance: Option<f64>,
}

/// Whether higher or lower values of a metric are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Higher,
    Lower,
}

impl Direction {
    /// Whether a value is better than the best so far. A value that is not finite never is.
    pub fn is_better(self, value: f64, best: Option<f64>) -> bool {
        value.is_finite()
            && best.is_none_or(|best| match self {
                Direction::Higher => value > best,
                Direction::Lower => value < best,
            })
    }
}

/// The fields of an evaluation, in the order of writing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scores(Map<String, Value>);

impl Scores {
    /// The fields of a structure.
    ///
    /// # Panics
    /// If the value does not serialise to a JSON object.
    pub fn of<T: Serialize>(fields: &T) -> Scores {
        match serde_json::to_value(fields) {
            Ok(Value::Object(fields)) => Scores(fields),
            other => panic!("scores are a structure of plain data, found {other:?}"),
        }
    }

    /// Converts the fields back to a structure.
    pub fn read<T: for<'de> Deserialize<'de>>(&self) -> Option<T> {
        serde_json::from_value(Value::Object(self.0.clone())).ok()
    }

    /// A number by its path: `accuracy`, or `image_to_text.r1`.
    pub fn number(&self, path: &str) -> Option<f64> {
        self.field(path)?.as_f64()
    }

    /// A list by its path.
    pub fn list(&self, path: &str) -> Option<&[Value]> {
        self.field(path)?.as_array().map(Vec::as_slice)
    }

    /// Adds the losses to the scores: `loss`, and each loss under `losses`. A target with such a name keeps its field.
    pub fn set_losses(&mut self, losses: &[EvaluatedLoss]) {
        let total = losses
            .iter()
            .filter_map(|loss| Some(loss.weight * loss.mean?));
        let mut each = Map::new();
        for loss in losses.iter().filter(|loss| loss.mean.is_some()) {
            each.insert(loss.name.clone(), json!(loss.mean));
            if loss.chance.is_some() {
                each.insert(format!("{}_chance", loss.name), json!(loss.chance));
            }
        }
        if each.is_empty() {
            return;
        }
        self.insert_new(LOSS, json!(total.sum::<f64>()));
        self.insert_new(LOSSES, Value::Object(each));
    }

    /// Adds the mean training loss.
    pub fn set_train_loss(&mut self, mean: f64) {
        self.insert_new(TRAIN_LOSS, json!(mean));
    }

    fn insert_new(&mut self, name: &str, value: Value) {
        self.0.entry(name).or_insert(value);
    }

    /// Weighted sum of the losses.
    pub fn loss(&self) -> Option<f64> {
        self.number(LOSS)
    }

    /// Each loss: name, mean and chance.
    pub fn losses(&self) -> Vec<(&str, f64, Option<f64>)> {
        let Some(Value::Object(losses)) = self.0.get(LOSSES) else {
            return Vec::new();
        };
        let chance = |name: &str| losses.get(&format!("{name}_chance"))?.as_f64();
        // X_chance is a chance value if there is a loss X.
        let is_chance = |name: &str| {
            let of = name.strip_suffix("_chance");
            of.is_some_and(|of| losses.contains_key(of))
        };
        let each = losses.iter().filter(|(name, _)| !is_chance(name));
        each.filter_map(|(name, mean)| Some((name.as_str(), mean.as_f64()?, chance(name))))
            .collect()
    }

    /// Field names may contain dots, so the whole path is tried first.
    fn field(&self, path: &str) -> Option<&Value> {
        if let Some(field) = self.0.get(path) {
            return Some(field);
        }
        let (object, field) = path.rsplit_once('.')?;
        self.0.get(object)?.get(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_is_never_the_best() {
        assert!(Direction::Higher.is_better(0.5, None));
        assert!(!Direction::Higher.is_better(f64::NAN, None));
        assert!(Direction::Lower.is_better(1.0, Some(2.0)));
        assert!(!Direction::Lower.is_better(2.0, Some(2.0)));
        assert!(!Direction::Higher.is_better(2.0, Some(2.0)));
    }

    #[test]
    fn losses_are_weighted_together_and_kept_each() {
        let loss = |name: &str, weight, mean, chance| EvaluatedLoss {
            name: name.to_owned(),
            weight,
            mean,
            chance,
        };
        let mut scores = Scores::of(&json!({"accuracy": 0.5}));
        scores.set_losses(&[
            loss("contrastive", 1.0, Some(3.0), Some(4.0)),
            loss("label", 0.5, Some(1.0), None),
            loss("caption", 0.5, None, Some(5.0)),
        ]);
        scores.set_train_loss(2.5);
        assert_eq!(scores.loss(), Some(3.5));
        assert_eq!(
            serde_json::to_string(&scores).unwrap(),
            r#"{"accuracy":0.5,"loss":3.5,"losses":{"contrastive":3.0,"contrastive_chance":4.0,"label":1.0},"train_loss":2.5}"#
        );
        let each = [("contrastive", 3.0, Some(4.0)), ("label", 1.0, None)];
        assert_eq!(scores.losses(), each);
        let mut none = Scores::default();
        none.set_losses(&[loss("label", 1.0, None, None)]);
        assert_eq!(none, Scores::default());
    }

    #[test]
    fn fields_are_found_by_their_path() {
        let scores = Scores::of(&serde_json::json!({"a": {"r1": 0.25}, "b": null, "c": 3}));
        assert_eq!(scores.number("a.r1"), Some(0.25));
        assert_eq!(scores.number("b"), None);
        assert_eq!(scores.number("c"), Some(3.0));
        assert_eq!(scores.number("a.none"), None);
    }
}
