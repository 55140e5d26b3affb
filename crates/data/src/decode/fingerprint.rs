//! A perceptual hash: survives re-encoding and resizing of a picture.
//!
//! ```text
//! bits      signs of the 63 lowest frequencies of the brightness (cosine transform of 32 x 32 means), against their median
//! colours   means of red, green and blue in a grid of 4 x 4
//! ```
//!
//! Two pictures are near copies where at most [`MAX_BITS`] bits differ and colours differ by at most [`MAX_COLOUR_DIFFERENCE`] of 255 on
//! average. For drawn cars and fundus photographs, JPEG down to quality 30, lossy WebP, half and twice the size change at most 4 bits, and
//! colours by at most 2; the nearest pairs of different pictures are 6 bits and 15 apart, or 12 bits and 5.

use std::collections::HashMap;
use std::path::Path;

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::decode::picture::{self, CHANNELS, Scratch};

/// Largest number of differing bits, of 63, between near copies.
pub const MAX_BITS: u32 = 6;
/// Largest mean colour difference, of 255, between near copies.
pub const MAX_COLOUR_DIFFERENCE: u32 = 3;

/// Side of the grid of sampled pixels.
const SAMPLED: usize = 256;
/// Side of the grid of brightness means.
const MEANS: usize = 32;
/// Frequencies in each direction.
const FREQUENCIES: usize = 8;
/// Side of the grid of colour cells.
const CELLS: usize = 4;
const NUM_COLOURS: usize = CELLS * CELLS * CHANNELS;
/// Smallest standard deviation of brightness, of 255; a flatter picture has no fingerprint.
const MIN_CONTRAST: f32 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) bits: u64,
    pub(crate) colours: [u8; NUM_COLOURS],
}

impl Fingerprint {
    /// Fingerprint of a picture of RGB bytes; `None` without enough contrast.
    pub(crate) fn of(rgb: &[u8], width: usize, height: usize) -> Option<Fingerprint> {
        if rgb.len() < width * height * CHANNELS {
            return None;
        }
        Fingerprint::of_pixels(width, height, |column, row| {
            let pixel = &rgb[(row * width + column) * CHANNELS..];
            [pixel[0], pixel[1], pixel[2]]
        })
    }

    /// Fingerprint of a picture whose `pixel_at(column, row)` is red, green and blue.
    pub(crate) fn of_pixels(
        width: usize,
        height: usize,
        pixel_at: impl Fn(usize, usize) -> [u8; CHANNELS],
    ) -> Option<Fingerprint> {
        if width == 0 || height == 0 {
            return None;
        }
        let mut means = [0.0_f32; MEANS * MEANS];
        let mut colours = [0_u32; NUM_COLOURS];
        for y in 0..SAMPLED {
            let row = (2 * y + 1) * height / (2 * SAMPLED);
            for x in 0..SAMPLED {
                let column = (2 * x + 1) * width / (2 * SAMPLED);
                let pixel = pixel_at(column, row);
                let mean = y * MEANS / SAMPLED * MEANS + x * MEANS / SAMPLED;
                let [red, green, blue] = pixel.map(f32::from);
                means[mean] += 0.299 * red + 0.587 * green + 0.114 * blue;
                let cell = y * CELLS / SAMPLED * CELLS + x * CELLS / SAMPLED;
                for (sum, value) in colours[cell * CHANNELS..].iter_mut().zip(pixel) {
                    *sum += u32::from(value);
                }
            }
        }
        let per_mean = (SAMPLED / MEANS * (SAMPLED / MEANS)) as f32;
        means.iter_mut().for_each(|mean| *mean /= per_mean);
        let average = means.iter().sum::<f32>() / means.len() as f32;
        let variance = means.iter().map(|mean| (mean - average).powi(2));
        if variance.sum::<f32>() / (means.len() as f32) < MIN_CONTRAST * MIN_CONTRAST {
            return None;
        }
        let per_cell = (SAMPLED / CELLS * (SAMPLED / CELLS)) as u32;
        Some(Fingerprint {
            bits: bits(&means),
            colours: colours.map(|sum| ((sum + per_cell / 2) / per_cell) as u8),
        })
    }

    fn is_near(&self, other: &Fingerprint) -> bool {
        if (self.bits ^ other.bits).count_ones() > MAX_BITS {
            return false;
        }
        let colours = self.colours.iter().zip(&other.colours);
        let difference: u32 = colours.map(|(a, b)| u32::from(a.abs_diff(*b))).sum();
        difference <= MAX_COLOUR_DIFFERENCE * NUM_COLOURS as u32
    }
}

/// Hashes that copies of a picture share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    /// Hash of the pixels.
    pub(crate) pixels: u128,
    /// Perceptual hash; `None` without enough contrast.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl Marks {
    /// Decodes a picture; `None` if it cannot be decoded.
    pub(crate) fn of(path: &Path, scratch: &mut Scratch) -> Option<Marks> {
        let (width, height) = picture::probe(path, scratch).ok()?;
        let pixels = scratch.rgb();
        Some(Marks {
            pixels: xxh3_128_with_seed(pixels, u64::from(width)),
            fingerprint: Fingerprint::of(pixels, width as usize, height as usize),
        })
    }
}

