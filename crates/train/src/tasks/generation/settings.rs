//! The `generation` section for a decoder: rows, candidates and lengths.

use super::{DecoderTokens, Generation, Method};

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
}
