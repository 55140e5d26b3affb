//! Which losses a segmentation has, and what each counts.
//!
//! ```text
//! bce, cross_entropy, focal   separable: sums over pixels; count = weights of the pixels of the effective batch
//! dice, tversky               over the batch: coupled through sums (TP, P, G per class); count = 1
//!                             over each image: separable; count = pictures
//! ```
//!
//! With deep supervision every head has all of them, weighted by 1, 1/2, 1/4, ... over their sum.

use holdall_graph::ops::overlap::{OverlapLoss, Reduction};

use super::SegmentTask;
use crate::config::{ClassWeights, DiceOver, Focal, Losses, Tversky};
use crate::engine::task::{Chance, Loss};
use crate::error::TrainError;

/// Dice is `(2 TP + 1) / (P + G + 1)`: half of that is added to true positives.
const SMOOTH: f64 = 0.5;

/// One loss of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct LossTerm {
    /// As `metrics.jsonl` has it.
    pub name: &'static str,
    /// What it counts in the sum of all.
    pub weight: f64,
    /// What it is.
    pub kind: TermKind,
}

/// What a loss is computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TermKind {
    /// Cross-entropy of pixels, with an exponent of the focal factor.
    Pixels {
        /// `None`: every pixel counts by its class alone.
        focal: Option<f64>,
    },
    /// One minus Tversky's index; Dice with 0.5 and 0.5.
    Overlap {
        /// What an invented pixel costs.
        alpha: f64,
        /// What a missed pixel costs.
        beta: f64,
        /// What sums run over.
        over: DiceOver,
    },
}

impl LossTerm {
    /// Binary or categorical cross-entropy, and Dice over the batch: the default.
    pub fn usual(num_outputs: usize) -> Vec<LossTerm> {
        LossTerm::usual_over(num_outputs, DiceOver::Batch)
    }

    /// The same, with Dice over the batch or over each picture.
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

    /// What a config asks for.
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

    /// Whether it needs what the whole effective batch left.
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

/// In the order of the sums. What has a weight of zero is told all the same.
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

/// What a pixel of each class counts.
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
                    // At half the size, at a quarter of it.
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

    /// Where a head's loss is among all.
    pub(super) fn place_of(&self, level: usize, term: usize) -> usize {
        level * self.terms.len() + term
    }

    /// The operation of an overlap loss. With several classes the background has no part in it.
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
