//! Losses of a segmentation, and their counts.
//!
//! ```text
//! bce, cross_entropy, focal   separable: sums over pixels; count = total weight of the pixels of the effective batch
//! dice, tversky               over the batch: coupled through sums (TP, P, G per class); count = 1
//!                             over each image: separable; count = pictures
//! ```
//!
//! With deep supervision every head has all of them, with weights 1, 1/2, 1/4, ... divided by their sum.

use holdall_graph::ops::overlap::{OverlapLoss, Reduction};

use super::SegmentTask;
use crate::config::{ClassWeights, DiceOver, Focal, Losses, Tversky};
use crate::engine::task::{Chance, Loss};
use crate::error::TrainError;

/// Dice is `(2 TP + 1) / (P + G + 1)`; the Tversky form adds half of that 1 to the true positives.
const SMOOTH: f64 = 0.5;

/// One loss of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct LossTerm {
    /// Key in `metrics.jsonl`.
    pub name: &'static str,
    /// Weight in the sum of all losses.
    pub weight: f64,
    pub kind: TermKind,
}

/// Kind of loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TermKind {
    /// Cross-entropy per pixel, optionally focal.
    Pixels {
        /// Exponent of the focal factor; `None` for plain cross-entropy.
        focal: Option<f64>,
    },
    /// One minus the Tversky index, which is Dice for `alpha` and `beta` 0.5.
    Overlap {
        /// Weight of false-positive pixels.
        alpha: f64,
        /// Weight of false-negative pixels.
        beta: f64,
        /// Pixels that the sums run over.
        over: DiceOver,
    },
}

impl LossTerm {
    /// The default losses: binary or categorical cross-entropy, and Dice over the batch.
    pub fn usual(num_outputs: usize) -> Vec<LossTerm> {
        LossTerm::usual_over(num_outputs, DiceOver::Batch)
    }

    /// Like [`LossTerm::usual`], with Dice over the batch or over each picture.
    fn usual_over(num_outputs: usize, dice_over: DiceOver) -> Vec<LossTerm> {
        let entropy = Losses {
            bce: Some(1.0),
            dice_over,
            ..Losses::default()
        };
        let losses = match num_outputs {
            1 => entropy,
            _ => Losses {
                cross_entropy: entropy.bce,
                bce: None,
                ..entropy
            },
        };
        terms(&Losses {
            dice: Some(1.0),
            ..losses
        })
    }

    /// The losses of a config, checked against the number of classes.
    pub fn of_config(losses: &Losses, num_outputs: usize) -> Result<Vec<LossTerm>, TrainError> {
        let wrong = |key: &str, classes: &str, right: &str| {
            Err(TrainError::Config(format!(
                "losses.{key}: expected {classes}, found {num_outputs}\nhint: `losses: {{{right}: 1, dice: 1}}`"
            )))
        };
        match num_outputs {
            1 if losses.cross_entropy.is_some() => {
                return wrong("cross_entropy", "several classes", "bce");
            }
            2.. if losses.bce.is_some() => return wrong("bce", "one class", "cross_entropy"),
            _ => {}
        }
        let terms = terms(losses);
        if terms.is_empty() {
            return Ok(LossTerm::usual_over(num_outputs, losses.dice_over));
        }
        if terms.iter().all(|term| term.weight == 0.0) {
            return Err(TrainError::Config(
                "losses: every weight is 0, expected one above 0\nhint: `losses: {dice: 1}`"
                    .to_owned(),
            ));
        }
        Ok(terms)
    }

    /// Whether the loss needs sums over the whole effective batch.
    pub(super) fn is_coupled(&self) -> bool {
        matches!(
            self.kind,
            TermKind::Overlap {
                over: DiceOver::Batch,
                ..
            }
        )
    }
}

/// Named losses in the order of the sums. Losses of weight 0 are included: their values are logged.
fn terms(losses: &Losses) -> Vec<LossTerm> {
    let entropy = |name, weight: Option<f64>| {
        let kind = TermKind::Pixels { focal: None };
        weight.map(|weight| LossTerm { name, weight, kind })
    };
    let over = losses.dice_over;
    let dice = losses.dice.map(|weight| LossTerm {
        name: "dice",
        weight,
        kind: TermKind::Overlap {
            alpha: 0.5,
            beta: 0.5,
            over,
        },
    });
    let focal = losses.focal.map(|Focal { weight, gamma }| LossTerm {
        name: "focal",
        weight,
        kind: TermKind::Pixels { focal: Some(gamma) },
    });
    let tversky = |Tversky {
                       weight,
                       alpha,
                       beta,
                   }| LossTerm {
        name: "tversky",
        weight,
        kind: TermKind::Overlap { alpha, beta, over },
    };
    let all = [
        entropy("bce", losses.bce),
        entropy("cross_entropy", losses.cross_entropy),
        focal,
        dice,
        losses.tversky.map(tversky),
    ];
    all.into_iter().flatten().collect()
}

/// Weight of a pixel of each class.
pub(super) fn class_weights(losses: &Losses, values: usize) -> Result<Vec<f32>, TrainError> {
    let wrong = |found: String, hint: &str| {
        Err(TrainError::Config(format!(
            "losses.class_weights: {found}, expected {values} numbers, one for each value of a mask\nhint: {hint}"
        )))
    };
    let hint = "`class_weights: [1, 5]`; the background is first";
    match &losses.class_weights {
        ClassWeights::None => Ok(vec![1.0; values]),
        ClassWeights::Balanced => wrong(
            "balanced".to_owned(),
            "`holdall data check` counts the pixels of each class; Dice needs no weights",
        ),
        ClassWeights::Each(numbers) if numbers.len() != values => {
            wrong(format!("{} numbers", numbers.len()), hint)
        }
        ClassWeights::Each(numbers) => Ok(numbers.iter().map(|&number| number as f32).collect()),
    }
}

impl SegmentTask {
    /// Losses of every head, in the order of the sums: [`SegmentTask::place_of`].
    pub(super) fn all_losses(&self) -> Vec<Loss> {
        let mut losses = Vec::new();
        for (level, share) in self.model.head_weights().into_iter().enumerate() {
            for term in &self.terms {
                let name = match level {
                    0 => term.name.to_owned(),
                    // The suffix is the head's downscaling: half the size, a quarter, ...
                    _ => format!("{}_{}", term.name, 1 << level),
                };
                let chance = match term.kind {
                    TermKind::Pixels { focal: None } => Chance::Log(self.model.num_mask_values()),
                    _ => Chance::Unknown,
                };
                let weight = term.weight * share;
                losses.push(Loss {
                    name,
                    weight,
                    chance,
                });
            }
        }
        losses
    }

    /// Number of a head's loss among all losses.
    pub(super) fn place_of(&self, level: usize, term: usize) -> usize {
        level * self.terms.len() + term
    }

    /// The operation of an overlap loss. With several classes it leaves out the background.
    pub(super) fn overlap_loss(&self, alpha: f64, beta: f64, over: DiceOver) -> OverlapLoss {
        OverlapLoss {
            reduction: match over {
                DiceOver::Batch => Reduction::Batch,
                DiceOver::Image => Reduction::PerSample,
            },
            alpha,
            beta,
            smooth: SMOOTH,
            first_class: usize::from(self.model.num_outputs() > 1),
        }
    }
}
