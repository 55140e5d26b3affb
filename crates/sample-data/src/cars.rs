//! Cars to train on: pictures drawn from a seed, each with a caption and labels, for users who have no data yet.
//!
//! Eight invented makes each have a signature (roof line, window shape, lamps, wheels) and a badge on the door. Body, paint, background,
//! light, viewpoint and position vary independently of the make, so a model must learn a make from its shapes and not from the place of a
//! colour.
//!
//! ```text
//! seed, index -> Facts (attributes) -> caption, CSV row of labels
//!                  |
//!                  +-> Scene (position, badge) -> backdrop, portrait, light -> pixels
//! ```
//!
//! A picture depends on the seed, its index and the size, never on the number of pictures.

mod attributes;
mod backdrop;
mod canvas;
mod caption;
mod chance;
mod coachwork;
mod folder;
mod portrait;
mod scene;
mod signature;

pub use attributes::{Background, Body, Colour, Make, Viewpoint};
pub use folder::{CarsError, Written, write};

use crate::random::Random;
use canvas::Canvas;
use chance::CarPurpose;
use scene::Scene;

/// Parameters of a set of cars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarsConfig {
    /// Number of pictures.
    pub count: usize,
    /// Width and height in pixels, clamped to 32..=1024.
    pub size: u32,
    pub seed: u64,
}

impl Default for CarsConfig {
    fn default() -> CarsConfig {
        CarsConfig {
            count: 2800,
            size: 96,
            seed: 1,
        }
    }
}

/// Attributes of a car, as its labels state them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub make: Make,
    pub body: Body,
    /// Colour of the paint.
    pub colour: Colour,
    /// Year of manufacture.
    pub year: u16,
    pub background: Background,
    pub viewpoint: Viewpoint,
    pub caption: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Car {
    /// Red, green and blue of each pixel, row by row from the top.
    pub pixels: Vec<u8>,
    /// Width and height in pixels.
    pub size: u32,
    pub facts: Facts,
}

/// Attributes of the car at an index of a set, without its picture.
pub fn describe(index: usize, config: &CarsConfig) -> Facts {
    let mut random = Random::of_car(config.seed, CarPurpose::Attributes, index);
    let mut facts = Facts {
        make: make_at(index, config.seed),
        body: random.pick(Body::ALL),
        colour: random.pick(Colour::ALL),
        year: 1960 + 4 * random.below(16) as u16,
        background: random.pick(Background::ALL),
        viewpoint: random.pick(Viewpoint::ALL),
        caption: String::new(),
    };
    facts.caption = caption::write(
        &facts,
        &mut Random::of_car(config.seed, CarPurpose::Caption, index),
    );
    facts
}

/// Draws the car at an index of a set.
pub fn draw(index: usize, config: &CarsConfig) -> Car {
    let facts = describe(index, config);
    let size = config.size.clamp(32, 1024);
    let mut canvas = Canvas::new(size);
    let mut random = Random::of_car(config.seed, CarPurpose::Scenery, index);
    Scene::of(&facts, &mut random).draw(&mut canvas, &mut random);
    Car {
        pixels: canvas.into_pixels(),
        size,
        facts,
    }
}

/// Make of the car at an index: every 8 consecutive cars have each make once, in a shuffled order.
fn make_at(index: usize, seed: u64) -> Make {
    let mut order = Make::ALL.to_vec();
    let run = index / order.len();
    Random::of_car(seed, CarPurpose::MakeOrder, run).shuffle(&mut order);
    order[index % order.len()]
}
