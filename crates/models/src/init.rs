//! Random weights: numbers that are a function of (seed, name, index) alone.
//!
//! Each architecture chooses the distributions: [`clip::init`](crate::clip::init), [`vit::init`](crate::vit::init),
//! [`unet::init`](crate::unet::init).

use holdall_files::{FNV_START, GOLDEN, SplitMix64, fnv1a};

/// Numbers that one thread draws at a time; for fewer, a thread does not pay off.
const DRAWN_TOGETHER: usize = 1 << 18;

/// Random stream of one tensor.
pub struct Draw(SplitMix64);

impl Draw {
    /// Random stream of the tensor `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Draw {
        // The name separates the streams of different tensors.
        let state = fnv1a(FNV_START ^ seed.wrapping_mul(GOLDEN), name.as_bytes());
        Draw(SplitMix64(state))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.bits()
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        self.0.unit()
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Initial distribution of a parameter's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    Constant(f32),
    /// Normal with mean zero and this standard deviation.
    Normal(f64),
    /// Uniform between minus and plus this bound.
    Uniform(f64),
}

impl Start {
    /// Fills `values` of the parameter `name`.
    pub fn fill(self, seed: u64, name: &str, values: &mut [f32]) {
        if let Start::Constant(value) = self {
            return values.fill(value);
        }
        let draw_from = |first: usize, values: &mut [f32]| {
            let mut draw = Draw::new(seed, name);
            match self {
                Start::Constant(_) => {}
                Start::Normal(std) => {
                    // A normal number takes two draws.
                    draw.0.skip(2 * first as u64);
                    for value in values {
                        *value = (draw.normal() * std) as f32;
                    }
                }
                Start::Uniform(bound) => {
                    draw.0.skip(first as u64);
                    for value in values {
                        *value = ((2.0 * draw.uniform() - 1.0) * bound) as f32;
                    }
                }
            }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let each = values.len().div_ceil(cores).max(DRAWN_TOGETHER);
        if values.len() <= each {
            return draw_from(0, values);
        }
        std::thread::scope(|scope| {
            for (index, part) in values.chunks_mut(each).enumerate() {
                let draw_from = &draw_from;
                scope.spawn(move || draw_from(index * each, part));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_do_not_depend_on_how_many_threads_draw_them() {
        let (name, num_values) = ("text_model.embeddings.token_embedding.weight", 700_001);
        let mut values = vec![0.0; num_values];
        Start::Normal(0.02).fill(3, name, &mut values);
        let mut draw = Draw::new(3, name);
        for (index, &value) in values.iter().enumerate() {
            let expected = (draw.normal() * 0.02) as f32;
            assert_eq!(value.to_bits(), expected.to_bits(), "number {index}");
        }
    }

    #[test]
    fn uniform_numbers_fill_their_bounds_on_any_number_of_threads() {
        let mut values = vec![0.0; 700_001];
        Start::Uniform(0.5).fill(3, "conv.weight", &mut values);
        let mut draw = Draw::new(3, "conv.weight");
        for (index, &value) in values.iter().enumerate() {
            let expected = ((2.0 * draw.uniform() - 1.0) * 0.5) as f32;
            assert_eq!(value.to_bits(), expected.to_bits(), "number {index}");
        }
        let largest = values
            .iter()
            .fold(0.0f32, |most, value| most.max(value.abs()));
        assert!((0.499..=0.5).contains(&largest), "{largest}");
    }

    #[test]
    fn normals_are_normal_and_streams_differ() {
        let mut draw = Draw::new(7, "a");
        let numbers: Vec<f64> = (0..20_000).map(|_| draw.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let variance = numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64;
        assert!(mean.abs() < 0.03, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
        assert_ne!(Draw::new(7, "a").bits(), Draw::new(7, "b").bits());
        assert_ne!(Draw::new(7, "a").bits(), Draw::new(8, "a").bits());
    }
}
