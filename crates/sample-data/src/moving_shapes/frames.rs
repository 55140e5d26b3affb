//! Draws a story's frames. Shapes are distance fields, so edges are smooth at any size; arithmetic is limited to sums, products and square
//! roots, which every machine rounds alike.

use super::story::{Change, Shape, Story, StoryPurpose, describe, random};
use super::{MAX_SIZE, MIN_SIZE, MovingShapesConfig};

/// Total change of a growing or shrinking shape's width over the clip, as a share of its width at half the time.
const GROWTH: f64 = 0.9;

/// The frames of the clip at an index of a set: red, green and blue of each pixel, row by row from the top.
pub fn draw(index: usize, config: &MovingShapesConfig) -> Vec<Vec<u8>> {
    let story = describe(index, config.seed);
    let size = config.size.clamp(MIN_SIZE, MAX_SIZE) as usize;
    let backdrop = backdrop(index, config.seed, size);
    let frame = |at: usize| {
        let time = match config.frames {
            0 | 1 => 0.5,
            frames => at as f64 / (frames - 1) as f64,
        };
        let mut pixels = backdrop.clone();
        paint(&story, time, size, &mut pixels);
        pixels
    };
    (0..config.frames).map(frame).collect()
}

/// Dark grey with a tint, darker at one side, with a static grain: every paint stands out from it.
fn backdrop(index: usize, seed: u64, size: usize) -> Vec<u8> {
    let mut random = random(seed, StoryPurpose::Look, index);
    let grey = 70.0 + 40.0 * random.unit();
    let tint: [f64; 3] = std::array::from_fn(|_| grey + 24.0 * (random.unit() - 0.5));
    let slope: [f64; 2] = std::array::from_fn(|_| 50.0 * (random.unit() - 0.5));
    let mut pixels = Vec::with_capacity(size * size * 3);
    for y in 0..size {
        for x in 0..size {
            let place = [x as f64 / size as f64 - 0.5, y as f64 / size as f64 - 0.5];
            let light = slope[0] * place[0] + slope[1] * place[1] + 8.0 * (random.unit() - 0.5);
            pixels.extend(tint.map(|channel| (channel + light).round() as u8));
        }
    }
    pixels
}

fn paint(story: &Story, time: f64, size: usize, pixels: &mut [u8]) {
    let side = size as f64;
    let since_middle = time - 0.5;
    let step = story.speed.distance() * since_middle;
    let way = story.direction.vector();
    let centre = [0, 1].map(|axis| (story.middle[axis] + way[axis] * step) * side);
    let growth = match story.change {
        Change::Grows => 1.0 + GROWTH * since_middle,
        Change::Shrinks => 1.0 - GROWTH * since_middle,
        Change::Nothing | Change::Colour(_) => 1.0,
    };
    let radius = story.radius * growth * side;
    let colour = match story.change {
        Change::Colour(then) if time >= story.change_time => then,
        _ => story.paint,
    };
    let rgb = colour.rgb();
    let reach = radius * 1.5 + 1.0;
    let range = |centre: f64| {
        let first = (centre - reach).floor().clamp(0.0, side) as usize;
        first..(centre + reach).ceil().clamp(0.0, side) as usize
    };
    for y in range(centre[1]) {
        for x in range(centre[0]) {
            let place = [x as f64 + 0.5 - centre[0], y as f64 + 0.5 - centre[1]];
            let cover = (0.5 - distance(story.shape, place, radius)).clamp(0.0, 1.0);
            if cover > 0.0 {
                let pixel = &mut pixels[(y * size + x) * 3..][..3];
                for (channel, paint) in pixel.iter_mut().zip(rgb) {
                    let mixed = f64::from(*channel) * (1.0 - cover) + paint * cover;
                    *channel = mixed.round() as u8;
                }
            }
        }
    }
}

/// Distance in pixels to the edge of a shape around the origin, negative inside.
fn distance(shape: Shape, [x, y]: [f64; 2], radius: f64) -> f64 {
    let length = (x * x + y * y).sqrt();
    let within =
        |half_width: f64, half_height: f64| (x.abs() - half_width).max(y.abs() - half_height);
    match shape {
        Shape::Circle => length - radius,
        Shape::Square => within(0.88 * radius, 0.88 * radius),
        Shape::Ring => (length - 0.78 * radius).abs() - 0.3 * radius,
        Shape::Cross => {
            within(1.05 * radius, 0.35 * radius).min(within(0.35 * radius, 1.05 * radius))
        }
        Shape::Triangle => {
            // Slanted edges of an equilateral triangle: their normals are (+-sqrt(3)/2, -1/2).
            let slant = 0.75_f64.sqrt() * x.abs() - 0.5 * y;
            slant.max(y) - 0.62 * radius
        }
    }
}
