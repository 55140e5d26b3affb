//! Predictions of trained heads: labels with probabilities, and numbers.

use holdall_data::samples::TargetKind;
use holdall_metrics::classification::top_k;
use serde::Serialize;

use super::Head;

/// Prediction of one head for one picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Labels with their probabilities, best first.
    Labels {
        /// Name of the head.
        target: String,
        /// The best labels and their probabilities.
        labels: Vec<(String, f64)>,
        /// Whether labels are independent of each other: those with a probability of at least 0.5 apply.
        several: bool,
    },
    Number {
        /// Name of the head.
        target: String,
        /// In the unit of the training data.
        number: f64,
    },
}

/// Predictions of all heads from a sample's concatenated outputs, with up to `top` labels per head.
pub fn answers_of(heads: &[Head], outputs: &[f32], top: usize) -> Vec<Answer> {
    let mut first = 0;
    heads
        .iter()
        .map(|head| {
            let own = &outputs[first..first + head.num_outputs()];
            first += own.len();
            let target = head.name.clone();
            let named = |best: Vec<(usize, f64)>| -> Vec<(String, f64)> {
                let names = head.kind.names();
                best.into_iter()
                    .map(|(class, share)| (names[class].clone(), share))
                    .collect()
            };
            match head.kind {
                TargetKind::Number { .. } => Answer::Number {
                    target,
                    number: f64::from(own[0]),
                },
                TargetKind::Class { .. } => Answer::Labels {
                    target,
                    labels: named(top_k(own, top)),
                    several: false,
                },
                TargetKind::Classes { .. } => {
                    let sigmoid = |&logit: &f32| 1.0 / (1.0 + f64::from(-logit).exp());
                    let mut best: Vec<_> = own.iter().map(sigmoid).enumerate().collect();
                    best.sort_by(|a, b| b.1.total_cmp(&a.1));
                    // Labels that apply are all reported, even beyond `top`.
                    let applying = best.iter().filter(|(_, share)| *share >= 0.5).count();
                    best.truncate(top.max(applying));
                    Answer::Labels {
                        target,
                        labels: named(best),
                        several: true,
                    }
                }
            }
        })
        .collect()
}
