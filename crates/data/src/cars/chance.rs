//! Random streams of the cars, each named by a seed, a purpose and an index. Real numbers are `f32`: the pixels of a seed depend on them.

use crate::random::Random;

/// Purpose of a random stream, so that two purposes never share numbers.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    MakeOrder = 1,
    Attributes = 2,
    Scenery = 3,
    Caption = 4,
}

impl Random {
    pub(super) fn of_car(seed: u64, purpose: Purpose, index: usize) -> Random {
        let next = |state: u64| Random::from_state(state).bits();
        let named = next(next(seed) ^ purpose as u64);
        Random::from_state(next(named ^ index as u64))
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
