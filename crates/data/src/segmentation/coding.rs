//! Coding of masks: the class of a pixel, by its grey value or its colour.
//!
//! | masks hold | config | classes |
//! |---|---|---|
//! | 0 and 255 (65535 where they have 16 bits), or 0 and 1 | nothing | background, foreground |
//! | greys: saved as JPEG, or scaled with a filter | `binarize: 128` | foreground from this value on |
//! | class numbers 0, 1, 2, ... | `classes: [background, disc, cup]` | in this order |
//! | colours | `colours: {background: "#000000", disc: "#ff0000"}` | in this order |
//!
//! `ignore: 255` names a value that is not counted. Any other value is an error that names the pixel and lists the values in the masks: no
//! class was meant by it, and training on a guess would go unnoticed.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::histogram::{Histogram, hex};
use super::row::IGNORED;
use crate::decode::{Native, PixelDepth, ReadAs};
use crate::error::DataError;
use crate::words::listed;

/// Maps pixels of a mask to classes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskCoding {
    pub(super) classes: Vec<String>,
    pub(super) values: Values,
    /// Mask value that is not counted.
    pub(super) ignore: Option<u16>,
}

/// Meaning of mask values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Values {
    /// 0 is class 0, this value is class 1.
    Pair(u16),
    /// This value and all above are class 1.
    Threshold(u16),
    /// Values are class numbers.
    Numbers,
    /// A colour per class.
    Colours(Vec<[u8; 3]>),
}

/// A pixel without a class.
struct Stranger {
    at: usize,
}

impl MaskCoding {
    /// Two classes: 0, and this value.
    pub fn pair(white: u16) -> MaskCoding {
        MaskCoding {
            classes: two_classes(),
            values: Values::Pair(white),
            ignore: None,
        }
    }

    /// Two classes: values from `least` on are the second.
    pub fn threshold(least: u16) -> MaskCoding {
        MaskCoding {
            values: Values::Threshold(least),
            ..MaskCoding::pair(255)
        }
    }

    /// One class per number, from 0.
    pub fn numbers(classes: Vec<String>) -> MaskCoding {
        MaskCoding {
            classes,
            values: Values::Numbers,
            ignore: None,
        }
    }

    /// One class per colour.
    pub fn colours(classes: Vec<(String, [u8; 3])>) -> MaskCoding {
        let (classes, colours) = classes.into_iter().unzip();
        MaskCoding {
            classes,
            values: Values::Colours(colours),
            ignore: None,
        }
    }

    /// The same coding with a value that is not counted.
    pub fn ignoring(self, value: Option<u16>) -> MaskCoding {
        MaskCoding {
            ignore: value,
            ..self
        }
    }

    /// Names of the classes, the background first.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Outputs of a model for these classes: one for two classes, else one per class.
    pub fn num_outputs(&self) -> usize {
        match self.classes.len() {
            2 => 1,
            more => more,
        }
    }

    /// How mask files are read.
    pub(crate) fn read_as(&self) -> ReadAs {
        match self.values {
            Values::Colours(_) => ReadAs::ColourMask,
            _ => ReadAs::Mask,
        }
    }

    /// Summary for the log.
    pub fn describe(&self) -> String {
        let ignored = match self.ignore {
            Some(value) => format!("; {value} is not counted"),
            None => String::new(),
        };
        let held = match &self.values {
            Values::Pair(white) => format!("0 and {white}"),
            Values::Threshold(least) => format!("greys, from {least} on foreground"),
            Values::Numbers => format!("class numbers 0 to {}", self.classes.len() - 1),
            Values::Colours(colours) => format!("{} colours", colours.len()),
        };
        format!("Masks: {held} ({}){ignored}", self.classes.join(", "))
    }

