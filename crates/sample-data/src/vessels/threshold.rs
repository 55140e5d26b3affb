//! Baseline for vessel segmentation: every pixel darker (or brighter) than one threshold is a vessel.
//!
//! The threshold, over grey and green, is chosen on the very pictures that it is scored on: an upper bound for all single thresholds.

use std::fmt;
use std::path::Path;

use super::folder::{GROUND_TRUTH, ORIGINAL, VesselsError};
use holdall_data::compare_names;

/// Pixels darker than this in all colours are outside the field of view: never a vessel.
const OUTSIDE: u8 = 24;

/// Value that is compared with the threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Luminance.
    Grey,
    /// Green alone, where blood is darkest.
    Green,
}

/// Side of the threshold that is taken for vessels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VesselsAre {
    /// At most the threshold.
    Dark,
    /// Above the threshold.
    Bright,
}

/// Best threshold of a set of pictures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestThreshold {
    /// Mean of the pictures' Dice.
    pub dice: f64,
    /// 0 to 255.
    pub threshold: u8,
    pub channel: Channel,
    pub vessels: VesselsAre,
}

impl fmt::Display for BestThreshold {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.vessels {
            VesselsAre::Dark => "at most",
            VesselsAre::Bright => "above",
        };
        let channel = match self.channel {
            Channel::Grey => "grey",
            Channel::Green => "green",
        };
        write!(text, "{channel} {side} {}", self.threshold)
    }
}

/// Accumulates the Dice score of every threshold over pictures.
pub struct ThresholdSearch {
    /// `[channel][side][threshold]`
    dice: [[[f64; 256]; 2]; 2],
    num_pictures: usize,
}

impl Default for ThresholdSearch {
    fn default() -> ThresholdSearch {
        ThresholdSearch {
            dice: [[[0.0; 256]; 2]; 2],
            num_pictures: 0,
        }
    }
}

impl ThresholdSearch {
    /// Scores every threshold on a picture: red, green, blue of each pixel, and a mask that is 0 off the vessels.
    pub fn add(&mut self, pixels: &[u8], mask: &[u8]) {
        // Number of pixels of each value: [channel][is a vessel][value].
        let mut counts = [[[0_u64; 256]; 2]; 2];
        let mut num_vessel = 0_u64;
        for (pixel, &truth) in pixels.chunks_exact(3).zip(mask) {
            let is_vessel = usize::from(truth != 0);
            num_vessel += is_vessel as u64;
            if pixel.iter().all(|&value| value < OUTSIDE) {
                continue;
            }
            let [red, green, blue] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
            let grey = (299 * red + 587 * green + 114 * blue + 500) / 1000;
            for (channel, value) in [grey, green].into_iter().enumerate() {
                counts[channel][is_vessel][value as usize] += 1;
            }
        }
        for (dice, [other, vessel]) in self.dice.iter_mut().zip(counts) {
            let all: u64 = vessel.iter().sum::<u64>() + other.iter().sum::<u64>();
            let all_found: u64 = vessel.iter().sum();
            let (mut found, mut taken) = (0, 0);
            for threshold in 0..256 {
                found += vessel[threshold];
                taken += vessel[threshold] + other[threshold];
                dice[0][threshold] += dice_of(found, taken, num_vessel);
                dice[1][threshold] += dice_of(all_found - found, all - taken, num_vessel);
            }
        }
        self.num_pictures += 1;
    }

    /// Best threshold over all pictures added; `None` without pictures.
    pub fn best(&self) -> Option<BestThreshold> {
        let mut best: Option<BestThreshold> = None;
        let channels = [Channel::Grey, Channel::Green].into_iter().zip(&self.dice);
        for (channel, sides) in channels {
            for (vessels, sums) in [VesselsAre::Dark, VesselsAre::Bright]
                .into_iter()
                .zip(sides)
            {
                for (threshold, sum) in sums.iter().enumerate() {
                    let dice = sum / self.num_pictures.max(1) as f64;
                    if best.is_none_or(|best| dice > best.dice) {
                        best = Some(BestThreshold {
                            dice,
                            threshold: threshold as u8,
                            channel,
                            vessels,
                        });
                    }
                }
            }
        }
        best.filter(|_| self.num_pictures > 0)
    }

    /// Adds the pictures of a folder that has `Original` and `Ground truth`, such as FIVES' `test`.
    pub fn add_folder(&mut self, folder: &Path) -> Result<(), VesselsError> {
        let originals = folder.join(ORIGINAL);
        let failed = |path: &Path, source| VesselsError::Io {
            path: path.to_owned(),
            source,
        };
        let entries = std::fs::read_dir(&originals).map_err(|error| failed(&originals, error))?;
        let mut names = Vec::new();
        for entry in entries {
            names.push(
                entry
                    .map_err(|error| failed(&originals, error))?
                    .file_name(),
            );
        }
        // A floating-point sum depends on the order.
        names.sort_by(|a, b| compare_names(&a.to_string_lossy(), &b.to_string_lossy()));
        for name in names {
            let picture = image::open(originals.join(&name))?.into_rgb8();
            let mask = image::open(folder.join(GROUND_TRUTH).join(&name))?.into_luma8();
            self.add(picture.as_raw(), mask.as_raw());
        }
        Ok(())
    }
}

fn dice_of(found: u64, taken: u64, truth: u64) -> f64 {
    match taken + truth {
        0 => 1.0,
        both => 2.0 * found as f64 / both as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vessel_that_is_darkest_in_green_is_found_by_one_threshold_and_another_picture_spoils_it() {
        // Grey is equal everywhere within 1: only green shows the vessel.
        let (vessel, other) = ([240, 40, 40], [124, 100, 40]);
        let pixels: Vec<u8> = [vessel, other, other, vessel].concat();
        let mut search = ThresholdSearch::default();
        search.add(&pixels, &[255, 0, 0, 255]);
        let best = search.best().unwrap();
        assert_eq!(best.dice, 1.0);
        assert_eq!(
            (best.channel, best.vessels),
            (Channel::Green, VesselsAre::Dark)
        );
        assert!((40..100).contains(&best.threshold), "{best}");
        search.add(&pixels, &[0, 255, 255, 0]);
        // Everything is marked: 2 * 2 / (4 + 2) in both channels.
        assert!((search.best().unwrap().dice - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn what_is_outside_of_the_field_is_never_taken_for_a_vessel() {
        let mut search = ThresholdSearch::default();
        search.add(&[0, 0, 0, 60, 60, 60, 200, 200, 200], &[0, 255, 0]);
        assert_eq!(search.best().unwrap().dice, 1.0);
        assert!(ThresholdSearch::default().best().is_none());
    }
}