/// Signs of the lowest frequencies against their median, without the constant one.
fn bits(means: &[f32; MEANS * MEANS]) -> u64 {
    let mut waves = [[0.0_f32; MEANS]; FREQUENCIES];
    for (frequency, wave) in waves.iter_mut().enumerate() {
        for (x, value) in wave.iter_mut().enumerate() {
            let angle = std::f32::consts::PI / MEANS as f32 * (x as f32 + 0.5) * frequency as f32;
            *value = angle.cos();
        }
    }
    let mut across = [[0.0_f32; FREQUENCIES]; MEANS];
    for (y, row) in means.chunks_exact(MEANS).enumerate() {
        for (wave, sum) in waves.iter().zip(&mut across[y]) {
            *sum = row.iter().zip(wave).map(|(mean, wave)| mean * wave).sum();
        }
    }
    let mut coefficients = Vec::with_capacity(FREQUENCIES * FREQUENCIES);
    for down in &waves {
        for frequency in 0..FREQUENCIES {
            let column = across.iter().zip(down);
            coefficients.push(column.map(|(row, wave)| row[frequency] * wave).sum::<f32>());
        }
    }
    let waves = &coefficients[1..];
    let mut sorted = waves.to_vec();
    sorted.sort_by(f32::total_cmp);
    let median = sorted[sorted.len() / 2];
    let signs = waves.iter().enumerate();
    signs.fold(0, |bits, (at, value)| {
        bits | u64::from(*value > median) << at
    })
}

/// Pairs of near copies, as indices, the lower first.
///
/// If two hashes differ in at most [`MAX_BITS`] bits, at least one of `MAX_BITS + 1` groups of bits is equal: only pictures with an equal
/// group are compared.
pub(crate) fn near_pairs(all: &[Fingerprint]) -> Vec<(u32, u32)> {
    const NUM_BANDS: u32 = MAX_BITS + 1;
    const BAND_BITS: u32 = 63 / NUM_BANDS;
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    for band in 0..NUM_BANDS {
        let mut alike: HashMap<u64, Vec<u32>> = HashMap::new();
        for (at, fingerprint) in all.iter().enumerate() {
            let key = fingerprint.bits >> (band * BAND_BITS) & ((1 << BAND_BITS) - 1);
            alike.entry(key).or_default().push(at as u32);
        }
        pairs.par_extend(alike.par_iter().flat_map_iter(|(_, members)| {
            let pairs = members.iter().enumerate();
            pairs.flat_map(move |(place, &first)| {
                let later = members[place + 1..].iter();
                let near =
                    later.filter(move |later| all[first as usize].is_near(&all[**later as usize]));
                near.map(move |later| (first, *later))
            })
        }));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[cfg(test)]
mod tests {
    use image::codecs::jpeg::JpegEncoder;
    use image::imageops::{FilterType, resize};
    use image::{ImageFormat, Rgb, RgbImage};

    use super::*;

    /// A picture of soft blobs, different for each seed.
    fn blobs(seed: u32) -> RgbImage {
        let draw = |at: u32| {
            let mixed = (seed * 31 + at).wrapping_mul(0x9e37_79b1);
            f32::from(((mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b) >> 24) as u8)
        };
        RgbImage::from_fn(160, 120, |x, y| {
            let mut value = [40.0_f32; 3];
            for blob in 0..6 {
                let (left, top) = (draw(blob * 7) / 1.6, draw(blob * 7 + 1) / 2.2);
                let size = 8.0 + draw(blob * 7 + 2) / 8.0;
                let distance = (x as f32 - left).powi(2) + (y as f32 - top).powi(2);
                let weight = (-distance / (size * size)).exp();
                for (channel, value) in value.iter_mut().enumerate() {
                    *value += weight * (draw(blob * 7 + 3 + channel as u32) - 60.0);
                }
            }
            Rgb(value.map(|value| value.clamp(0.0, 255.0) as u8))
        })
    }

    fn of(image: &RgbImage) -> Fingerprint {
        let (width, height) = image.dimensions();
        Fingerprint::of(image.as_raw(), width as usize, height as usize).unwrap()
    }

    #[test]
    fn copies_are_near_and_other_pictures_are_not() {
        let mut all = Vec::new();
        for seed in 0..30 {
            let picture = blobs(seed);
            let mut jpeg = Vec::new();
            JpegEncoder::new_with_quality(&mut jpeg, 40)
                .encode_image(&picture)
                .unwrap();
            let jpeg = image::load_from_memory_with_format(&jpeg, ImageFormat::Jpeg).unwrap();
            let half = resize(&picture, 80, 60, FilterType::Triangle);
            all.extend([of(&picture), of(&jpeg.to_rgb8()), of(&half)]);
        }
        let expected: Vec<(u32, u32)> = (0..30)
            .flat_map(|at| {
                [
                    (3 * at, 3 * at + 1),
                    (3 * at, 3 * at + 2),
                    (3 * at + 1, 3 * at + 2),
                ]
            })
            .collect();
        assert_eq!(near_pairs(&all), expected);
        // The same shapes in another colour are no near copy.
        let mut other = blobs(0);
        other
            .pixels_mut()
            .for_each(|pixel| pixel.0[0] = pixel.0[0].saturating_add(60));
        assert!(near_pairs(&[all[0], of(&other)]).is_empty());
    }

    #[test]
    fn a_plain_picture_has_nothing_to_tell_it_by() {
        let plain = RgbImage::from_pixel(40, 30, Rgb([200, 10, 10]));
        assert_eq!(Fingerprint::of(plain.as_raw(), 40, 30), None);
        assert_eq!(Fingerprint::of(&[], 0, 0), None);
    }
}
