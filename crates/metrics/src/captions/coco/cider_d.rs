//! ```text
//! CIDEr-D = 10 * mean over n = 1..4, mean over references of
//!           sum over n-grams of min(c, r) r / (|c| |r|) * exp(-(length of c - length of r)^2 / (2 * 6^2))
//! ```
//! `c` and `r` are n-gram counts of candidate and reference, each times `ln(samples) - ln(samples with that n-gram in a reference)`. An
//! n-gram in every sample weighs nothing; with one sample all n-grams do, and every score is 0. Lengths are counted in word pairs, as in
//! the original.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use super::ngrams::{LONGEST, Ngram, NgramCounts};
use super::{Sample, WordIds};

const SIGMA: f64 = 6.0;

/// CIDEr-D of each sample, with document frequencies over all samples.
pub fn cider_d(samples: &[Sample]) -> Vec<f64> {
    let documents = document_frequencies(samples);
    let all = (samples.len() as f64).ln();
    let vector = |words: &WordIds| Vector::of(words, &documents, all);
    let score = |sample: &Sample| {
        let candidate = vector(&sample.candidate);
        let mut by_length = [0.0; LONGEST];
        for reference in &sample.references {
            let similarities = candidate.similarities(&vector(reference));
            for (sum, similarity) in by_length.iter_mut().zip(similarities) {
                *sum += similarity;
            }
        }
        let mean = by_length.iter().sum::<f64>() / LONGEST as f64;
        mean / sample.references.len() as f64 * 10.0
    };
    samples.par_iter().map(score).collect()
}

/// Number of samples that have each n-gram in one of their references.
fn document_frequencies(samples: &[Sample]) -> HashMap<Ngram, u32> {
    let mut frequencies = HashMap::new();
    let mut seen = HashSet::new();
    for sample in samples {
        seen.clear();
        for reference in &sample.references {
            for list in NgramCounts::of(reference).by_length {
                seen.extend(list.into_iter().map(|(ngram, _)| ngram));
            }
        }
        for &ngram in &seen {
            *frequencies.entry(ngram).or_insert(0) += 1;
        }
    }
    frequencies
}

/// TF-IDF vectors of a caption, one per n-gram length.
struct Vector {
    counts: NgramCounts,
    /// Weights of n-grams by length, in the order of `counts`.
    weights: [Vec<f64>; LONGEST],
    norms: [f64; LONGEST],
    /// Number of word pairs.
    length: f64,
}

impl Vector {
    fn of(words: &[u32], documents: &HashMap<Ngram, u32>, all: f64) -> Vector {
        let counts = NgramCounts::of(words);
        let weights: [Vec<f64>; LONGEST] = std::array::from_fn(|k| {
            let weight = |&(ngram, count): &(Ngram, u32)| {
                let with = documents.get(&ngram).copied().unwrap_or(0).max(1);
                f64::from(count) * (all - f64::from(with).ln())
            };
            counts.by_length[k].iter().map(weight).collect()
        });
        let norm = |weights: &Vec<f64>| {
            weights
                .iter()
                .map(|weight| weight * weight)
                .sum::<f64>()
                .sqrt()
        };
        Vector {
            norms: std::array::from_fn(|k| norm(&weights[k])),
            length: words.len().saturating_sub(1) as f64,
            weights,
            counts,
        }
    }

    fn similarities(&self, reference: &Vector) -> [f64; LONGEST] {
        let apart = self.length - reference.length;
        let penalty = (-apart * apart / (2.0 * SIGMA * SIGMA)).exp();
        std::array::from_fn(|k| {
            let mut sum = 0.0;
            for ((ngram, count), &weight) in self.counts.by_length[k].iter().zip(&self.weights[k]) {
                let there = reference.counts.count(k + 1, ngram);
                // Weights of one n-gram are proportional to its counts.
                let other = weight / f64::from(*count) * f64::from(there);
                sum += weight.min(other) * other;
            }
            let norms = self.norms[k] * reference.norms[k];
            if norms > 0.0 {
                sum / norms * penalty
            } else {
                sum * penalty
            }
        })
    }
}
