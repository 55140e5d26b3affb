//! Heads: each owns a range of the classifier's outputs.

use holdall_data::samples::{Target, TargetKind};
use holdall_models::vit::config::{ClassifierConfig, Problem, VisionTransformerConfig};

use crate::engine::task::{Chance, Loss};

/// An output head: predicts one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Name of the target.
    pub name: String,
    /// Type of the target.
    pub kind: TargetKind,
    /// Weight of its loss in the sum of all losses.
    pub weight: f64,
    /// Label smoothing: share of a label that is spread over all classes.
    pub smoothing: f64,
    /// Weight of each class or label in the loss; empty if all are 1.
    pub class_weights: Vec<f32>,
    /// Names of its inputs in the step's graph.
    pub(in crate::tasks) endpoints: Endpoints,
}

/// Input names of one head, such as `labels of make`. Inputs cover the whole effective batch.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::tasks) struct Endpoints {
    /// Label index of each sample.
    pub labels: String,
    /// Weight of each sample, or of each of its labels.
    pub weights: String,
    /// Labels of the mixup partners.
    pub partner_labels: String,
    /// Weights of the mixup partners.
    pub partner_weights: String,
    /// Weight of each class, `[classes]`; only used with smoothing.
    pub class_weights: String,
    /// Labels as numbers from 0 to 1, or standardised numbers.
    pub targets: String,
}

impl Endpoints {
    fn of(name: &str) -> Endpoints {
        let endpoint = |what: &str| format!("{what} of {name}");
        Endpoints {
            labels: endpoint("labels"),
            weights: endpoint("weights"),
            partner_labels: endpoint("partner labels"),
            partner_weights: endpoint("partner weights"),
            class_weights: endpoint("class weights"),
            targets: endpoint("targets"),
        }
    }
}

impl Head {
    /// A head for a target, with equal class weights.
    pub fn new(target: &Target) -> Head {
        Head {
            name: target.name.clone(),
            kind: target.kind.clone(),
            weight: 1.0,
            smoothing: 0.0,
            class_weights: Vec::new(),
            endpoints: Endpoints::of(&target.name),
        }
    }

    /// Number of the classifier's outputs that belong to this head.
    pub fn num_outputs(&self) -> usize {
        match &self.kind {
            TargetKind::Class { names } | TargetKind::Classes { names } => names.len(),
            TargetKind::Number { .. } => 1,
        }
    }

    /// Input numbers per sample.
    pub(in crate::tasks) fn num_inputs(&self) -> usize {
        match self.kind {
            TargetKind::Class { .. } => 4,
            TargetKind::Classes { .. } | TargetKind::Number { .. } => 2 * self.num_outputs(),
        }
    }

    /// Weight of a class or label in the loss.
    pub(super) fn class_weight(&self, class: usize) -> f32 {
        self.class_weights.get(class).copied().unwrap_or(1.0)
    }

    /// The number that this head predicts, in the unit of the data; `None` for labels.
    pub(super) fn number_in_data_units(&self, outputs: &[f32]) -> Option<f32> {
        match self.kind {
            TargetKind::Number { mean, std } => Some((f64::from(outputs[0]) * std + mean) as f32),
            TargetKind::Class { .. } | TargetKind::Classes { .. } => None,
        }
    }

    /// Whether class weights are an input of the loss. Smoothing weighs the share of each class by that class's weight, which
    /// weights per sample cannot express.
    pub(super) fn weighs_smoothing(&self) -> bool {
        let is_class = matches!(self.kind, TargetKind::Class { .. });
        is_class && self.smoothing > 0.0 && !self.class_weights.is_empty()
    }
}

/// Converts the standardised numbers among a sample's outputs to the unit of the data.
pub(super) fn to_data_units(heads: &[Head], outputs: &mut [f32]) {
    let mut first = 0;
    for head in heads {
        if let Some(number) = head.number_in_data_units(&outputs[first..]) {
            outputs[first] = number;
        }
        first += head.num_outputs();
    }
}

/// The losses of the heads, in order.
pub(in crate::tasks) fn losses_of(heads: &[Head]) -> impl Iterator<Item = Loss> {
    heads.iter().map(|head| Loss {
        name: head.name.clone(),
        weight: head.weight,
        chance: match &head.kind {
            TargetKind::Class { names } => Chance::Log(names.len()),
            TargetKind::Classes { .. } => Chance::Log(2),
            // Standardised numbers have a variance of 1.
            TargetKind::Number { .. } => Chance::Value(1.0),
        },
    })
}

