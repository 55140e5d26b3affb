//! Caption metrics: generated captions against one or several references.
//!
//! ```text
//! BLEU-1..4, ROUGE-L, CIDEr-D   as in pycocoevalcap, over its PTB tokens                                    coco
//! sentence BLEU                 as in NLTK, default weights, mean over samples; unsmoothed, and method1     nltk
//! rouge1, rouge2, rougeL        rouge_score's F, Porter stemmer, best reference, mean over samples          rouge_score
//! ```
//!
//! The three packages differ in tokenizer and definition, so a figure is always shown with the names of both. [`CaptionScorer`] takes one
//! sample after another. BLEU and ROUGE are sums; CIDEr-D weighs n-grams by their frequency over all references, so every sample's words
//! stay in memory as 4-byte ids until the end, beside 72 bytes of scores per sample and about 40 bytes per distinct n-gram of the
//! references: 117,120 reports of 60 words against 23,592 distinct ones took 250 MB at the peak.

pub mod coco;
pub mod nltk;
pub mod rouge_score;
#[cfg(test)]
mod tests;

use rayon::prelude::*;
use serde::Serialize;

pub use coco::SampleScores;
pub use nltk::NltkTokens;

/// All scores of a set of captions. BLEU pools the counts of all samples; the other scores are means over samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CaptionScores {
    pub num_samples: usize,
    pub num_references: usize,
    /// `pycocoevalcap`: BLEU-1 to BLEU-4.
    pub bleu: [f64; 4],
    /// `pycocoevalcap`: ROUGE-L, beta 1.2.
    pub rouge_l: f64,
    /// `pycocoevalcap`: CIDEr-D, from 0 to 10.
    pub cider_d: f64,
    /// NLTK without smoothing.
    pub sentence_bleu: f64,
    /// NLTK with `SmoothingFunction().method1`.
    pub sentence_bleu_method1: f64,
    /// `rouge_score`: F of words.
    pub rouge_score_1: f64,
    /// `rouge_score`: F of pairs of words.
    pub rouge_score_2: f64,
    /// `rouge_score`: F of the longest common subsequence.
    pub rouge_score_l: f64,
}

impl CaptionScores {
    /// Scores of candidates with their references; NLTK's over whitespace tokens. Candidates without a reference are left out.
    pub fn of<C: AsRef<str>, R: AsRef<str>>(pairs: &[(C, Vec<R>)]) -> CaptionScores {
        let mut scorer = CaptionScorer::new(NltkTokens::Whitespace);
        for (candidate, references) in pairs {
            scorer.add(candidate.as_ref(), references);
        }
        scorer.finish().0
    }

    /// The main scores, under their names in logs and JSON.
    pub fn named(&self) -> [(&'static str, f64); 6] {
        let [bleu1, bleu2, bleu3, bleu4] = self.bleu;
        [
            ("bleu1", bleu1),
            ("bleu2", bleu2),
            ("bleu3", bleu3),
            ("bleu4", bleu4),
            ("rouge_l", self.rouge_l),
            ("cider_d", self.cider_d),
        ]
    }
}

/// Accumulates caption scores, one sample after another.
pub struct CaptionScorer {
    coco: coco::CocoScorer,
    nltk_tokens: NltkTokens,
    num_references: usize,
    /// Sums over samples.
    sentence_bleu: f64,
    sentence_bleu_method1: f64,
    rouge_score: [f64; 3],
}

impl CaptionScorer {
    pub fn new(nltk_tokens: NltkTokens) -> CaptionScorer {
        CaptionScorer {
            coco: coco::CocoScorer::default(),
            nltk_tokens,
            num_references: 0,
            sentence_bleu: 0.0,
            sentence_bleu_method1: 0.0,
            rouge_score: [0.0; 3],
        }
    }

    /// Adds a candidate. It is left out if it has no reference.
    pub fn add<R: AsRef<str>>(&mut self, candidate: &str, references: &[R]) {
        if !references.is_empty() {
            let sample = Sample::of(candidate, references, self.nltk_tokens);
            self.take(&sample);
        }
    }

    /// Adds many candidates on all threads; sums are taken in the order of the samples.
    pub fn add_all(&mut self, samples: &[(String, Vec<String>)]) {
        let with_references = samples
            .par_iter()
            .filter(|(_, references)| !references.is_empty());
        let samples: Vec<Sample> = with_references
            .map(|(candidate, references)| Sample::of(candidate, references, self.nltk_tokens))
            .collect();
        samples.iter().for_each(|sample| self.take(sample));
    }

    fn take(&mut self, sample: &Sample) {
        self.num_references += sample.references.len();
        self.sentence_bleu += sample.sentence_bleu;
        self.sentence_bleu_method1 += sample.sentence_bleu_method1;
        for (sum, score) in self.rouge_score.iter_mut().zip(sample.rouge_score) {
            *sum += score;
        }
        self.coco.add(&sample.candidate, &sample.references);
    }

    /// Candidates counted so far.
    pub fn num_samples(&self) -> usize {
        self.coco.num_samples()
    }

    /// All scores, and those of each sample in the order of addition. NaN without samples.
    pub fn finish(self) -> (CaptionScores, Vec<SampleScores>) {
        let (coco, samples) = self.coco.finish();
        let mean = |sum: f64| sum / samples.len() as f64;
        let [rouge_score_1, rouge_score_2, rouge_score_l] = self.rouge_score.map(mean);
        let scores = CaptionScores {
            num_samples: samples.len(),
            num_references: self.num_references,
            bleu: coco.bleu,
            rouge_l: coco.rouge_l,
            cider_d: coco.cider_d,
            sentence_bleu: mean(self.sentence_bleu),
            sentence_bleu_method1: mean(self.sentence_bleu_method1),
            rouge_score_1,
            rouge_score_2,
            rouge_score_l,
        };
        (scores, samples)
    }
}

/// Per-sample results that do not depend on other samples.
struct Sample {
    /// Tokens of `pycocoevalcap`.
    candidate: Vec<String>,
    references: Vec<Vec<String>>,
    sentence_bleu: f64,
    sentence_bleu_method1: f64,
    rouge_score: [f64; 3],
}

impl Sample {
    fn of<R: AsRef<str>>(candidate: &str, references: &[R], nltk_tokens: NltkTokens) -> Sample {
        let candidate_tokens = coco::tokenize(candidate);
        let reference_tokens: Vec<Vec<String>> = (references.iter())
            .map(|reference| coco::tokenize(reference.as_ref()))
            .collect();
        let nltk_references: Vec<Vec<String>> = (references.iter().zip(&reference_tokens))
            .map(|(reference, tokens)| nltk_tokens.of(reference.as_ref(), tokens))
            .collect();
        let nltk_candidate = nltk_tokens.of(candidate, &candidate_tokens);
        let precisions = nltk::Precisions::of(&nltk_references, &nltk_candidate);
        Sample {
            sentence_bleu: precisions.bleu(nltk::Smoothing::None),
            sentence_bleu_method1: precisions.bleu(nltk::Smoothing::Method1),
            rouge_score: rouge_score::best(references, candidate),
            candidate: candidate_tokens,
            references: reference_tokens,
        }
    }
}
