//! Random augmentation of a picture and its mask on one occasion.
//!
//! A function of (seed, epoch, sample) alone, so a resumed run and a micro-batch that is run twice see the same pixels. Geometry, colours
//! and the position of a patch have random streams of their own: enabling one changes none of the others.

use crate::config::{PairAugment, Spread};
use crate::decode::Occasion;
use crate::decode::PixelDepth;
use crate::random::{DrawPurpose, Random};

/// Random choices for one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PairDraw {
    pub is_mirrored: bool,
    pub is_upside_down: bool,
    /// Quarter turns, 0 to 3.
    pub num_turns: u8,
    /// In radians.
    pub angle: f64,
    /// More than 1 enlarges.
    pub zoom: f64,
    pub tone: Tone,
    /// Standard deviation as a share of white, and the seed of the noise.
    pub noise: Option<(f64, u64)>,
    /// Standard deviation in pixels.
    pub blur: Option<f64>,
    /// Factor by which the resolution is reduced, per side.
    pub coarseness: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tone {
    brightness: f64,
    contrast: f64,
    gamma: f64,
}

impl Tone {
    const NONE: Tone = Tone {
        brightness: 1.0,
        contrast: 1.0,
        gamma: 1.0,
    };

    /// Lookup table of the tone change for a picture with this mean (of 0 to 1); `None` if the tone stays.
    pub(super) fn table(&self, depth: PixelDepth, mean: impl FnOnce() -> f64) -> Option<Vec<u16>> {
        if *self == Tone::NONE {
            return None;
        }
        let white = f64::from(depth.maximum());
        let mean = (mean() * self.brightness).min(1.0);
        let value = |value: u16| {
            let bright = f64::from(value) / white * self.brightness;
            let contrasted = mean + (bright - mean) * self.contrast;
            let toned = contrasted.clamp(0.0, 1.0).powf(self.gamma);
            // The cast saturates.
            (toned * white).round() as u16
        };
        Some((0..=depth.maximum()).map(value).collect())
    }
}

impl PairDraw {
    /// No augmentation, as in evaluation.
    pub(super) const NONE: PairDraw = PairDraw {
        is_mirrored: false,
        is_upside_down: false,
        num_turns: 0,
        angle: 0.0,
        zoom: 1.0,
        tone: Tone::NONE,
        noise: None,
        blur: None,
        coarseness: None,
    };

    pub(super) fn new(augment: &PairAugment, is_square: bool, occasion: Occasion) -> PairDraw {
        let words = [occasion.seed, occasion.epoch, occasion.sample];
        let mut random = Random::new(DrawPurpose::PairGeometry, &words);
        let is_mirrored = random.unit() < 0.5 && augment.flip;
        let is_upside_down = random.unit() < 0.5 && augment.vertical_flip;
        let turns = random.below(4) as u8;
        let num_turns = match (augment.quarter_turns, is_square) {
            (false, _) => 0,
            (true, true) => turns,
            (true, false) => turns & 2,
        };
        let angle = either_way(&mut random, augment.rotation).to_radians();
        let zoom = power(&mut random, augment.scale);
        let mut random = Random::new(DrawPurpose::PairColours, &words);
        let tone = Tone {
            brightness: 1.0 + either_way(&mut random, augment.brightness),
            contrast: 1.0 + either_way(&mut random, augment.contrast),
            gamma: power(&mut random, augment.gamma),
        };
        let noise = up_to(&mut random, augment.noise);
        let blur = up_to(&mut random, augment.blur);
        let coarseness = up_to(&mut random, augment.low_resolution);
        PairDraw {
            is_mirrored,
            is_upside_down,
            num_turns,
            angle,
            zoom,
            tone,
            noise: noise.map(|deviation| (deviation, random.bits())),
            blur: blur.filter(|sigma| *sigma > 0.1),
            coarseness: coarseness.map(|more| 1.0 + more),
        }
    }
}

/// With the probability `spread.chance`, a number in `[0, 1)`. Always takes two draws.
fn thrown(random: &mut Random, spread: Spread) -> Option<f64> {
    let (chance, unit) = (random.unit(), random.unit());
    (spread.most > 0.0 && chance < spread.chance).then_some(unit)
}

fn up_to(random: &mut Random, spread: Spread) -> Option<f64> {
    thrown(random, spread).map(|unit| unit * spread.most)
}

fn either_way(random: &mut Random, spread: Spread) -> f64 {
    thrown(random, spread).map_or(0.0, |unit| (2.0 * unit - 1.0) * spread.most)
}

/// Between `1 / (1 + most)` and `1 + most`, uniform in the logarithm.
fn power(random: &mut Random, spread: Spread) -> f64 {
    thrown(random, spread).map_or(1.0, |unit| {
        ((2.0 * unit - 1.0) * (1.0 + spread.most).ln()).exp()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(augment: PairAugment) -> Vec<PairDraw> {
        let occasion = |sample| Occasion {
            seed: 5,
            epoch: 2,
            sample,
        };
        (0..400)
            .map(|sample| PairDraw::new(&augment, true, occasion(sample)))
            .collect()
    }

    #[test]
    fn turning_one_on_moves_none_of_the_others() {
        let all = draws(PairAugment::NNUNET);
        let flips = PairAugment {
            flip: true,
            gamma: PairAugment::NNUNET.gamma,
            ..PairAugment::NONE
        };
        for (some, all) in draws(flips).iter().zip(&all) {
            assert_eq!(
                (some.is_mirrored, some.tone.gamma),
                (all.is_mirrored, all.tone.gamma)
            );
            assert_eq!((some.angle, some.zoom, some.noise), (0.0, 1.0, None));
        }
        assert!(
            draws(PairAugment::NONE)
                .iter()
                .all(|draw| *draw == PairDraw::NONE)
        );
    }

    #[test]
    fn chances_and_ranges_are_kept() {
        let all = draws(PairAugment::NNUNET);
        let share = |is: &dyn Fn(&PairDraw) -> bool| all.iter().filter(|draw| is(draw)).count();
        assert!((150..250).contains(&share(&|draw| draw.is_mirrored)));
        assert!((50..110).contains(&share(&|draw| draw.angle != 0.0)));
        assert!((90..150).contains(&share(&|draw| draw.tone.gamma != 1.0)));
        assert!(
            all.iter()
                .all(|draw| (1.0 / 1.4..=1.4).contains(&draw.zoom))
        );
        assert!(
            all.iter()
                .all(|draw| draw.blur.is_none_or(|sigma| sigma <= 1.0))
        );
        let turned = draws(PairAugment::default());
        for turns in 0..4 {
            let count = turned.iter().filter(|draw| draw.num_turns == turns).count();
            assert!((60..140).contains(&count), "{count}");
        }
    }

    #[test]
    fn a_table_keeps_the_mean_under_contrast_and_ends_under_gamma() {
        let contrast = Tone {
            contrast: 2.0,
            ..Tone::NONE
        };
        let table = contrast.table(PixelDepth::Eight, || 100.0 / 255.0).unwrap();
        assert_eq!(
            (table[100], table[110], table[0], table[255]),
            (100, 120, 0, 255)
        );
        let gamma = Tone {
            gamma: 2.0,
            ..Tone::NONE
        };
        let table = gamma.table(PixelDepth::Sixteen, || 0.5).unwrap();
        assert_eq!((table.len(), table[0], table[65535]), (65536, 0, 65535));
        assert_eq!(table[32768], 16384);
    }
}
