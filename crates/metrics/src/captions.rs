//! What generated captions are worth, against one reference or several.
//!
//! ```text
//! BLEU-1..4, ROUGE-L, CIDEr-D   as pycocoevalcap computes them, over its PTB tokens                        coco
//! sentence BLEU                 NLTK's, default weights, mean over samples; without smoothing, and method1  nltk
//! rouge1, rouge2, rougeL        rouge_score's F, Porter stemmer, best reference, mean over samples          rouge_score
//! ```
//!
//! The three disagree with each other by tokenizer and by definition, so a figure is never shown without the name of both. [`CaptionScorer`] takes
//! one sample after another. BLEU and ROUGE are sums; CIDEr-D weighs words by the references that have them, over all references, and so keeps every
//! sample's words as numbers of 4 bytes until the end, beside 72 bytes of scores per sample and about 40 bytes for each different n-gram
//! of the references: 117,120 reports of 60 words against 23,592 different ones were seen to take 250 MB at the peak.

pub mod coco;
pub mod nltk;
pub mod rouge_score;
#[cfg(test)]
mod tests;

use rayon::prelude::*;
use serde::Serialize;

pub use coco::SampleScores;
pub use nltk::NltkTokens;

/// All scores of a set of captions; means over samples but for BLEU, which pools the counts of all.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CaptionScores {
    /// Candidates.
    pub num_samples: usize,
    /// References of all candidates together.
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
    /// Scores of candidates with their references, NLTK's over words between white space. Candidates without a reference are left out.
    pub fn of<C: AsRef<str>, R: AsRef<str>>(pairs: &[(C, Vec<R>)]) -> CaptionScores {
        let mut scorer = CaptionScorer::new(NltkTokens::Whitespace);
        for (candidate, references) in pairs {
            scorer.add(candidate.as_ref(), references);
        }
        scorer.finish().0
    }

    /// The scores that captions are compared by, under the names that logs and JSON have.
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

/// Takes captions one after another.
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
    /// Without captions yet.
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

    /// One more candidate. Without a reference it does not count.
    pub fn add<R: AsRef<str>>(&mut self, candidate: &str, references: &[R]) {
        if !references.is_empty() {
            let sample = Sample::of(candidate, references, self.nltk_tokens);
            self.take(&sample);
        }
    }

    /// The same for many, on all threads; sums are in their order.
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

    /// Candidates so far.
    pub fn num_samples(&self) -> usize {
        self.coco.num_samples()
    }

    /// All scores, and those of each sample in the order in which they came. NaN without samples.
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

/// What a candidate brings, whatever the others are.
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
