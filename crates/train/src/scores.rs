//! What an evaluation found, as fields: numbers, and objects of numbers. Nothing here knows which.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Whether more of a metric is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

impl Direction {
    /// Whether a value beats the best so far. What is not a number beats nothing.
    pub fn is_better(self, value: f64, best: Option<f64>) -> bool {
        value.is_finite()
            && best.is_none_or(|best| match self {
                Direction::Higher => value > best,
                Direction::Lower => value < best,
            })
    }
}

/// The fields of an evaluation, in the order in which they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scores(Map<String, Value>);

impl Scores {
    /// The fields of a structure.
    ///
    /// # Panics
    /// If it is not a structure of plain data.
    pub fn of<T: Serialize>(fields: &T) -> Scores {
        match serde_json::to_value(fields) {
            Ok(Value::Object(fields)) => Scores(fields),
            other => panic!("scores are a structure of plain data, found {other:?}"),
        }
    }

    /// The structure that the fields came from.
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

    /// Names of fields may have points in them: the longest that fits comes first.
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
    fn fields_are_found_by_their_path() {
        let scores = Scores::of(&serde_json::json!({"a": {"r1": 0.25}, "b": null, "c": 3}));
        assert_eq!(scores.number("a.r1"), Some(0.25));
        assert_eq!(scores.number("b"), None);
        assert_eq!(scores.number("c"), Some(3.0));
        assert_eq!(scores.number("a.none"), None);
    }
}
