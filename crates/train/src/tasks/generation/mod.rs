//! Autoregressive generation: greedy, beam search and sampling, as `transformers` defines them.
//!
//! ```text
//! search    token by token until every sample is finished: settings, samples -> captions
//!   one_row   greedy and sampling: a row per sample
//!   beams     several rows per sample: the best sum of log-probabilities, with a length penalty
//! bans      tokens that may not come next: repeated n-grams, an early end token
//! ```
//!
//! The search knows no model. [`NextToken`] returns the best next tokens of each row. Cached keys and values stay in place when
//! beams are reordered: `ancestors[row][step]` is the row that was fed this row's token of an earlier step.

mod bans;
mod beams;
mod config_json;
mod one_row;
mod settings;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub use crate::config::{
    EarlyStopping, GenerationMethod as Method, GenerationSection as Generation,
};
use crate::error::TrainError;
pub use config_json::{GENERATION_CONFIG, generation_config_json, read_generation_config};

/// A model that predicts the next token.
pub trait NextToken {
    /// Feeds one token to every row, and returns the best next tokens.
    fn next(&mut self, asked: &Asked<'_>) -> Result<Candidates<'_>, TrainError>;
}

/// One step's input: a token for every row.
pub struct Asked<'a> {
    /// Position in the sequence; BOS is at 0.
    pub position: usize,
    pub ids: &'a [i64],
    /// `rows x max_tokens`: the row that was fed a row's token, for each earlier step. `None`: always the row itself.
    pub ancestors: Option<&'a [i64]>,
    /// `rows x banned_width`: tokens that may not come next, -1 for none. `None` if no setting bans tokens.
    pub banned: Option<&'a [i64]>,
}

/// Next-token logits of each row. There may be more rows than were fed; the extra rows are padding.
pub struct Candidates<'a> {
    pub rows: usize,
    pub logits: Logits<'a>,
}

pub enum Logits<'a> {
    /// The best tokens, as three arrays one after another: `rows x count` logits in descending order, `rows x count` ids as
    /// whole numbers, and each row's logarithm of the sum of exponentials over the vocabulary. Banned tokens are left out; if
    /// fewer than `count` tokens remain, the rest has the id -1.
    Best(Cow<'a, [f32]>),
    /// `rows x vocabulary` logits, those of banned tokens included: for sampling from the whole vocabulary.
    All(Cow<'a, [f32]>),
}

/// Special tokens and maximum length of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderTokens {
    /// First token of every sequence.
    pub bos: i64,
    /// End tokens; may be empty.
    pub eos: Vec<i64>,
    /// Input of a finished row.
    pub pad: i64,
    /// Longest caption in tokens, the end token included.
    pub longest: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Tokens after BOS, up to and including EOS if it came.
    pub tokens: Vec<i64>,
    /// Score of a beam search: the sum of log-probabilities over the length to the power of the length penalty.
    pub score: Option<f32>,
}

/// Generates a sequence for each of `samples`. The sample numbers seed sampling, so that a result does not depend on the
/// batch.
pub fn search(
    forward: &mut dyn NextToken,
    settings: &Generation,
    special: &DecoderTokens,
    samples: &[u64],
) -> Result<Vec<Generated>, TrainError> {
    match settings.method {
        Method::Greedy | Method::Sample => one_row::search(forward, settings, special, samples),
        Method::Beam => beams::search(forward, settings, special, samples.len()),
    }
}

/// [`Logits::Best`] by rows.
struct BestByRow<'a> {
    values: &'a [f32],
    ids: &'a [f32],
    lse: &'a [f32],
    count: usize,
}

impl<'a> BestByRow<'a> {
    /// Splits the arrays. `count` may be less than requested, because a vocabulary may be smaller.
    fn of(flat: &'a [f32], rows: usize) -> BestByRow<'a> {
        let count = (flat.len() / rows - 1) / 2;
        assert_eq!(flat.len(), rows * (2 * count + 1), "values, ids and sums");
        let (values, rest) = flat.split_at(rows * count);
        let (ids, lse) = rest.split_at(rows * count);
        BestByRow {
            values,
            ids,
            lse,
            count,
        }
    }

    /// Logits and ids of a row, best first.
    fn row(&self, row: usize) -> impl Iterator<Item = (f32, i64)> {
        let range = row * self.count..(row + 1) * self.count;
        let ids = self.ids[range.clone()].iter();
        let pairs = self.values[range].iter().zip(ids);
        pairs.map(|(&value, &id)| (value, id as i64))
    }
}