/// Names of all outputs; with several heads, prefixed by the head's name.
pub fn labels_of(heads: &[Head]) -> Vec<String> {
    let labels = heads.iter().flat_map(|head| {
        let names: Vec<String> = match (&head.kind, heads.len()) {
            (TargetKind::Number { .. }, _) => vec![head.name.clone()],
            (kind, 1) => kind.names().to_vec(),
            (kind, _) => {
                let names = kind.names().iter();
                names.map(|name| format!("{}: {name}", head.name)).collect()
            }
        };
        names
    });
    labels.collect()
}

pub(super) fn classifier_config(
    backbone: VisionTransformerConfig,
    heads: &[Head],
) -> ClassifierConfig {
    let problem = match heads {
        [head] => Some(match head.kind {
            TargetKind::Class { .. } => Problem::SingleLabel,
            TargetKind::Classes { .. } => Problem::MultiLabel,
            TargetKind::Number { .. } => Problem::Regression,
        }),
        _ if heads
            .iter()
            .all(|head| matches!(head.kind, TargetKind::Number { .. })) =>
        {
            Some(Problem::Regression)
        }
        _ => None,
    };
    ClassifierConfig {
        backbone,
        labels: labels_of(heads),
        problem,
    }
}

/// Output index, mean and standard deviation of each number.
fn numbers(heads: &[Head]) -> impl Iterator<Item = (usize, f64, f64)> {
    let mut first = 0;
    heads.iter().filter_map(move |head| {
        let place = first;
        first += head.num_outputs();
        match head.kind {
            TargetKind::Number { mean, std } => Some((place, mean, std)),
            _ => None,
        }
    })
}

/// Rescales a classifier weight or bias so that its numbers come out standardised.
pub(in crate::tasks) fn standardize(heads: &[Head], name: &str, values: &mut [f32]) {
    rescale(heads, name, values, |value, mean, std| (value - mean) / std);
}

/// The inverse of [`standardize`], for saving: numbers come out in the unit of the data.
pub(in crate::tasks) fn restore(heads: &[Head], name: &str, values: &mut [f32]) {
    rescale(heads, name, values, |value, mean, std| value * std + mean);
}

fn rescale(heads: &[Head], name: &str, values: &mut [f32], of: fn(f64, f64, f64) -> f64) {
    let num_outputs: usize = heads.iter().map(Head::num_outputs).sum();
    let width = values.len() / num_outputs;
    for (place, mean, std) in numbers(heads) {
        // The mean affects the bias only.
        let mean = if name.ends_with("bias") { mean } else { 0.0 };
        for value in &mut values[place * width..][..width] {
            *value = of(f64::from(*value), mean, std) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(name: &str, kind: TargetKind) -> Head {
        Head::new(&Target {
            name: name.to_owned(),
            kind,
        })
    }

    #[test]
    fn outputs_of_several_heads_have_their_heads_name() {
        let names = ["red", "blue"].map(str::to_owned).to_vec();
        let class = head("colour", TargetKind::Class { names });
        let number = head(
            "age",
            TargetKind::Number {
                mean: 30.0,
                std: 10.0,
            },
        );
        assert_eq!(labels_of(std::slice::from_ref(&class)), ["red", "blue"]);
        let both = [class, number];
        assert_eq!(labels_of(&both), ["colour: red", "colour: blue", "age"]);
    }

    #[test]
    fn numbers_are_standardized_and_restored() {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let heads = [
            head("label", TargetKind::Class { names }),
            head(
                "age",
                TargetKind::Number {
                    mean: 30.0,
                    std: 10.0,
                },
            ),
        ];
        let mut weight = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        restore(&heads, "classifier.weight", &mut weight);
        assert_eq!(weight, [1.0, 2.0, 3.0, 4.0, 50.0, 60.0]);
        standardize(&heads, "classifier.weight", &mut weight);
        assert_eq!(weight, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let mut bias = vec![1.0, 2.0, 0.5];
        restore(&heads, "classifier.bias", &mut bias);
        assert_eq!(bias, [1.0, 2.0, 35.0]);
        standardize(&heads, "classifier.bias", &mut bias);
        assert_eq!(bias, [1.0, 2.0, 0.5]);
    }
}
