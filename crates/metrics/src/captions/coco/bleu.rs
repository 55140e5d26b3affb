//! `BLEU-n = exp(min(0, 1 - r / c)) * (p1 * ... * pn)^(1/n)`: `pk` is the share of the candidate's k-grams that occur in a reference, each
//! counted at most as often as in the reference that has it most; `c` is the candidate's length in words, `r` that of the reference closest
//! in length, ties to the shorter.
//!
//! Counts are summed over all captions before any division. The original adds 1e-15 above and 1e-9 below each fraction line, so that
//! nothing is divided by zero; the same constants here reproduce its values to the last digits.

use super::Sample;
use super::ngrams::{LONGEST, NgramCounts};

const TINY: f64 = 1e-15;
const SMALL: f64 = 1e-9;

/// Counts behind BLEU; the counts of several captions add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuCounts {
    matches: [u64; LONGEST],
    totals: [u64; LONGEST],
    candidate_words: u64,
    reference_words: u64,
}

impl BleuCounts {
    /// Counts of one candidate.
    pub fn of(sample: &Sample) -> BleuCounts {
        let candidate = NgramCounts::of(&sample.candidate);
        let references: Vec<NgramCounts> = (sample.references.iter())
            .map(|words| NgramCounts::of(words))
            .collect();
        let num_words = sample.candidate.len();
        let closest = (sample.references.iter().map(|reference| reference.len()))
            .min_by_key(|&length| (length.abs_diff(num_words), length));
        let mut counts = BleuCounts {
            candidate_words: num_words as u64,
            reference_words: closest.unwrap_or(0) as u64,
            ..BleuCounts::default()
        };
        for length in 1..=LONGEST {
            counts.totals[length - 1] = (num_words + 1).saturating_sub(length) as u64;
            for (ngram, count) in &candidate.by_length[length - 1] {
                let most = (references.iter()).map(|reference| reference.count(length, ngram));
                counts.matches[length - 1] += u64::from(most.max().unwrap_or(0).min(*count));
            }
        }
        counts
    }

    pub fn add(&mut self, other: &BleuCounts) {
        for k in 0..LONGEST {
            self.matches[k] += other.matches[k];
            self.totals[k] += other.totals[k];
        }
        self.candidate_words += other.candidate_words;
        self.reference_words += other.reference_words;
    }

    /// BLEU-1 to BLEU-4.
    pub fn bleu(&self) -> [f64; LONGEST] {
        let ratio = (self.candidate_words as f64 + TINY) / (self.reference_words as f64 + SMALL);
        let brevity = if ratio < 1.0 {
            (1.0 - 1.0 / ratio).exp()
        } else {
            1.0
        };
        let mut product = 1.0;
        std::array::from_fn(|k| {
            product *= (self.matches[k] as f64 + TINY) / (self.totals[k] as f64 + SMALL);
            product.powf(1.0 / (k + 1) as f64) * brevity
        })
    }
}
