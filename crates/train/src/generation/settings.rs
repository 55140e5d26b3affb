//! The `generation` section of a config.

use serde::{Deserialize, Serialize};

use super::DecoderTokens;
use crate::config::{Wrong, check};

/// Settings of caption generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Generation {
    pub method: Method,
    /// Number of beams; for `method: beam`.
    pub beams: usize,
    /// Longest caption in tokens, the end token included; by default the longest that the decoder supports.
    pub max_tokens: Option<usize>,
    /// Fewest tokens before the end token.
    pub min_tokens: usize,
    /// A beam's score is the sum of log-probabilities divided by its length to this power: above 0 favours long captions.
    pub length_penalty: f64,
    pub early_stopping: EarlyStopping,
    /// No n-gram of this length occurs twice; 0 allows repetition.
    pub no_repeat_ngram: usize,
    /// Sampling: number of best tokens to draw from; 0: the whole vocabulary.
    pub top_k: usize,
    /// Sampling: total probability of the best tokens to draw from.
    pub top_p: f64,
    /// Sampling: divisor of the logits.
    pub temperature: f64,
    /// Sampling: random seed.
    pub seed: u64,
}

/// Choice of the next token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The most likely token in each step.
    #[default]
    Greedy,
    /// The best sequence of several beams.
    Beam,
    /// Sampled by probability.
    Sample,
}

/// End of a sample's beam search, apart from the maximum length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TruthOrWord", into = "TruthOrWord")]
pub enum EarlyStopping {
    /// `false`: once as many sequences as beams are finished and the best open sequence, at its present length, is no better.
    #[default]
    Heuristic,
    /// `true`: once as many sequences as beams are finished.
    WhenFull,
    /// `never`: once no open sequence can become better at any length.
    Never,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum TruthOrWord {
    Truth(bool),
    Word(String),
}

impl TryFrom<TruthOrWord> for EarlyStopping {
    type Error = String;

    fn try_from(written: TruthOrWord) -> Result<EarlyStopping, String> {
        match written {
            TruthOrWord::Truth(false) => Ok(EarlyStopping::Heuristic),
            TruthOrWord::Truth(true) => Ok(EarlyStopping::WhenFull),
            TruthOrWord::Word(word) if word == "never" => Ok(EarlyStopping::Never),
            TruthOrWord::Word(word) => Err(format!("`{word}`, expected true, false or never")),
        }
    }
}

impl From<EarlyStopping> for TruthOrWord {
    fn from(early: EarlyStopping) -> TruthOrWord {
        match early {
            EarlyStopping::Heuristic => TruthOrWord::Truth(false),
            EarlyStopping::WhenFull => TruthOrWord::Truth(true),
            EarlyStopping::Never => TruthOrWord::Word("never".to_owned()),
        }
    }
}

impl Default for Generation {
    fn default() -> Generation {
        Generation {
            method: Method::Greedy,
            beams: 4,
            max_tokens: None,
            min_tokens: 0,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::Heuristic,
            no_repeat_ngram: 0,
            top_k: 50,
            top_p: 1.0,
            temperature: 1.0,
            seed: 0,
        }
    }
}

/// Upper bound that catches typing errors: the key-value cache holds a row for each beam.
const MOST_BEAMS: usize = 64;

impl Generation {
    /// Cache rows per sample.
    pub fn rows_per_sample(&self) -> usize {
        match self.method {
            Method::Greedy | Method::Sample => 1,
            Method::Beam => self.beams,
        }
    }

    /// Number of best tokens per row that the search needs; `None`: all logits.
    pub fn candidates(&self, tokens: &DecoderTokens) -> Option<usize> {
        match self.method {
            Method::Greedy => Some(1),
            // Each beam may end with every end token, and as many candidates must remain to continue.
            Method::Beam => Some((1 + tokens.eos.len()).max(2) * self.beams),
            Method::Sample => (self.top_k > 0).then_some(self.top_k),
        }
    }

    /// Maximum number of tokens of a caption.
    pub fn num_steps(&self, tokens: &DecoderTokens) -> usize {
        let asked = self.max_tokens.unwrap_or(tokens.longest);
        asked.min(tokens.longest)
    }

    /// Maximum number of banned tokens per row.
    pub fn banned_width(&self, tokens: &DecoderTokens) -> usize {
        let repeated = match self.no_repeat_ngram {
            0 => 0,
            _ => self.num_steps(tokens),
        };
        let ends = match self.min_tokens {
            0 => 0,
            _ => tokens.eos.len(),
        };
        repeated + ends
    }

    /// For example `greedy, 64 tokens`.
    pub fn describe(&self, tokens: &DecoderTokens) -> String {
        let method = match self.method {
            Method::Greedy => "greedy".to_owned(),
            Method::Beam => format!("{} beams", self.beams),
            Method::Sample => format!("sampled with seed {}", self.seed),
        };
        format!("{method}, {} tokens", self.num_steps(tokens))
    }

    /// Checks each number on its own.
    pub(crate) fn check_numbers(&self) -> Result<(), Wrong> {
        check(
            (1..=MOST_BEAMS).contains(&self.beams),
            "generation.beams",
            self.beams,
            &format!("1 to {MOST_BEAMS}"),
            "`generation: {method: beam, beams: 4}`",
        )?;
        check(
            self.max_tokens != Some(0),
            "generation.max_tokens",
            0,
            "at least 1",
            "leave it out for as many as the decoder takes",
        )?;
        check(
            self.length_penalty.is_finite(),
            "generation.length_penalty",
            self.length_penalty,
            "a finite number",
            "1 is the mean log-probability of a token; more favours long captions",
        )?;
        check(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "generation.top_p",
            self.top_p,
            "above 0 and at most 1",
            "`generation: {method: sample, top_p: 0.9}`",
        )?;
        check(
            self.temperature.is_finite() && self.temperature > 0.0,
            "generation.temperature",
            self.temperature,
            "a finite number above 0",
            "`method: greedy` is what a temperature of 0 would be",
        )
    }

    /// Checks combinations of numbers.
    pub(crate) fn check_together(&self) -> Result<(), Wrong> {
        check(
            self.max_tokens.is_none_or(|most| self.min_tokens < most),
            "generation.min_tokens",
            self.min_tokens,
            "less than max_tokens",
            "raise max_tokens, or lower min_tokens",
        )
    }
}
