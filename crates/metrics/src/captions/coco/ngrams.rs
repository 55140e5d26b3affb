//! Counts of n-grams of one to four words, in the order of first appearance.

use std::collections::HashMap;

/// Longest n-gram, in words.
pub const LONGEST: usize = 4;

/// Word ids of an n-gram, padded with `u32::MAX`.
pub type Ngram = [u32; LONGEST];

/// Counts of a caption's n-grams, by length.
#[derive(Default)]
pub struct NgramCounts {
    places: HashMap<Ngram, usize>,
    /// N-grams of one word, two words and so on.
    pub by_length: [Vec<(Ngram, u32)>; LONGEST],
}

impl NgramCounts {
    pub fn of(words: &[u32]) -> NgramCounts {
        let mut counts = NgramCounts::default();
        for length in 1..=LONGEST {
            let list = &mut counts.by_length[length - 1];
            for window in words.windows(length) {
                let mut ngram = [u32::MAX; LONGEST];
                ngram[..length].copy_from_slice(window);
                let place = *counts.places.entry(ngram).or_insert_with(|| {
                    list.push((ngram, 0));
                    list.len() - 1
                });
                list[place].1 += 1;
            }
        }
        counts
    }

    /// Number of occurrences.
    pub fn count(&self, length: usize, ngram: &Ngram) -> u32 {
        let place = self.places.get(ngram);
        place.map_or(0, |&place| self.by_length[length - 1][place].1)
    }
}
