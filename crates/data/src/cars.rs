//! Cars to learn from: pictures drawn from a seed, each with a caption and labels, for when there is no data yet.
//!
//! Eight makes that never existed each have a signature (a line of the roof, a cut of the windows, lamps, wheels) and
//! a badge on the door. Body, paint, place, light, viewpoint and position vary apart from the make, so a make is
//! learnt from shapes and not from where a colour is.
//!
//! ```text
//! seed, index -> Facts (what it is) -> caption, row of labels
//!                  |
//!                  +-> Scene (where on the picture, which badge) -> backdrop, portrait, light -> pixels
//! ```
//!
//! A picture depends on the seed, its index and the size, never on how many others there are.

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
use chance::Purpose;
use scene::Scene;

/// Which set of cars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarsConfig {
    /// How many pictures.
    pub count: usize,
    /// Width and height in pixels, held between 32 and 1024.
    pub size: u32,
    /// Another seed, another set.
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

/// What is true of a car; what its labels say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Who built it.
    pub make: Make,
    /// What kind of car.
    pub body: Body,
    /// Its paint.
    pub colour: Colour,
    /// When it was built.
    pub year: u16,
    /// Where it stands.
    pub background: Background,
    /// From where it is seen.
    pub viewpoint: Viewpoint,
    /// A sentence about it.
    pub caption: String,
}

/// A car and its picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Car {
    /// Red, green and blue of each pixel, row by row from the top.
    pub pixels: Vec<u8>,
    /// Width and height in pixels.
    pub size: u32,
    /// What the picture shows.
    pub facts: Facts,
}

/// The car at an index of a set, without its picture.
pub fn describe(index: usize, config: &CarsConfig) -> Facts {
    let mut random = Random::of_car(config.seed, Purpose::Attributes, index);
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
        &mut Random::of_car(config.seed, Purpose::Caption, index),
    );
    facts
}

/// The car at an index of a set.
pub fn draw(index: usize, config: &CarsConfig) -> Car {
    let facts = describe(index, config);
    let size = config.size.clamp(32, 1024);
    let mut canvas = Canvas::new(size);
    let mut random = Random::of_car(config.seed, Purpose::Scenery, index);
    Scene::of(&facts, &mut random).draw(&mut canvas, &mut random);
    Car {
        pixels: canvas.into_pixels(),
        size,
        facts,
    }
}

/// Every run of makes, one of each, is in an order of its own.
fn make_at(index: usize, seed: u64) -> Make {
    let mut order = Make::ALL.to_vec();
    let run = index / order.len();
    Random::of_car(seed, Purpose::MakeOrder, run).shuffle(&mut order);
    order[index % order.len()]
}
