//! Random numbers of the drawn sets. Real numbers are `f32`: the pixels of a seed depend on them.

use holdall_files::SplitMix64;

#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
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

    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit_f32()
    }

    pub(crate) fn chance(&mut self, probability: f32) -> bool {
        self.unit_f32() < probability
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit_f32(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }
}
