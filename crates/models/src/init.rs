//! Weights where there is no folder: drawn as Hugging Face draws them, a function of (seed, name, index) alone.

use crate::config::ClipConfig;

/// A stream of numbers for one tensor.
pub struct Draw {
    state: u64,
}

impl Draw {
    /// The stream of `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Draw {
        // FNV-1a over the name keeps streams of different tensors apart.
        let mut state = 0xcbf2_9ce4_8422_2325u64 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in name.bytes() {
            state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Draw { state }
    }

    /// Next 64 bits (splitmix64).
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Fills a parameter by its name.
pub fn fill(config: &ClipConfig, seed: u64, name: &str, values: &mut [f32]) {
    let constant = |values: &mut [f32], value: f32| values.fill(value);
    if name == "logit_scale" {
        return constant(values, config.logit_scale_init as f32);
    }
    if name.ends_with(".bias") {
        return constant(values, 0.0);
    }
    if name.contains("layer_norm") || name.contains("layrnorm") || name.contains("layernorm") {
        return constant(values, 1.0);
    }
    let std = standard_deviation(config, name);
    let mut draw = Draw::new(seed, name);
    for value in values {
        *value = (draw.normal() * std) as f32;
    }
}

fn standard_deviation(config: &ClipConfig, name: &str) -> f64 {
    let (width, num_layers) = if name.starts_with("vision") || name.starts_with("visual") {
        (config.vision.hidden_size as f64, config.vision.num_layers)
    } else {
        (config.text.hidden_size as f64, config.text.num_layers)
    };
    let depth = (2.0 * num_layers as f64).powf(-0.5);
    if name.ends_with("class_embedding") || name.ends_with("_projection.weight") {
        width.powf(-0.5)
    } else if name.contains("embedding") {
        0.02
    } else if name.contains("out_proj") {
        width.powf(-0.5)
    } else if name.contains("self_attn") {
        width.powf(-0.5) * depth
    } else if name.contains("fc1") {
        (2.0 * width).powf(-0.5)
    } else if name.contains("fc2") {
        width.powf(-0.5) * depth
    } else {
        (config.projection_dim as f64).powf(-0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
