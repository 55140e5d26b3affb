//! Positions of the parts of an eye, and properties of its photograph.

use super::{Condition, Spot};
use crate::random::Random;

/// One eye on one photograph. Lengths are shares of the picture's side.
pub(super) struct Anatomy {
    pub condition: Condition,
    /// Centre of the round field of view.
    pub centre: Spot,
    /// Radius of the field of view.
    pub field: f32,
    /// Centre of the optic disc, from which vessels grow.
    pub disc: Spot,
    pub disc_radius: f32,
    /// Diameter of the cup as a share of the disc's.
    pub cup: f32,
    pub macula: Spot,
    /// 1 where the macula is right of the disc, -1 where it is left.
    pub temporal: f32,
    /// How much vessels wind.
    pub tortuosity: f32,
    /// How dark vessels are.
    pub contrast: f32,
    /// How far edges are blurred.
    pub softness: f32,
    /// Deviation of the sensor's noise; white is 1.
    pub noise: f32,
}

impl Anatomy {
    pub(super) fn of(condition: Condition, random: &mut Random) -> Anatomy {
        let temporal = random.pick(&[-1.0, 1.0]);
        let gap = random.between(0.27, 0.33);
        // Most photographs are centred on the macula, some between macula and disc.
        let shift = if random.chance(0.7) {
            random.between(-0.03, 0.05)
        } else {
            random.between(0.08, 0.2)
        };
        let macula = (0.5 + temporal * shift, 0.5 + random.between(-0.04, 0.04));
        let disc = (
            macula.0 - temporal * gap,
            macula.1 + random.between(-0.05, 0.01),
        );
        let cup = match condition {
            Condition::Glaucoma => random.between(0.65, 0.85),
            _ => random.between(0.25, 0.5),
        };
        Anatomy {
            condition,
            centre: (
                0.5 + random.between(-0.006, 0.006),
                0.5 + random.between(-0.006, 0.006),
            ),
            field: random.between(0.465, 0.495),
            disc,
            disc_radius: random.between(0.052, 0.068),
            cup,
            macula,
            temporal,
            tortuosity: random.between(0.5, 1.6),
            contrast: match condition {
                Condition::Glaucoma => random.between(0.5, 0.9),
                _ => random.between(0.6, 1.15),
            },
            softness: random.between(0.0004, 0.0014),
            noise: random.between(0.008, 0.028),
        }
    }

    /// Distance of a position from the centre: 1 at the edge of the field of view.
    pub(super) fn eccentricity(&self, at: Spot) -> f32 {
        super::distance(at, self.centre) / self.field
    }
}
