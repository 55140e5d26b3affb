//! The retina without vessels and lesions: its colour, disc and macula, the illumination, and glare.
//!
//! All of it is smooth, so it is computed on a coarse grid and interpolated.

use std::f32::consts::TAU;

use super::anatomy::Anatomy;
use super::{Condition, Spot, distance, smoothstep};
use crate::random::Random;

/// Limit of the grid's nodes along a side.
const MAX_NODES: usize = 400;

/// Red, green and blue of the surface, then of the glare that is added.
pub(super) type Light = [f32; 6];

pub(super) struct Surface {
    nodes: usize,
    grid: Vec<Light>,
}

/// Random parameters of one picture.
struct Palette {
    base: [f32; 3],
    disc: [f32; 3],
    /// Darkening towards the edge.
    falloff: f32,
    /// Change of brightness across the picture.
    slope: Spot,
    macula: f32,
    /// Visibility of the choroid's vessels.
    choroid: f32,
    texture: f32,
    /// Bright rings and spots: position, radius, width (0: a full spot), strength.
    glare: Vec<(Spot, f32, f32, f32)>,
    glare_colour: [f32; 3],
}

pub(super) fn paint(anatomy: &Anatomy, size: usize, random: &mut Random) -> Surface {
    let palette = Palette::of(anatomy, random);
    let clouds = [4, 9, 21, 47].map(|cells| Clouds::new(cells, random));
    let choroid = Clouds::new(13, random);
    let nodes = size.min(MAX_NODES);
    let mut grid = Vec::with_capacity(nodes * nodes);
    for row in 0..nodes {
        for column in 0..nodes {
            let at = |place: usize| (place as f32 + 0.5) / nodes as f32;
            let at = (at(column), at(row));
            grid.push(if anatomy.eccentricity(at) < 1.03 {
                palette.light(anatomy, at, &clouds, &choroid)
            } else {
                [0.0; 6]
            });
        }
    }
    Surface { nodes, grid }
}

impl Surface {
    /// Interpolates one row of the picture.
    pub(super) fn row(&self, row: usize, size: usize) -> impl Fn(usize) -> Light + '_ {
        let scale = self.nodes as f32 / size as f32;
        let (above, below, down) = self.between(row, scale);
        let mix = |a: Light, b: Light, share: f32| -> Light {
            std::array::from_fn(|channel| a[channel] + (b[channel] - a[channel]) * share)
        };
        let line: Vec<Light> = (0..self.nodes)
            .map(|column| {
                let node = |row: usize| self.grid[row * self.nodes + column];
                mix(node(above), node(below), down)
            })
            .collect();
        move |column| {
            let (left, right, share) = self.between(column, scale);
            mix(line[left], line[right], share)
        }
    }

    /// The two nodes around a pixel, and the weight of the second.
    fn between(&self, pixel: usize, scale: f32) -> (usize, usize, f32) {
        let place = ((pixel as f32 + 0.5) * scale - 0.5).max(0.0);
        let first = place as usize;
        let last = self.nodes - 1;
        (first.min(last), (first + 1).min(last), place - first as f32)
    }
}

impl Palette {
    fn of(anatomy: &Anatomy, random: &mut Random) -> Palette {
        let brightness = random.between(0.5, 0.84);
        let green = random.between(0.4, 0.62);
        let blue = green * random.between(0.3, 0.7);
        let turn = TAU * random.unit_f32();
        let tilt = random.between(0.0, 0.45);
        let mut glare = Vec::new();
        // A crescent of stray light at the edge of the field.
        for _ in 0..random.below(3) {
            let angle = TAU * random.unit_f32();
            let far = anatomy.field * random.between(0.5, 1.1);
            let at = (
                anatomy.centre.0 + far * angle.cos(),
                anatomy.centre.1 + far * angle.sin(),
            );
            let radius = random.between(0.1, 0.5);
            glare.push((
                at,
                radius,
                random.between(0.02, 0.1),
                random.between(0.05, 0.28),
            ));
        }
        // Spots from the lens and the nerve fibres.
        for _ in 0..random.below(6) {
            let at = (random.unit_f32(), random.unit_f32());
            glare.push((
                at,
                random.between(0.015, 0.09),
                0.0,
                random.between(0.04, 0.25),
            ));
        }
        Palette {
            base: [brightness, brightness * green, brightness * blue],
            disc: [
                random.between(0.92, 1.0),
                random.between(0.72, 0.86),
                random.between(0.42, 0.6),
            ],
            falloff: random.between(0.1, 0.5),
            slope: (tilt * turn.cos(), tilt * turn.sin()),
            macula: random.between(0.25, 0.55),
            choroid: if random.chance(0.4) {
                random.between(0.04, 0.11)
            } else {
                0.0
            },
            texture: random.between(0.05, 0.14),
            glare,
            glare_colour: [
                random.between(0.8, 1.0),
                random.between(0.75, 1.0),
                random.between(0.6, 1.0),
            ],
        }
    }

