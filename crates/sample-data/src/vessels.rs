//! Synthetic fundus photographs: drawn from a seed, each with a mask of its vessels.
//!
//! They have the difficulties of real photographs: uneven light, a dark macula and a bright disc, vessels from wide to hardly visible, and
//! dark and bright lesions that are no vessels. No single threshold of brightness finds the vessels.
//!
//! ```text
//! seed, index -> Anatomy (disc, macula, condition) -> tree (arteries, veins) -> layers -> mask
//!                   |                              -> lesions                ->   |
//!                   +-> surface (colour, light, glare)                       -> develop -> pixels
//! ```
//!
//! A picture depends on the seed, its index and the size, never on the number of pictures; at another size it shows the same eye.

mod anatomy;
mod develop;
mod folder;
mod layers;
mod lesions;
mod surface;
mod threshold;
mod tree;

pub use folder::{VesselsError, VesselsFolder, write};
pub use threshold::{BestThreshold, Channel, ThresholdSearch, VesselsAre};

use crate::random::Random;
use anatomy::Anatomy;
use holdall_files::mix;
use layers::Layers;

/// Smallest width and height of a picture.
pub const MIN_SIZE: u32 = 64;
/// Largest width and height of a picture.
pub const MAX_SIZE: u32 = 2048;

/// Position on the picture: (0, 0) top left, (1, 1) bottom right.
type Spot = (f32, f32);

/// Size and seed of a set.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VesselsConfig {
    /// Number of pictures in training and test set together; a quarter is for the test.
    pub count: usize,
    /// Width and height in pixels, clamped to [`MIN_SIZE`] and [`MAX_SIZE`].
    pub size: u32,
    /// Different seeds give different sets.
    pub seed: u64,
}

impl VesselsConfig {
    /// Number of pictures in the test set.
    pub fn num_test(&self) -> usize {
        self.count.div_ceil(4).min(self.count.saturating_sub(1))
    }
}

/// A photograph and the mask of its vessels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fundus {
    /// Red, green and blue of each pixel, row by row from the top.
    pub pixels: Vec<u8>,
    /// 255 for each pixel on a vessel, else 0.
    pub mask: Vec<u8>,
    /// Width and height in pixels.
    pub size: u32,
    /// Disease of the eye, in FIVES's classification.
    pub condition: Condition,
}

/// Diseases in FIVES, a quarter of the pictures each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Age-related macular degeneration: pale spots around the macula.
    MacularDegeneration,
    /// Diabetic retinopathy: microaneurysms, haemorrhages, exudates.
    Diabetic,
    /// Glaucoma: a wide cup in the disc.
    Glaucoma,
    Normal,
}

impl Condition {
    const ALL: [Condition; 4] = [
        Condition::MacularDegeneration,
        Condition::Diabetic,
        Condition::Glaucoma,
        Condition::Normal,
    ];

    /// Letter in FIVES's file names.
    pub fn letter(self) -> char {
        match self {
            Condition::MacularDegeneration => 'A',
            Condition::Diabetic => 'D',
            Condition::Glaucoma => 'G',
            Condition::Normal => 'N',
        }
    }
}

/// Condition of a picture: every run of four has one of each.
pub fn condition(index: usize, config: &VesselsConfig) -> Condition {
    let mut order = Condition::ALL;
    stream(config.seed, VesselPurpose::Conditions, index / order.len()).shuffle(&mut order);
    order[index % order.len()]
}

/// Draws the picture at an index of the set.
pub fn draw(index: usize, config: &VesselsConfig) -> Fundus {
    let size = config.size.clamp(MIN_SIZE, MAX_SIZE);
    let condition = condition(index, config);
    let random = |purpose| stream(config.seed, purpose, index);
    let anatomy = Anatomy::of(condition, &mut random(VesselPurpose::Anatomy));
    let mut layers = Layers::new(size as usize, anatomy.softness);
    for piece in tree::grow(&anatomy, &mut random(VesselPurpose::Tree)) {
        layers.vessel(&piece);
    }
    lesions::add(&mut layers, &anatomy, &mut random(VesselPurpose::Lesions));
    let surface = surface::paint(&anatomy, size as usize, &mut random(VesselPurpose::Surface));
    let pixels = develop::pixels(
        &layers,
        &surface,
        &anatomy,
        &mut random(VesselPurpose::SensorNoise),
    );
    Fundus {
        pixels,
        mask: layers.into_mask(&anatomy),
        size,
        condition,
    }
}

/// Purpose of a random stream, so that no two purposes share numbers.
#[derive(Clone, Copy)]
enum VesselPurpose {
    Conditions = 21,
    Anatomy = 22,
    Tree = 23,
    Lesions = 24,
    Surface = 25,
    SensorNoise = 26,
}

fn stream(seed: u64, purpose: VesselPurpose, index: usize) -> Random {
    Random::from_state(mix(
        mix(mix(seed) ^ purpose as u64).wrapping_add(index as u64)
    ))
}

/// Approximately normal, mean 0 and deviation 1.
fn normal(random: &mut Random) -> f32 {
    // The sum of 12 uniform numbers has variance 1; 10 bits each are enough for shapes.
    let (mut first, mut second) = (random.bits(), random.bits());
    let mut sum = 0;
    for _ in 0..6 {
        sum += (first & 1023) + (second & 1023);
        first >>= 10;
        second >>= 10;
    }
    sum as f32 / 1023.0 - 6.0
}

fn distance(a: Spot, b: Spot) -> f32 {
    (a.0 - b.0).hypot(a.1 - b.1)
}

/// 0 below `low`, 1 above `high`, smooth between.
fn smoothstep(low: f32, high: f32, x: f32) -> f32 {
    let t = ((x - low) / (high - low)).clamp(0.0, 1.0);
    t * t * (3.0 - 2.0 * t)
}
