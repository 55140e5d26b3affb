//! Draws a car onto a canvas, part by part from back to front.

use tiny_skia::Transform;

use super::canvas::{Canvas, Rgb, Spot, blend, circle, line, oval, polygon, rectangle, rounded};
use super::coachwork::{AXLES, DOOR, Frame};
use super::signature::{Panes, Roof, Signature};

const WHITE: Rgb = [255, 255, 255];
const INK: Rgb = [26, 28, 36];
const LAMP: Rgb = [255, 240, 176];

/// Offset (x, y) of the far side of a car seen from its front corner.
const DEPTH: Spot = (0.17, 0.06);

/// All that is needed to draw a car.
pub(super) struct Portrait {
    pub(super) frame: Frame,
    pub(super) signature: Signature,
    pub(super) paint: Rgb,
    /// Colour of two-tone roofs, racks and visors.
    pub(super) trim: Rgb,
    /// Colours of the rims' base and of the shape on it.
    pub(super) rims: (Rgb, Rgb),
    pub(super) glass: Rgb,
    pub(super) lamp: Rgb,
    /// Colours of the badge's disc and of its glyph.
    pub(super) badge: (Rgb, Rgb),
    pub(super) shows_front: bool,
    pub(super) chrome: bool,
}

impl Portrait {
    pub(super) fn draw(&self, canvas: &mut Canvas) {
        let shadow = oval((0.05, 0.01), (1.12, 0.09));
        canvas.tint(&shadow, [10, 12, 20], 0.45);
        if self.shows_front {
            self.draw_depth(canvas);
        }
        self.draw_fins_and_rack(canvas);
        self.draw_body(canvas);
        self.draw_windows(canvas);
        self.draw_ends(canvas);
        self.draw_wheels(canvas);
        self.draw_badge(canvas);
    }

    /// Draws the parts behind the near side: the far wheel, and the front between the two sides.
    fn draw_depth(&self, canvas: &mut Canvas) {
        let steps = 10;
        let (x, y) = AXLES[1];
        canvas.fill(&circle((x + DEPTH.0, y + DEPTH.1), 0.19), INK);
        let side = rounded(&self.frame.silhouette(), self.signature.roundness);
        let shade = blend(self.paint, INK, 0.35);
        for step in (1..=steps).rev() {
            let share = step as f32 / steps as f32;
            let offset = Transform::from_translate(DEPTH.0 * share, DEPTH.1 * share);
            canvas.within(offset, |canvas| canvas.fill(&side, shade));
        }
        let frame = &self.frame;
        let low = (frame.front_base - 0.02, frame.hood + 0.04);
        let high = (frame.front_top + 0.03, frame.roof.1 - 0.04);
        let far = |(x, y): Spot| (x + 0.9 * DEPTH.0, y + 0.9 * DEPTH.1);
        canvas.fill(
            &polygon(&[low, high, far(high), far(low)]),
            blend(self.glass, INK, 0.2),
        );
        let lamp = (
            frame.nose + DEPTH.0 - 0.02,
            frame.hood_front - 0.08 + DEPTH.1,
        );
        canvas.fill(&circle(lamp, 0.05), self.lamp);
        for bar in 0..3 {
            let height = frame.sill + 0.05 + 0.05 * bar as f32;
            canvas.outline(
                &line(
                    (frame.nose, height),
                    (frame.nose + DEPTH.0, height + DEPTH.1),
                ),
                0.02,
                INK,
            );
        }
    }

    fn draw_fins_and_rack(&self, canvas: &mut Canvas) {
        let frame = &self.frame;
        match self.signature.roof {
            Roof::Finned => {
                let (foot, deck) = (frame.tail + 0.42, frame.deck);
                let corners = [
                    (foot, deck - 0.03),
                    (frame.tail - 0.16, deck + 0.24),
                    (frame.tail, deck - 0.2),
                ];
                canvas.fill(&polygon(&corners), blend(self.paint, INK, 0.12));
            }
            Roof::Racked => {
                let (rear, front) = (
                    (frame.rear_top + 0.02, frame.roof.0 + 0.11),
                    (frame.front_top, frame.roof.1 + 0.11),
                );
                canvas.outline(&line(rear, front), 0.05, self.trim);
                for share in [0.1, 0.5, 0.9] {
                    let x = rear.0 + (front.0 - rear.0) * share;
                    canvas.outline(
                        &line((x, rear.1), (x, frame.roof.0 - 0.02)),
                        0.04,
                        self.trim,
                    );
                }
            }
            Roof::Visored => {
                let from = (frame.front_top - 0.06, frame.roof.1 - 0.02);
                canvas.outline(
                    &line(from, (frame.front_top + 0.24, frame.roof.1 - 0.06)),
                    0.06,
                    self.trim,
                );
            }
            _ => {}
        }
    }

