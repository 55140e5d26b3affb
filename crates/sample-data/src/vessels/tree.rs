//! Arteries and veins: branches that grow from the disc, around the macula and towards the edge, and split on their way.
//!
//! A branch of radius r that sheds one of radius c continues with (r³ - c³)^(1/3), by Murray's law. A branch ends before it meets another
//! of its own kind. Arteries and veins cross.

use std::collections::VecDeque;
use std::f32::consts::{FRAC_PI_2, PI};

use super::anatomy::Anatomy;
use super::{Spot, distance, normal};
use crate::random::Random;

/// Growth of a tip per step.
const STEP: f32 = 0.004;
/// Smallest radius of a visible vessel.
const MIN_RADIUS: f32 = 0.0009;
/// Cells of the occupancy map along a side.
const CELLS: usize = 144;
/// Radius around the centre of the macula without vessels.
const AVASCULAR: f32 = 0.035;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum VesselKind {
    Artery,
    Vein,
}

/// A straight piece of a vessel.
pub(super) struct VesselPiece {
    pub from: Spot,
    pub to: Spot,
    /// Half the width.
    pub radius: f32,
    pub kind: VesselKind,
    /// Darkness, about 1 for a wide vein.
    pub contrast: f32,
    /// Brightness of the flash's reflex along the middle.
    pub reflex: f32,
}

/// Target of a branch's growth.
#[derive(Clone, Copy)]
enum Course {
    /// An arc around the macula at this height, above it (-1) or below it (1).
    Arcade { height: f32, side: f32 },
    /// Away from the disc.
    Outward,
    /// To the macula.
    Inward,
    /// Straight on.
    Straight,
}

struct Tip {
    at: Spot,
    heading: f32,
    radius: f32,
    kind: VesselKind,
    course: Course,
    contrast: f32,
    parent: u16,
    /// Number of splits between the trunk and this vessel.
    order: u8,
}

pub(super) fn grow(anatomy: &Anatomy, random: &mut Random) -> Vec<VesselPiece> {
    let mut growth = Growth {
        anatomy,
        taken: [vec![0; CELLS * CELLS], vec![0; CELLS * CELLS]],
        tips: trunks(anatomy, random).into(),
        pieces: Vec::new(),
        num_branches: 0,
    };
    while let Some(tip) = growth.tips.pop_front() {
        growth.branch(tip, random);
    }
    growth.pieces
}

/// An artery and a vein into each quadrant, and some thin ones.
fn trunks(anatomy: &Anatomy, random: &mut Random) -> Vec<Tip> {
    let mut tips = Vec::new();
    let toward_macula = heading_of((anatomy.temporal, 0.0));
    let wide = random.between(0.0058, 0.0078);
    for side in [-1.0, 1.0] {
        for kind in [VesselKind::Vein, VesselKind::Artery] {
            let turn = side * anatomy.temporal;
            let share = match kind {
                VesselKind::Vein => 1.0,
                VesselKind::Artery => random.between(0.66, 0.82),
            };
            // The veins' arcades lie outside the arteries'.
            let height = if kind == VesselKind::Vein { 0.2 } else { 0.17 };
            let mut tip = |course, angle: f32, radius: f32| Tip {
                at: (
                    anatomy.disc.0
                        + 0.25 * anatomy.disc_radius * random.between(-1.0, 0.6) * anatomy.temporal,
                    anatomy.disc.1 + 0.3 * anatomy.disc_radius * side * random.unit_f32(),
                ),
                heading: toward_macula + turn * angle,
                radius,
                kind,
                course,
                contrast: random.between(0.85, 1.1),
                parent: 0,
                order: 0,
            };
            tips.push(tip(Course::Arcade { height, side }, 1.45, wide * share));
            tips.push(tip(Course::Outward, 2.2, 0.74 * wide * share));
            tips.push(tip(Course::Outward, 2.9, 0.4 * wide * share));
            tips.push(tip(Course::Inward, 0.7, 0.28 * wide * share));
        }
    }
    for tip in &mut tips {
        if let Course::Arcade { height, .. } = &mut tip.course {
            *height += random.between(-0.02, 0.05);
        }
        tip.heading += 0.15 * normal(random);
        tip.radius *= random.between(0.88, 1.12);
    }
    tips
}

