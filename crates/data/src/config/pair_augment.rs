//! Augmentation of pictures together with their masks.

use serde::{Deserialize, Serialize};

use crate::error::DataError;

/// Augmentation of a training pair: a function of (seed, epoch, sample) alone. Geometric changes apply to picture and mask, all others to
/// the picture only. The default suits retinal vessels: an eye may have any orientation, and colours differ little between cameras.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PairAugment {
    /// Mirror left to right with probability 1/2.
    pub flip: bool,
    /// Mirror upside down with probability 1/2.
    pub vertical_flip: bool,
    /// Rotate by 0, 90, 180 or 270 degrees; by 0 or 180 where pictures are not square.
    pub quarter_turns: bool,
    /// Rotate by up to this many degrees, either way.
    pub rotation: Spread,
    /// Enlarge or shrink by up to this share: 0.4 is a factor of 1/1.4 to 1.4.
    pub scale: Spread,
    /// Multiply pixel values by 1 - x to 1 + x.
    pub brightness: Spread,
    /// Multiply the distance from the picture's mean by 1 - x to 1 + x.
    pub contrast: Spread,
    /// Raise pixel values to a power of 1/(1 + x) to 1 + x.
    pub gamma: Spread,
    /// Add noise with a standard deviation of up to this share of white.
    pub noise: Spread,
    /// Blur by a Gaussian of up to this many pixels.
    pub blur: Spread,
    /// Reduce the resolution by a factor of up to 1 + x.
    pub low_resolution: Spread,
}

/// Range of an augmentation, and the probability that a sample gets it: `0.2`, or `{most: 0.2, chance: 0.5}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "SpreadKeys", into = "SpreadKeys")]
pub struct Spread {
    /// Largest change.
    pub most: f64,
    /// Share of samples that are changed.
    pub chance: f64,
}

impl Spread {
    /// For every sample.
    pub const fn always(most: f64) -> Spread {
        Spread { most, chance: 1.0 }
    }

    /// For this share of the samples.
    pub const fn sometimes(most: f64, chance: f64) -> Spread {
        Spread { most, chance }
    }

