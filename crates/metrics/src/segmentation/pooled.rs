//! Accumulates scores over images: means per image, and pooled pixels.

use serde::Serialize;

use super::mask_scores::ScoreSums;
use super::{
    CenterlineCounts, ImageScorer, ImageScores, MaskScores, OddsHistogram, PixelCounts,
    ThresholdCounts, ThresholdCurve,
};

/// Running totals over images. Memory depends on the number of classes only.
#[derive(Clone, Debug)]
pub struct PooledScores {
    classes: Vec<ClassTotals>,
    curve: Option<ThresholdCurve>,
    /// Overall accuracy: sum over images, and number of images that have one.
    accuracies: (f64, u64),
    correct: u64,
    counted: u64,
    images: u64,
}

/// Totals of one class; the background has none.
#[derive(Clone, Debug, Default)]
struct ClassTotals {
    per_image: ScoreSums,
    counts: PixelCounts,
    centerline: CenterlineCounts,
    odds: OddsHistogram,
}

/// Scores of many images, averaged in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerImageAndPooled {
    /// Means over the images that have the figure.
    pub per_image: MaskScores,
    /// Figures of the pixels of all images together; HD95 has none.
    pub pooled: MaskScores,
}

impl PooledScores {
    /// Empty totals.
    pub fn new(num_outputs: usize) -> PooledScores {
        PooledScores {
            classes: vec![ClassTotals::default(); num_outputs.max(2) - 1],
            curve: (num_outputs == 1).then(ThresholdCurve::default),
            accuracies: (0.0, 0),
            correct: 0,
            counted: 0,
            images: 0,
        }
    }

    /// Memory of the totals.
    pub fn bytes(num_outputs: usize) -> u64 {
        (num_outputs.max(2) - 1) as u64 * OddsHistogram::BYTES
    }

    /// Adds an image, the last one that `scorer` scored. Images must come in a fixed order, because means are sums of floating-point
    /// numbers.
    pub fn add(&mut self, scorer: &ImageScorer, image: &ImageScores) {
        for (totals, odds) in self.classes.iter_mut().zip(scorer.odds()) {
            totals.odds.merge(odds);
        }
        self.add_without_odds(image, scorer.thresholds());
    }

    /// Adds an image scored by another process, whose [`odds`](Self::odds) arrive once for all its images.
    pub fn add_without_odds(&mut self, image: &ImageScores, thresholds: Option<&ThresholdCounts>) {
        for (totals, class) in self.classes.iter_mut().zip(&image.classes) {
            totals.per_image.add(&class.scores);
            totals.counts += class.counts;
            totals.centerline += class.centerline;
        }
        if let (Some(curve), Some(thresholds)) = (&mut self.curve, thresholds) {
            curve.add(thresholds);
        }
        if let Some(accuracy) = image.mean().accuracy {
            self.accuracies.0 += accuracy;
            self.accuracies.1 += 1;
        }
        self.correct += image.correct;
        self.counted += image.counted;
        self.images += 1;
    }

    /// Serialised histograms of all classes, for another process.
    pub fn odds(&self) -> Vec<u64> {
        let classes = self.classes.iter();
        classes.flat_map(|class| class.odds.numbers()).collect()
    }

    /// Adds another process's histograms; returns whether their lengths match.
    pub fn add_odds(&mut self, numbers: &[u64]) -> bool {
        let each = numbers.len() / self.classes.len();
        let mut parts = self.classes.iter_mut().zip(numbers.chunks(each.max(1)));
        parts.all(|(class, numbers)| class.odds.add_numbers(numbers))
    }

    /// Number of images so far.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// Number of pixels that are not ignored, over all images.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Scores at every threshold; only for models with one output.
    pub fn curve(&self) -> Option<&ThresholdCurve> {
        self.curve.as_ref()
    }

    /// Scores per class except the background.
    pub fn classes(&self) -> Vec<PerImageAndPooled> {
        let classes = self.classes.iter();
        classes
            .map(|class| PerImageAndPooled {
                per_image: class.per_image.mean(),
                pooled: MaskScores {
                    auc: class.odds.auc(),
                    cl_dice: class.centerline.cl_dice(),
                    ..class.counts.scores()
                },
            })
            .collect()
    }

    /// Mean over classes; accuracy is that of all classes together.
    pub fn mean(&self) -> PerImageAndPooled {
        let classes = self.classes();
        let (sum, images) = self.accuracies;
        PerImageAndPooled {
            per_image: MaskScores {
                accuracy: (images > 0).then(|| sum / images as f64),
                ..MaskScores::mean(classes.iter().map(|class| class.per_image))
            },
            pooled: MaskScores {
                accuracy: (self.counted > 0).then(|| self.correct as f64 / self.counted as f64),
                ..MaskScores::mean(classes.iter().map(|class| class.pooled))
            },
        }
    }
}
