//! Renders surface and layers to pixels: blood absorbs light, glare adds some, the sensor adds noise.

use super::anatomy::Anatomy;
use super::layers::Layers;
use super::smoothstep;
use super::surface::Surface;
use crate::random::Random;

/// Share of red, green and blue that blood absorbs; arteries carry brighter blood.
const ARTERY: [f32; 3] = [0.26, 0.72, 0.52];
const VEIN: [f32; 3] = [0.48, 0.86, 0.58];
const HAEMORRHAGE: [f32; 3] = [0.5, 0.95, 0.7];
const EXUDATE: [f32; 3] = [0.98, 0.9, 0.55];

pub(super) fn pixels(
    layers: &Layers,
    surface: &Surface,
    anatomy: &Anatomy,
    random: &mut Random,
) -> Vec<u8> {
    let size = layers.size;
    let side = size as f32;
    let edge = (1.2 / (anatomy.field * side)).max(0.004);
    let mut pixels = Vec::with_capacity(3 * size * size);
    for row in 0..size {
        let light = surface.row(row, size);
        let y = (row as f32 + 0.5) / side;
        for column in 0..size {
            let far = anatomy.eccentricity(((column as f32 + 0.5) / side, y));
            let seen = 1.0 - smoothstep(1.0 - edge, 1.0 + edge, far);
            let mut colour = [0.0; 3];
            if seen > 0.0 {
                let [red, green, blue, glare @ ..] = light(column);
                let own = tissue([red, green, blue], layers, row * size + column);
                for channel in 0..3 {
                    let clear = own[channel].min(1.0);
                    colour[channel] = seen * (clear + glare[channel] * (1.0 - clear));
                }
            }
            // Noise is smaller in dark areas, and hardly visible outside the field of view.
            let bits = random.bits();
            for (channel, value) in colour.into_iter().enumerate() {
                let noise =
                    anatomy.noise * (0.25 + 0.75 * value.sqrt()) * triangle(bits >> (20 * channel));
                pixels.push(((value + noise) * 255.0 + 0.5) as u8);
            }
        }
    }
    pixels
}

/// Colour of the surface with the exudates, below the blood.
fn tissue(mut colour: [f32; 3], layers: &Layers, at: usize) -> [f32; 3] {
    let bright = layers.bright[at];
    if bright > 0.0 {
        let lit = (colour[0] * 1.25).min(1.0);
        for (value, exudate) in colour.iter_mut().zip(EXUDATE) {
            *value += (exudate * lit - *value) * bright;
        }
    }
    let (artery, vein, dark) = (layers.artery[at], layers.vein[at], layers.dark[at]);
    if artery + vein + dark == 0.0 {
        return colour;
    }
    let reflex = 1.0 - layers.reflex[at];
    for (channel, value) in colour.iter_mut().enumerate() {
        let loss = reflex * (ARTERY[channel] * artery + VEIN[channel] * vein)
            + HAEMORRHAGE[channel] * dark;
        *value *= (-loss).exp();
    }
    colour
}

/// Triangular noise of deviation 1, from 20 random bits.
fn triangle(bits: u64) -> f32 {
    let sum = (bits & 1023) + ((bits >> 10) & 1023);
    (sum as f32 / 1023.0 - 1.0) * 6.0_f32.sqrt()
}
