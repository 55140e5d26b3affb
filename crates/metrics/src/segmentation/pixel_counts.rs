//! Pixel counts of one class against the rest, and their ratios.

use serde::Serialize;

use super::MaskScores;

/// Confusion counts of one class against the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PixelCounts {
    pub true_positives: u64,
    pub false_positives: u64,
    pub false_negatives: u64,
    pub true_negatives: u64,
}

impl PixelCounts {
    /// Whether neither the truth nor the prediction has the class.
    pub fn is_absent(&self) -> bool {
        self.true_positives + self.false_positives + self.false_negatives == 0
    }

    /// The ratio figures; AUC, HD95 and clDice need more than counts.
    pub fn scores(&self) -> MaskScores {
        let (tp, fp) = (self.true_positives as f64, self.false_positives as f64);
        let (fn_, tn) = (self.false_negatives as f64, self.true_negatives as f64);
        let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
        let product = (tp + fp) * (tp + fn_) * (tn + fp) * (tn + fn_);
        let mcc = if product > 0.0 {
            (tp * tn - fp * fn_) / product.sqrt()
        } else {
            0.0
        };
        MaskScores {
            dice: ratio(2.0 * tp, 2.0 * tp + fp + fn_),
            iou: ratio(tp, tp + fp + fn_),
            sensitivity: ratio(tp, tp + fn_),
            specificity: ratio(tn, tn + fp),
            precision: ratio(tp, tp + fp),
            accuracy: ratio(tp + tn, tp + fp + fn_ + tn),
            mcc: (!self.is_absent()).then_some(mcc),
            ..MaskScores::default()
        }
    }
}

impl std::ops::AddAssign for PixelCounts {
    fn add_assign(&mut self, other: PixelCounts) {
        self.true_positives += other.true_positives;
        self.false_positives += other.false_positives;
        self.false_negatives += other.false_negatives;
        self.true_negatives += other.true_negatives;
    }
}
