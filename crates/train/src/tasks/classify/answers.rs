//! What trained heads say: labels with their probabilities, and numbers.

use holdall_data::target::TargetKind;
use holdall_metrics::classification::top_k;
use serde::Serialize;

use super::Head;

/// What a head says of a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Labels with their probabilities, best first.
    Labels {
        /// The head.
        target: String,
        /// The best ones.
        labels: Vec<(String, f64)>,
        /// Whether each stands by itself: those from 0.5 on apply.
        several: bool,
    },
    /// A number.
    Number {
        /// The head.
        target: String,
        /// As the training rows have it.
        number: f64,
    },
}

/// What heads say of a sample, by their outputs one behind the other; up to `top` labels each.
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
                    // Those that apply are told, however many there are.
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
