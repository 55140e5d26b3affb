//! The `generation` section for a decoder: rows, candidates and lengths.

use super::{DecoderTokens, Generation, Method};

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
