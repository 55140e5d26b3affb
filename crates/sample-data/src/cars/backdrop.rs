//! Backgrounds of the car pictures. The unit is the picture's side; (0, 0) is top left.

use super::Background;
use super::canvas::{Canvas, Rgb, blend, circle, line, oval, polygon, rectangle};
use crate::random::Random;

/// Light on a scene; drawn independently of all other attributes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Light {
    Day,
    Evening,
    Overcast,
}

impl Light {
    pub(super) const ALL: [Light; 3] = [Light::Day, Light::Evening, Light::Overcast];
}

/// Paints the whole picture: sky, objects on the horizon, ground.
pub(super) fn paint(canvas: &mut Canvas, background: Background, random: &mut Random) {
    let horizon = random.between(0.54, 0.64);
    match background {
        Background::City => city(canvas, horizon, random),
        Background::Desert => desert(canvas, horizon, random),
        Background::Forest => forest(canvas, horizon, random),
        Background::Sea => sea(canvas, horizon, random),
        Background::Mountains => mountains(canvas, horizon, random),
        Background::Snow => snow(canvas, horizon, random),
        Background::Night => night(canvas, horizon, random),
        Background::Studio => studio(canvas, horizon, random),
    }
}

/// Tints the finished picture with the light.
pub(super) fn lighten(canvas: &mut Canvas, background: Background, light: Light) {
    let everything = rectangle((0.0, 0.0), (1.0, 1.0));
    match (background, light) {
        (Background::Night, _) => canvas.tint(&everything, [16, 20, 66], 0.26),
        (_, Light::Day) => {}
        (_, Light::Evening) => canvas.tint(&everything, [255, 132, 64], 0.12),
        (_, Light::Overcast) => canvas.tint(&everything, [116, 128, 146], 0.15),
    }
}

fn sky(canvas: &mut Canvas, horizon: f32, high: Rgb, low: Rgb) {
    let area = rectangle((0.0, 0.0), (1.0, horizon));
    canvas.fade(&area, ((0.0, 0.0), high), ((0.0, horizon), low));
}

fn ground(canvas: &mut Canvas, horizon: f32, far: Rgb, near: Rgb) {
    let area = rectangle((0.0, horizon), (1.0, 1.0));
    canvas.fade(&area, ((0.0, horizon), far), ((0.0, 1.0), near));
}

fn cloud(canvas: &mut Canvas, random: &mut Random) {
    let (x, y) = (random.unit_f32(), random.between(0.06, 0.26));
    for (dx, dy, radius) in [(-0.07, 0.01, 0.04), (0.0, 0.0, 0.055), (0.07, 0.012, 0.038)] {
        canvas.tint(&circle((x + dx, y + dy), radius), [255, 255, 255], 0.8);
    }
}

fn sun(canvas: &mut Canvas, random: &mut Random, colour: Rgb) {
    let place = (random.between(0.1, 0.9), random.between(0.08, 0.22));
    canvas.tint(&circle(place, 0.11), colour, 0.3);
    canvas.fill(&circle(place, 0.075), colour);
}

fn city(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [142, 188, 226], [226, 232, 236]);
    cloud(canvas, random);
    let mut left = -random.between(0.0, 0.1);
    while left < 1.0 {
        let right = left + random.between(0.11, 0.2);
        let roof = horizon - random.between(0.16, 0.46);
        let wall = random.pick(&[
            [186, 150, 132],
            [150, 160, 178],
            [204, 190, 164],
            [168, 132, 128],
            [128, 140, 152],
        ]);
        canvas.fill(&rectangle((left, roof), (right, horizon)), wall);
        let mut row = roof + 0.035;
        while row < horizon - 0.04 {
            let mut column = left + 0.02;
            while column < right - 0.03 {
                let lit = if random.chance(0.3) {
                    [255, 232, 150]
                } else {
                    [84, 98, 120]
                };
                canvas.fill(&rectangle((column, row), (column + 0.02, row + 0.026)), lit);
                column += 0.04;
            }
            row += 0.055;
        }
        left = right;
    }
    ground(canvas, horizon, [176, 174, 172], [120, 120, 126]);
    canvas.fill(&rectangle((0.0, horizon + 0.06), (1.0, 1.0)), [96, 98, 106]);
    let dashes = random.between(-0.2, 0.0);
    for dash in 0..5 {
        let x = dashes + 0.27 * dash as f32;
        canvas.fill(&rectangle((x, 0.93), (x + 0.14, 0.955)), [236, 232, 214]);
    }
}

