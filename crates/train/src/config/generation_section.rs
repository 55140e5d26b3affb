//! The `generation:` and `evaluation:` sections: how captions are written, and how much is evaluated.
//!
//! Words and defaults are those of `generate` in transformers.

use serde::{Deserialize, Serialize};

use super::{Wrong, check};

/// How captions are generated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GenerationSection {
    /// How the next token is chosen.
    pub method: GenerationMethod,
    /// Beams of a beam search.
    pub beams: usize,
    /// Tokens of the longest caption, the end token included; as many as the decoder has positions by default.
    pub max_tokens: Option<usize>,
    /// Tokens before which no caption ends.
    pub min_tokens: usize,
    /// A beam's score is the sum of its log-probabilities divided by its length to this power.
    pub length_penalty: f64,
    /// When a beam search ends.
    pub early_stopping: EarlyStopping,
    /// Runs of this many tokens come once in a caption; 0: however often.
    pub no_repeat_ngram: usize,
    /// Tokens that are drawn from; 0: all.
    pub top_k: usize,
    /// Tokens that are drawn from, the likeliest that have this probability together.
    pub top_p: f64,
    /// Logits are divided by it before a token is drawn.
    pub temperature: f64,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GenerationMethod {
    /// The likeliest.
    #[default]
    Greedy,
    /// The likeliest of several captions at once.
    Beam,
    /// Drawn.
    Sample,
}

/// When a beam search ends, as transformers has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlyStopping {
    /// When none of the running beams can become better, by their scores so far: `false`.
    #[default]
    Heuristic,
    /// When there are as many finished captions as beams: `true`.
    First,
    /// When no running beam could become better at any length.
    Never,
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

/// Most beams that anyone means.
const MOST_BEAMS: usize = 64;

impl GenerationSection {
    /// Each value on its own.
    pub(crate) fn check_values(&self) -> Result<(), Wrong> {
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
            "leave it out for as many as the decoder has positions",
        )?;
        check(
            self.length_penalty.is_finite(),
            "generation.length_penalty",
            self.length_penalty,
            "a number",
            "`length_penalty: 1.0`; above 1 long captions win, below 1 short ones",
        )?;
        check(
            self.top_p > 0.0 && self.top_p <= 1.0,
            "generation.top_p",
            self.top_p,
            "above 0, at most 1",
            "`generation: {method: sample, top_p: 0.9}`",
        )?;
        check(
            self.temperature.is_finite() && self.temperature > 0.0,
            "generation.temperature",
            self.temperature,
            "a number above 0",
            "`temperature: 1.0`; less is more certain; `method: greedy` takes the likeliest",
        )
    }
}

/// How much is evaluated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvaluationSection {
    /// Samples that get a caption, drawn with the seed; the loss and the ranks are over all of them.
    pub captions: usize,
    /// Seed of which samples get one.
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
