//! The `rouge_score` package: F of common words, of word pairs and of the longest common subsequence, over stemmed tokens `[a-z0-9]+`.

mod porter;

use std::collections::HashMap;

use super::coco::common_subsequence;

/// Description of the tokenizer, shown beside the scores.
pub const TOKENIZER: &str = "[a-z0-9]+ in lower case, Porter stemmer for words over three letters";

/// Stemmed tokens of a text.
pub fn tokenize(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    let words = words.filter(|word| !word.is_empty());
    words
        .map(|word| {
            if word.len() > 3 {
                porter::stem(word)
            } else {
                word.to_owned()
            }
        })
        .collect()
}

/// F of rouge1, rouge2 and rougeL, each maximised over the references, like `score_multi`.
pub fn best<R: AsRef<str>>(references: &[R], candidate: &str) -> [f64; 3] {
    let candidate = tokenize(candidate);
    let mut best = [0.0_f64; 3];
    for reference in references {
        let reference = tokenize(reference.as_ref());
        let common = common_subsequence(&reference, &candidate);
        let scores = [
            ngram_f(&reference, &candidate, 1),
            ngram_f(&reference, &candidate, 2),
            f(common, reference.len(), candidate.len()),
        ];
        for (best, score) in best.iter_mut().zip(scores) {
            *best = best.max(score);
        }
    }
    best
}

fn ngram_f(reference: &[String], candidate: &[String], length: usize) -> f64 {
    let mut counts: HashMap<&[String], (usize, usize)> = HashMap::new();
    for ngram in reference.windows(length) {
        counts.entry(ngram).or_default().0 += 1;
    }
    for ngram in candidate.windows(length) {
        counts.entry(ngram).or_default().1 += 1;
    }
    let common = counts.values().map(|&(a, b)| a.min(b)).sum();
    let total = |words: &[String]| (words.len() + 1).saturating_sub(length);
    f(common, total(reference), total(candidate))
}

/// F1, the harmonic mean of precision and recall.
fn f(common: usize, reference: usize, candidate: usize) -> f64 {
    let precision = common as f64 / candidate.max(1) as f64;
    let recall = common as f64 / reference.max(1) as f64;
    if precision + recall > 0.0 {
        2.0 * precision * recall / (precision + recall)
    } else {
        0.0
    }
}
