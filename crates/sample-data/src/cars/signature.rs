//! The visible traits of a make: roof line, windows, lamps, wheels, and the badge on the doors.

use super::Make;
use super::canvas::{Canvas, Rgb, Spot, circle, line, oval, polygon, rectangle};

/// Traits that all cars of a make share.
pub(super) struct Signature {
    /// Radius of the body's corners.
    pub(super) roundness: f32,
    pub(super) roof: Roof,
    pub(super) panes: Panes,
    pub(super) lamp: Lamp,
    pub(super) rim: Rim,
    pub(super) glyph: Glyph,
}

/// Shape of the roof line, the tail or the nose.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Roof {
    Falling,
    Flat,
    Domed,
    Racked,
    Visored,
    Finned,
    Wedged,
    TwoTone,
}

/// Shape of the side windows.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Panes {
    Teardrop,
    TwoBoxes,
    TwoArches,
    Three,
    Portholes,
    LeaningPillar,
    Triangle,
    Slats,
}

#[derive(Clone, Copy)]
pub(super) enum Lamp {
    Slit,
    Square,
    Round,
    Stacked,
    Large,
    Hooded,
    Arrow,
    Bar,
}

#[derive(Clone, Copy)]
pub(super) enum Rim {
    Spokes(usize),
    Disc,
    Whitewall,
    Ring,
    Halves,
    Square,
}

/// Shape on the badge.
#[derive(Clone, Copy)]
pub(super) enum Glyph {
    Star,
    Squares,
    Cross,
    Triangle,
    Ring,
    Diamond,
    Chevrons,
    Bars,
}

impl Signature {
    pub(super) fn of(make: Make) -> Signature {
        let (roundness, roof, panes, lamp, rim, glyph) = match make {
            Make::Corvane => (
                0.12,
                Roof::Falling,
                Panes::Teardrop,
                Lamp::Slit,
                Rim::Spokes(5),
                Glyph::Star,
            ),
            Make::Brixel => (
                0.02,
                Roof::Flat,
                Panes::TwoBoxes,
                Lamp::Square,
                Rim::Square,
                Glyph::Squares,
            ),
            Make::Dunmora => (
                0.34,
                Roof::Domed,
                Panes::TwoArches,
                Lamp::Round,
                Rim::Whitewall,
                Glyph::Cross,
            ),
            Make::Halvik => (
                0.06,
                Roof::Racked,
                Panes::Three,
                Lamp::Stacked,
                Rim::Spokes(4),
                Glyph::Triangle,
            ),
            Make::Lumino => (
                0.20,
                Roof::Visored,
                Panes::Portholes,
                Lamp::Large,
                Rim::Ring,
                Glyph::Ring,
            ),
            Make::Pellaro => (
                0.08,
                Roof::Finned,
                Panes::LeaningPillar,
                Lamp::Hooded,
                Rim::Disc,
                Glyph::Diamond,
            ),
            Make::Quarzon => (
                0.02,
                Roof::Wedged,
                Panes::Triangle,
                Lamp::Arrow,
                Rim::Spokes(3),
                Glyph::Chevrons,
            ),
            Make::Tavinor => (
                0.10,
                Roof::TwoTone,
                Panes::Slats,
                Lamp::Bar,
                Rim::Halves,
                Glyph::Bars,
            ),
        };
        Signature {
            roundness,
            roof,
            panes,
            lamp,
            rim,
            glyph,
        }
    }
}

impl Glyph {
    /// Draws the glyph within a circle of about this radius.
    pub(super) fn draw(self, canvas: &mut Canvas, (x, y): Spot, radius: f32, colour: Rgb) {
        let at = |dx: f32, dy: f32| (x + dx * radius, y + dy * radius);
        match self {
            Glyph::Star => canvas.fill(&polygon(&star((x, y), radius)), colour),
            Glyph::Squares => {
                for (dx, dy) in [(-0.78, -0.78), (0.1, -0.78), (-0.78, 0.1), (0.1, 0.1)] {
                    canvas.fill(&rectangle(at(dx, dy), at(dx + 0.68, dy + 0.68)), colour);
                }
            }
            Glyph::Cross => {
                canvas.fill(&rectangle(at(-0.25, -0.95), at(0.25, 0.95)), colour);
                canvas.fill(&rectangle(at(-0.95, -0.25), at(0.95, 0.25)), colour);
            }
            Glyph::Triangle => canvas.fill(
                &polygon(&[at(-0.95, -0.7), at(0.95, -0.7), at(0.0, 0.95)]),
                colour,
            ),
            Glyph::Ring => canvas.outline(&circle((x, y), 0.66 * radius), 0.36 * radius, colour),
            Glyph::Diamond => {
                let corners = [at(0.0, 1.0), at(0.62, 0.0), at(0.0, -1.0), at(-0.62, 0.0)];
                canvas.fill(&polygon(&corners), colour);
            }
            Glyph::Chevrons => {
                for dx in [-0.5, 0.25] {
                    canvas.outline(
                        &line(at(dx, 0.75), at(dx + 0.5, 0.0)),
                        0.34 * radius,
                        colour,
                    );
                    canvas.outline(
                        &line(at(dx, -0.75), at(dx + 0.5, 0.0)),
                        0.34 * radius,
                        colour,
                    );
                }
            }
            Glyph::Bars => {
                canvas.fill(&rectangle(at(-0.95, 0.2), at(0.95, 0.62)), colour);
                canvas.fill(&rectangle(at(-0.95, -0.62), at(0.95, -0.2)), colour);
            }
        }
    }
}

