//! Dark and bright spots that are no vessels.

use std::f32::consts::{PI, TAU};

use super::anatomy::Anatomy;
use super::layers::{Blot, Layers};
use super::{Condition, Spot, normal};
use crate::random::Random;

pub(super) fn add(layers: &mut Layers, anatomy: &Anatomy, random: &mut Random) {
    match anatomy.condition {
        Condition::Diabetic => diabetic(layers, anatomy, random),
        Condition::MacularDegeneration => drusen(layers, anatomy, random),
        Condition::Glaucoma if random.chance(0.5) => {
            flame(layers, near(anatomy.disc, 0.09, random), anatomy, random);
        }
        Condition::Glaucoma | Condition::Normal => {}
    }
    // Dust on the lens, and pigment.
    for _ in 0..random.below(5) {
        let spot = anywhere(anatomy, random);
        let radius = random.between(0.002, 0.006);
        layers.blood(&Blot {
            edge: 0.6,
            strength: random.between(0.15, 0.5),
            ..blot(spot, radius, random)
        });
    }
}

fn diabetic(layers: &mut Layers, anatomy: &Anatomy, random: &mut Random) {
    let severity = random.between(0.25, 1.0);
    for _ in 0..(severity * random.between(10.0, 60.0)) as usize {
        // Microaneurysms: as dark and as wide as vessels, and round.
        let spot = anywhere(anatomy, random);
        let radius = random.between(0.0014, 0.0034);
        layers.blood(&Blot {
            strength: random.between(0.4, 0.9) * anatomy.contrast,
            ..blot(spot, radius, random)
        });
    }
    for _ in 0..(severity * random.between(2.0, 14.0)) as usize {
        let spot = anywhere(anatomy, random);
        let radius = random.between(0.005, 0.017);
        layers.blood(&Blot {
            strength: random.between(0.5, 1.05) * anatomy.contrast,
            edge: random.between(0.15, 0.4),
            ..blot(spot, radius, random)
        });
    }
    for _ in 0..(severity * random.between(0.0, 7.0)) as usize {
        flame(layers, anywhere(anatomy, random), anatomy, random);
    }
    for _ in 0..(severity * random.between(1.0, 6.0)) as usize {
        exudates(layers, anywhere(anatomy, random), random);
    }
    for _ in 0..(severity * random.between(0.0, 4.0)) as usize {
        // A cotton-wool spot.
        let spot = anywhere(anatomy, random);
        let radius = random.between(0.009, 0.02);
        layers.exudate(&Blot {
            edge: 0.9,
            strength: random.between(0.35, 0.6),
            ..blot(spot, radius, random)
        });
    }
}

/// Bleeding along nerve fibres: streaks side by side that point to the disc.
fn flame(layers: &mut Layers, at: Spot, anatomy: &Anatomy, random: &mut Random) {
    let heading = (at.1 - anatomy.disc.1).atan2(at.0 - anatomy.disc.0);
    for _ in 0..3 + random.below(5) {
        let spot = near(at, 0.007, random);
        let radius = random.between(0.0016, 0.0035);
        layers.blood(&Blot {
            stretch: random.between(3.0, 8.0),
            heading: heading + 0.12 * normal(random),
            strength: random.between(0.5, 0.95) * anatomy.contrast,
            edge: 0.6,
            ..blot(spot, radius, random)
        });
    }
}

/// A cluster of hard exudates: specks with sharp edges.
fn exudates(layers: &mut Layers, at: Spot, random: &mut Random) {
    let spread = random.between(0.01, 0.04);
    for _ in 0..4 + random.below(26) {
        let spot = near(at, spread, random);
        let radius = random.between(0.0015, 0.0055);
        layers.exudate(&Blot {
            strength: random.between(0.5, 1.0),
            edge: 0.2,
            ..blot(spot, radius, random)
        });
    }
}

fn drusen(layers: &mut Layers, anatomy: &Anatomy, random: &mut Random) {
    let spread = random.between(0.05, 0.1);
    for _ in 0..20 + random.below(110) {
        let spot = near(anatomy.macula, spread, random);
        let radius = random.between(0.0018, 0.008);
        layers.exudate(&Blot {
            strength: random.between(0.15, 0.45),
            edge: 0.55,
            ..blot(spot, radius, random)
        });
    }
    if random.chance(0.35) {
        let spot = near(anatomy.macula, 0.03, random);
        let radius = random.between(0.02, 0.05);
        layers.exudate(&Blot {
            strength: random.between(0.2, 0.4),
            edge: 0.12,
            ..blot(spot, radius, random)
        });
    }
    if random.chance(0.3) {
        let spot = near(anatomy.macula, 0.03, random);
        let radius = random.between(0.012, 0.035);
        layers.blood(&Blot {
            strength: random.between(0.4, 0.8),
            edge: 0.35,
            ..blot(spot, radius, random)
        });
    }
}

fn blot(at: Spot, radius: f32, random: &mut Random) -> Blot {
    let mut wave = |depth: f32| (depth * random.unit_f32(), TAU * random.unit_f32());
    Blot {
        at,
        radius,
        waves: [wave(0.14), wave(0.12)],
        stretch: random.between(1.0, 1.5),
        heading: PI * random.unit_f32(),
        edge: 0.3,
        strength: 1.0,
    }
}

fn near(at: Spot, spread: f32, random: &mut Random) -> Spot {
    (
        at.0 + spread * normal(random),
        at.1 + spread * normal(random),
    )
}

/// Random position in the field of view, off the disc.
fn anywhere(anatomy: &Anatomy, random: &mut Random) -> Spot {
    loop {
        let spot = (random.unit_f32(), random.unit_f32());
        let is_on_disc = super::distance(spot, anatomy.disc) < 1.4 * anatomy.disc_radius;
        if anatomy.eccentricity(spot) < 0.92 && !is_on_disc {
            return spot;
        }
    }
}
