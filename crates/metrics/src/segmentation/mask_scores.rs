//! Scores of one mask, or means of them.

use serde::{Deserialize, Serialize};

/// Scores of one class. `None` where a figure is undefined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MaskScores {
    /// `2 TP / (2 TP + FP + FN)`, which is F1.
    pub dice: Option<f64>,
    /// `TP / (TP + FP + FN)`.
    pub iou: Option<f64>,
    /// `TP / (TP + FN)`, recall.
    pub sensitivity: Option<f64>,
    /// `TN / (TN + FP)`.
    pub specificity: Option<f64>,
    /// `TP / (TP + FP)`.
    pub precision: Option<f64>,
    /// `(TP + TN) / all`.
    pub accuracy: Option<f64>,
    /// Matthews' correlation of truth and prediction, from -1 to 1; 0 where one of the two is constant.
    pub mcc: Option<f64>,
    /// Area under the ROC curve.
    pub auc: Option<f64>,
    /// 95th percentile of the distance between outlines, in pixels; for single images only.
    pub hd95: Option<f64>,
    /// clDice: Dice of the centre lines.
    #[serde(rename = "cldice")]
    pub cl_dice: Option<f64>,
}

/// Names of the figures, in the order of [`MaskScores::values`].
pub const METRICS: [&str; 10] = [
    "dice",
    "iou",
    "sensitivity",
    "specificity",
    "precision",
    "accuracy",
    "mcc",
    "auc",
    "hd95",
    "cldice",
];

impl MaskScores {
    /// All figures, in the order of [`METRICS`].
    pub fn values(&self) -> [Option<f64>; METRICS.len()] {
        [
            self.dice,
            self.iou,
            self.sensitivity,
            self.specificity,
            self.precision,
            self.accuracy,
            self.mcc,
            self.auc,
            self.hd95,
            self.cl_dice,
        ]
    }

    pub(super) fn from_values(values: [Option<f64>; METRICS.len()]) -> MaskScores {
        let [
            dice,
            iou,
            sensitivity,
            specificity,
            precision,
            accuracy,
            mcc,
            auc,
            hd95,
            cl_dice,
        ] = values;
        MaskScores {
            dice,
            iou,
            sensitivity,
            specificity,
            precision,
            accuracy,
            mcc,
            auc,
            hd95,
            cl_dice,
        }
    }

    /// Mean of each figure over the entries that have it.
    pub fn mean(all: impl IntoIterator<Item = MaskScores>) -> MaskScores {
        let mut sums = ScoreSums::default();
        all.into_iter().for_each(|scores| sums.add(&scores));
        sums.mean()
    }
}

/// Running sums over images, in constant memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScoreSums([(f64, u64); METRICS.len()]);

impl ScoreSums {
    pub(super) fn add(&mut self, scores: &MaskScores) {
        for ((sum, count), value) in self.0.iter_mut().zip(scores.values()) {
            if let Some(value) = value {
                *sum += value;
                *count += 1;
            }
        }
    }

    pub(super) fn mean(&self) -> MaskScores {
        let mean = |(sum, count): (f64, u64)| (count > 0).then(|| sum / count as f64);
        MaskScores::from_values(self.0.map(mean))
    }
}
