//! AUC of the pixels of one class against the rest, in 65,536 bins.
//!
//! ```text
//! AUC = P(probability of a pixel of the class > probability of another pixel), ties half
//! ```
//!
//! Bins have equal width in the log odds `ln(p / (1 - p))`, from those of the smallest f32 to those of the largest one below 1. With bins
//! of equal probability, a confident network would put most pixels into the first and the last bin. Pixels within one bin are ties.

use crate::classification::ranking;

const NUM_BINS: usize = 1 << 16;
/// `ln(2^-149)` is -103.3.
const LOWEST_ODDS: f32 = -104.0;
/// `ln(2^24)` is 16.6; 1 itself lies in the last bin.
const HIGHEST_ODDS: f32 = 17.0;

/// Histogram of the class's probability, for pixels of the class and other pixels.
#[derive(Clone, Debug)]
pub struct OddsHistogram {
    /// `[pixels of the class, other pixels]` per bin.
    counts: Vec<[u64; 2]>,
}

impl OddsHistogram {
    /// Memory of one histogram.
    pub const BYTES: u64 = (NUM_BINS * size_of::<[u64; 2]>()) as u64;

    /// An empty histogram.
    pub fn new() -> OddsHistogram {
        OddsHistogram {
            counts: vec![[0; 2]; NUM_BINS],
        }
    }

    /// Adds a pixel.
    pub fn add(&mut self, probability: f32, is_of_class: bool) {
        let odds = (probability / (1.0 - probability)).ln();
        let share = (odds - LOWEST_ODDS) / (HIGHEST_ODDS - LOWEST_ODDS);
        // A cast saturates: values out of range go to the first or the last bin.
        let bin = ((share * NUM_BINS as f32) as usize).min(NUM_BINS - 1);
        self.counts[bin][usize::from(!is_of_class)] += 1;
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &OddsHistogram) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            to[0] += from[0];
            to[1] += from[1];
        }
    }

    /// Serialised counts, bin by bin.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.counts.iter().flatten().copied()
    }

    /// Adds serialised counts; returns whether the number of bins matches.
    pub(super) fn add_numbers(&mut self, numbers: &[u64]) -> bool {
        let to = self.counts.as_flattened_mut();
        let is_alike = to.len() == numbers.len();
        if is_alike {
            to.iter_mut()
                .zip(numbers)
                .for_each(|(to, more)| *to += more);
        }
        is_alike
    }

    /// Removes all pixels.
    pub fn clear(&mut self) {
        self.counts.fill([0; 2]);
    }

    /// AUC; `None` if either side has no pixels.
    pub fn auc(&self) -> Option<f64> {
        ranking(self.counts.iter().rev().copied()).auroc
    }
}

impl Default for OddsHistogram {
    fn default() -> OddsHistogram {
        OddsHistogram::new()
    }
}
