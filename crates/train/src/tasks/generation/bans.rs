//! Tokens that may not come next.

use super::{DecoderTokens, Generation};

/// Banned tokens of all rows in a step.
pub(super) struct Bans<'a> {
    settings: &'a Generation,
    special: &'a DecoderTokens,
    /// `rows x width`; -1 stands for no token.
    banned: Vec<i64>,
    width: usize,
}

impl<'a> Bans<'a> {
    pub(super) fn new(
        settings: &'a Generation,
        special: &'a DecoderTokens,
        rows: usize,
    ) -> Bans<'a> {
        let width = settings.banned_width(special);
        Bans {
            settings,
            special,
            banned: vec![-1; rows * width],
            width,
        }
    }

    /// Finds the tokens that may not follow a row's tokens, which exclude BOS.
    pub(super) fn find(&mut self, row: usize, tokens: &[i64]) {
        let Bans {
            settings, special, ..
        } = *self;
        let to = &mut self.banned[row * self.width..][..self.width];
        to.fill(-1);
        let ends = if tokens.len() < settings.min_tokens {
            special.eos.as_slice()
        } else {
            &[]
        };
        let repeated = repeats(special.bos, tokens, settings.no_repeat_ngram);
        for (to, token) in to.iter_mut().zip(ends.iter().copied().chain(repeated)) {
            *to = token;
        }
    }

    /// The bans in the format of [`super::Asked::banned`].
    pub(super) fn of_all_rows(&self) -> Option<&[i64]> {
        (self.width > 0).then_some(&self.banned)
    }

    /// Bans of one row; -1 stands for no token.
    pub(super) fn of_row(&self, row: usize) -> &[i64] {
        &self.banned[row * self.width..][..self.width]
    }
}

/// Tokens that would repeat an earlier sequence of `n` tokens. BOS counts as a token.
fn repeats(bos: i64, tokens: &[i64], n: usize) -> impl Iterator<Item = i64> {
    let sequence: Vec<i64> = std::iter::once(bos).chain(tokens.iter().copied()).collect();
    let suffix = if n > 0 && sequence.len() >= n {
        sequence[sequence.len() + 1 - n..].to_vec()
    } else {
        Vec::new()
    };
    let num_windows = if n > 0 {
        (sequence.len() + 1).saturating_sub(n)
    } else {
        0
    };
    (0..num_windows).filter_map(move |first| {
        let window = &sequence[first..first + n];
        let (last, before) = window.split_last()?;
        (before == suffix).then_some(*last)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_same_tokens_before_is_banned() {
        let banned = |tokens: &[i64], n| repeats(1, tokens, n).collect::<Vec<i64>>();
        assert_eq!(banned(&[7, 8, 7], 2), [8]);
        assert_eq!(banned(&[7, 8, 9, 7, 8], 3), [9]);
        // BOS counts as a token.
        assert_eq!(banned(&[5, 1], 2), [5]);
        // n = 1: every token that occurred is banned.
        assert_eq!(banned(&[4, 6], 1), [1, 4, 6]);
        assert!(banned(&[7, 8, 7], 0).is_empty());
        assert!(banned(&[7], 3).is_empty());
    }
}
