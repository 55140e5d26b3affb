//! Detects masks that are fields of view instead of annotations: they mark all of a picture but its dark border, alike in every picture.

use std::sync::Arc;

use super::coding::MaskCoding;
use super::pair::{Fit, PairFraming};
use super::row::{IGNORED, RowShape};
use super::set::Survey;
use crate::config::PairAugment;
use crate::decode::Scratch;
use crate::decode::WholePicture;
use crate::samples::Samples;

/// Points along each side at which a picture and its mask are sampled.
const POINTS: usize = 64;
const OUTLINE: usize = 16;
/// Smallest share of a picture that a field of view covers.
const MIN_SHARE: f64 = 0.5;
/// Largest brightness, of 255, of a dark border.
const MAX_DARK: u8 = 40;
/// Smallest mean brightness inside the field of view.
const MIN_MEAN_INSIDE: f64 = 48.0;
/// Share of the border's points that may be brighter, for text and blurred edges.
const MAX_BRIGHT_SHARE: f64 = 0.15;
/// Points in which the outlines of two masks may differ.
const MAX_DIFFERENT_POINTS: u32 = 26;
/// Pairs that are checked when a set is opened.
const NUM_PROBED: usize = 3;
/// Pixel limit of pictures that are decoded only for this check.
const MAX_PROBED_PIXELS: u64 = 4 << 20;

/// Coarse bitmap of the area that a mask marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outline([u64; OUTLINE * OUTLINE / 64]);

impl Outline {
    /// Outline of a mask that marks most of its picture and leaves out a dark border; `None` for any other mask.
    pub(crate) fn of(picture: &WholePicture) -> Option<Outline> {
        let mask = picture.mask.as_deref()?;
        let mut outline = Outline([0; OUTLINE * OUTLINE / 64]);
        let (mut num_inside, mut brightness_inside) = (0_u32, 0_u64);
        let (mut num_outside, mut num_bright) = (0_u32, 0_u32);
        for at in 0..POINTS * POINTS {
            let (across, down) = (at % POINTS, at / POINTS);
            let column = (2 * across + 1) * picture.width / (2 * POINTS);
            let row = (2 * down + 1) * picture.height / (2 * POINTS);
            let [red, green, blue] = picture.rgb(column, row);
            let brightest = red.max(green).max(blue);
            match mask[row * picture.width + column] {
                IGNORED => {}
                0 => {
                    num_outside += 1;
                    num_bright += u32::from(brightest > MAX_DARK);
                }
                _ => {
                    num_inside += 1;
                    brightness_inside += u64::from(brightest);
                    let step = POINTS / OUTLINE;
                    if across % step == 0 && down % step == 0 {
                        let point = down / step * OUTLINE + across / step;
                        outline.0[point / 64] |= 1 << (point % 64);
                    }
                }
            }
        }
        let inside = f64::from(num_inside);
        let is_most = inside >= MIN_SHARE * (POINTS * POINTS) as f64 && num_outside > 0;
        let is_dark = f64::from(num_bright) <= MAX_BRIGHT_SHARE * f64::from(num_outside);
        let is_bright = brightness_inside as f64 >= MIN_MEAN_INSIDE * inside;
        (is_most && is_dark && is_bright).then_some(outline)
    }

    fn is_near(&self, other: &Outline) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        let different: u32 = pairs.map(|(a, b)| (a ^ b).count_ones()).sum();
        different <= MAX_DIFFERENT_POINTS
    }
}

/// Whether the masks of a set are fields of view: at least two masks, and nine of ten, have the first outline.
pub(crate) fn are_fields_of_view(outlines: &[Option<Outline>]) -> bool {
    let first = outlines.iter().flatten().next();
    let are_alike = |first: &Outline| {
        let outlines = outlines.iter();
        let is_alike = |outline: &&Option<Outline>| {
            outline
                .as_ref()
                .is_some_and(|outline| outline.is_near(first))
        };
        outlines.filter(is_alike).count()
    };
    first.is_some_and(|first| {
        let alike = are_alike(first);
        alike >= 2 && 10 * alike >= 9 * outlines.len()
    })
}

/// Hint for messages about masks that are fields of view.
pub const FIELD_OF_VIEW_HINT: &str = "name the folders of images and of annotations: \
     `--set data.image_subdir=images --set data.label_subdir=FOLDER`, or the column: `--set data.mask=COLUMN`";

/// Log line where the first pairs of a set look like pictures and their fields of view.
pub(super) fn note(samples: &Samples, survey: &Survey, coding: &MaskCoding) -> Option<String> {
    let num_pixels = u64::from(survey.width) * u64::from(survey.height);
    if coding.classes().len() != 2 || num_pixels > MAX_PROBED_PIXELS {
        return None;
    }
    let framing = PairFraming {
        shape: RowShape {
            height: 1,
            width: 1,
            channels: survey.channels,
            depth: survey.depth,
        },
        fit: Fit::Patch { foreground: 0.0 },
        coding: Arc::new(coding.clone()),
        augment: PairAugment::NONE,
    };
    let mut scratch = Scratch::default();
    let mut outlines = Vec::new();
    for sample in 0..samples.len().min(NUM_PROBED) {
        // Unreadable files are reported elsewhere.
        let pair = framing.classes_of(samples, sample, &mut scratch).ok()?;
        outlines.push(Some(pair.outline?));
    }
    are_fields_of_view(&outlines).then(|| {
        format!(
            "Careful: the masks mark all but a dark border, alike in each picture, as fields of view do; {FIELD_OF_VIEW_HINT}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bright disc on black, and a mask of a disc.
    fn picture(mask_radius: f64, border: u8) -> WholePicture {
        let side = 100;
        let is_in = |at: usize, radius: f64| {
            let [x, y] = [at % side, at / side].map(|place| place as f64 - 50.0);
            x.hypot(y) < radius
        };
        let pixels = (0..side * side).map(|at| if is_in(at, 48.0) { 120 } else { border });
        let mask = (0..side * side).map(|at| u8::from(is_in(at, mask_radius)));
        WholePicture {
            width: side,
            height: side,
            channels: 1,
            depth: crate::decode::PixelDepth::Eight,
            pixels: pixels.collect(),
            mask: Some(mask.collect()),
            turn: None,
        }
    }

    #[test]
    fn fields_of_view_are_told_from_annotations() {
        let outline = |radius, border| Outline::of(&picture(radius, border));
        let field = outline(48.0, 4);
        assert!(field.is_some());
        assert_eq!(outline(20.0, 4), None, "a small disc");
        assert_eq!(outline(48.0, 90), None, "a bright border");
        let near = outline(47.5, 4);
        assert!(are_fields_of_view(&[field, near]));
        assert!(!are_fields_of_view(&[field]), "one alone says nothing");
        let other = Some(Outline([0; 4]));
        assert!(!are_fields_of_view(&[field, near, other]));
    }
}
