use super::{
    CenterlineCounts, HausdorffBuffer, IGNORED, METRICS, MaskScores, OddsHistogram, PixelCounts,
    SkeletonBuffer, ThresholdCounts, hausdorff95,
};

/// Input of the scorer: the model's output at the size of the truth.
///
/// `h` height, `w` width, `k` outputs: one probability of class 1, or one for each class.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    pub size: [usize; 2],
    /// Class of each pixel, or [`IGNORED`].
    pub truth_hw: &'a [u8],
    /// Values from 0 to 1.
    pub probabilities_hwk: &'a [f32],
}

/// Buffers for scoring one image after another. One per thread.
#[derive(Clone, Debug)]
pub struct ImageScorer {
    num_outputs: usize,
    threshold: f32,
    /// Predicted class of each pixel, or [`IGNORED`].
    predicted: Vec<u8>,
    /// Pixel counts by truth and predicted class.
    confusion: Vec<u64>,
    /// One histogram per class except the background.
    odds: Vec<OddsHistogram>,
    thresholds: ThresholdCounts,
    distances: HausdorffBuffer,
    skeleton: SkeletonBuffer,
}

/// Scores of one image: one entry per class except the background.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageScores {
    /// Class 1 first.
    pub classes: Vec<ClassScores>,
    /// Correctly predicted pixels.
    pub correct: u64,
    /// Pixels that are not ignored.
    pub counted: u64,
}

/// Scores of one class of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassScores {
    pub scores: MaskScores,
    /// The counts behind the overlap figures.
    pub counts: PixelCounts,
    /// The counts behind clDice.
    pub centerline: CenterlineCounts,
}

/// Numbers per class in the serialised scores.
const FIGURES: usize = METRICS.len();
const COUNTS: usize = 8;

impl ImageScores {
    /// Serialises the scores for another process: figures of every class, NaN for `None`; and counts.
    pub fn numbers(&self) -> (Vec<f64>, Vec<u64>) {
        let figures = self.classes.iter().flat_map(|class| class.scores.values());
        let figures = figures.map(|figure| figure.unwrap_or(f64::NAN)).collect();
        let mut counts = vec![self.correct, self.counted];
        for class in &self.classes {
            let (pixels, lines) = (&class.counts, &class.centerline);
            counts.extend([
                pixels.true_positives,
                pixels.false_positives,
                pixels.false_negatives,
                pixels.true_negatives,
                lines.predicted,
                lines.predicted_in_truth,
                lines.truth,
                lines.truth_in_predicted,
            ]);
        }
        (figures, counts)
    }

    /// Parses [`ImageScores::numbers`]; `None` if the lengths do not match.
    pub fn from_numbers(figures: &[f64], counts: &[u64]) -> Option<ImageScores> {
        let (&[correct, counted], counts) = counts.split_first_chunk()?;
        let (figures, []) = figures.as_chunks::<FIGURES>() else {
            return None;
        };
        let (counts, []) = counts.as_chunks::<COUNTS>() else {
            return None;
        };
        if figures.len() != counts.len() {
            return None;
        }
        let classes = figures.iter().zip(counts).map(|(figures, counts)| {
            let [tp, fp, fn_, tn, lines @ ..] = *counts;
            let [predicted, predicted_in_truth, truth, truth_in_predicted] = lines;
            ClassScores {
                scores: MaskScores::from_values(
                    figures.map(|figure| (!figure.is_nan()).then_some(figure)),
                ),
                counts: PixelCounts {
                    true_positives: tp,
                    false_positives: fp,
                    false_negatives: fn_,
                    true_negatives: tn,
                },
                centerline: CenterlineCounts {
                    predicted,
                    predicted_in_truth,
                    truth,
                    truth_in_predicted,
                },
            }
        });
        Some(ImageScores {
            classes: classes.collect(),
            correct,
            counted,
        })
    }

    /// Mean over classes; accuracy is that of all classes together.
    pub fn mean(&self) -> MaskScores {
        let classes = self.classes.iter().map(|class| class.scores);
        MaskScores {
            accuracy: (self.counted > 0).then(|| self.correct as f64 / self.counted as f64),
            ..MaskScores::mean(classes)
        }
    }
}

/// Class of each pixel: with one output, 1 where it reaches the threshold; else the class of the highest probability, the first of equals.
pub fn predict_classes(
    probabilities_hwk: &[f32],
    num_outputs: usize,
    threshold: f32,
) -> impl Iterator<Item = u8> {
    let pixels = probabilities_hwk.chunks_exact(num_outputs);
    pixels.map(move |outputs| match outputs {
        [probability] => u8::from(*probability >= threshold),
        outputs => {
            let classes = 1..outputs.len();
            let best = classes.fold(0, |best, class| {
                if outputs[class] > outputs[best] {
                    class
                } else {
                    best
                }
            });
            best as u8
        }
    })
}