    fn draw_body(&self, canvas: &mut Canvas) {
        let frame = &self.frame;
        let side = rounded(&frame.silhouette(), self.signature.roundness);
        let top = ((0.0, frame.roof.1), blend(self.paint, WHITE, 0.22));
        let bottom = ((0.0, frame.sill), blend(self.paint, INK, 0.22));
        canvas.fade(&side, top, bottom);
        if self.signature.roof == Roof::TwoTone {
            canvas.fill(
                &rounded(&frame.cabin(), self.signature.roundness),
                self.trim,
            );
        }
        canvas.outline(&side, 0.028, blend(self.paint, INK, 0.6));
        let shine = line(
            (frame.tail + 0.1, frame.deck - 0.05),
            (frame.nose - 0.16, frame.hood_front - 0.04),
        );
        canvas.outline(&shine, 0.02, blend(self.paint, WHITE, 0.5));
        let sill = rectangle(
            (frame.tail + 0.05, frame.sill - 0.03),
            (frame.nose - 0.05, frame.sill + 0.03),
        );
        canvas.fill(&sill, blend(self.paint, INK, 0.7));
    }

    fn draw_windows(&self, canvas: &mut Canvas) {
        let frame = &self.frame;
        for (corners, radius) in frame.windows(self.signature.panes) {
            let pane = rounded(&corners, radius);
            canvas.fade(
                &pane,
                ((0.0, 1.0), blend(self.glass, WHITE, 0.4)),
                ((0.0, 0.5), blend(self.glass, INK, 0.35)),
            );
            canvas.outline(&pane, 0.022, blend(self.paint, INK, 0.4));
        }
        if self.signature.panes == Panes::Portholes {
            for along in [0.22, 0.74] {
                let hole = circle(frame.in_cabin(along, 0.5), 0.15);
                canvas.fill(&hole, blend(self.glass, WHITE, 0.2));
                canvas.outline(&hole, 0.035, self.trim);
            }
        }
        for x in [-0.34, 0.36] {
            let gap = line((x, frame.sill + 0.05), (x, frame.belt() - 0.03));
            canvas.outline(&gap, 0.014, blend(self.paint, INK, 0.45));
        }
    }

    fn draw_ends(&self, canvas: &mut Canvas) {
        let frame = &self.frame;
        let tail_lamp = rectangle(
            (frame.tail - 0.03, frame.deck - 0.2),
            (frame.tail + 0.06, frame.deck - 0.06),
        );
        canvas.fill(&tail_lamp, [206, 40, 40]);
        self.signature.lamp.draw(canvas, self.lamp_tip(), self.lamp);
        let bumper = if self.chrome {
            [214, 218, 224]
        } else {
            blend(self.paint, INK, 0.75)
        };
        for (from, to) in [
            (frame.tail - 0.06, frame.tail + 0.12),
            (frame.nose - 0.12, frame.nose + 0.05),
        ] {
            canvas.outline(&line((from, 0.2), (to, 0.2)), 0.07, bumper);
        }
    }

    /// The foremost point of the head lamp.
    fn lamp_tip(&self) -> Spot {
        (self.frame.nose - 0.02, self.frame.hood_front - 0.09)
    }

    fn draw_wheels(&self, canvas: &mut Canvas) {
        for axle in AXLES {
            canvas.fill(
                &circle((axle.0, axle.1 + 0.02), 0.265),
                blend(self.paint, INK, 0.8),
            );
            self.signature.rim.draw(canvas, axle, 0.24, self.rims);
        }
    }

    fn draw_badge(&self, canvas: &mut Canvas) {
        let (disc, glyph) = self.badge;
        canvas.fill(&circle(DOOR, 0.28), disc);
        canvas.outline(&circle(DOOR, 0.28), 0.02, INK);
        self.signature.glyph.draw(canvas, DOOR, 0.225, glyph);
    }

    /// Draws the light cone of the head lamps at night.
    pub(super) fn draw_beam(&self, canvas: &mut Canvas) {
        let (x, y) = self.lamp_tip();
        for (spread, strength) in [(0.10, 0.22), (0.22, 0.16), (0.34, 0.10)] {
            let beam = polygon(&[
                (x, y + 0.03),
                (x + 1.2, y + spread),
                (x + 1.2, y - 1.6 * spread),
                (x, y - 0.03),
            ]);
            canvas.tint(&beam, LAMP, strength);
        }
        self.signature.lamp.draw(canvas, self.lamp_tip(), LAMP);
    }
}
