//! The `generation:` and `evaluation:` sections: how captions are generated, and how many samples are captioned.

use serde::{Deserialize, Serialize};

use super::{Wrong, check};

/// How captions are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationSection {
    /// How the next token is chosen.
    pub method: GenerationMethod,
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
    /// Sampling: seed of the draws.
    pub seed: u64,
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GenerationMethod {
    /// The best token, one after the other.
    #[default]
    Greedy,
    /// The best sequence among several that are followed at a time.
    Beam,
    /// Drawn by its probability.
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

impl Default for GenerationSection {
    fn default() -> GenerationSection {
        GenerationSection {
            method: GenerationMethod::Greedy,
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

impl GenerationSection {
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Samples that get a generated caption, drawn with `seed`; loss and ranks are over all samples.
    pub captions: usize,
    /// Seed of the draw of captioned samples.
    pub seed: u64,
}

impl Default for EvaluationSection {
    fn default() -> EvaluationSection {
        EvaluationSection {
            captions: 512,
            seed: 0,
        }
    }
}
