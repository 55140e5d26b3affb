//! Splits a large picture into overlapping tiles and blends their outputs, with weights that fall from the middle of a tile to its edges.
//!
//! ```text
//! positions    at most half a tile apart, evenly, the first at 0 and the last at size - tile
//! weight       exp(-1/2 ((y - middle) / sigma)^2) times the same in x, with sigma = tile / 8
//! result       sum of weight x probability over the tiles of a pixel / sum of weights
//! ```
//!
//! Weights and tile grid are products of rows and columns, so two vectors hold the sums of weights. Tiles add up in f32 in the order of
//! their numbers: the bits do not depend on the model's batch size. Along a side with one tile all weights are 1, so that a picture no
//! larger than a tile keeps the model's output. Such a picture lies at the top left of its tile; beyond its edges it is mirrored, with the
//! outermost pixels repeated, as in training.

/// The grid of tiles of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiling {
    tile: [usize; 2],
    rows: Axis,
    columns: Axis,
}

#[derive(Clone, Debug, PartialEq)]
struct Axis {
    /// Pixels of the picture's side.
    size: usize,
    starts: Vec<usize>,
    /// Weights of a tile's pixels.
    weights: Vec<f32>,
    /// Sum of weights for each pixel of the picture's side.
    sums: Vec<f32>,
}

impl Axis {
    fn new(size: usize, tile: usize) -> Axis {
        let starts = starts(size, tile);
        let weights = match starts.len() {
            1 => vec![1.0; tile],
            _ => gaussian(tile),
        };
        let mut sums = vec![0.0; size];
        for &start in &starts {
            for (sum, weight) in sums[start..].iter_mut().zip(&weights) {
                *sum += weight;
            }
        }
        Axis {
            size,
            starts,
            weights,
            sums,
        }
    }
}

/// Starts of the tiles along one side: at most half a tile apart.
fn starts(size: usize, tile: usize) -> Vec<usize> {
    let beyond = size.saturating_sub(tile);
    let steps = beyond.div_ceil((tile / 2).max(1));
    let start = |step: usize| (2 * beyond * step + steps) / (2 * steps);
    match steps {
        0 => vec![0],
        _ => (0..=steps).map(start).collect(),
    }
}

/// Pixel of a side of `size` for position `at`, mirrored beyond the edge.
fn beyond_edge(at: usize, size: usize) -> usize {
    if at < size {
        return at;
    }
    let at = at % (2 * size);
    at.min(2 * size - 1 - at)
}

/// Weights along one side: 1 in the middle, `exp(-8)` at the edges.
fn gaussian(tile: usize) -> Vec<f32> {
    let middle = (tile as f64 - 1.0) / 2.0;
    let sigma = tile as f64 / 8.0;
    let weight = |at: usize| (-0.5 * ((at as f64 - middle) / sigma).powi(2)).exp() as f32;
    (0..tile).map(weight).collect()
}

/// Mirroring of a tile before the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Swap top and bottom.
    pub rows: bool,
    /// Swap left and right.
    pub columns: bool,
}

impl Mirror {
    /// No mirroring.
    pub const NONE: [Mirror; 1] = [Mirror::new(false, false)];

    /// No mirroring, each side alone, both sides.
    pub const ALL: [Mirror; 4] = [
        Mirror::new(false, false),
        Mirror::new(false, true),
        Mirror::new(true, false),
        Mirror::new(true, true),
    ];

    const fn new(rows: bool, columns: bool) -> Mirror {
        Mirror { rows, columns }
    }

    /// Source of a pixel of the mirrored tile.
    fn source(self, [y, x]: [usize; 2], [height, width]: [usize; 2]) -> [usize; 2] {
        [
            if self.rows { height - 1 - y } else { y },
            if self.columns { width - 1 - x } else { x },
        ]
    }
}

impl Tiling {
    /// The grid for a picture and a tile size, height first.
    ///
    /// # Panics
    /// If a side of a tile is zero.
    pub fn new(picture: [usize; 2], tile: [usize; 2]) -> Tiling {
        assert!(tile[0] > 0 && tile[1] > 0, "a tile has pixels");
        Tiling {
            tile,
            rows: Axis::new(picture[0], tile[0]),
            columns: Axis::new(picture[1], tile[1]),
        }
    }

    /// Number of tiles, at least one.
    pub fn num_tiles(&self) -> usize {
        self.rows.starts.len() * self.columns.starts.len()
    }

    /// Top and left of a tile; tiles are numbered row by row.
    pub fn position(&self, tile: usize) -> [usize; 2] {
        let columns = self.columns.starts.len();
        [
            self.rows.starts[tile / columns],
            self.columns.starts[tile % columns],
        ]
    }

    pub fn tile(&self) -> [usize; 2] {
        self.tile
    }

    /// Copies a tile out of a picture with `pixel_bytes` per pixel, mirrored.
    ///
    /// # Panics
    /// If the picture or the tile has another size.
    pub fn cut(
        &self,
        tile: usize,
        mirror: Mirror,
        picture: &[u8],
        pixel_bytes: usize,
        to: &mut [u8],
    ) {
        let [height, width] = self.tile;
        let (rows, columns) = (self.rows.size, self.columns.size);
        assert_eq!(picture.len(), rows * columns * pixel_bytes, "a picture");
        assert_eq!(to.len(), height * width * pixel_bytes, "a tile");
        let [top, left] = self.position(tile);
        for (at, pixel) in to.chunks_exact_mut(pixel_bytes).enumerate() {
            let [y, x] = mirror.source([at / width, at % width], self.tile);
            let [y, x] = [beyond_edge(top + y, rows), beyond_edge(left + x, columns)];
            let from = (y * columns + x) * pixel_bytes;
            pixel.copy_from_slice(&picture[from..from + pixel_bytes]);
        }
    }

    /// Adds the model's output for a tile, mirrored back, to the sums of the picture's pixels.
    ///
    /// # Panics
    /// If tile or sums do not hold `num_outputs` per pixel.
    pub fn add(
        &self,
        tile: usize,
        mirror: Mirror,
        probabilities_hwk: &[f32],
        num_outputs: usize,
        sums_hwk: &mut [f32],
    ) {
        let [height, width] = self.tile;
        let columns = self.columns.size;
        assert_eq!(probabilities_hwk.len(), height * width * num_outputs);
        assert_eq!(sums_hwk.len(), self.rows.size * columns * num_outputs);
        let [top, left] = self.position(tile);
        for y in 0..height.min(self.rows.size - top) {
            for x in 0..width.min(columns - left) {
                let [from_y, from_x] = mirror.source([y, x], self.tile);
                let weight = self.rows.weights[y] * self.columns.weights[x];
                let from = &probabilities_hwk[(from_y * width + from_x) * num_outputs..];
                let to = &mut sums_hwk[((top + y) * columns + left + x) * num_outputs..];
                for (to, from) in to[..num_outputs].iter_mut().zip(from) {
                    *to += weight * from;
                }
            }
        }
    }

    /// Divides the sums by the weights, which yields probabilities once every tile was added with each of `num_mirrors` mirrorings.
    pub fn finish(&self, num_mirrors: usize, num_outputs: usize, sums_hwk: &mut [f32]) {
        let columns = self.columns.size;
        for (at, outputs) in sums_hwk.chunks_exact_mut(num_outputs).enumerate() {
            let weights = self.rows.sums[at / columns] * self.columns.sums[at % columns];
            for output in outputs {
                // Rounding may exceed 1.
                *output = (*output / (weights * num_mirrors as f32)).min(1.0);
            }
        }
    }
}
