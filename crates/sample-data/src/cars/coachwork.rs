//! The outline of a car: the shape of its body, modified by its make.
//!
//! The unit is half a car's length. The ground is at height 0, the nose at x = 1, the tail at x = -1.

use super::Body;
use super::canvas::Spot;
use super::signature::{Panes, Roof, Signature};

/// Centre of the doors, where the badge is.
pub(super) const DOOR: Spot = (0.0, 0.36);

/// Centres of the wheels, rear and front.
pub(super) const AXLES: [Spot; 2] = [(-0.62, 0.20), (0.62, 0.20)];

/// Heights and x positions of the corners of a silhouette.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) tail: f32,
    pub(super) nose: f32,
    pub(super) sill: f32,
    pub(super) deck: f32,
    pub(super) hood: f32,
    /// Height of the hood at its front end.
    pub(super) hood_front: f32,
    /// Height of the roof at its rear end and at its front end.
    pub(super) roof: (f32, f32),
    /// Extra height of the roof's middle.
    pub(super) dome: f32,
    pub(super) rear_base: f32,
    pub(super) rear_top: f32,
    pub(super) front_top: f32,
    pub(super) front_base: f32,
}

impl Frame {
    pub(super) fn of(body: Body, signature: &Signature) -> Frame {
        let mut frame = Frame::of_body(body);
        frame.bend(signature.roof);
        frame
    }

    fn of_body(body: Body) -> Frame {
        let (tail, deck, hood, roof) = match body {
            Body::Hatchback => (-0.90, 0.54, 0.50, 0.92),
            Body::Sedan => (-1.0, 0.52, 0.50, 0.88),
            Body::Suv => (-0.96, 0.60, 0.58, 1.02),
            Body::Pickup => (-1.0, 0.54, 0.56, 0.98),
            Body::Van => (-0.98, 0.60, 0.56, 1.10),
            Body::Coupe => (-1.0, 0.48, 0.46, 0.80),
        };
        let (rear_base, rear_top, front_top, front_base) = match body {
            Body::Hatchback => (-0.88, -0.70, 0.16, 0.50),
            Body::Sedan => (-0.66, -0.42, 0.16, 0.50),
            Body::Suv => (-0.95, -0.86, 0.24, 0.50),
            Body::Pickup => (-0.30, -0.24, 0.22, 0.50),
            Body::Van => (-0.97, -0.94, 0.50, 0.78),
            Body::Coupe => (-0.84, -0.40, 0.02, 0.42),
        };
        Frame {
            tail,
            nose: 1.0,
            sill: 0.15,
            deck,
            hood,
            hood_front: hood - 0.06,
            roof: (roof, roof),
            dome: 0.0,
            rear_base,
            rear_top,
            front_top,
            front_base,
        }
    }

    fn bend(&mut self, roof: Roof) {
        match roof {
            Roof::Falling => {
                self.roof.0 -= 0.16;
                self.rear_top += 0.06;
                self.front_top -= 0.04;
            }
            Roof::Flat => {
                self.rear_top = self.rear_base + 0.02;
                self.front_top = self.front_base - 0.14;
                self.hood_front = self.hood;
            }
            Roof::Domed => {
                self.dome = 0.10;
                self.rear_top -= 0.08;
                self.front_top += 0.10;
                self.hood_front -= 0.08;
            }
            Roof::Wedged => {
                self.hood_front = 0.27;
                self.nose = 1.06;
                self.front_top -= 0.12;
                self.front_base += 0.08;
            }
            Roof::Racked | Roof::Visored | Roof::Finned | Roof::TwoTone => {}
        }
    }

    /// Outline of the whole body without wheels, from the rear sill over the roof to the front sill.
    pub(super) fn silhouette(&self) -> Vec<Spot> {
        let mut line = vec![
            (self.tail, self.sill),
            (self.tail - 0.02, self.deck),
            (self.rear_base, self.deck),
        ];
        line.extend(self.roof_line());
        line.extend([
            (self.front_base, self.hood),
            (self.nose - 0.04, self.hood_front),
            (self.nose, self.sill),
        ]);
        line
    }

