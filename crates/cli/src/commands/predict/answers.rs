//! Predicted labels and numbers as JSON, as text, and as CSV columns that can be joined with the input table.
//!
//! ```text
//! NAME, NAME_probability          the most likely label of a head and its probability; for multi-label heads, all labels from 0.5 on
//! NAME_2, NAME_2_probability      the next labels, with --top
//! NAME=LABEL                      every probability, with --all-probabilities
//! NAME                            the number, for a regression head
//! ```

use holdall_data::samples::TargetKind;
use holdall_train::tasks::classify::{Answer, Head};
use serde::Serialize;

#[derive(Clone, Serialize)]
pub(super) struct Guess {
    pub label: String,
    pub probability: f64,
}

/// Prediction of one head for a sample.
#[derive(Clone, Serialize)]
pub(super) struct TargetGuess {
    pub target: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Guess>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
}

impl TargetGuess {
    /// A prediction of labels, most likely first.
    pub fn of_labels(target: &str, labels: Vec<Guess>) -> TargetGuess {
        TargetGuess {
            target: target.to_owned(),
            labels,
            number: None,
        }
    }

    /// The prediction as text.
    pub fn describe(&self) -> String {
        match self.number {
            Some(number) => format!("{} {number:.4}", self.target),
            None => format!("{} {}", self.target, describe_labels(&self.labels)),
        }
    }
}

impl From<Answer> for TargetGuess {
    fn from(answer: Answer) -> TargetGuess {
        match answer {
            Answer::Labels { target, labels, .. } => {
                let guess = |(label, probability)| Guess { label, probability };
                TargetGuess::of_labels(&target, labels.into_iter().map(guess).collect())
            }
            Answer::Number { target, number } => TargetGuess {
                target,
                labels: Vec::new(),
                number: Some(number),
            },
        }
    }
}

/// Labels with their probabilities, as text.
pub(super) fn describe_labels(labels: &[Guess]) -> String {
    let words = labels
        .iter()
        .map(|guess| format!("{} {:.1}%", guess.label, 100.0 * guess.probability));
    words.collect::<Vec<String>>().join(", ")
}

/// Kind of a head's predictions.
enum Answers {
    OneLabel,
    SeveralLabels,
    Number,
}

/// CSV columns of one head.
pub(super) struct HeadColumns {
    name: String,
    labels: Vec<String>,
    answers: Answers,
    /// Number of most likely labels with columns.
    top: usize,
    has_all: bool,
}

impl HeadColumns {
    /// Columns of a head with one label per sample; `top` is the value of `--top`.
    pub fn of_labels(name: &str, labels: &[String], top: Option<usize>, all: bool) -> HeadColumns {
        HeadColumns {
            name: name.to_owned(),
            labels: labels.to_vec(),
            answers: Answers::OneLabel,
            top: top.unwrap_or(1).min(labels.len()),
            has_all: all,
        }
    }

    /// Columns of a trained head.
    pub fn of_head(head: &Head, top: Option<usize>, all: bool) -> HeadColumns {
        let columns = HeadColumns::of_labels(&head.name, head.kind.names(), top, all);
        HeadColumns {
            answers: match head.kind {
                TargetKind::Class { .. } => Answers::OneLabel,
                TargetKind::Classes { .. } => Answers::SeveralLabels,
                TargetKind::Number { .. } => Answers::Number,
            },
            ..columns
        }
    }

    pub fn names(&self) -> Vec<String> {
        let name = &self.name;
        let mut names = vec![name.clone()];
        if let Answers::Number = self.answers {
            return names;
        }
        names.push(format!("{name}_probability"));
        if let Answers::OneLabel = self.answers {
            for place in 2..=self.top {
                names.extend([
                    format!("{name}_{place}"),
                    format!("{name}_{place}_probability"),
                ]);
            }
        }
        if self.has_all {
            names.extend(self.labels.iter().map(|label| format!("{name}={label}")));
        }
        names
    }

    /// Cells of a sample, one per column name.
    pub fn cells(&self, guess: &TargetGuess) -> Vec<String> {
        let share = |probability: f64| format!("{probability:.6}");
        let mut cells = Vec::new();
        match self.answers {
            Answers::Number => {
                return vec![
                    guess
                        .number
                        .map_or(String::new(), |number| number.to_string()),
                ];
            }
            Answers::OneLabel => {
                for place in 0..self.top {
                    let guess = guess.labels.get(place);
                    cells.push(guess.map_or(String::new(), |guess| guess.label.clone()));
                    cells.push(guess.map_or(String::new(), |guess| share(guess.probability)));
                }
            }
            Answers::SeveralLabels => {
                let applying = guess.labels.iter().filter(|guess| guess.probability >= 0.5);
                let labels: Vec<&str> = applying.clone().map(|guess| &*guess.label).collect();
                let shares: Vec<String> = applying.map(|guess| share(guess.probability)).collect();
                cells.extend([labels.join("|"), shares.join("|")]);
            }
        }
        if self.has_all {
            let of_label = |label: &String| guess.labels.iter().find(|one| one.label == *label);
            let all = self.labels.iter().map(of_label);
            cells.extend(all.map(|one| one.map_or(String::new(), |one| share(one.probability))));
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_as_many_cells_as_names() {
        let labels = ["a", "b", "c"].map(str::to_owned);
        let guess = |label: &str, probability| Guess {
            label: label.to_owned(),
            probability,
        };
        let said = TargetGuess::of_labels(
            "make",
            vec![guess("b", 0.5), guess("a", 0.375), guess("c", 0.125)],
        );
        let columns = HeadColumns::of_labels("make", &labels, None, false);
        assert_eq!(columns.names(), ["make", "make_probability"]);
        assert_eq!(columns.cells(&said), ["b", "0.500000"]);
        let columns = HeadColumns::of_labels("make", &labels, Some(2), true);
        assert_eq!(
            columns.names(),
            [
                "make",
                "make_probability",
                "make_2",
                "make_2_probability",
                "make=a",
                "make=b",
                "make=c"
            ]
        );
        assert_eq!(
            columns.cells(&said),
            [
                "b", "0.500000", "a", "0.375000", "0.375000", "0.500000", "0.125000"
            ]
        );
        let several = HeadColumns {
            answers: Answers::SeveralLabels,
            ..HeadColumns::of_labels("tags", &labels, None, false)
        };
        let said = TargetGuess::of_labels(
            "tags",
            vec![guess("c", 0.75), guess("a", 0.5), guess("b", 0.25)],
        );
        assert_eq!(several.cells(&said), ["c|a", "0.750000|0.500000"]);
    }
}