fn star((x, y): Spot, radius: f32) -> [Spot; 10] {
    std::array::from_fn(|i| {
        let angle = std::f32::consts::PI * (0.5 + i as f32 / 5.0);
        let reach = if i % 2 == 0 { radius } else { 0.45 * radius };
        (x + reach * angle.cos(), y + reach * angle.sin())
    })
}

impl Rim {
    /// Draws a wheel: tyre, the rim's base, and the shape of this make on it.
    pub(super) fn draw(
        self,
        canvas: &mut Canvas,
        (x, y): Spot,
        radius: f32,
        (base, mark): (Rgb, Rgb),
    ) {
        let at = |dx: f32, dy: f32| (x + dx * radius, y + dy * radius);
        canvas.fill(&circle((x, y), radius), [30, 30, 34]);
        canvas.fill(&circle((x, y), 0.78 * radius), base);
        match self {
            Rim::Spokes(count) => {
                for spoke in 0..count {
                    let angle = std::f32::consts::TAU * (spoke as f32 / count as f32 + 0.25);
                    let tip = at(0.62 * angle.cos(), 0.62 * angle.sin());
                    canvas.outline(&line((x, y), tip), 0.26 * radius, mark);
                }
            }
            Rim::Disc => canvas.fill(&circle((x, y), 0.40 * radius), mark),
            Rim::Whitewall => canvas.outline(&circle((x, y), 0.68 * radius), 0.26 * radius, mark),
            Rim::Ring => {
                canvas.outline(&circle((x, y), 0.44 * radius), 0.18 * radius, mark);
                canvas.fill(&circle((x, y), 0.14 * radius), mark);
            }
            Rim::Halves => canvas.fill(&rectangle(at(-0.76, -0.22), at(0.76, 0.22)), mark),
            Rim::Square => canvas.fill(&rectangle(at(-0.46, -0.46), at(0.46, 0.46)), mark),
        }
    }
}

impl Lamp {
    /// Draws a head lamp; (x, y) is its foremost point.
    pub(super) fn draw(self, canvas: &mut Canvas, (x, y): Spot, glass: Rgb) {
        let at = |dx: f32, dy: f32| (x + dx, y + dy);
        let rim = [60, 62, 70];
        match self {
            Lamp::Slit => canvas.fill(
                &polygon(&[at(0.0, -0.04), at(-0.24, 0.03), at(-0.02, 0.03)]),
                glass,
            ),
            Lamp::Square => canvas.fill(&rectangle(at(-0.14, -0.08), at(0.0, 0.06)), glass),
            Lamp::Round => {
                canvas.fill(&circle(at(-0.10, 0.0), 0.10), rim);
                canvas.fill(&circle(at(-0.10, 0.0), 0.075), glass);
            }
            Lamp::Stacked => {
                canvas.fill(&circle(at(-0.06, 0.05), 0.055), glass);
                canvas.fill(&circle(at(-0.06, -0.08), 0.055), glass);
            }
            Lamp::Large => {
                canvas.fill(&circle(at(-0.08, 0.02), 0.14), rim);
                canvas.fill(&circle(at(-0.08, 0.02), 0.11), glass);
            }
            Lamp::Hooded => {
                canvas.fill(&oval(at(-0.09, -0.01), (0.09, 0.06)), glass);
                canvas.outline(&line(at(-0.2, 0.06), at(0.02, 0.06)), 0.03, rim);
            }
            Lamp::Arrow => canvas.fill(
                &polygon(&[
                    at(0.0, 0.0),
                    at(-0.2, 0.07),
                    at(-0.12, 0.0),
                    at(-0.2, -0.05),
                ]),
                glass,
            ),
            Lamp::Bar => canvas.fill(&rectangle(at(-0.06, -0.17), at(0.0, 0.06)), glass),
        }
    }
}