    /// Outline of the part above doors, hood and deck.
    pub(super) fn cabin(&self) -> Vec<Spot> {
        let mut line = vec![(self.rear_base, self.deck)];
        line.extend(self.roof_line());
        line.push((self.front_base, self.hood));
        line
    }

    fn roof_line(&self) -> Vec<Spot> {
        [0.0, 0.25, 0.5, 0.75, 1.0]
            .map(|share: f32| {
                let x = self.rear_top + (self.front_top - self.rear_top) * share;
                (x, self.roof_above(share))
            })
            .into()
    }

    /// Height of the roof at `share` of the way from its rear end to its front end.
    fn roof_above(&self, share: f32) -> f32 {
        let arch = 4.0 * share * (1.0 - share);
        self.roof.0 + (self.roof.1 - self.roof.0) * share + self.dome * arch
    }

    /// Height of the side windows' lower edge.
    pub(super) fn belt(&self) -> f32 {
        self.deck.max(self.hood) + 0.02
    }

    /// Outlines of the side windows, each with the radius of its corners.
    pub(super) fn windows(&self, panes: Panes) -> Vec<(Vec<Spot>, f32)> {
        let at = |along: f32, up: f32| self.in_cabin(along, up);
        let pane = |from: (f32, f32), to: (f32, f32)| {
            vec![
                at(from.0, 0.0),
                at(from.1, 1.0),
                at(to.1, 1.0),
                at(to.0, 0.0),
            ]
        };
        match panes {
            Panes::Teardrop => vec![(
                vec![at(0.0, 0.0), at(0.45, 1.0), at(1.0, 1.0), at(1.0, 0.0)],
                0.10,
            )],
            Panes::TwoBoxes => vec![
                (pane((0.02, 0.02), (0.46, 0.46)), 0.0),
                (pane((0.56, 0.56), (1.0, 1.0)), 0.0),
            ],
            Panes::TwoArches => vec![
                (pane((0.0, 0.0), (0.46, 0.46)), 0.3),
                (pane((0.54, 0.54), (1.0, 1.0)), 0.3),
            ],
            Panes::Three => [0.0, 0.36, 0.72]
                .map(|left| (pane((left, left), (left + 0.28, left + 0.28)), 0.03))
                .into(),
            Panes::Portholes => Vec::new(),
            Panes::LeaningPillar => vec![
                (pane((0.0, 0.0), (0.32, 0.54)), 0.03),
                (pane((0.44, 0.66), (1.0, 1.0)), 0.03),
            ],
            Panes::Triangle => vec![(
                vec![at(0.0, 0.55), at(1.0, 1.0), at(1.0, 0.0), at(0.55, 0.0)],
                0.0,
            )],
            Panes::Slats => [0.0, 0.36, 0.72]
                .map(|low| {
                    (
                        vec![
                            at(0.0, low),
                            at(0.0, low + 0.2),
                            at(1.0, low + 0.2),
                            at(1.0, low),
                        ],
                        0.02,
                    )
                })
                .into(),
        }
    }

    /// A point in the window area: `along` is 0 to 1 from rear to front, `up` is 0 to 1 from belt to roof.
    pub(super) fn in_cabin(&self, along: f32, up: f32) -> Spot {
        let margin = 0.07;
        let belt = self.belt();
        let mix = |from: f32, to: f32, share: f32| from + (to - from) * share;
        let rear = mix(self.rear_base + 0.09, self.rear_top + margin, up);
        let front = mix(self.front_base - 0.12, self.front_top - 0.03, up);
        let top = self.roof_above(along) - margin;
        (mix(rear, front, along), mix(belt, top, up))
    }
}
