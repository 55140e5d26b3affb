//! HD95: the distance between the outlines of two masks.
//!
//! ```text
//! outline(M)  = pixels of M with one of their four neighbours outside of M; the surroundings of the picture are outside of M
//! d(A -> B)   = for each pixel of outline(A) the Euclidean distance to the nearest pixel of outline(B), in pixels
//! HD95        = max(95th percentile of d(A -> B), 95th percentile of d(B -> A))
//! ```
//!
//! Definition and percentile (linear between ranks) follow MONAI. Distances are exact: integers until the square root of two of them. The
//! transform takes two passes over the columns, then the lower envelope of parabolas along each row (Meijster, Roerdink and Hesselink).

/// Distance buffer, four bytes per pixel, reused from picture to picture.
#[derive(Clone, Debug, Default)]
pub struct HausdorffBuffer {
    /// First each pixel's distance to the outline within its column; then, row by row in the same place, squared distances.
    distances: Vec<u32>,
    envelope: Envelope,
}

/// HD95 in pixels. `None` if both masks are empty, the picture's diagonal if one is. Masks are indexed row by row.
pub fn hausdorff95(
    a: impl Fn(usize) -> bool,
    b: impl Fn(usize) -> bool,
    [height, width]: [usize; 2],
    buffer: &mut HausdorffBuffer,
) -> Option<f64> {
    let pixels = height * width;
    match (0..pixels).any(&a) as u8 + (0..pixels).any(&b) as u8 {
        0 => None,
        1 => Some((height as f64).hypot(width as f64)),
        _ => {
            let size = [height, width];
            let there = buffer.percentile95(&a, &b, size);
            let back = buffer.percentile95(&b, &a, size);
            Some(there.max(back))
        }
    }
}

impl HausdorffBuffer {
    /// Memory for pictures of this many pixels.
    pub fn bytes(pixels: usize) -> u64 {
        pixels as u64 * size_of::<u32>() as u64
    }

    /// 95th percentile of the distances from the outline of `from` to that of `to`; neither may be empty.
    fn percentile95(
        &mut self,
        from: impl Fn(usize) -> bool,
        to: impl Fn(usize) -> bool,
        [height, width]: [usize; 2],
    ) -> f64 {
        self.column_distances(to, [height, width]);
        let mut count = 0;
        for y in 0..height {
            let mut outline = (0..width)
                .filter(|&x| is_outline(&from, [y, x], [height, width]))
                .peekable();
            if outline.peek().is_none() {
                continue;
            }
            // Squared distances may overwrite the row, because it is in the envelope already and they never outnumber the pixels visited so
            // far.
            self.envelope
                .build(&self.distances[y * width..(y + 1) * width]);
            for x in outline {
                self.distances[count] = self.envelope.squared_distance(x);
                count += 1;
            }
        }
        percentile(&mut self.distances[..count], 0.95)
    }

    /// Distance of each pixel to the nearest outline pixel of its column; larger than any distance if there is none.
    fn column_distances(&mut self, mask: impl Fn(usize) -> bool, [height, width]: [usize; 2]) {
        let far = (height + width) as u32;
        self.distances.clear();
        self.distances.resize(height * width, far);
        for y in 0..height {
            for x in 0..width {
                let at = y * width + x;
                self.distances[at] = match y {
                    _ if is_outline(&mask, [y, x], [height, width]) => 0,
                    0 => far,
                    _ => far.min(self.distances[at - width] + 1),
                };
            }
        }
        for at in (0..(height - 1) * width).rev() {
            self.distances[at] = self.distances[at].min(self.distances[at + width] + 1);
        }
    }
}

/// Whether a pixel lies on the outline of the mask.
fn is_outline(
    mask: &impl Fn(usize) -> bool,
    [y, x]: [usize; 2],
    [height, width]: [usize; 2],
) -> bool {
    let at = y * width + x;
    mask(at)
        && (y == 0
            || x == 0
            || y + 1 == height
            || x + 1 == width
            || !(mask(at - 1) && mask(at + 1) && mask(at - width) && mask(at + width)))
}

/// `min over u of (x - u)^2 + column[u]^2`, for every x of a row.
#[derive(Clone, Debug, Default)]
struct Envelope {
    /// Parabolas of the envelope: column, column distance, and the x from which it is the lowest.
    parabolas: Vec<[i64; 3]>,
    /// Index of the lowest parabola at the last queried x; queries come in ascending order.
    current: usize,
}

impl Envelope {
    fn build(&mut self, column_distances: &[u32]) {
        self.parabolas.clear();
        self.current = 0;
        let width = column_distances.len() as i64;
        let height_at = |[u, g, _]: [i64; 3], x: i64| (x - u).pow(2) + g * g;
        for (u, &g) in column_distances.iter().enumerate() {
            let mut new = [u as i64, i64::from(g), 0];
            while let Some(&last) = self.parabolas.last() {
                if height_at(last, last[2]) > height_at(new, last[2]) {
                    self.parabolas.pop();
                    continue;
                }
                // One more than the last x at which `last` is not higher than `new`.
                let rise = new[0].pow(2) - last[0].pow(2) + new[1].pow(2) - last[1].pow(2);
                new[2] = 1 + rise.div_euclid(2 * (new[0] - last[0]));
                break;
            }
            if new[2] < width {
                self.parabolas.push(new);
            }
        }
    }

    fn squared_distance(&mut self, x: usize) -> u32 {
        let x = x as i64;
        while let Some(next) = self.parabolas.get(self.current + 1)
            && next[2] <= x
        {
            self.current += 1;
        }
        let [u, g, _] = self.parabolas[self.current];
        // Cannot overflow for pictures of up to 46,340 pixels along each side.
        u32::try_from((x - u).pow(2) + g * g).unwrap_or(u32::MAX)
    }
}

/// Percentile of the square roots, linear between the two ranks around it. `squares` must not be empty.
fn percentile(squares: &mut [u32], share: f64) -> f64 {
    let rank = share * (squares.len() - 1) as f64;
    let (below, part) = (rank.floor() as usize, rank.fract());
    let (_, &mut low, above) = squares.select_nth_unstable(below);
    let low = f64::from(low).sqrt();
    match above.iter().min() {
        Some(&high) => low + part * (f64::from(high).sqrt() - low),
        None => low,
    }
}
