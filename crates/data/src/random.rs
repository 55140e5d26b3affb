//! Random numbers as a function of their purpose and a few words: the same words give the same draws, on every machine and
//! in every order of calls.

use holdall_files::{GOLDEN, SplitMix64, mix};

/// Purpose of a random stream, so that no two purposes share one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DrawPurpose {
    Split = 1,
    Drawn = 20,
    Shuffle = 2,
    Balance = 3,
    Augment = 4,
    Colours = 5,
    MixPartner = 6,
    Mix = 7,
    Patch = 8,
    PairGeometry = 9,
    PairColours = 10,
    ClipStart = 11,
    ClipVideos = 12,
}

#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// The stream for these words, such as (seed, epoch).
    pub(crate) fn new(purpose: DrawPurpose, words: &[u64]) -> Random {
        let mut state = mix(purpose as u64);
        for &word in words {
            state = mix(state.wrapping_add(GOLDEN) ^ mix(word.wrapping_add(GOLDEN)));
        }
        Random(SplitMix64(state))
    }

    /// The stream that continues from this state.
    pub(crate) fn from_state(state: u64) -> Random {
        Random(SplitMix64(state))
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Uniform in `0..bound`; 0 where the bound is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_and_words_do_not_share_a_stream() {
        let first = |purpose, words: &[u64]| Random::new(purpose, words).bits();
        let all = [
            first(DrawPurpose::Split, &[0]),
            first(DrawPurpose::Shuffle, &[0]),
            first(DrawPurpose::Shuffle, &[0, 0]),
            first(DrawPurpose::Shuffle, &[1, 0]),
            first(DrawPurpose::Shuffle, &[0, 1]),
        ];
        for (at, bits) in all.iter().enumerate() {
            assert!(!all[..at].contains(bits));
        }
    }

    #[test]
    fn every_face_comes_up_about_equally_often() {
        let mut random = Random::new(DrawPurpose::Shuffle, &[7]);
        let mut counts = [0; 6];
        for _ in 0..6000 {
            counts[random.below(6)] += 1;
        }
        assert!(
            counts.iter().all(|count| (850..1150).contains(count)),
            "{counts:?}"
        );
        assert_eq!(random.below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
