//! Many images: means over them, and their pixels together.

use serde::Serialize;

use super::mask_scores::ScoreSums;
use super::{
    CenterlineCounts, ImageScorer, ImageScores, MaskScores, OddsHistogram, PixelCounts,
    ThresholdCounts, ThresholdCurve,
};

/// Images so far. Memory depends on the number of classes only.
#[derive(Clone, Debug)]
pub struct PooledScores {
    classes: Vec<ClassTotals>,
    curve: Option<ThresholdCurve>,
    /// Accuracy of all classes together: its sum over images, and how many have one.
    accuracies: (f64, u64),
    correct: u64,
    counted: u64,
    images: u64,
}

/// One class but the background.
#[derive(Clone, Debug, Default)]
struct ClassTotals {
    per_image: ScoreSums,
    counts: PixelCounts,
    centerline: CenterlineCounts,
    odds: OddsHistogram,
}

/// Both ways to look at many images.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerImageAndPooled {
    /// Means over images, of those that have the figure.
    pub per_image: MaskScores,
    /// Of the pixels of all images together; HD95 has no such figure.
    pub pooled: MaskScores,
}

impl PooledScores {
    /// None yet.
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

    /// What it takes.
    pub fn bytes(num_outputs: usize) -> u64 {
        (num_outputs.max(2) - 1) as u64 * OddsHistogram::BYTES
    }

    /// One more image, which `scorer` scored last. In the order of images: means are sums of floating-point numbers.
    pub fn add(&mut self, scorer: &ImageScorer, image: &ImageScores) {
        for (totals, odds) in self.classes.iter_mut().zip(scorer.odds()) {
            totals.odds.merge(odds);
        }
        self.add_without_odds(image, scorer.thresholds());
    }

    /// One more image that another process scored; the odds of its pixels come with those of all its images.
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

    /// Pixels of each class and others by the class's odds, over all images, for another process.
    pub fn odds(&self) -> Vec<u64> {
        let classes = self.classes.iter();
        classes.flat_map(|class| class.odds.numbers()).collect()
    }

    /// Adds those of another process; whether they are as many.
    pub fn add_odds(&mut self, numbers: &[u64]) -> bool {
        let each = numbers.len() / self.classes.len();
        let mut parts = self.classes.iter_mut().zip(numbers.chunks(each.max(1)));
        parts.all(|(class, numbers)| class.odds.add_numbers(numbers))
    }

    /// Images so far.
    pub fn images(&self) -> u64 {
        self.images
    }

    /// Pixels that count, of all images.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Scores at every threshold; of a model with one output.
    pub fn curve(&self) -> Option<&ThresholdCurve> {
        self.curve.as_ref()
    }

    /// Of each class but the background.
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

    /// The mean over classes; accuracy is that of all classes together.
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
