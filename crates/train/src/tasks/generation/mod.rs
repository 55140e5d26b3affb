//! Tokens one after the other: greedy, beam search and sampling, as `transformers` defines them.
//!
//! ```text
//! search    token by token until every sample is finished: settings, samples -> captions
//!   one_row   greedy and sampling: a row per sample
//!   beams     several rows per sample: the best sum of log-probabilities, by length
//! bans      tokens that may not come next: repeated n-grams, an end that is too early
//! ```
//!
//! Nothing here knows a model. [`NextToken`] is asked for the best tokens behind each row's prefix; what a row attends to is
//! named, not moved: `ancestors[row][step]` is the row that was fed this row's token of an earlier step.

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

/// What a model says about the tokens that come next.
pub trait NextToken {
    /// Feeds one token to every row, and returns the best tokens behind them.
    fn next(&mut self, asked: &Asked<'_>) -> Result<Candidates<'_>, TrainError>;
}

/// One token for every row.
pub struct Asked<'a> {
    /// Its place in the sequence; BOS is at 0.
    pub position: usize,
    /// The token of each row.
    pub ids: &'a [i64],
    /// `rows x max_tokens`: who was fed a row's token at earlier steps. `None`: each row itself, as ever.
    pub ancestors: Option<&'a [i64]>,
    /// `rows x banned_width`: tokens that may not come next, -1 for none. `None` where no setting bans any.
    pub banned: Option<&'a [i64]>,
}

/// The best tokens of each row, or all of them. There may be more rows than were asked for; those behind them mean nothing.
pub struct Candidates<'a> {
    /// Rows of the model.
    pub rows: usize,
    /// What it says about them.
    pub logits: Logits<'a>,
}

/// Logits of every row.
pub enum Logits<'a> {
    /// One behind the other: `rows x count` logits in descending order, `rows x count` ids as whole numbers, and each row's
    /// logarithm of the sum of exponentials over the vocabulary. Banned tokens are left out; where too few are left, the rest
    /// has the id -1.
    Best(Cow<'a, [f32]>),
    /// `rows x vocabulary` logits, banned ones included: sampling from all of them.
    All(Cow<'a, [f32]>),
}

/// What the decoder fixes: tokens that mean something to the search, and the length.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderTokens {
    /// Begins every sequence.
    pub bos: i64,
    /// Each of them ends one; may be empty.
    pub eos: Vec<i64>,
    /// What a finished row is fed.
    pub pad: i64,
    /// Most tokens of a caption, the end included.
    pub longest: usize,
}

/// A finished sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// Behind BOS, up to and including EOS where it came.
    pub tokens: Vec<i64>,
    /// The beam's: the sum of log-probabilities by its length to the power of the length penalty.
    pub score: Option<f32>,
}

/// Generates a sequence for each of `samples`: numbers of their own, from which sampling draws, whatever batch they are in.
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

/// [`Candidates::Best`] as rows.
struct Best<'a> {
    values: &'a [f32],
    ids: &'a [f32],
    lse: &'a [f32],
    count: usize,
}

impl<'a> Best<'a> {
    /// As many tokens of each row as there are: a vocabulary may have fewer than were asked for.
    fn of(flat: &'a [f32], rows: usize) -> Best<'a> {
        let count = (flat.len() / rows - 1) / 2;
        assert_eq!(flat.len(), rows * (2 * count + 1), "values, ids and sums");
        let (values, rest) = flat.split_at(rows * count);
        let (ids, lse) = rest.split_at(rows * count);
        Best {
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
