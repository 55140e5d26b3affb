//! Chance that repeats: a splitmix64 generator, named by a seed, a purpose and an index.

/// A stream of numbers that depends on nothing but what it was named by.
pub(super) struct Dice {
    state: u64,
}

/// What a stream is for, so that two purposes never share numbers.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    MakeOrder = 1,
    Attributes = 2,
    Scenery = 3,
    Caption = 4,
}

impl Dice {
    pub(super) fn new(seed: u64, purpose: Purpose, index: usize) -> Dice {
        let named = scramble(scramble(seed) ^ purpose as u64);
        Dice {
            state: scramble(named ^ index as u64),
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.state)
    }

    /// At least 0, less than 1.
    pub(super) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    pub(super) fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// At least 0, less than `count`.
    pub(super) fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    pub(super) fn chance(&mut self, probability: f32) -> bool {
        self.unit() < probability
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

fn scramble(value: u64) -> u64 {
    finish(value.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