impl ImageScorer {
    /// A scorer for a model with one output and a threshold, or with one output per class.
    pub fn new(num_outputs: usize, threshold: f32) -> ImageScorer {
        let num_classes = num_outputs.max(2);
        ImageScorer {
            num_outputs,
            threshold,
            predicted: Vec::new(),
            confusion: vec![0; num_classes * num_classes],
            odds: vec![OddsHistogram::new(); num_classes - 1],
            thresholds: ThresholdCounts::default(),
            distances: HausdorffBuffer::default(),
            skeleton: SkeletonBuffer::default(),
        }
    }

    /// Memory of one scorer for images up to this size.
    pub fn bytes(num_outputs: usize, [height, width]: [usize; 2]) -> u64 {
        let pixels = height * width;
        let classes = num_outputs.max(2) as u64;
        pixels as u64
            + HausdorffBuffer::bytes(pixels)
            + SkeletonBuffer::bytes([height, width])
            + (classes - 1) * OddsHistogram::BYTES
            + classes * classes * size_of::<u64>() as u64
    }

    /// Histograms of the last image, one per class except the background.
    pub fn odds(&self) -> &[OddsHistogram] {
        &self.odds
    }

    /// Counts of the last image at every threshold; only for models with one output.
    pub fn thresholds(&self) -> Option<&ThresholdCounts> {
        (self.num_outputs == 1).then_some(&self.thresholds)
    }

    ///
    /// # Panics
    /// If truth or probabilities do not match the image size.
    pub fn score(&mut self, image: &Image<'_>) -> ImageScores {
        let Image {
            size,
            truth_hw,
            probabilities_hwk,
        } = *image;
        let pixels = size[0] * size[1];
        assert_eq!(truth_hw.len(), pixels, "a class for each pixel");
        assert_eq!(
            probabilities_hwk.len(),
            pixels * self.num_outputs,
            "probabilities for each pixel"
        );
        self.count(truth_hw, probabilities_hwk);
        let num_classes = self.odds.len() + 1;
        let diagonal = (0..num_classes).map(|class| self.confusion[class * num_classes + class]);
        let (correct, counted) = (diagonal.sum(), self.confusion.iter().sum());
        let classes = (1..num_classes).map(|class| {
            let counts = self.counts(class, counted);
            let truth = |at: usize| usize::from(truth_hw[at]) == class;
            let predicted = &self.predicted;
            let predicted = |at: usize| usize::from(predicted[at]) == class;
            let centerline = CenterlineCounts::of(truth, predicted, size, &mut self.skeleton);
            let scores = MaskScores {
                auc: self.odds[class - 1].auc(),
                hd95: hausdorff95(truth, predicted, size, &mut self.distances),
                cl_dice: centerline.cl_dice(),
                ..counts.scores()
            };
            ClassScores {
                scores,
                counts,
                centerline,
            }
        });
        ImageScores {
            classes: classes.collect(),
            correct,
            counted,
        }
    }

    /// Fills confusion, histograms and predicted classes.
    fn count(&mut self, truth: &[u8], probabilities: &[f32]) {
        let num_classes = self.odds.len() + 1;
        self.confusion.fill(0);
        self.odds.iter_mut().for_each(OddsHistogram::clear);
        self.thresholds = ThresholdCounts::default();
        self.predicted.clear();
        let predicted = predict_classes(probabilities, self.num_outputs, self.threshold);
        self.predicted.extend(predicted);
        let outputs = probabilities.chunks_exact(self.num_outputs);
        for ((&truth, predicted), outputs) in truth.iter().zip(&mut self.predicted).zip(outputs) {
            let class = usize::from(truth);
            if class >= num_classes {
                *predicted = IGNORED;
                continue;
            }
            self.confusion[class * num_classes + usize::from(*predicted)] += 1;
            if let [probability] = outputs {
                self.odds[0].add(*probability, class == 1);
                self.thresholds.add(*probability, class == 1);
            } else {
                for (of, probability) in (1..num_classes).zip(&outputs[1..]) {
                    self.odds[of - 1].add(*probability, class == of);
                }
            }
        }
    }

    fn counts(&self, class: usize, counted: u64) -> PixelCounts {
        let num_classes = self.odds.len() + 1;
        let row = &self.confusion[class * num_classes..(class + 1) * num_classes];
        let true_positives = row[class];
        let truth: u64 = row.iter().sum();
        let column = self.confusion.iter().skip(class).step_by(num_classes);
        let predicted: u64 = column.sum();
        PixelCounts {
            true_positives,
            false_positives: predicted - true_positives,
            false_negatives: truth - true_positives,
            true_negatives: counted + true_positives - truth - predicted,
        }
    }
}
