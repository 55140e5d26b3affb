//! The `losses` section of a config: what each task weighs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::{ClassWeights, Wrong, check};

/// What counts how much.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Losses {
    /// Pictures against captions.
    pub contrastive: f64,
    /// The label head; counts where there are labels.
    pub label: f64,
    /// Share of a label that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// What a class counts for in the label loss.
    pub class_weights: ClassWeights,
    /// Weights of a classifier's targets by name; 1 by default.
    pub targets: BTreeMap<String, f64>,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses {
            contrastive: 1.0,
            label: 0.5,
            label_smoothing: 0.0,
            class_weights: ClassWeights::None,
            targets: BTreeMap::new(),
        }
    }
}

impl Losses {
    /// Each number on its own.
    pub(crate) fn check_numbers(&self) -> Result<(), Wrong> {
        for (path, weight) in [
            ("losses.contrastive", self.contrastive),
            ("losses.label", self.label),
        ] {
            check(
                weight.is_finite() && weight >= 0.0,
                path,
                weight,
                "a number of at least 0",
                "`losses: {contrastive: 1.0, label: 0.5}`",
            )?;
        }
        check(
            (0.0..1.0).contains(&self.label_smoothing),
            "losses.label_smoothing",
            self.label_smoothing,
            "at least 0 and less than 1",
            "`label_smoothing: 0.1` spreads a tenth of each label over all classes",
        )
    }

    /// Numbers beside each other.
    pub(crate) fn check_together(&self) -> Result<(), Wrong> {
        check(
            self.contrastive > 0.0 || self.label > 0.0,
            "losses",
            format!("contrastive {}, label {}", self.contrastive, self.label),
            "contrastive, label or both above 0",
            "`losses: {contrastive: 1.0, label: 0.5}`",
        )
    }
}