    /// Writes the class of every pixel of a decoded mask.
    ///
    /// # Panics
    /// If `classes` has another length.
    pub(crate) fn encode(
        &self,
        path: &Path,
        pixels: &[u8],
        native: Native,
        classes: &mut [u8],
    ) -> Result<(), DataError> {
        assert_eq!(classes.len(), native.num_pixels(), "classes of a mask");
        let encoded = match (&self.values, native.channels, native.depth) {
            (Values::Colours(colours), ..) => self.encode_colours(colours, pixels, native, classes),
            (_, 1, PixelDepth::Eight) => {
                let table: [Option<u8>; 256] =
                    std::array::from_fn(|value| self.class(value as u16, native.depth));
                each(pixels.iter(), classes, |value| table[usize::from(*value)])
            }
            (_, 1, PixelDepth::Sixteen) => each(pixels.as_chunks::<2>().0, classes, |value| {
                self.class(u16::from_le_bytes(*value), native.depth)
            }),
            (_, _, PixelDepth::Eight) => {
                let table: [Option<u8>; 256] =
                    std::array::from_fn(|value| self.class(value as u16, native.depth));
                each(pixels.as_chunks::<3>().0, classes, |[r, g, b]| {
                    (r == g && g == b).then_some(())?;
                    table[usize::from(*r)]
                })
            }
            (_, _, PixelDepth::Sixteen) => each(pixels.as_chunks::<6>().0, classes, |pixel| {
                let [a, b, c, d, e, f] = *pixel;
                ([a, b] == [c, d] && [c, d] == [e, f]).then_some(())?;
                self.class(u16::from_le_bytes([a, b]), native.depth)
            }),
        };
        encoded.map_err(|Stranger { at }| self.no_class(path, pixels, native, at))
    }

    /// Class of a grey value.
    fn class(&self, value: u16, depth: PixelDepth) -> Option<u8> {
        if self.ignore == Some(value) {
            return Some(IGNORED);
        }
        match &self.values {
            // White is 255 in 8 bits and 65535 in 16.
            Values::Pair(white) => match value {
                0 => Some(0),
                value if value == *white => Some(1),
                value if *white >= 255 && value == depth.maximum() => Some(1),
                _ => None,
            },
            Values::Threshold(least) => Some(u8::from(value >= *least)),
            Values::Numbers => (usize::from(value) < self.classes.len()).then_some(value as u8),
            Values::Colours(_) => None,
        }
    }

    fn encode_colours(
        &self,
        colours: &[[u8; 3]],
        pixels: &[u8],
        native: Native,
        classes: &mut [u8],
    ) -> Result<(), Stranger> {
        let bytes = native.depth.bytes();
        let ignored = self.ignore.and_then(|value| u8::try_from(value).ok());
        // Neighbouring pixels are mostly equal.
        let mut last = (colours[0], 0);
        let pixels = pixels.chunks_exact(native.channels * bytes);
        each(pixels, classes, |pixel| {
            let channel = |at: usize| match native.channels {
                1 => pixel[bytes - 1],
                _ => pixel[at * bytes + bytes - 1],
            };
            let colour = [channel(0), channel(1), channel(2)];
            if colour != last.0 {
                let class = colours.iter().position(|known| *known == colour);
                last = match class {
                    Some(class) => (colour, class as u8),
                    None if ignored.is_some_and(|value| colour == [value; 3]) => (colour, IGNORED),
                    None => return None,
                };
            }
            Some(last.1)
        })
    }

    fn no_class(&self, path: &Path, pixels: &[u8], native: Native, at: usize) -> DataError {
        let (x, y) = (at as u32 % native.width, at as u32 / native.width);
        let mut histogram = Histogram::default();
        histogram.add(pixels, native);
        let found = histogram.name(pixels, native, at);
        let place = format!("{}: {found} at ({x}, {y})", path.display());
        let expected = match &self.values {
            Values::Pair(white) => format!("0 or {white}"),
            Values::Threshold(_) => "grey".to_owned(),
            Values::Numbers => format!("a class number from 0 to {}", self.classes.len() - 1),
            Values::Colours(colours) => {
                let colours: Vec<String> = colours.iter().map(|c| hex(*c)).collect();
                format!("one of {}", listed(&colours))
            }
        };
        let hint = match (&self.values, histogram.is_coloured()) {
            (Values::Colours(_), _) => {
                "name every colour under `data: {colours: ...}`, or `ignore` it"
            }
            (_, true) => COLOURS_HINT,
            (Values::Numbers, _) => {
                "name every class under `data: {classes: [...]}`; `ignore: 255` leaves a value out"
            }
            _ if histogram.are_class_numbers() => CLASSES_HINT,
            _ => THRESHOLD_HINT,
        };
        DataError::mask_value(place, expected, histogram.describe(), hint)
    }
}

const CLASSES_HINT: &str = "`data: {classes: [background, ...]}` names the classes in the order of their numbers; `ignore: 255` leaves a value out";
const THRESHOLD_HINT: &str = "`data: {binarize: 128}` makes two classes of grey masks; `classes: [...]` takes values as class numbers";
const COLOURS_HINT: &str = "`data: {colours: {background: \"#000000\", vessel: \"#ff0000\"}}` says which colour is which class";

/// Classes that a hint names one by one.
const MOST_LISTED: u16 = 8;

