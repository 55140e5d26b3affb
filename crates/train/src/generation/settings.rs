//! The `generation` section of a config.

use serde::{Deserialize, Serialize};

use super::DecoderTokens;
use crate::config::{Wrong, check};

/// How captions are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Generation {
    /// How the next token is chosen.
    pub method: Method,
    /// Sequences that are followed at a time; for `method: beam`.
    pub beams: usize,
    /// Most tokens of a caption, the end included; as many as the decoder takes by default.
    pub max_tokens: Option<usize>,
    /// Fewest tokens before the end.
    pub min_tokens: usize,
    /// A beam's score is the sum of log-probabilities divided by its length to this power: above 0 favours long captions.
    pub length_penalty: f64,
    /// When a beam search ends.
    pub early_stopping: EarlyStopping,
    /// No sequence of so many tokens occurs twice; 0: any may.
    pub no_repeat_ngram: usize,
    /// Sampling: among so many best tokens; 0: among all.
    pub top_k: usize,
    /// Sampling: among the best tokens that have this probability together.
    pub top_p: f64,
    /// Sampling: logits are divided by this first.
    pub temperature: f64,
    /// Of sampling.
    pub seed: u64,
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The best token, one after the other.
    #[default]
    Greedy,
    /// The best sequence among several that are followed at a time.
    Beam,
    /// Drawn by its probability.
    Sample,
}

/// When a sample's beam search ends, beside the longest length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TruthOrWord", into = "TruthOrWord")]
pub enum EarlyStopping {
    /// `false`: once as many sequences as beams are finished and the best open one, at its present length, is no better.
    #[default]
    Heuristic,
    /// `true`: once as many sequences as beams are finished.
    WhenFull,
    /// `never`: once no open sequence can become better, whatever its length.
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

/// More would only be a mistake: the cache holds a row for each.
const MOST_BEAMS: usize = 64;

impl Generation {
    /// Rows per sample.
    pub fn rows_per_sample(&self) -> usize {
        match self.method {
            Method::Greedy | Method::Sample => 1,
            Method::Beam => self.beams,
        }
    }

    /// Tokens of each row that the search wants to see, the best first; `None`: all logits.
    pub fn candidates(&self, tokens: &DecoderTokens) -> Option<usize> {
        match self.method {
            Method::Greedy => Some(1),
            // Every beam may end with each end token, and as many must be left to go on.
            Method::Beam => Some((1 + tokens.eos.len()).max(2) * self.beams),
            Method::Sample => (self.top_k > 0).then_some(self.top_k),
        }
    }

    /// Tokens that a caption has at most.
    pub fn num_steps(&self, tokens: &DecoderTokens) -> usize {
        let asked = self.max_tokens.unwrap_or(tokens.longest);
        asked.min(tokens.longest)
    }

    /// Tokens of a row that may be banned at a time.
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

    /// `greedy, 64 tokens`.
    pub fn describe(&self, tokens: &DecoderTokens) -> String {
        let method = match self.method {
            Method::Greedy => "greedy".to_owned(),
            Method::Beam => format!("{} beams", self.beams),
            Method::Sample => format!("sampled with seed {}", self.seed),
        };
        format!("{method}, {} tokens", self.num_steps(tokens))
    }

    /// Each number on its own.
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

    /// Numbers beside each other.
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