    /// For no sample.
    pub const NONE: Spread = Spread::always(0.0);
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum SpreadKeys {
    Most(f64),
    Section(SpreadSection),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpreadSection {
    most: f64,
    chance: f64,
}

impl From<SpreadKeys> for Spread {
    fn from(keys: SpreadKeys) -> Spread {
        match keys {
            SpreadKeys::Most(most) => Spread::always(most),
            SpreadKeys::Section(SpreadSection { most, chance }) => Spread { most, chance },
        }
    }
}

impl From<Spread> for SpreadKeys {
    fn from(Spread { most, chance }: Spread) -> SpreadKeys {
        if chance == 1.0 {
            SpreadKeys::Most(most)
        } else {
            SpreadKeys::Section(SpreadSection { most, chance })
        }
    }
}

impl Default for PairAugment {
    fn default() -> PairAugment {
        PairAugment {
            flip: true,
            vertical_flip: true,
            quarter_turns: true,
            brightness: Spread::always(0.1),
            contrast: Spread::always(0.1),
            gamma: Spread::always(0.1),
            ..PairAugment::NONE
        }
    }
}

impl PairAugment {
    /// No augmentation.
    pub const NONE: PairAugment = PairAugment {
        flip: false,
        vertical_flip: false,
        quarter_turns: false,
        rotation: Spread::NONE,
        scale: Spread::NONE,
        brightness: Spread::NONE,
        contrast: Spread::NONE,
        gamma: Spread::NONE,
        noise: Spread::NONE,
        blur: Spread::NONE,
        low_resolution: Spread::NONE,
    };

    /// The augmentation of nnU-Net's 2D configuration, as near as these keys allow.
    pub const NNUNET: PairAugment = PairAugment {
        flip: true,
        vertical_flip: true,
        quarter_turns: false,
        rotation: Spread::sometimes(180.0, 0.2),
        scale: Spread::sometimes(0.4, 0.2),
        brightness: Spread::sometimes(0.25, 0.15),
        contrast: Spread::sometimes(0.25, 0.15),
        gamma: Spread::sometimes(0.5, 0.3),
        noise: Spread::sometimes(0.1, 0.1),
        blur: Spread::sometimes(1.0, 0.2),
        low_resolution: Spread::sometimes(1.0, 0.25),
    };

    pub fn validate(&self) -> Result<(), DataError> {
        let most_of = |key, spread: Spread, most: f64, hint| {
            let is_share = (0.0..=1.0).contains(&spread.chance);
            if (0.0..=most).contains(&spread.most) && is_share {
                Ok(())
            } else {
                Err(DataError::Setting {
                    key,
                    expected: "a spread of at least 0 within its range, and a chance of 0 to 1",
                    found: format!("{} with a chance of {}", spread.most, spread.chance),
                    hint,
                })
            }
        };
        most_of(
            "pair_augment.rotation",
            self.rotation,
            180.0,
            "degrees: `rotation: 15`, at most 180",
        )?;
        most_of(
            "pair_augment.scale",
            self.scale,
            4.0,
            "`scale: 0.4` is a factor of 1/1.4 to 1.4; at most 4",
        )?;
        most_of(
            "pair_augment.brightness",
            self.brightness,
            1.0,
            "`brightness: 0.2` multiplies by 0.8 to 1.2; at most 1",
        )?;
        most_of(
            "pair_augment.contrast",
            self.contrast,
            1.0,
            "`contrast: 0.2` is a factor of 0.8 to 1.2; at most 1",
        )?;
        most_of(
            "pair_augment.gamma",
            self.gamma,
            4.0,
            "`gamma: 0.5` is a power of 1/1.5 to 1.5; at most 4",
        )?;
        most_of(
            "pair_augment.noise",
            self.noise,
            1.0,
            "`noise: 0.05` is 5% of white; at most 1",
        )?;
        most_of(
            "pair_augment.blur",
            self.blur,
            8.0,
            "pixels: `blur: 1`, at most 8",
        )?;
        most_of(
            "pair_augment.low_resolution",
            self.low_resolution,
            7.0,
            "`low_resolution: 1` shows down to half as many pixels to a side; at most 7",
        )
    }

    /// Whether augmentation needs a second pixel buffer.
    pub(crate) fn has_filters(&self) -> bool {
        self.blur.most > 0.0 || self.low_resolution.most > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_numbers_or_sections() {
        let read = |json: &str| serde_json::from_str::<PairAugment>(json);
        let found = read(r#"{"flip":false,"rotation":15,"blur":{"most":1,"chance":0.2}}"#).unwrap();
        let expected = PairAugment {
            flip: false,
            rotation: Spread::always(15.0),
            blur: Spread::sometimes(1.0, 0.2),
            ..PairAugment::default()
        };
        assert_eq!(found, expected);
        let again = serde_json::to_string(&found).unwrap();
        assert_eq!(read(&again).unwrap(), found);
        for wrong in [
            r#"{"turns":1}"#,
            r#"{"blur":{"most":1}}"#,
            r#"{"blur":"much"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_are_checked() {
        for augment in [
            PairAugment::default(),
            PairAugment::NONE,
            PairAugment::NNUNET,
        ] {
            assert!(augment.validate().is_ok());
        }
        for (most, chance) in [(-0.1, 1.0), (f64::NAN, 1.0), (0.5, 1.5), (200.0, 1.0)] {
            let rotation = Spread { most, chance };
            let wrong = PairAugment {
                rotation,
                ..PairAugment::NONE
            };
            let error = wrong.validate().unwrap_err().to_string();
            assert!(error.starts_with("data.pair_augment.rotation: "), "{error}");
        }
    }
}