fn desert(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [112, 186, 226], [252, 226, 178]);
    sun(canvas, random, [255, 236, 150]);
    for sand in [[232, 186, 120], [222, 170, 104]] {
        let place = (random.unit_f32(), horizon + 0.05);
        canvas.fill(
            &oval(place, (random.between(0.4, 0.6), random.between(0.1, 0.18))),
            sand,
        );
    }
    ground(canvas, horizon, [236, 196, 128], [214, 160, 92]);
    for _ in 0..2 {
        let (x, foot) = (random.unit_f32(), horizon + 0.02);
        let height = random.between(0.16, 0.26);
        let green = [74, 132, 84];
        canvas.outline(&line((x, foot), (x, foot - height)), 0.04, green);
        for side in [-1.0, 1.0] {
            let elbow = (x + side * 0.06, foot - height * random.between(0.35, 0.6));
            canvas.outline(&line((x, elbow.1), elbow), 0.028, green);
            canvas.outline(&line(elbow, (elbow.0, elbow.1 - 0.07)), 0.028, green);
        }
    }
}

fn fir(canvas: &mut Canvas, (x, foot): (f32, f32), height: f32, green: Rgb) {
    canvas.fill(
        &rectangle((x - 0.012, foot - 0.05), (x + 0.012, foot)),
        [96, 70, 52],
    );
    for tier in 0..3 {
        let low = foot - 0.03 - height * 0.26 * tier as f32;
        let wide = height * (0.30 - 0.07 * tier as f32);
        canvas.fill(
            &polygon(&[(x - wide, low), (x, low - 0.46 * height), (x + wide, low)]),
            green,
        );
    }
}

fn forest(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [150, 204, 214], [222, 238, 214]);
    for tree in 0..9 {
        let x = (tree as f32 + random.unit_f32()) / 9.0;
        let green = blend([34, 92, 62], [96, 146, 80], random.unit_f32());
        fir(
            canvas,
            (x, horizon + 0.01),
            random.between(0.26, 0.46),
            green,
        );
    }
    ground(canvas, horizon, [126, 172, 92], [88, 132, 70]);
    for _ in 0..9 {
        let place = (random.unit_f32(), random.between(horizon + 0.04, 0.98));
        let petal = random.pick(&[[255, 255, 255], [250, 224, 110], [232, 140, 160]]);
        canvas.fill(&circle(place, 0.009), petal);
    }
}

fn sea(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    let shore = horizon + 0.07;
    sky(canvas, horizon - 0.14, [122, 196, 240], [224, 244, 248]);
    sun(canvas, random, [255, 246, 190]);
    let water = rectangle((0.0, horizon - 0.14), (1.0, shore));
    canvas.fade(
        &water,
        ((0.0, horizon - 0.14), [40, 118, 176]),
        ((0.0, shore), [92, 190, 204]),
    );
    let sail = (random.unit_f32(), horizon - 0.12);
    let mast = |dx: f32, dy: f32| (sail.0 + dx, sail.1 + dy);
    canvas.fill(
        &polygon(&[mast(0.0, 0.0), mast(0.0, -0.15), mast(0.08, -0.01)]),
        [255, 252, 244],
    );
    canvas.fill(
        &polygon(&[
            mast(-0.04, 0.0),
            mast(0.09, 0.0),
            mast(0.06, 0.03),
            mast(-0.02, 0.03),
        ]),
        [176, 70, 60],
    );
    for _ in 0..8 {
        let (x, y) = (
            random.unit_f32(),
            random.between(horizon - 0.08, shore - 0.02),
        );
        canvas.outline(&line((x, y), (x + 0.06, y)), 0.008, [206, 236, 240]);
    }
    ground(canvas, shore, [240, 222, 170], [220, 192, 136]);
}

