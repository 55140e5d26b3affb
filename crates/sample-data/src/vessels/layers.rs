//! Layers on the surface, one value per pixel and layer: blood in arteries and veins, reflexes, lesions; and the mask.
//!
//! Pieces of a vessel overlap, so a pixel takes the largest of their values, not the sum.

use super::anatomy::Anatomy;
use super::tree::{VesselKind, VesselPiece};
use super::{Spot, smoothstep};

/// Half the width, in pixels, below which a vessel is not drawn: a picture that small does not show it.
const THINNEST: f32 = 0.3;
/// Half the width, in pixels, of the thinnest vessel in a mask, so that it has no gaps.
const THINNEST_MASK: f32 = 0.55;

pub(super) struct Layers {
    pub size: usize,
    /// Half the width of a blurred edge, in pixels.
    softness: f32,
    pub artery: Vec<f32>,
    pub vein: Vec<f32>,
    pub reflex: Vec<f32>,
    /// Blood outside vessels.
    pub dark: Vec<f32>,
    /// Exudates and drusen.
    pub bright: Vec<f32>,
    mask: Vec<u8>,
}

/// A spot with an uneven outline.
pub(super) struct Blot {
    pub at: Spot,
    pub radius: f32,
    /// Ratio of length to width.
    pub stretch: f32,
    /// Direction of the longer side.
    pub heading: f32,
    /// Depth and phase of two waves around its outline.
    pub waves: [(f32, f32); 2],
    /// Width of the edge, as a share of the radius.
    pub edge: f32,
    pub strength: f32,
}

impl Layers {
    pub(super) fn new(size: usize, softness: f32) -> Layers {
        let layer = || vec![0.0; size * size];
        Layers {
            size,
            softness: (softness * size as f32).max(0.5),
            artery: layer(),
            vein: layer(),
            reflex: layer(),
            dark: layer(),
            bright: layer(),
            mask: vec![0; size * size],
        }
    }

    pub(super) fn vessel(&mut self, piece: &VesselPiece) {
        let side = self.size as f32;
        let radius = piece.radius * side;
        if radius < THINNEST {
            return;
        }
        let scaled = |(x, y): Spot| (x * side, y * side);
        let (from, to) = (scaled(piece.from), scaled(piece.to));
        let reach = radius.max(THINNEST_MASK) + self.softness + 1.0;
        let (columns, rows) = around(&[from, to], reach, self.size);
        let along = (to.0 - from.0, to.1 - from.1);
        let length_squared = (along.0 * along.0 + along.1 * along.1).max(1e-9);
        let blood = match piece.kind {
            VesselKind::Artery => &mut self.artery,
            VesselKind::Vein => &mut self.vein,
        };
        // A vessel narrower than a pixel covers a part of it.
        let contrast = piece.contrast * (radius / 0.5).min(1.0);
        for row in rows {
            let y = row as f32 + 0.5 - from.1;
            for column in columns.clone() {
                let x = column as f32 + 0.5 - from.0;
                let share = ((x * along.0 + y * along.1) / length_squared).clamp(0.0, 1.0);
                let (across, down) = (x - share * along.0, y - share * along.1);
                let squared = across * across + down * down;
                if squared > reach * reach {
                    continue;
                }
                let distance = squared.sqrt();
                let at = row * self.size + column;
                if distance <= radius.max(THINNEST_MASK) {
                    self.mask[at] = 255;
                }
                let edge =
                    1.0 - smoothstep(radius - self.softness, radius + self.softness, distance);
                // A tube is thickest in its middle.
                let relative = (distance / radius).min(1.0);
                let strength = contrast * edge * (1.0 - 0.35 * relative * relative);
                blood[at] = blood[at].max(strength);
                if piece.reflex > 0.0 {
                    let middle = distance / (0.34 * radius);
                    let shine = piece.reflex * (-middle * middle).exp();
                    self.reflex[at] = self.reflex[at].max(shine);
                }
            }
        }
    }

    pub(super) fn blood(&mut self, blot: &Blot) {
        stamp(&mut self.dark, self.size, blot);
    }

    pub(super) fn exudate(&mut self, blot: &Blot) {
        stamp(&mut self.bright, self.size, blot);
    }

    /// Vessels inside the field of view.
    pub(super) fn into_mask(mut self, anatomy: &Anatomy) -> Vec<u8> {
        let side = self.size as f32;
        for (row, line) in self.mask.chunks_exact_mut(self.size).enumerate() {
            for (column, value) in line.iter_mut().enumerate() {
                let at = ((column as f32 + 0.5) / side, (row as f32 + 0.5) / side);
                if *value != 0 && anatomy.eccentricity(at) > 0.995 {
                    *value = 0;
                }
            }
        }
        self.mask
    }
}

fn stamp(layer: &mut [f32], size: usize, blot: &Blot) {
    let side = size as f32;
    let centre = (blot.at.0 * side, blot.at.1 * side);
    // A spot below half a pixel would fall between pixels.
    let radius = (blot.radius * side).max(0.6);
    let (sin, cos) = blot.heading.sin_cos();
    let [first, second] = blot.waves;
    let reach = radius * blot.stretch.max(1.0) * (1.0 + first.0 + second.0 + blot.edge) + 1.0;
    let (columns, rows) = around(&[centre], reach, size);
    for row in rows {
        for column in columns.clone() {
            let (x, y) = (column as f32 + 0.5 - centre.0, row as f32 + 0.5 - centre.1);
            let (long, wide) = ((x * cos + y * sin) / blot.stretch, y * cos - x * sin);
            let angle = wide.atan2(long);
            let outline = radius
                * (1.0
                    + first.0 * (3.0 * angle + first.1).sin()
                    + second.0 * (5.0 * angle + second.1).sin());
            let edge = (blot.edge * radius).max(0.5);
            let share = 1.0 - smoothstep(outline - edge, outline + edge, long.hypot(wide));
            let value = &mut layer[row * size + column];
            *value = value.max(blot.strength * share);
        }
    }
}

/// Columns and rows of the pixels within `reach` of one of the spots, clipped to the picture.
fn around(
    spots: &[Spot],
    reach: f32,
    size: usize,
) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    let range = |coordinate: fn(&Spot) -> f32| {
        let all = spots.iter().map(coordinate);
        let (low, high) = all.fold((f32::MAX, f32::MIN), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        // The cast saturates at 0.
        let (first, last) = ((low - reach) as usize, (high + reach + 1.0) as usize);
        first.min(size)..last.min(size)
    };
    (range(|spot| spot.0), range(|spot| spot.1))
}
