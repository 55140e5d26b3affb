//! Values in masks and their frequencies, for messages and to tell two-valued masks from others.

use crate::decode::{Native, PixelDepth};
use crate::words::percent;

/// Pixel count of each value in masks.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    greys: Vec<u64>,
    /// Number of coloured pixels, and the first few colours.
    num_coloured: u64,
    colours: Vec<[u8; 3]>,
    is_deep: bool,
    /// Whether some masks hold palette indices.
    is_indexed: bool,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            greys: vec![0; 1 << 16],
            num_coloured: 0,
            colours: Vec::new(),
            is_deep: false,
            is_indexed: false,
        }
    }
}

/// Values that a message names.
const MOST_NAMED: usize = 8;

impl Histogram {
    pub(super) fn add(&mut self, pixels: &[u8], native: Native) {
        self.is_deep |= native.depth == PixelDepth::Sixteen;
        self.is_indexed |= native.is_indexed;
        if (native.channels, native.depth) == (1, PixelDepth::Eight) {
            for value in pixels {
                self.greys[usize::from(*value)] += 1;
            }
            return;
        }
        for pixel in pixels.chunks_exact(native.channels * native.depth.bytes()) {
            match grey(pixel, native) {
                Some(value) => self.greys[usize::from(value)] += 1,
                None => {
                    self.num_coloured += 1;
                    let colour = colour(pixel, native);
                    if self.colours.len() < MOST_NAMED && !self.colours.contains(&colour) {
                        self.colours.push(colour);
                    }
                }
            }
        }
    }

    pub(super) fn is_coloured(&self) -> bool {
        self.num_coloured > 0
    }

    /// The first colours seen.
    pub(super) fn colours(&self) -> &[[u8; 3]] {
        &self.colours
    }

    pub(super) fn is_deep(&self) -> bool {
        self.is_deep
    }

    /// Whether values are palette indices, whose order is not brightness.
    pub(super) fn is_indexed(&self) -> bool {
        self.is_indexed
    }

    /// Whether the values look like class numbers: palette indices, or small numbers, at least three of them if 255 is among them.
    pub(super) fn are_class_numbers(&self) -> bool {
        if self.is_deep || self.is_coloured() || self.is_indexed {
            return self.is_indexed;
        }
        let (small, large): (Vec<u16>, Vec<u16>) = self.values().partition(|value| *value < 32);
        match large.as_slice() {
            [] => true,
            [255] => small.len() > 2,
            _ => false,
        }
    }

    /// The grey values that occur, in ascending order.
    pub(super) fn values(&self) -> impl Iterator<Item = u16> {
        let greys = self.greys.iter().enumerate();
        greys
            .filter(|(_, count)| **count > 0)
            .map(|(value, _)| value as u16)
    }

    /// Value or colour of a pixel, in words.
    pub(super) fn name(&self, pixels: &[u8], native: Native, at: usize) -> String {
        let bytes = native.channels * native.depth.bytes();
        let pixel = &pixels[at * bytes..(at + 1) * bytes];
        match grey(pixel, native) {
            Some(value) => format!("pixel value {value}"),
            None => format!("colour {}", hex(colour(pixel, native))),
        }
    }

    /// The most frequent values with their shares: `0 (81.2%), 255 (18.6%), 12 (0.1%) and 3 more`.
    pub(super) fn describe(&self) -> String {
        let total = (self.greys.iter().sum::<u64>() + self.num_coloured).max(1);
        let share = |count: u64| match count as f64 / total as f64 {
            share if share < 1e-4 => "under 0.01%".to_owned(),
            share => percent(share),
        };
        let mut values: Vec<u16> = self.values().collect();
        values.sort_by_key(|value| std::cmp::Reverse(self.greys[usize::from(*value)]));
        let mut parts: Vec<String> = values
            .iter()
            .take(MOST_NAMED)
            .map(|value| format!("{value} ({})", share(self.greys[usize::from(*value)])))
            .collect();
        if values.len() > MOST_NAMED {
            parts.push(format!("{} other greys", values.len() - MOST_NAMED));
        }
        if self.is_coloured() {
            let names: Vec<String> = self.colours.iter().map(|colour| hex(*colour)).collect();
            let share = share(self.num_coloured);
            parts.push(format!("colours such as {} ({share})", names.join(", ")));
        }
        parts.join(", ")
    }
}

fn grey(pixel: &[u8], native: Native) -> Option<u16> {
    let value = |at: usize| match native.depth {
        PixelDepth::Eight => u16::from(pixel[at]),
        PixelDepth::Sixteen => u16::from_le_bytes([pixel[2 * at], pixel[2 * at + 1]]),
    };
    let first = value(0);
    (1..native.channels)
        .all(|at| value(at) == first)
        .then_some(first)
}

fn colour(pixel: &[u8], native: Native) -> [u8; 3] {
    let bytes = native.depth.bytes();
    [0, 1, 2].map(|at| pixel.get(at * bytes + bytes - 1).copied().unwrap_or(0))
}

pub(super) fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}
