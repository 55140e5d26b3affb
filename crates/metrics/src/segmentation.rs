//! Segmentation metrics: class probabilities of every pixel against a mask of class numbers.
//!
//! ```text
//! overlap     Dice = 2 TP / (2 TP + FP + FN), IoU, sensitivity, specificity, precision, accuracy, MCC      PixelCounts
//! ranking     AUC, one class against the rest, from 65,536 bins of the log odds                            OddsHistogram
//! outline     HD95: the 95th percentile of the distance between outlines, the worse of both directions     hausdorff95
//! topology    clDice: the share of each skeleton that lies in the other mask                               CenterlineCounts
//! threshold   the overlap figures at 0.01, 0.02, ..., 0.99 for one class                                   ThresholdCounts
//! ```
//!
//! [`ImageScorer`] scores one image in reusable buffers; [`PooledScores`] accumulates images in constant memory.
//! Figures *per image* are means over images; *pooled* figures take the pixels of all images together. With several classes, each stands
//! against the rest, and the mean over classes leaves out class 0, the background.
//!
//! A pixel of truth [`IGNORED`] is excluded from every mask and histogram. A class that an image has neither in its truth nor in its
//! prediction is left out of that image (`None`), as in nnU-Net. Where only one of the two masks is empty, Dice, IoU, MCC and clDice are
//! 0, and HD95 is the diagonal of the image. A ratio with denominator 0 (the sensitivity of an empty truth) is `None`.

mod centerline;
mod hausdorff;
mod image_scorer;
mod mask_scores;
mod odds_histogram;
mod pixel_counts;
mod pooled;
mod skeleton;
#[cfg(test)]
mod tests;
mod thresholds;
pub mod tiles;

pub use centerline::CenterlineCounts;
pub use hausdorff::{HausdorffBuffer, hausdorff95};
pub use image_scorer::{ClassScores, Image, ImageScorer, ImageScores, predict_classes};
pub use mask_scores::{METRICS, MaskScores};
pub use odds_histogram::OddsHistogram;
pub use pixel_counts::PixelCounts;
pub use pooled::{PerImageAndPooled, PooledScores};
pub use skeleton::SkeletonBuffer;
pub use thresholds::{CurvePoint, ThresholdCounts, ThresholdCurve, threshold};

/// Truth value of excluded pixels: padding, outside of the field of view, not annotated.
pub const IGNORED: u8 = 255;