    fn light(&self, anatomy: &Anatomy, at: Spot, clouds: &[Clouds; 4], choroid: &Clouds) -> Light {
        let far = anatomy.eccentricity(at);
        let sideways =
            (at.0 - anatomy.centre.0) * self.slope.0 + (at.1 - anatomy.centre.1) * self.slope.1;
        let mut light = 1.0 - self.falloff * far.powi(3) + sideways / anatomy.field * 0.9;
        let texture: f32 = clouds
            .iter()
            .zip([1.0, 0.6, 0.35, 0.2])
            .map(|(cloud, weight)| weight * cloud.at(at))
            .sum();
        light *= 1.0 + self.texture * texture;
        let mut colour = self.base;
        // Vessels of the choroid: pale, broad, without clear edges.
        if self.choroid > 0.0 {
            let ridge = 1.0 - (2.4 * choroid.at(at)).abs().min(1.0);
            let strength = self.choroid * ridge * smoothstep(0.3, 0.9, far);
            colour[0] *= 1.0 + 0.5 * strength;
            colour[1] *= 1.0 + 1.4 * strength;
        }
        let from_macula = distance(at, anatomy.macula);
        let macula =
            self.macula * (0.75 * bell(from_macula / 0.085) + 0.35 * bell(from_macula / 0.028));
        for (value, share) in colour.iter_mut().zip([0.55, 0.9, 1.0]) {
            *value *= 1.0 - share * macula;
        }
        self.add_disc(anatomy, at, &mut colour);
        let mut glare = 0.0;
        for &(spot, radius, width, strength) in &self.glare {
            let from = distance(at, spot);
            glare += strength
                * if width > 0.0 {
                    bell((from - radius) / width) * smoothstep(0.55, 1.0, far)
                } else {
                    bell(from / radius)
                };
        }
        let [red, green, blue] = colour.map(|value| value * light);
        let [glare_red, glare_green, glare_blue] = self.glare_colour.map(|value| value * glare);
        [red, green, blue, glare_red, glare_green, glare_blue]
    }

    fn add_disc(&self, anatomy: &Anatomy, at: Spot, colour: &mut [f32; 3]) {
        // The disc is higher than wide.
        let relative =
            ((at.0 - anatomy.disc.0) / 0.92).hypot(at.1 - anatomy.disc.1) / anatomy.disc_radius;
        if relative > 3.0 {
            return;
        }
        let rim = 1.0 - smoothstep(0.88, 1.1, relative);
        let cup = 1.0 - smoothstep(0.75 * anatomy.cup, 1.15 * anatomy.cup, relative);
        let halo = 0.16 * bell(relative / 1.5);
        let pale = match anatomy.condition {
            Condition::Glaucoma => 0.16,
            _ => 0.1,
        };
        for (channel, value) in colour.iter_mut().enumerate() {
            let disc = self.disc[channel] * (0.86 + pale * cup + [0.0, 0.05, 0.14][channel] * cup);
            *value += (disc - *value) * (0.9 * rim).max(halo);
        }
    }
}

fn bell(x: f32) -> f32 {
    (-x * x).exp()
}

/// Smooth noise between -1 and 1.
struct Clouds {
    cells: usize,
    values: Vec<f32>,
}

impl Clouds {
    fn new(cells: usize, random: &mut Random) -> Clouds {
        let values = (0..(cells + 2) * (cells + 2))
            .map(|_| random.between(-1.0, 1.0))
            .collect();
        Clouds { cells, values }
    }

    fn at(&self, (x, y): Spot) -> f32 {
        let place = |x: f32| {
            let scaled = x.clamp(0.0, 1.0) * self.cells as f32;
            let cell = scaled as usize;
            (cell, smoothstep(0.0, 1.0, scaled - cell as f32))
        };
        let ((column, across), (row, down)) = (place(x), place(y));
        let value = |row: usize, column: usize| self.values[row * (self.cells + 2) + column];
        let line = |row: usize| {
            let (left, right) = (value(row, column), value(row, column + 1));
            left + (right - left) * across
        };
        let (above, below) = (line(row), line(row + 1));
        above + (below - above) * down
    }
}
