//! Caption scores with `pycocoevalcap`'s definitions.

mod bleu;
mod cider_d;
mod ngrams;
mod rouge_l;
mod tokenizer;

use std::collections::HashMap;

pub use bleu::BleuCounts;
pub use cider_d::cider_d;
pub(super) use rouge_l::common_subsequence;
pub use rouge_l::rouge_l;
use serde::Serialize;
pub use tokenizer::tokenize;

/// Description of the tokenizer, shown beside the scores.
pub const TOKENIZER: &str =
    "PTB tokens as of CoreNLP 3.4.1, lower case, punctuation dropped; Holdall's own tokenizer";

/// Scores of one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleScores {
    /// BLEU-1 to BLEU-4 of this candidate alone.
    pub bleu: [f64; 4],
    /// ROUGE-L.
    pub rouge_l: f64,
    /// CIDEr-D among all candidates.
    pub cider_d: f64,
}

/// Scores of all candidates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CocoScores {
    /// BLEU-1 to BLEU-4 of all candidates' counts together.
    pub bleu: [f64; 4],
    /// Mean ROUGE-L.
    pub rouge_l: f64,
    /// Mean CIDEr-D.
    pub cider_d: f64,
}

/// A caption as word ids.
pub type WordIds = Box<[u32]>;

pub struct Sample {
    /// The generated caption.
    pub candidate: WordIds,
    /// Reference captions, at least one.
    pub references: Box<[WordIds]>,
}

/// Accumulates scores of tokenized captions.
#[derive(Default)]
pub struct CocoScorer {
    words: HashMap<String, u32>,
    counts: BleuCounts,
    samples: Vec<Sample>,
    bleu: Vec<[f64; 4]>,
    rouge_l: Vec<f64>,
}

impl CocoScorer {
    /// Adds a candidate with at least one reference, tokenized by [`tokenize`].
    pub fn add(&mut self, candidate: &[String], references: &[Vec<String>]) {
        self.rouge_l.push(rouge_l(candidate, references));
        let sample = Sample {
            candidate: self.ids(candidate),
            references: references.iter().map(|tokens| self.ids(tokens)).collect(),
        };
        let counts = BleuCounts::of(&sample);
        self.bleu.push(counts.bleu());
        self.counts.add(&counts);
        self.samples.push(sample);
    }

    /// Candidates counted so far.
    pub fn num_samples(&self) -> usize {
        self.samples.len()
    }

    /// All scores, and those of each sample. NaN without samples.
    pub fn finish(self) -> (CocoScores, Vec<SampleScores>) {
        let ciders = cider_d(&self.samples);
        let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
        let scores = CocoScores {
            bleu: if self.samples.is_empty() {
                [f64::NAN; 4]
            } else {
                self.counts.bleu()
            },
            rouge_l: mean(&self.rouge_l),
            cider_d: mean(&ciders),
        };
        let samples = (self.bleu.iter().zip(&self.rouge_l).zip(&ciders))
            .map(|((&bleu, &rouge_l), &cider_d)| SampleScores {
                bleu,
                rouge_l,
                cider_d,
            })
            .collect();
        (scores, samples)
    }

    /// Word ids of tokens. A no-break space inside a token separates words here, like in Python's `split()`.
    fn ids(&mut self, tokens: &[String]) -> WordIds {
        let words = tokens.iter().flat_map(|token| token.split_whitespace());
        words
            .map(|word| match self.words.get(word) {
                Some(&id) => id,
                None => {
                    let id = u32::try_from(self.words.len()).expect("fewer than 2^32 words");
                    self.words.insert(word.to_owned(), id);
                    id
                }
            })
            .collect()
    }
}
