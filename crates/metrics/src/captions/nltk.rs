//! `nltk.translate.bleu_score.sentence_bleu` with its default weights: BLEU-4 of one candidate, for means over samples.

use std::collections::HashMap;

/// Tokenization for NLTK's BLEU: the function takes lists of words, and every script makes them in its own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NltkTokens {
    /// `text.split()`.
    #[default]
    Whitespace,
    /// `text.lower().split()`.
    LowerCase,
    /// The PTB tokens of `pycocoevalcap`.
    Coco,
}

impl NltkTokens {
    /// Description shown beside a score.
    pub fn name(self) -> &'static str {
        match self {
            NltkTokens::Whitespace => "words between white space, as they are",
            NltkTokens::LowerCase => "words between white space, lower case",
            NltkTokens::Coco => super::coco::TOKENIZER,
        }
    }

    pub(super) fn of(self, text: &str, coco: &[String]) -> Vec<String> {
        match self {
            NltkTokens::Whitespace => text.split_whitespace().map(str::to_owned).collect(),
            NltkTokens::LowerCase => {
                let words = text.split_whitespace();
                words.map(str::to_lowercase).collect()
            }
            NltkTokens::Coco => coco.to_vec(),
        }
    }
}

/// Treatment of n-gram orders without a match, when single words do match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smoothing {
    /// The precision becomes the smallest positive number, which makes the score practically 0.
    None,
    /// The order counts a tenth of a match.
    Method1,
}

/// Clipped matches and totals for one to four words, and the brevity penalty.
pub struct Precisions {
    matches: [usize; 4],
    totals: [usize; 4],
    brevity: f64,
}

impl Precisions {
    /// Counts of a candidate against its references, at least one.
    pub fn of(references: &[Vec<String>], candidate: &[String]) -> Precisions {
        let mut matches = [0; 4];
        let mut totals = [0; 4];
        for length in 1..=4 {
            let counts = counted(candidate, length);
            let references: Vec<_> = (references.iter())
                .map(|reference| counted(reference, length))
                .collect();
            for (ngram, &count) in &counts {
                let most = (references.iter()).filter_map(|reference| reference.get(ngram));
                matches[length - 1] += count.min(most.max().copied().unwrap_or(0));
            }
            totals[length - 1] = counts.values().sum::<usize>().max(1);
        }
        let num_words = candidate.len();
        let closest = (references.iter().map(Vec::len))
            .min_by_key(|&length| (length.abs_diff(num_words), length))
            .unwrap_or(0);
        let brevity = match num_words {
            _ if num_words > closest => 1.0,
            0 => 0.0,
            _ => (1.0 - closest as f64 / num_words as f64).exp(),
        };
        Precisions {
            matches,
            totals,
            brevity,
        }
    }

    /// The score; 0 without a common word.
    pub fn bleu(&self, smoothing: Smoothing) -> f64 {
        if self.matches[0] == 0 {
            return 0.0;
        }
        let logs = self
            .matches
            .iter()
            .zip(self.totals)
            .map(|(&matches, total)| {
                let precision = match (matches, smoothing) {
                    (0, Smoothing::None) => f64::MIN_POSITIVE,
                    (0, Smoothing::Method1) => 0.1 / total as f64,
                    _ => matches as f64 / total as f64,
                };
                0.25 * precision.ln()
            });
        self.brevity * logs.sum::<f64>().exp()
    }
}

fn counted(words: &[String], length: usize) -> HashMap<&[String], usize> {
    let mut counts = HashMap::new();
    for ngram in words.windows(length) {
        *counts.entry(ngram).or_insert(0) += 1;
    }
    counts
}
