//! Scores of one class at every threshold from 0.01 to 0.99, and the best threshold.
//!
//! A pixel is of the class where `probability >= threshold`. Counts are exact: each pixel is counted at the highest threshold that it
//! reaches, and the counts at a threshold are sums over all higher ones.

use serde::Serialize;

use super::PixelCounts;

const NUM_THRESHOLDS: usize = 99;

/// Threshold `index` / 100, for 1 to 99.
pub fn threshold(index: usize) -> f32 {
    index as f32 / (NUM_THRESHOLDS + 1) as f32
}

/// Pixel counts by the highest threshold that their probability reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdCounts {
    /// `[pixels of the class, other pixels]`; the first entry reaches no threshold.
    counts: [[u64; 2]; NUM_THRESHOLDS + 1],
}

impl Default for ThresholdCounts {
    fn default() -> ThresholdCounts {
        ThresholdCounts {
            counts: [[0; 2]; NUM_THRESHOLDS + 1],
        }
    }
}

impl ThresholdCounts {
    /// Adds a pixel.
    pub fn add(&mut self, probability: f32, is_of_class: bool) {
        // A cast saturates, and maps NaN to zero.
        let near = ((probability * (NUM_THRESHOLDS + 1) as f32) as usize).min(NUM_THRESHOLDS);
        // The product may round across a threshold.
        let index = if near < NUM_THRESHOLDS && probability >= threshold(near + 1) {
            near + 1
        } else if near > 0 && probability < threshold(near) {
            near - 1
        } else {
            near
        };
        self.counts[index][usize::from(!is_of_class)] += 1;
    }

    /// Serialised counts, for another process.
    pub fn numbers(&self) -> &[u64] {
        self.counts.as_flattened()
    }

    /// Parses serialised counts; `None` if the length does not match.
    pub fn from_numbers(numbers: &[u64]) -> Option<ThresholdCounts> {
        let mut read = ThresholdCounts::default();
        let to = read.counts.as_flattened_mut();
        if to.len() != numbers.len() {
            return None;
        }
        to.copy_from_slice(numbers);
        Some(read)
    }

    /// Adds another image's counts.
    pub fn merge(&mut self, other: &ThresholdCounts) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            to[0] += from[0];
            to[1] += from[1];
        }
    }

    /// Confusion counts at each threshold, the lowest first.
    pub fn at_thresholds(&self) -> impl Iterator<Item = PixelCounts> {
        let (of_class, others) = self.counts.iter().fold((0, 0), |sums, counts| {
            (sums.0 + counts[0], sums.1 + counts[1])
        });
        let mut below = [0, 0];
        self.counts[..NUM_THRESHOLDS].iter().map(move |counts| {
            below[0] += counts[0];
            below[1] += counts[1];
            PixelCounts {
                true_positives: of_class - below[0],
                false_positives: others - below[1],
                false_negatives: below[0],
                true_negatives: below[1],
            }
        })
    }
}

/// Scores at every threshold, over any number of images.
#[derive(Clone, Debug, Default)]
pub struct ThresholdCurve {
    pooled: ThresholdCounts,
    /// Sum of the images' Dice at each threshold, and number of images that have one.
    dice: Vec<(f64, u64)>,
}

/// One threshold of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// From 0.01 to 0.99.
    pub threshold: f32,
    /// Mean over images.
    pub dice: Option<f64>,
    /// Over the pixels of all images.
    pub pooled_dice: Option<f64>,
    pub pooled_sensitivity: Option<f64>,
    pub pooled_specificity: Option<f64>,
    pub pooled_precision: Option<f64>,
}

impl ThresholdCurve {
    /// Adds an image.
    pub fn add(&mut self, image: &ThresholdCounts) {
        self.pooled.merge(image);
        self.dice.resize(NUM_THRESHOLDS, (0.0, 0));
        for (sum, counts) in self.dice.iter_mut().zip(image.at_thresholds()) {
            if let Some(dice) = counts.scores().dice {
                sum.0 += dice;
                sum.1 += 1;
            }
        }
    }

    /// All points, the lowest threshold first.
    pub fn points(&self) -> Vec<CurvePoint> {
        let pooled = self.pooled.at_thresholds().enumerate();
        pooled
            .map(|(index, counts)| {
                let scores = counts.scores();
                let mean = self.dice.get(index).filter(|(_, images)| *images > 0);
                CurvePoint {
                    threshold: threshold(index + 1),
                    dice: mean.map(|(sum, images)| sum / *images as f64),
                    pooled_dice: scores.dice,
                    pooled_sensitivity: scores.sensitivity,
                    pooled_specificity: scores.specificity,
                    pooled_precision: scores.precision,
                }
            })
            .collect()
    }

    /// The point with the highest mean Dice over images; of equals the one nearest to 0.5, then the lower one. `None` if no image
    /// has a Dice.
    pub fn best(&self) -> Option<CurvePoint> {
        let points = self
            .points()
            .into_iter()
            .filter(|point| point.dice.is_some());
        let from_half = |point: &CurvePoint| (point.threshold - 0.5).abs();
        points.reduce(|best, point| {
            let order = point.dice.partial_cmp(&best.dice);
            let is_nearer = from_half(&point) < from_half(&best);
            match order {
                Some(std::cmp::Ordering::Greater) => point,
                Some(std::cmp::Ordering::Equal) if is_nearer => point,
                _ => best,
            }
        })
    }
}
