//! Colour jitter, in place on the cropped pixels:
//!
//! ```text
//! p1 = clamp(b p)                                brightness
//! p2 = clamp(m + c (p1 - m))                     contrast: m is the mean of grey(p1) over the picture
//! p3 = clamp(grey(p2) + s (p2 - grey(p2)))       saturation: each pixel's own grey
//! p4 = p3, its hue in HSV turned by h of a turn  hue
//! ```
//!
//! `grey` is 0.299 R + 0.587 G + 0.114 B. The order is fixed, where torchvision draws it at random too, and values are rounded
//! once, where Pillow rounds down after each step. Brightness and contrast are one table of 256 entries. Pixels differ
//! from these equations in 64 bits by at most 1 of 255, from Pillow's `ImageEnhance` (and `colorsys` for the hue) by at
//! most 1 for one step and 6 for all of them.

use super::CHANNELS;
use crate::config::Augment;
use crate::random::Random;

const GREY: [f32; CHANNELS] = [0.299, 0.587, 0.114];
/// Pixels per block.
const BLOCK: usize = 64;

type Planes = [[f32; BLOCK]; CHANNELS];

/// Jitter of one picture's colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Colours {
    /// Factors; 1 is neutral.
    pub brightness: f32,
    pub contrast: f32,
    pub saturation: f32,
    /// Turns of the hue, from -1/2 to 1/2; 0 is neutral.
    pub hue: f32,
}

impl Colours {
    /// Uniform in `[max(0, 1 - x), 1 + x]` for a factor, in `[-x, x]` for the hue: torchvision's `ColorJitter`. Always takes four
    /// draws, so that one setting does not change another's values.
    pub(super) fn drawn(augment: Augment, random: &mut Random) -> Colours {
        let mut factor = |spread: f64| {
            let least = (1.0 - spread).max(0.0);
            (least + (1.0 + spread - least) * random.unit()) as f32
        };
        Colours {
            brightness: factor(augment.brightness),
            contrast: factor(augment.contrast),
            saturation: factor(augment.saturation),
            hue: (augment.hue * (2.0 * random.unit() - 1.0)) as f32,
        }
    }

    /// Applies the jitter to RGB pixels.
    pub(super) fn apply(&self, rgb: &mut [u8]) {
        let (pixels, _) = rgb.as_chunks_mut::<CHANNELS>();
        let levels = self.levels(pixels);
        let changes_each_pixel = self.saturation != 1.0 || self.hue != 0.0;
        if changes_each_pixel {
            for block in pixels.chunks_mut(BLOCK) {
                self.change_block(block, &levels);
            }
        } else if self.brightness != 1.0 || self.contrast != 1.0 {
            let levels = levels.map(rounded);
            for value in rgb {
                *value = levels[usize::from(*value)];
            }
        }
    }

    /// Works channel by channel on a block that stays in registers and L1 cache, without branches: the compiler vectorises it to
    /// eight pixels at a time.
    fn change_block(&self, block: &mut [[u8; CHANNELS]], levels: &[f32; 256]) {
        let mut planes = [[0.0; BLOCK]; CHANNELS];
        for (channel, plane) in planes.iter_mut().enumerate() {
            for (value, pixel) in plane.iter_mut().zip(&*block) {
                *value = levels[usize::from(pixel[channel])];
            }
        }
        if self.saturation != 1.0 {
            saturate(&mut planes, self.saturation);
        }
        if self.hue != 0.0 {
            turn(&mut planes, self.hue);
        }
        for (channel, plane) in planes.iter().enumerate() {
            for (value, pixel) in plane.iter().zip(&mut *block) {
                pixel[channel] = rounded(*value);
            }
        }
    }

    /// Table of brightness and contrast for each value. The mean is computed from value counts: exact, in any order.
    fn levels(&self, pixels: &[[u8; CHANNELS]]) -> [f32; 256] {
        let mut levels =
            std::array::from_fn(|value| (self.brightness * value as f32).clamp(0.0, 255.0));
        if self.contrast == 1.0 || pixels.is_empty() {
            return levels;
        }
        let mut counts = [[0u32; 256]; CHANNELS];
        for pixel in pixels {
            for (counts, value) in counts.iter_mut().zip(pixel) {
                counts[usize::from(*value)] += 1;
            }
        }
        let mut total = 0.0;
        for (counts, weight) in counts.iter().zip(GREY) {
            let sum: f64 = (counts.iter().zip(&levels))
                .map(|(count, level)| f64::from(*count) * f64::from(*level))
                .sum();
            total += f64::from(weight) * sum;
        }
        let mean = (total / pixels.len() as f64) as f32;
        for level in &mut levels {
            *level = (mean + self.contrast * (*level - mean)).clamp(0.0, 255.0);
        }
        levels
    }
}

fn saturate([red, green, blue]: &mut Planes, saturation: f32) {
    for ((r, g), b) in red.iter_mut().zip(green).zip(blue) {
        let grey = GREY[0] * *r + GREY[1] * *g + GREY[2] * *b;
        for value in [r, g, b] {
            *value = (grey + saturation * (*value - grey)).clamp(0.0, 255.0);
        }
    }
}

