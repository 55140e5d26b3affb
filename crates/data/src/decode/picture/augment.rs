//! Random augmentation of a picture on one occasion: crop, mirror, colours.
//!
//! A function of (seed, epoch, sample) and of the picture's size alone, so a resumed run and a micro-batch that is run
//! twice see the same pixels. Colours have a random stream of their own: enabling jitter moves no crop.

use super::Occasion;
use super::colours::Colours;
use super::geometry::{self, Window};
use crate::config::Augment;
use crate::random::{DrawPurpose, Random};

/// Random choices for one picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Draw {
    pub window: Window,
    pub is_mirrored: bool,
    pub colours: Colours,
}

impl Draw {
    pub(super) fn new((width, height): (u32, u32), augment: Augment, occasion: Occasion) -> Draw {
        let words = [occasion.seed, occasion.epoch, occasion.sample];
        let mut random = Random::new(DrawPurpose::Augment, &words);
        let is_mirrored = random.unit() < 0.5 && augment.flip;
        let window = geometry::random_part(width, height, augment.crop, &mut random);
        let mut random = Random::new(DrawPurpose::Colours, &words);
        let colours = Colours::drawn(augment, &mut random);
        Draw {
            window,
            is_mirrored,
            colours,
        }
    }
}

/// Mirrors rows of `width` pixels of `N` bytes, left to right.
pub(super) fn mirror<const N: usize>(bytes: &mut [u8], width: u32) {
    for row in bytes.chunks_exact_mut(width as usize * N) {
        let (pixels, _) = row.as_chunks_mut::<N>();
        pixels.reverse();
    }
}