struct Growth<'a> {
    anatomy: &'a Anatomy,
    /// Branch number in each cell, for each kind; 0 where the cell is free.
    taken: [Vec<u16>; 2],
    tips: VecDeque<Tip>,
    pieces: Vec<VesselPiece>,
    num_branches: u16,
}

impl Growth<'_> {
    /// Grows one branch to its end. Its children wait in the queue, so that wide vessels are placed first.
    fn branch(&mut self, mut tip: Tip, random: &mut Random) {
        self.num_branches = self.num_branches.saturating_add(1);
        let own = self.num_branches;
        let mut bend = 0.0;
        let winding = self.anatomy.tortuosity * if tip.order == 0 { 0.02 } else { 0.028 };
        let mut until_split = self.until_split(&tip, random);
        let longest = match tip.order {
            0 => 2.0,
            _ => tip.radius * random.between(60.0, 150.0),
        };
        let first = self.pieces.len();
        let mut length = 0.0;
        while length < longest && tip.radius > MIN_RADIUS {
            bend = 0.8 * bend + winding * normal(random);
            tip.heading += bend + self.steer(&tip);
            let to = (
                tip.at.0 + STEP * tip.heading.cos(),
                tip.at.1 + STEP * tip.heading.sin(),
            );
            if !self.may_enter(to, &tip, own, length) {
                break;
            }
            self.pieces.push(piece(&tip, to, self.anatomy));
            tip.at = to;
            tip.radius *= 1.0 - 0.0022;
            length += STEP;
            until_split -= STEP;
            if until_split <= 0.0 && tip.radius > 1.25 * MIN_RADIUS {
                self.split(&mut tip, own, random);
                until_split = self.until_split(&tip, random);
            }
        }
        taper(&mut self.pieces[first..]);
    }

    fn until_split(&self, tip: &Tip, random: &mut Random) -> f32 {
        match tip.order {
            0 => random.between(0.025, 0.075),
            _ => random.between(0.035, 0.12),
        }
    }

    /// Turn of the heading in one step.
    fn steer(&self, tip: &Tip) -> f32 {
        let Anatomy {
            macula,
            disc,
            temporal,
            ..
        } = *self.anatomy;
        let (aim, strength) = match tip.course {
            Course::Arcade { height, side } => {
                // Tangent of an ellipse around the macula that opens behind it.
                let wide = distance(macula, disc);
                let (u, v) = (
                    (tip.at.0 - macula.0) / (wide * wide),
                    (tip.at.1 - macula.1) / (height * height),
                );
                let tangent = (-v * side, u * side);
                let tangent = if tangent.0 * temporal + 0.2 * (tangent.1 * side) < 0.0 {
                    (-tangent.0, -tangent.1)
                } else {
                    tangent
                };
                let long = tangent.0.hypot(tangent.1).max(1e-6);
                let open = 0.35 * ((tip.at.0 - macula.0) * temporal / wide + 0.6).max(0.0);
                let aim = (tangent.0 / long + open * temporal, tangent.1 / long);
                (heading_of(aim), 0.075)
            }
            Course::Outward => (heading_of((tip.at.0 - disc.0, tip.at.1 - disc.1)), 0.02),
            Course::Inward => (heading_of((macula.0 - tip.at.0, macula.1 - tip.at.1)), 0.02),
            Course::Straight => return 0.0,
        };
        strength * wrapped(aim - tip.heading).clamp(-1.0, 1.0)
    }

    /// Whether a branch may grow to `to`: inside the picture, outside the macula's centre, and off other branches of its kind.
    fn may_enter(&mut self, to: Spot, tip: &Tip, own: u16, length: f32) -> bool {
        let is_inside = self.anatomy.eccentricity(to) < 1.02;
        if !is_inside || distance(to, self.anatomy.macula) < AVASCULAR {
            return false;
        }
        let cell = |x: f32| ((x * CELLS as f32) as usize).min(CELLS - 1);
        let taken = &mut self.taken[tip.kind as usize][cell(to.1) * CELLS + cell(to.0)];
        let is_crowded = distance(to, self.anatomy.disc) < 1.6 * self.anatomy.disc_radius;
        let is_leaving = *taken == tip.parent && length < 0.05;
        if *taken != 0 && *taken != own && !is_crowded && !is_leaving {
            return false;
        }
        *taken = own;
        true
    }

    fn split(&mut self, tip: &mut Tip, own: u16, random: &mut Random) {
        let is_even = tip.order > 0 && random.chance(0.45);
        let share = if is_even {
            random.between(0.7, 0.85)
        } else {
            random.between(0.3, 0.68)
        };
        let radius = (share * tip.radius).max(MIN_RADIUS * 1.05);
        let mut side = random.pick(&[-1.0, 1.0]);
        let mut course = Course::Straight;
        if let Course::Arcade { side: half, .. } = tip.course {
            // Slightly more often outwards, where the area to supply is larger.
            let is_outer = random.chance(0.58);
            let turn = half * self.anatomy.temporal;
            side = if is_outer { turn } else { -turn };
            course = if is_outer {
                Course::Outward
            } else {
                Course::Inward
            };
        }
        let angle = if is_even {
            random.between(0.35, 0.7)
        } else {
            random.between(0.6, 1.25)
        };
        self.tips.push_back(Tip {
            at: tip.at,
            heading: tip.heading + side * angle,
            radius,
            kind: tip.kind,
            course,
            contrast: tip.contrast * random.between(0.85, 1.0),
            parent: own,
            order: tip.order + 1,
        });
        let rest = tip.radius.powi(3) - radius.powi(3);
        tip.radius = rest.max(0.0).cbrt().max(0.6 * tip.radius);
        if is_even {
            tip.heading -= side * 0.5 * angle;
        }
    }
}

