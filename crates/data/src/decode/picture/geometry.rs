//! The part of a picture that is kept.

use super::framing::{Filter, Framing};
use crate::random::Random;

/// A rectangle in pixels of the picture; its sides may be fractional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Window {
    /// Rows (first, end) that a filter reads when it resizes this window to `size` rows: the window and the filter's reach on
    /// either side, which widens when the window shrinks.
    pub(super) fn rows_in_reach(&self, height: u32, size: u32, filter: Filter) -> (u32, u32) {
        let reach = filter.reach() * (self.height / f64::from(size)).max(1.0) + 1.0;
        // Casts saturate at 0.
        let first = (self.top - reach).floor() as u32;
        let last = (self.top + self.height + reach).ceil() as u32;
        (first, last.min(height))
    }
}

/// The middle `size` x `size` pixels of the resized picture, as a window in pixels before the resizing.
pub(super) fn middle(width: u32, height: u32, framing: Framing) -> Window {
    let [resized_width, resized_height] = framing.resize.of(width, height);
    let span = |side: u32, resized: u64| {
        let start = resized.saturating_sub(u64::from(framing.size)) / 2;
        let scale = f64::from(side) / resized as f64;
        (start as f64 * scale, f64::from(framing.size) * scale)
    };
    let (left, width) = span(width, resized_width);
    let (top, height) = span(height, resized_height);
    Window {
        left,
        top,
        width,
        height,
    }
}

/// A random part with a share of the area between `least` and 1, and sides between 3:4 and 4:3.
/// If ten tries find none that fits, the largest such part in the middle: torchvision's rule.
pub(super) fn random_part(width: u32, height: u32, least: f64, random: &mut Random) -> Window {
    const TRIES: usize = 10;
    const WIDEST: f64 = 4.0 / 3.0;
    let (full_width, full_height) = (f64::from(width), f64::from(height));
    for _ in 0..TRIES {
        let area = full_width * full_height * (least + (1.0 - least) * random.unit());
        let ratio = ((2.0 * random.unit() - 1.0) * WIDEST.ln()).exp();
        let part_width = (area * ratio).sqrt().round();
        let part_height = (area / ratio).sqrt().round();
        let fits =
            (1.0..=full_width).contains(&part_width) && (1.0..=full_height).contains(&part_height);
        if fits {
            return Window {
                left: random.below((full_width - part_width) as usize + 1) as f64,
                top: random.below((full_height - part_height) as usize + 1) as f64,
                width: part_width,
                height: part_height,
            };
        }
    }
    let part_width = full_width.min((full_height * WIDEST).round());
    let part_height = full_height.min((full_width * WIDEST).round());
    Window {
        left: ((full_width - part_width) / 2.0).floor(),
        top: ((full_height - part_height) / 2.0).floor(),
        width: part_width,
        height: part_height,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::DrawPurpose;

    fn inside(window: Window, width: u32, height: u32) -> bool {
        let Window { left, top, .. } = window;
        left >= 0.0
            && top >= 0.0
            && window.width > 0.0
            && window.height > 0.0
            && left + window.width <= f64::from(width) * (1.0 + 1e-12)
            && top + window.height <= f64::from(height) * (1.0 + 1e-12)
    }

    #[test]
    fn the_middle_of_a_wide_picture() {
        let window = middle(400, 200, Framing::clip(100));
        let (left, top, width, height) = (100.0, 0.0, 200.0, 200.0);
        assert_eq!(
            window,
            Window {
                left,
                top,
                width,
                height
            }
        );
    }

    #[test]
    fn a_picture_that_must_be_kept_is_kept() {
        let mut random = Random::new(DrawPurpose::Augment, &[0]);
        for _ in 0..20 {
            let window = random_part(50, 50, 1.0, &mut random);
            assert_eq!((window.width, window.height), (50.0, 50.0));
        }
        let wide = random_part(1000, 10, 0.9, &mut random);
        assert_eq!((wide.left, wide.width, wide.height), (493.0, 13.0, 10.0));
        let high = random_part(10, 1000, 0.9, &mut random);
        assert_eq!((high.top, high.width, high.height), (493.0, 10.0, 13.0));
    }

    proptest! {
        #[test]
        fn parts_are_inside(
            width in 1u32..5000, height in 1u32..5000, size in 1u32..500, least in 0.01f64..=1.0, seed in any::<u64>(),
        ) {
            prop_assert!(inside(middle(width, height, Framing::clip(size)), width, height));
            let part = random_part(width, height, least, &mut Random::new(DrawPurpose::Augment, &[seed]));
            prop_assert!(inside(part, width, height), "{part:?}");
        }
    }
}