/// Config line that names the colours found in masks.
fn name_colours(histogram: &Histogram) -> String {
    let black = histogram.values().any(|value| value == 0);
    let background = black.then(|| "background: \"#000000\"".to_owned());
    let colours = histogram.colours().iter().enumerate();
    let colours = colours.map(|(at, colour)| format!("class{}: \"{}\"", at + 1, hex(*colour)));
    let named: Vec<String> = background.into_iter().chain(colours).collect();
    format!(
        "`data: {{colours: {{{}}}}}` says which colour is which class",
        named.join(", ")
    )
}

/// Writes the class of each pixel; fails at the first pixel without a class.
fn each<P>(
    pixels: impl IntoIterator<Item = P>,
    classes: &mut [u8],
    mut class: impl FnMut(P) -> Option<u8>,
) -> Result<(), Stranger> {
    for (at, (pixel, out)) in pixels.into_iter().zip(classes).enumerate() {
        *out = class(pixel).ok_or(Stranger { at })?;
    }
    Ok(())
}

/// Config line that names as many classes as these mask values have; it can be typed as it stands where they are few.
fn name_classes(values: &[u16]) -> String {
    let ignored = values.contains(&255);
    let most = values.iter().rev().find(|value| **value != 255);
    let most = most.copied().unwrap_or(1);
    let ignore = if ignored { ", ignore: 255" } else { "" };
    let names = match most {
        1..=MOST_LISTED => (1..=most).map(|class| format!("class{class}")).collect(),
        _ => vec!["...".to_owned()],
    };
    format!(
        "`data: {{classes: [background, {}]{ignore}}}` names the classes in the order of their numbers, 0 to {most} in these masks",
        names.join(", ")
    )
}

pub(super) fn two_classes() -> Vec<String> {
    ["background", "foreground"].map(str::to_owned).to_vec()
}

/// Mask settings from a config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub classes: Vec<String>,
    pub colours: Vec<(String, [u8; 3])>,
    pub binarize: Option<u16>,
    pub ignore: Option<u16>,
}

/// Chooses the coding from the config and from the values of some masks.
pub(super) fn decide(
    asked: &Asked,
    place: &Path,
    histogram: &Histogram,
    num_masks: usize,
) -> Result<MaskCoding, DataError> {
    let named = |coding: MaskCoding| match asked.classes.len() {
        2 => MaskCoding {
            classes: asked.classes.clone(),
            ..coding
        },
        _ => coding,
    };
    if !asked.colours.is_empty() {
        return Ok(MaskCoding::colours(asked.colours.clone()).ignoring(asked.ignore));
    }
    let values: Vec<u16> = histogram
        .values()
        .filter(|value| asked.ignore != Some(*value))
        .collect();
    let refused = |expected: &str, hint: &str| {
        Err(DataError::invalid(
            place.display(),
            expected,
            format_args!("{} in the first {num_masks} masks", histogram.describe()),
            hint,
        ))
    };
    if histogram.is_coloured() {
        return refused(
            "grey masks, or `colours` for each class",
            &name_colours(histogram),
        );
    }
    if let Some(least) = asked.binarize {
        let most = values.iter().rev().find(|value| **value != 255);
        if histogram.is_indexed() && most.is_some_and(|most| *most < least) {
            return refused("greys, for `binarize`", &name_classes(&values));
        }
        return Ok(named(MaskCoding::threshold(least)).ignoring(asked.ignore));
    }
    if asked.classes.len() > 2 {
        let numbers = MaskCoding::numbers(asked.classes.clone()).ignoring(asked.ignore);
        return if values
            .iter()
            .all(|value| usize::from(*value) < asked.classes.len())
        {
            Ok(numbers)
        } else {
            refused(
                &format!(
                    "class numbers from 0 to {} for the {} `classes`",
                    asked.classes.len() - 1,
                    asked.classes.len()
                ),
                "name every class in the order of its number; `ignore: 255` leaves a value out",
            )
        };
    }
    let white = if histogram.is_deep() { u16::MAX } else { 255 };
    let coding = match values.as_slice() {
        [] | [0] => MaskCoding::pair(white),
        [0, one] | [one] if [1, 255, white].contains(one) => MaskCoding::pair(*one),
        [0, 1, 255] => {
            return refused(
                "0 and 255, or 0 and 1",
                "`data: {ignore: 255}` leaves 255 out",
            );
        }
        values if histogram.are_class_numbers() => {
            return refused("two classes, or the names of more", &name_classes(values));
        }
        _ => return refused("two values: 0 and 255, or 0 and 1", THRESHOLD_HINT),
    };
    Ok(named(coding).ignoring(asked.ignore))
}

#[cfg(test)]
mod tests;