fn piece(tip: &Tip, to: Spot, anatomy: &Anatomy) -> VesselPiece {
    // Light passes through less blood in a thin vessel.
    let thickness = (tip.radius / 0.006).min(1.2).powf(0.55);
    let (dark, shine) = match tip.kind {
        VesselKind::Artery => (0.78, 0.85),
        VesselKind::Vein => (1.0, 0.3),
    };
    VesselPiece {
        from: tip.at,
        to,
        radius: tip.radius,
        kind: tip.kind,
        contrast: anatomy.contrast * dark * tip.contrast * thickness,
        reflex: shine * ((tip.radius - 0.0022) / 0.003).clamp(0.0, 1.0),
    }
}

/// Thins the end of a branch gradually, wherever it stopped, as if it dipped below the surface.
fn taper(branch: &mut [VesselPiece]) {
    let Some(last) = branch.last() else {
        return;
    };
    let num_pieces = (30.0 * last.radius / STEP) as usize + 4;
    for (from_end, piece) in branch.iter_mut().rev().take(num_pieces).enumerate() {
        let share = (from_end + 1) as f32 / num_pieces as f32;
        piece.radius = (piece.radius * (0.25 + 0.75 * share.sqrt())).max(MIN_RADIUS);
        piece.contrast *= 0.3 + 0.7 * share.sqrt();
        piece.reflex *= share;
    }
}

fn heading_of((x, y): Spot) -> f32 {
    y.atan2(x)
}

/// The same angle between -π and π.
fn wrapped(angle: f32) -> f32 {
    let turned = (angle + PI).rem_euclid(4.0 * FRAC_PI_2);
    turned - PI
}