/// Turns hues. The largest and the smallest value of a pixel stay, so its brightness and saturation (of HSV) stay too.
fn turn([red, green, blue]: &mut Planes, turns: f32) {
    for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
        let (r, g, b) = (*red, *green, *blue);
        let (most, least) = (r.max(g).max(b), r.min(g).min(b));
        let spread = most - least;
        // Hue in sixths of a turn: red at 0, green at 2, blue at 4. A grey pixel has spread 0, so its hue has no effect.
        let (difference, start) = if most == r {
            (g - b, 0.0)
        } else if most == g {
            (b - r, 2.0)
        } else {
            (r - g, 4.0)
        };
        let hue = start + difference / spread.max(f32::MIN_POSITIVE) + 6.0 * turns;
        let turned = |phase: f32| {
            // In -4 + 1 to 8 + 5: at most one turn too few or two too many.
            let sixths = hue + phase;
            let sixths = if sixths < 0.0 { sixths + 6.0 } else { sixths };
            let sixths = if sixths >= 6.0 { sixths - 6.0 } else { sixths };
            let sixths = if sixths >= 6.0 { sixths - 6.0 } else { sixths };
            most - spread * sixths.min(4.0 - sixths).clamp(0.0, 1.0)
        };
        (*red, *green, *blue) = (turned(5.0), turned(3.0), turned(1.0));
    }
}

/// Rounds to the nearest byte; the cast saturates.
fn rounded(value: f32) -> u8 {
    (value + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::random::DrawPurpose;

    const UNCHANGED: Colours = Colours {
        brightness: 1.0,
        contrast: 1.0,
        saturation: 1.0,
        hue: 0.0,
    };

    fn differences(ours: &[u8], theirs: &[u8]) -> (u8, f64) {
        let each = ours.iter().zip(theirs).map(|(a, b)| a.abs_diff(*b));
        let worst = each.clone().max().unwrap();
        (
            worst,
            each.map(f64::from).sum::<f64>() / theirs.len() as f64,
        )
    }

    /// `tests/fixtures/make_colours.py` wrote the result of Pillow and `colorsys` for a picture.
    #[test]
    fn colours_are_those_of_pillow() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/colours");
        let cases = fs::read_to_string(folder.join("expected.json")).unwrap();
        let cases: Value = serde_json::from_str(&cases).unwrap();
        let before = fs::read(folder.join("before.rgb")).unwrap();
        let cases = cases["cases"].as_array().unwrap();
        assert!(cases.len() >= 12);
        for case in cases {
            let factor = |key: &str| case[key].as_f64().unwrap() as f32;
            let colours = Colours {
                brightness: factor("brightness"),
                contrast: factor("contrast"),
                saturation: factor("saturation"),
                hue: factor("hue"),
            };
            let mut pixels = before.clone();
            colours.apply(&mut pixels);
            let expected = fs::read(folder.join(case["expected"].as_str().unwrap())).unwrap();
            let (worst, mean) = differences(&pixels, &expected);
            println!("{colours:?}: worst {worst}, mean {mean:.3}");
            let tolerance = case["tolerance"].as_u64().unwrap();
            assert!(u64::from(worst) <= tolerance, "{colours:?}: {worst}");
            let mean_tolerance = tolerance as f64 / 2.0 + 0.1;
            assert!(mean <= mean_tolerance, "{colours:?}: {mean}");
        }
    }

    #[test]
    fn extremes() {
        let picture = [10, 20, 200, 40, 50, 60];
        let after = |colours: Colours| {
            let mut pixels = picture;
            colours.apply(&mut pixels);
            pixels
        };
        assert_eq!(after(UNCHANGED), picture);
        let brightness = 0.0;
        assert_eq!(
            after(Colours {
                brightness,
                ..UNCHANGED
            }),
            [0; 6]
        );
        let contrast = 0.0;
        // (0.299 x 10 + 0.587 x 20 + 0.114 x 200 + 0.299 x 40 + 0.587 x 50 + 0.114 x 60) / 2 = 42.8
        assert_eq!(
            after(Colours {
                contrast,
                ..UNCHANGED
            }),
            [43; 6]
        );
        let saturation = 0.0;
        assert_eq!(
            after(Colours {
                saturation,
                ..UNCHANGED
            }),
            [38, 38, 38, 48, 48, 48]
        );
        let hue = 1.0 / 3.0;
        assert_eq!(
            after(Colours { hue, ..UNCHANGED }),
            [200, 10, 20, 60, 40, 50]
        );
    }

    proptest! {
        #[test]
        fn spreads_of_zero_draw_what_changes_nothing(seed in any::<u64>()) {
            let mut random = Random::new(DrawPurpose::Colours, &[seed]);
            prop_assert_eq!(Colours::drawn(Augment::default(), &mut random), UNCHANGED);
        }

        #[test]
        fn draws_are_in_their_ranges(spread in 0.0f64..2.0, hue in 0.0f64..=0.5, seed in any::<u64>()) {
            let augment = Augment { brightness: spread, contrast: spread, saturation: spread, hue, ..Augment::default() };
            let drawn = Colours::drawn(augment, &mut Random::new(DrawPurpose::Colours, &[seed]));
            let range = (1.0 - spread).max(0.0) - 1e-6..=1.0 + spread + 1e-6;
            for factor in [drawn.brightness, drawn.contrast, drawn.saturation] {
                prop_assert!(range.contains(&f64::from(factor)), "{drawn:?}");
            }
            prop_assert!(f64::from(drawn.hue).abs() <= hue + 1e-6);
        }

        /// A turn and the turn back cancel, a grey pixel stays, and the largest and smallest value of each pixel stay.
        #[test]
        fn hues_turn_and_nothing_else_does(pixel in any::<[u8; 3]>(), hue in -0.5f32..0.5) {
            let mut turned = pixel;
            Colours { hue, ..UNCHANGED }.apply(&mut turned);
            let ends = |p: [u8; 3]| (p.iter().min().copied(), p.iter().max().copied());
            prop_assert_eq!(ends(pixel), ends(turned));
            let grey = [pixel[0]; 3];
            let mut after = grey;
            Colours { hue, ..UNCHANGED }.apply(&mut after);
            prop_assert_eq!(grey, after);
        }
    }
}
