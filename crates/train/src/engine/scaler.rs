//! The dynamic loss scale of fp16, as a state machine.
//!
//! ```text
//! finite gradients:  good += 1; at `growth_interval`: scale *= 2, good = 0
//! not finite:        the step is skipped; scale /= 2, good = 0; at the smallest scale: an error
//! ```

use holdall_device::Arithmetic;
use serde::{Deserialize, Serialize};

/// State of a step's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gradients {
    /// All finite: the update was applied.
    Finite,
    /// Some infinite or NaN: the update was skipped.
    Overflowed,
}

/// Gradients overflow at the smallest scale: loss scaling cannot help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtSmallestScale;

/// Loss scale and its history; part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    scale: f64,
    good_steps: u32,
    growth_interval: u32,
    smallest: f64,
    largest: f64,
    skipped_steps: u64,
}

impl Default for LossScaler {
    fn default() -> LossScaler {
        LossScaler {
            scale: 65_536.0,
            good_steps: 0,
            growth_interval: 2_000,
            smallest: 1.0,
            largest: 16_777_216.0,
            skipped_steps: 0,
        }
    }
}

impl LossScaler {
    /// The scaler for a number format: only fp16's range is too small for gradients.
    pub fn suiting(arithmetic: Arithmetic) -> LossScaler {
        match arithmetic {
            Arithmetic::F16 => LossScaler::default(),
            Arithmetic::F32 | Arithmetic::Tf32 | Arithmetic::Bf16 => LossScaler::off(),
        }
    }

    /// A constant scale of 1, for formats with the range of f32.
    pub fn off() -> LossScaler {
        LossScaler {
            scale: 1.0,
            largest: 1.0,
            ..LossScaler::default()
        }
    }

    /// Current factor of the losses.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Number of skipped steps.
    pub fn skipped_steps(&self) -> u64 {
        self.skipped_steps
    }

    /// Whether the scale can change, as in fp16.
    pub fn is_on(&self) -> bool {
        self.largest > self.smallest
    }

    /// Records a step. After an error the state is unchanged.
    pub fn observe(&mut self, gradients: Gradients) -> Result<(), AtSmallestScale> {
        match gradients {
            Gradients::Finite => {
                self.good_steps += 1;
                if self.good_steps >= self.growth_interval {
                    self.scale = (self.scale * 2.0).min(self.largest);
                    self.good_steps = 0;
                }
            }
            Gradients::Overflowed => {
                if self.scale <= self.smallest {
                    return Err(AtSmallestScale);
                }
                self.scale = (self.scale / 2.0).max(self.smallest);
                self.good_steps = 0;
                self.skipped_steps += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grows_after_the_interval_and_halves_on_overflow() {
        let mut scaler = LossScaler::default();
        for _ in 0..1_999 {
            scaler.observe(Gradients::Finite).unwrap();
        }
        assert_eq!(scaler.scale(), 65_536.0);
        scaler.observe(Gradients::Finite).unwrap();
        assert_eq!(scaler.scale(), 131_072.0);
        scaler.observe(Gradients::Overflowed).unwrap();
        assert_eq!((scaler.scale(), scaler.skipped_steps()), (65_536.0, 1));
    }

    #[test]
    fn only_fp16_is_scaled() {
        let scale = |arithmetic| LossScaler::suiting(arithmetic).scale();
        assert_eq!(scale(Arithmetic::F16), 65_536.0);
        for other in [Arithmetic::F32, Arithmetic::Tf32, Arithmetic::Bf16] {
            assert_eq!(scale(other), 1.0);
        }
    }

    #[test]
    fn an_overflow_starts_the_count_again() {
        let mut scaler = LossScaler::default();
        for _ in 0..1_999 {
            scaler.observe(Gradients::Finite).unwrap();
        }
        scaler.observe(Gradients::Overflowed).unwrap();
        scaler.observe(Gradients::Finite).unwrap();
        assert_eq!(scaler.scale(), 32_768.0);
    }

    #[test]
    fn overflow_at_the_smallest_scale_is_an_error() {
        let mut scaler = LossScaler::default();
        for _ in 0..16 {
            scaler.observe(Gradients::Overflowed).unwrap();
        }
        assert_eq!(scaler.scale(), 1.0);
        let before = scaler;
        assert_eq!(scaler.observe(Gradients::Overflowed), Err(AtSmallestScale));
        assert_eq!(scaler, before);
        assert!(LossScaler::off().observe(Gradients::Overflowed).is_err());
    }

    proptest! {
        #[test]
        fn the_scale_is_always_a_power_of_two_within_its_bounds(steps in prop::collection::vec(any::<bool>(), 0..400)) {
            let mut scaler = LossScaler { growth_interval: 3, ..LossScaler::default() };
            for finite in steps {
                let gradients = if finite { Gradients::Finite } else { Gradients::Overflowed };
                if scaler.observe(gradients).is_err() {
                    prop_assert_eq!(scaler.scale(), 1.0);
                }
                prop_assert!((1.0..=16_777_216.0).contains(&scaler.scale()));
                prop_assert_eq!(scaler.scale().log2().fract(), 0.0);
            }
        }
    }
}
