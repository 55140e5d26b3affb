//! A large picture in overlapping tiles, put together again by weights that fall from the middle of each tile to its edges.
//!
//! ```text
//! positions    half a tile apart or less, evenly, the first at 0 and the last at size - tile
//! weight       exp(-1/2 ((y - middle) / sigma)^2) times the same in x, with sigma = tile / 8
//! result       sum of weight x probability over the tiles of a pixel / sum of weights
//! ```
//!
//! Weights and the grid of tiles are products of rows and columns, so sums of weights are two lists and no picture. Tiles add up in f32 in the
//! order of their numbers: the same bits however many the model sees at a time. Along a side with one tile all weights are 1, so that a
//! picture that is not larger than a tile comes out as the model gave it. It lies at the top left; beyond its edges it goes on as its mirror
//! image, the outermost pixels repeated, as training has it.

/// Where the tiles of a picture are.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiling {
    /// Height and width of a tile.
    tile: [usize; 2],
    rows: Axis,
    columns: Axis,
}

#[derive(Clone, Debug, PartialEq)]
struct Axis {
    /// Of the picture.
    size: usize,
    starts: Vec<usize>,
    /// Of a tile's pixels.
    weights: Vec<f32>,
    /// For each pixel of the picture, over the tiles that it lies in.
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

/// Where tiles start along one side: at most half a tile apart.
fn starts(size: usize, tile: usize) -> Vec<usize> {
    let beyond = size.saturating_sub(tile);
    let steps = beyond.div_ceil((tile / 2).max(1));
    let start = |step: usize| (2 * beyond * step + steps) / (2 * steps);
    match steps {
        0 => vec![0],
        _ => (0..=steps).map(start).collect(),
    }
}

/// The pixel of a side of `size` that is seen at place `at`: itself, or beyond the edge its mirror image.
fn beyond_edge(at: usize, size: usize) -> usize {
    if at < size {
        return at;
    }
    let at = at % (2 * size);
    at.min(2 * size - 1 - at)
}

/// Of one side; 1 in the middle, `exp(-8)` at the edges.
fn gaussian(tile: usize) -> Vec<f32> {
    let middle = (tile as f64 - 1.0) / 2.0;
    let sigma = tile as f64 / 8.0;
    let weight = |at: usize| (-0.5 * ((at as f64 - middle) / sigma).powi(2)).exp() as f32;
    (0..tile).map(weight).collect()
}

/// How a tile is mirrored before the model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Top and bottom change places.
    pub rows: bool,
    /// Left and right change places.
    pub columns: bool,
}

impl Mirror {
    /// As it is.
    pub const NONE: [Mirror; 1] = [Mirror::new(false, false)];

    /// As it is, and mirrored along either side and along both.
    pub const ALL: [Mirror; 4] = [
        Mirror::new(false, false),
        Mirror::new(false, true),
        Mirror::new(true, false),
        Mirror::new(true, true),
    ];

    const fn new(rows: bool, columns: bool) -> Mirror {
        Mirror { rows, columns }
    }

    /// Where the pixel of a mirrored tile comes from.
    fn source(self, [y, x]: [usize; 2], [height, width]: [usize; 2]) -> [usize; 2] {
        [
            if self.rows { height - 1 - y } else { y },
            if self.columns { width - 1 - x } else { x },
        ]
    }
}

impl Tiling {
    /// Of a picture, height first.
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

    /// At least one.
    pub fn num_tiles(&self) -> usize {
        self.rows.starts.len() * self.columns.starts.len()
    }

    /// Top and left of a tile: row by row.
    pub fn position(&self, tile: usize) -> [usize; 2] {
        let columns = self.columns.starts.len();
        [
            self.rows.starts[tile / columns],
            self.columns.starts[tile % columns],
        ]
    }

    /// Height and width of a tile.
    pub fn tile(&self) -> [usize; 2] {
        self.tile
    }

    /// Copies a tile out of a picture whose pixels have so many bytes, mirrored.
    ///
    /// # Panics
    /// If the picture or the tile is not of its size.
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

    /// Adds what the model says of a tile, mirrored back, to the sums of the picture's pixels.
    ///
    /// # Panics
    /// If tile or sums are not of `num_outputs` for each pixel.
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

    /// Divides the sums by the weights: probabilities, once every tile was added with every one of `num_mirrors`.
    pub fn finish(&self, num_mirrors: usize, num_outputs: usize, sums_hwk: &mut [f32]) {
        let columns = self.columns.size;
        for (at, outputs) in sums_hwk.chunks_exact_mut(num_outputs).enumerate() {
            let weights = self.rows.sums[at / columns] * self.columns.sums[at % columns];
            for output in outputs {
                // Rounding may lead past 1.
                *output = (*output / (weights * num_mirrors as f32)).min(1.0);
            }
        }
    }
}
