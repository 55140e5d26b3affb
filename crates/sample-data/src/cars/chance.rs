//! Random streams of the cars, each named by a seed, a purpose and an index.

use crate::random::Random;

/// Purpose of a random stream, so that two purposes never share numbers.
#[derive(Clone, Copy)]
pub(super) enum CarPurpose {
    MakeOrder = 1,
    Attributes = 2,
    Scenery = 3,
    Caption = 4,
}

impl Random {
    pub(super) fn of_car(seed: u64, purpose: CarPurpose, index: usize) -> Random {
        let next = |state: u64| Random::from_state(state).bits();
        let named = next(next(seed) ^ purpose as u64);
        Random::from_state(next(named ^ index as u64))
    }
}
