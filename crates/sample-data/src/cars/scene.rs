//! A car's picture: position and rotation of the car, and its background.

use tiny_skia::Transform;

use super::backdrop::{self, Light};
use super::canvas::{Canvas, Rgb};
use super::coachwork::Frame;
use super::portrait::Portrait;
use super::signature::Signature;
use super::{Background, Facts};
use crate::random::Random;

/// Colours of a badge's disc and glyph, drawn independently of the make.
const BADGES: [(Rgb, Rgb); 4] = [
    ([252, 250, 242], [28, 30, 44]),
    ([28, 30, 44], [252, 250, 242]),
    ([252, 250, 242], [176, 30, 40]),
    ([176, 30, 40], [252, 250, 242]),
];

/// Colours of trim.
const TRIMS: [Rgb; 4] = [[250, 246, 232], [214, 196, 150], [58, 62, 74], [92, 64, 58]];

/// Colours of the rims' base and of the shape on it.
const RIMS: [(Rgb, Rgb); 4] = [
    ([58, 60, 68], [238, 240, 242]),
    ([238, 240, 242], [58, 60, 68]),
    ([66, 60, 56], [230, 198, 124]),
    ([230, 198, 124], [66, 60, 56]),
];

/// Colours of clear glass and of tinted glass.
const GLASSES: [Rgb; 2] = [[186, 222, 238], [62, 78, 98]];

/// Colours of lamps that are on, and off.
const LAMPS: [Rgb; 2] = [[255, 240, 176], [92, 104, 116]];

/// A car at its position in a background.
pub(super) struct Scene {
    background: Background,
    light: Light,
    portrait: Portrait,
    /// Transform from units of the car to those of the picture.
    placement: Transform,
}

impl Scene {
    pub(super) fn of(facts: &Facts, random: &mut Random) -> Scene {
        let signature = Signature::of(facts.make);
        let portrait = Portrait {
            frame: Frame::of(facts.body, &signature),
            signature,
            paint: facts.colour.paint(),
            trim: random.pick(&TRIMS),
            rims: random.pick(&RIMS),
            glass: random.pick(&GLASSES),
            lamp: random.pick(&LAMPS),
            badge: random.pick(&BADGES),
            shows_front: facts.viewpoint.shows_front(),
            chrome: facts.year < 1980,
        };
        Scene {
            background: facts.background,
            light: random.pick(&Light::ALL),
            portrait,
            placement: placement(facts, random),
        }
    }

    pub(super) fn draw(&self, canvas: &mut Canvas, random: &mut Random) {
        backdrop::paint(canvas, self.background, random);
        canvas.within(self.placement, |canvas| self.portrait.draw(canvas));
        backdrop::lighten(canvas, self.background, self.light);
        if self.background == Background::Night {
            canvas.within(self.placement, |canvas| self.portrait.draw_beam(canvas));
        }
    }
}

fn placement(facts: &Facts, random: &mut Random) -> Transform {
    let (x, ground) = (random.between(0.47, 0.53), random.between(0.81, 0.86));
    let scale = random.between(0.43, 0.45);
    let turn = random.between(-1.5, 1.5);
    let along = if facts.viewpoint.shows_front() {
        0.93
    } else {
        1.0
    };
    let facing = if facts.viewpoint.faces_left() {
        -along
    } else {
        along
    };
    Transform::from_translate(x, ground)
        .pre_concat(Transform::from_rotate(turn))
        .pre_scale(facing * scale, -scale)
}
