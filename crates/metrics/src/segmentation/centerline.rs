//! clDice compares the branches of two masks, whatever their width (Shit et al., 2021).
//!
//! ```text
//! topology precision     share of the prediction's skeleton that lies in the truth
//! topology sensitivity   share of the truth's skeleton that lies in the prediction
//! clDice                 their harmonic mean
//! ```

use super::SkeletonBuffer;

/// Pixel counts of two skeletons. The counts of several images add up to pooled ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CenterlineCounts {
    pub predicted: u64,
    /// Pixels of the prediction's skeleton that lie in the truth.
    pub predicted_in_truth: u64,
    pub truth: u64,
    /// Pixels of the truth's skeleton that lie in the prediction.
    pub truth_in_predicted: u64,
}

impl CenterlineCounts {
    /// Counts of two masks of one size.
    pub fn of(
        truth: impl Fn(usize) -> bool,
        predicted: impl Fn(usize) -> bool,
        size: [usize; 2],
        buffer: &mut SkeletonBuffer,
    ) -> CenterlineCounts {
        let mut counts = CenterlineCounts::default();
        buffer.thin(&predicted, size);
        for at in buffer.places() {
            counts.predicted += 1;
            counts.predicted_in_truth += u64::from(truth(at));
        }
        buffer.thin(&truth, size);
        for at in buffer.places() {
            counts.truth += 1;
            counts.truth_in_predicted += u64::from(predicted(at));
        }
        counts
    }

    /// clDice; `None` if both skeletons are empty, 0 if one is.
    pub fn cl_dice(&self) -> Option<f64> {
        if self.predicted + self.truth == 0 {
            return None;
        }
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let precision = share(self.predicted_in_truth, self.predicted);
        let sensitivity = share(self.truth_in_predicted, self.truth);
        Some(match precision + sensitivity {
            0.0 => 0.0,
            sum => 2.0 * precision * sensitivity / sum,
        })
    }
}

impl std::ops::AddAssign for CenterlineCounts {
    fn add_assign(&mut self, other: CenterlineCounts) {
        self.predicted += other.predicted;
        self.predicted_in_truth += other.predicted_in_truth;
        self.truth += other.truth;
        self.truth_in_predicted += other.truth_in_predicted;
    }
}
