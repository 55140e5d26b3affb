//! The `losses` section of a config: loss weights of each task.
//!
//! CLIP and classification use every loss that their data allows, with a default weight. Segmentation uses the losses that are
//! named; without any, `{bce: 1, dice: 1}`, or with several classes `{cross_entropy: 1, dice: 1}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClassWeights, Wrong, check};

/// Weights and settings of the losses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Losses {
    /// Weight of the contrastive loss.
    pub contrastive: f64,
    /// Weight of the label loss; used if there are labels.
    pub label: f64,
    /// Weight of the caption loss per token; 0.5 by default for models with a decoder.
    pub caption: Option<f64>,
    /// Label smoothing of caption tokens.
    pub caption_smoothing: f64,
    /// Weights of caption tokens whose text matches a pattern: `{"[0-9]+": 5}`. The first match applies.
    pub caption_weights: BTreeMap<String, f64>,
    /// Label smoothing of classes.
    pub label_smoothing: f64,
    /// Weights of classes in the label loss.
    pub class_weights: ClassWeights,
    /// Weights of a classifier's targets by name; 1 by default.
    pub targets: BTreeMap<String, f64>,
    /// Segmentation of one class: binary cross-entropy per pixel.
    pub bce: Option<f64>,
    /// Segmentation of several classes: cross-entropy per pixel.
    pub cross_entropy: Option<f64>,
    /// Segmentation: one minus Dice.
    pub dice: Option<f64>,
    /// Segmentation: cross-entropy that counts sure pixels less.
    pub focal: Option<Focal>,
    /// Segmentation: Dice with weights of its own for what is invented and what is missed.
    pub tversky: Option<Tversky>,
    /// Pixels that the sums of Dice and Tversky run over.
    pub dice_over: DiceOver,
}

/// Focal loss: cross-entropy times `(1 - p)^gamma`, with `p` the predicted probability of the pixel's class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Focal {
    /// Weight in the sum of all losses.
    pub weight: f64,
    /// Exponent that reduces the loss of confident pixels.
    pub gamma: f64,
}

impl Default for Focal {
    fn default() -> Focal {
        Focal {
            weight: 1.0,
            gamma: 2.0,
        }
    }
}

/// `1 - (TP + s) / (TP + alpha FP + beta FN + s)`; Dice is `alpha: 0.5, beta: 0.5`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tversky {
    /// Weight in the sum of all losses.
    pub weight: f64,
    /// Cost of a false-positive pixel.
    pub alpha: f64,
    /// Cost of a false-negative pixel.
    pub beta: f64,
}

impl Default for Tversky {
    fn default() -> Tversky {
        Tversky {
            weight: 1.0,
            alpha: 0.3,
            beta: 0.7,
        }
    }
}

/// Pixels that the sums of Dice run over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiceOver {
    /// All pixels of the effective batch, however it is split.
    #[default]
    Batch,
    /// Each picture by itself; then the mean over pictures.
    Image,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses {
            contrastive: 1.0,
            label: 0.5,
            caption: None,
            caption_smoothing: 0.0,
            caption_weights: BTreeMap::new(),
            label_smoothing: 0.0,
            class_weights: ClassWeights::None,
            targets: BTreeMap::new(),
            bce: None,
            cross_entropy: None,
            dice: None,
            focal: None,
            tversky: None,
            dice_over: DiceOver::Batch,
        }
    }
}

impl Losses {
    /// Each number on its own.
    pub(crate) fn check_numbers(&self) -> Result<(), Wrong> {
        for (path, weight) in [
            ("losses.contrastive", self.contrastive),
            ("losses.label", self.label),
            ("losses.caption", self.caption.unwrap_or(0.0)),
        ] {
            check(
                weight.is_finite() && weight >= 0.0,
                path,
                weight,
                "a number of at least 0",
                "`losses: {contrastive: 1.0, label: 0.5}`",
            )?;
        }
        let weights = [
            ("losses.bce", self.bce),
            ("losses.cross_entropy", self.cross_entropy),
            ("losses.dice", self.dice),
            ("losses.focal.weight", self.focal.map(|focal| focal.weight)),
            ("losses.tversky.weight", self.tversky.map(|one| one.weight)),
            ("losses.focal.gamma", self.focal.map(|focal| focal.gamma)),
            ("losses.tversky.alpha", self.tversky.map(|one| one.alpha)),
            ("losses.tversky.beta", self.tversky.map(|one| one.beta)),
        ];
        for (path, number) in weights {
            let number = number.unwrap_or(0.0);
            check(
                number.is_finite() && number >= 0.0,
                path,
                number,
                "a number of at least 0",
                "`losses: {bce: 1, dice: 1, tversky: {alpha: 0.3, beta: 0.7}, focal: {gamma: 2}}`",
            )?;
        }
        if let ClassWeights::Each(weights) = &self.class_weights {
            check(
                weights.iter().all(|one| one.is_finite() && *one >= 0.0),
                "losses.class_weights",
                format!("{weights:?}"),
                "numbers of at least 0",
                "`class_weights: [1, 5]`, one per class, the background first",
            )?;
        }
        for (pattern, weight) in &self.caption_weights {
            check(
                weight.is_finite() && *weight >= 0.0,
                &format!("losses.caption_weights.{pattern}"),
                weight,
                "a number of at least 0",
                "`caption_weights: {\"[0-9]+\": 5}` lets numbers count five times",
            )?;
            if let Err(error) = regex::Regex::new(pattern) {
                let cause = error.to_string();
                let cause = cause.lines().last().unwrap_or_default().to_owned();
                check(
                    false,
                    &format!("losses.caption_weights.{pattern}"),
                    cause,
                    "a regular expression",
                    "`caption_weights: {\"[0-9]+\": 5}` lets numbers count five times",
                )?;
            }
        }
        check(
            (0.0..1.0).contains(&self.caption_smoothing),
            "losses.caption_smoothing",
            self.caption_smoothing,
            "at least 0 and less than 1",
            "`caption_smoothing: 0.1` spreads a tenth of each token over the vocabulary",
        )?;
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
            self.contrastive > 0.0 || self.label > 0.0 || self.caption.is_some_and(|one| one > 0.0),
            "losses",
            format!("contrastive {}, label {}", self.contrastive, self.label),
            "contrastive, label or both above 0",
            "`losses: {contrastive: 1.0, label: 0.5}`",
        )
    }
}
