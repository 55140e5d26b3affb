//! Blur and noise of a row's pixels, in integers.

use super::row::RowShape;
use crate::decode::PixelDepth;
use crate::random::Random;

const WEIGHT_BITS: u32 = 14;

/// Gaussian blur with standard deviation `sigma` in pixels, cut off at three of them; the border pixel is repeated beyond the border.
pub(super) fn blur(shape: RowShape, sigma: f64, pixels: &mut [u8], buffer: &mut Vec<u8>) {
    let weights = weights(sigma);
    buffer.clear();
    buffer.resize(pixels.len(), 0);
    let pixel = shape.pixel_bytes();
    let line = shape.width * pixel;
    // Horizontally: a step is a pixel, and lines end. Vertically: a step is a line.
    for (from, to) in pixels.chunks_exact(line).zip(buffer.chunks_exact_mut(line)) {
        pass(shape.depth, from, to, (shape.width, pixel), &weights);
    }
    pass(shape.depth, buffer, pixels, (shape.height, line), &weights);
}

/// Half of a symmetric kernel, from the middle on; the whole kernel sums to one.
fn weights(sigma: f64) -> Vec<u32> {
    let radius = (3.0 * sigma).ceil().max(1.0) as usize;
    let shares: Vec<f64> = (0..=radius)
        .map(|at| (-0.5 * (at as f64 / sigma).powi(2)).exp())
        .collect();
    let sum = shares[0] + 2.0 * shares[1..].iter().sum::<f64>();
    let one = f64::from(1_u32 << WEIGHT_BITS);
    let mut weights: Vec<u32> = shares
        .iter()
        .map(|share| (share / sum * one).round() as u32)
        .collect();
    let beside: u32 = weights[1..].iter().sum();
    weights[0] = (1_u32 << WEIGHT_BITS).saturating_sub(2 * beside);
    weights
}

/// One pass along `length` steps of `stride` bytes.
fn pass(
    depth: PixelDepth,
    from: &[u8],
    to: &mut [u8],
    (length, stride): (usize, usize),
    weights: &[u32],
) {
    let half = 1_u64 << (WEIGHT_BITS - 1);
    let bytes = depth.bytes();
    for step in 0..length {
        let out = &mut to[step * stride..(step + 1) * stride];
        for (at, value) in out.chunks_exact_mut(bytes).enumerate() {
            let read = |step: usize| -> u64 {
                let place = step * stride + at * bytes;
                match depth {
                    PixelDepth::Eight => u64::from(from[place]),
                    PixelDepth::Sixteen => {
                        u64::from(u16::from_le_bytes([from[place], from[place + 1]]))
                    }
                }
            };
            let mut sum = u64::from(weights[0]) * read(step) + half;
            for (distance, weight) in weights.iter().enumerate().skip(1) {
                let before = read(step.saturating_sub(distance));
                let after = read((step + distance).min(length - 1));
                sum += u64::from(*weight) * (before + after);
            }
            let sum = (sum >> WEIGHT_BITS).min(u64::from(depth.maximum())) as u16;
            value.copy_from_slice(&sum.to_le_bytes()[..bytes]);
        }
    }
}

/// Adds noise whose standard deviation is a share of white. The sum of four random bytes approximates a normal distribution cheaply.
pub(super) fn add_noise(depth: PixelDepth, deviation: f64, state: u64, pixels: &mut [u8]) {
    /// Mean and standard deviation, sqrt(4 (256^2 - 1) / 12), of the sum of four bytes.
    const MEAN: i64 = 510;
    const DEVIATION: f64 = 147.801;
    let factor = (deviation * f64::from(depth.maximum()) / DEVIATION * 65536.0).round() as i64;
    let mut random = Random::from_state(state);
    let bytes = depth.bytes();
    for two in pixels.chunks_mut(2 * bytes) {
        let throw = random.bits().to_le_bytes();
        for (value, four) in two.chunks_exact_mut(bytes).zip(throw.as_chunks::<4>().0) {
            let sum: i64 = four.iter().map(|byte| i64::from(*byte)).sum();
            let noise = ((sum - MEAN) * factor + 32768) >> 16;
            let old = match depth {
                PixelDepth::Eight => i64::from(value[0]),
                PixelDepth::Sixteen => i64::from(u16::from_le_bytes([value[0], value[1]])),
            };
            let new = (old + noise).clamp(0, i64::from(depth.maximum())) as u16;
            value.copy_from_slice(&new.to_le_bytes()[..bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(width: usize, height: usize, channels: usize, depth: PixelDepth) -> RowShape {
        RowShape {
            height,
            width,
            channels,
            depth,
        }
    }

    #[test]
    fn a_blur_spreads_a_point_and_keeps_what_is_even() {
        let shape = shape(9, 9, 3, PixelDepth::Eight);
        let mut pixels = vec![77; shape.pixels().len()];
        let mut buffer = Vec::new();
        blur(shape, 1.3, &mut pixels, &mut buffer);
        assert!(pixels.iter().all(|value| *value == 77));
        pixels.fill(0);
        let middle = (4 * 9 + 4) * 3;
        pixels[middle + 1] = 255;
        blur(shape, 1.0, &mut pixels, &mut buffer);
        // 0.399^2 in the middle, and 0.242 to each side.
        assert_eq!(
            (pixels[middle], pixels[middle + 1], pixels[middle + 4]),
            (0, 41, 25)
        );
        assert_eq!(pixels[middle - 2], pixels[middle + 4]);
        assert_eq!(pixels[middle - 27 + 1], pixels[middle + 27 + 1]);
        let sum: u32 = pixels.iter().map(|value| u32::from(*value)).sum();
        assert!((240..=270).contains(&sum), "{sum}");
    }

    #[test]
    fn noise_has_its_deviation_and_no_bias() {
        for (depth, white) in [(PixelDepth::Eight, 255.0), (PixelDepth::Sixteen, 65535.0)] {
            let mut pixels = match depth {
                PixelDepth::Eight => vec![128; 60_000],
                PixelDepth::Sixteen => [0, 128].repeat(60_000),
            };
            add_noise(depth, 0.05, 9, &mut pixels);
            let values: Vec<f64> = match depth {
                PixelDepth::Eight => pixels.iter().map(|value| f64::from(*value)).collect(),
                PixelDepth::Sixteen => pixels
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|two| f64::from(u16::from_le_bytes(*two)))
                    .collect(),
            };
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let variance = values
                .iter()
                .map(|value| (value - mean).powi(2))
                .sum::<f64>()
                / values.len() as f64;
            let old = if depth == PixelDepth::Eight {
                128.0
            } else {
                32768.0
            };
            assert!(((mean - old) / white).abs() < 2e-3, "{mean}");
            assert!((variance.sqrt() / white - 0.05).abs() < 2e-3, "{variance}");
        }
    }
}