fn mountains(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [120, 172, 222], [232, 226, 232]);
    cloud(canvas, random);
    for peak in 0..4 {
        let x = (peak as f32 + random.unit_f32()) / 4.0;
        let (high, wide) = (random.between(0.26, 0.44), random.between(0.22, 0.32));
        let rock = blend([104, 112, 144], [146, 148, 170], random.unit_f32());
        let top = horizon - high;
        canvas.fill(
            &polygon(&[(x - wide, horizon), (x, top), (x + wide, horizon)]),
            rock,
        );
        let (cap, side) = (top + 0.3 * high, 0.3 * wide);
        let snow = [
            (x - side, cap),
            (x, top),
            (x + side, cap),
            (x + 0.3 * side, cap - 0.03),
            (x - 0.2 * side, cap + 0.03),
        ];
        canvas.fill(&polygon(&snow), [250, 250, 252]);
    }
    ground(canvas, horizon, [154, 184, 112], [108, 144, 88]);
    canvas.fill(
        &rectangle((0.0, horizon + 0.1), (1.0, 0.97)),
        [150, 144, 138],
    );
}

fn snow(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [166, 186, 208], [222, 230, 238]);
    for _ in 0..4 {
        let place = (random.unit_f32(), horizon + 0.01);
        fir(canvas, place, random.between(0.2, 0.36), [122, 158, 160]);
    }
    canvas.fill(
        &oval((random.unit_f32(), horizon + 0.06), (0.6, 0.12)),
        [236, 242, 248],
    );
    ground(canvas, horizon, [238, 244, 250], [206, 218, 234]);
    for _ in 0..34 {
        let place = (random.unit_f32(), random.unit_f32());
        canvas.fill(
            &circle(place, random.between(0.006, 0.013)),
            [255, 255, 255],
        );
    }
}

fn night(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    sky(canvas, horizon, [14, 18, 50], [58, 62, 112]);
    for _ in 0..26 {
        let place = (random.unit_f32(), random.between(0.0, horizon));
        canvas.fill(
            &circle(place, random.between(0.004, 0.009)),
            [246, 240, 206],
        );
    }
    let (x, y) = (random.between(0.12, 0.88), random.between(0.1, 0.2));
    canvas.fill(&circle((x, y), 0.075), [250, 240, 196]);
    canvas.fill(&circle((x + 0.035, y - 0.015), 0.062), [22, 26, 62]);
    for _ in 0..3 {
        let place = (random.unit_f32(), horizon + 0.08);
        canvas.fill(
            &oval(place, (random.between(0.2, 0.4), random.between(0.1, 0.2))),
            [30, 38, 66],
        );
    }
    ground(canvas, horizon, [62, 68, 96], [40, 44, 68]);
}

fn studio(canvas: &mut Canvas, horizon: f32, random: &mut Random) {
    let wall = random.pick(&[
        [214, 226, 232],
        [240, 222, 206],
        [222, 212, 232],
        [206, 228, 212],
        [244, 236, 200],
        [198, 204, 214],
    ]);
    sky(canvas, horizon, blend(wall, [255, 255, 255], 0.3), wall);
    ground(
        canvas,
        horizon,
        blend(wall, [60, 60, 80], 0.12),
        blend(wall, [60, 60, 80], 0.3),
    );
    canvas.tint(&oval((0.5, 0.82), (0.46, 0.12)), [255, 255, 255], 0.35);
}
