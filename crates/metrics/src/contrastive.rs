//! Contrastive validation loss over features in host memory, comparable with the training loss.
//!
//! The loss of a batch depends on the number of candidates per row, so every row gets as many as in a training step: rows are
//! shuffled in a fixed order and split into blocks of the effective batch. The last block is filled up with rows of the block before
//! it, which serve as candidates only: every row counts once, among equally many candidates.
//!
//! ```text
//! row i   ((log sum_j exp(s[i, j]) - positives) + (log sum_j exp(s[j, i]) - positives)) / 2,   s = scale * query . text
//! ```
//!
//! Scores are never stored: rows have unit length, so `scale` bounds every score, and the logarithm needs no second pass.

use holdall_files::SplitMix64;
use rayon::prelude::*;

/// Rows per task of the thread pool; their sums are added in order, whatever the number of threads.
const TASK_ROWS: usize = 32;

/// Lanes of a dot product: the order of additions is the same on every machine.
const LANES: usize = 16;

/// Queries, such as pictures, and the distinct texts that they are paired with.
#[derive(Clone, Copy)]
pub struct PairedFeatures<'a> {
    /// Rows of unit length, one after another.
    pub queries: &'a [f32],
    /// Rows of unit length, one after another.
    pub texts: &'a [f32],
    /// Index into `texts` for each query.
    pub text_of: &'a [u32],
    pub dimension: usize,
}

/// Which pairs of a block count as positives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positives {
    /// Each query with its own text.
    OwnPair,
    /// Each query with the texts of all pairs whose text is equal, in equal shares.
    EqualTexts,
}

/// A mean loss with the number of candidates per row: the loss of guessing is its logarithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContrastiveLoss {
    pub mean: f64,
    pub candidates: usize,
}

/// Memory that [`contrastive_loss`] needs for this many queries.
pub fn held_bytes(num_queries: usize) -> u64 {
    (num_queries * (size_of::<u32>() + size_of::<f64>())) as u64
}

/// The mean loss in blocks of `block` rows, or of all rows if there are fewer; `None` if there are no rows, or `go_on` returns false
/// between two blocks. Runs on rayon's current pool.
pub fn contrastive_loss(
    features: PairedFeatures<'_>,
    positives: Positives,
    scale: f64,
    block: usize,
    go_on: &dyn Fn() -> bool,
) -> Option<ContrastiveLoss> {
    let num_rows = features.text_of.len();
    let order = fixed_order(num_rows);
    let candidates = block.clamp(1, num_rows.max(1));
    let mut sum = 0.0;
    for first in (0..num_rows).step_by(candidates) {
        if !go_on() {
            return None;
        }
        // The last block starts early enough to be full.
        let start = first.min(num_rows - candidates);
        let rows = &order[start..][..candidates];
        let counted = &rows[first - start..];
        let block = Block {
            features,
            rows,
            positives,
            scale,
        };
        let tasks = counted.par_chunks(TASK_ROWS);
        let sums: Vec<f64> = tasks
            .map(|rows| rows.iter().map(|&row| block.row_loss(row)).sum())
            .collect();
        sum += sums.iter().sum::<f64>();
    }
    (num_rows > 0).then(|| ContrastiveLoss {
        mean: sum / num_rows as f64,
        candidates,
    })
}

/// All rows in a fixed random order: files often have equal labels side by side, and training shuffles them too.
fn fixed_order(num_rows: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..num_rows as u32).collect();
    let mut random = SplitMix64(0);
    for place in (1..num_rows).rev() {
        let other = (random.bits() % (place as u64 + 1)) as usize;
        order.swap(place, other);
    }
    order
}

/// A block of rows that are candidates for each other.
struct Block<'a> {
    features: PairedFeatures<'a>,
    rows: &'a [u32],
    positives: Positives,
    scale: f64,
}

impl Block<'_> {
    /// Loss of one row, mean of both directions.
    fn row_loss(&self, row: u32) -> f64 {
        let [query, text] = [self.query(row), self.text(row)];
        let to_text = self.one_way(row, |other| dot(query, self.text(other)));
        let to_query = self.one_way(row, |other| dot(text, self.query(other)));
        (to_text + to_query) / 2.0
    }

    fn one_way(&self, row: u32, similarity: impl Fn(u32) -> f32) -> f64 {
        let (mut sum, mut of_positives, mut num_positives) = (0.0, 0.0, 0usize);
        for &other in self.rows {
            let score = self.scale * f64::from(similarity(other));
            sum += (score - self.scale).exp();
            if self.is_positive(row, other) {
                of_positives += score;
                num_positives += 1;
            }
        }
        self.scale + sum.ln() - of_positives / num_positives.max(1) as f64
    }

    fn is_positive(&self, row: u32, other: u32) -> bool {
        let text = |row: u32| self.features.text_of[row as usize];
        match self.positives {
            Positives::OwnPair => row == other,
            Positives::EqualTexts => text(row) == text(other),
        }
    }

    fn query(&self, row: u32) -> &[f32] {
        let dimension = self.features.dimension;
        &self.features.queries[row as usize * dimension..][..dimension]
    }

    fn text(&self, row: u32) -> &[f32] {
        let dimension = self.features.dimension;
        let text = self.features.text_of[row as usize] as usize;
        &self.features.texts[text * dimension..][..dimension]
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a_chunks.remainder().iter().zip(b_chunks.remainder());
    let rest: f32 = rest.map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    lanes.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMENSION: usize = 20;

    fn unit_rows(num_rows: usize, seed: u64) -> Vec<f32> {
        let mut random = SplitMix64(seed);
        let mut rows: Vec<f32> = (0..num_rows * DIMENSION)
            .map(|_| (random.unit() - 0.5) as f32)
            .collect();
        for row in rows.chunks_mut(DIMENSION) {
            let length = row.iter().map(|value| value * value).sum::<f32>().sqrt();
            row.iter_mut().for_each(|value| *value /= length);
        }
        rows
    }

    /// Reference implementation over all pairs at once, in f64.
    fn dense(features: PairedFeatures<'_>, positives: Positives, scale: f64) -> f64 {
        let rows = features.text_of.len();
        let score = |i: usize, j: usize| -> f64 {
            let text = features.text_of[j] as usize;
            let query = &features.queries[i * DIMENSION..][..DIMENSION];
            let text = &features.texts[text * DIMENSION..][..DIMENSION];
            let products = query.iter().zip(text);
            let products = products.map(|(a, b)| f64::from(*a) * f64::from(*b));
            scale * products.sum::<f64>()
        };
        let mut sum = 0.0;
        for i in 0..rows {
            let same = |j: &usize| match positives {
                Positives::OwnPair => i == *j,
                Positives::EqualTexts => features.text_of[i] == features.text_of[*j],
            };
            let of: Vec<usize> = (0..rows).filter(same).collect();
            for transposed in [false, true] {
                let score = |j: usize| if transposed { score(j, i) } else { score(i, j) };
                let exps: f64 = (0..rows).map(|j| score(j).exp()).sum();
                let positive = of.iter().map(|&j| score(j)).sum::<f64>() / of.len() as f64;
                sum += (exps.ln() - positive) / 2.0;
            }
        }
        sum / rows as f64
    }

    #[test]
    fn one_block_is_the_dense_loss() {
        let (queries, texts) = (unit_rows(13, 1), unit_rows(9, 2));
        let text_of: Vec<u32> = (0..13).map(|row| row % 9).collect();
        let features = PairedFeatures {
            queries: &queries,
            texts: &texts,
            text_of: &text_of,
            dimension: DIMENSION,
        };
        for positives in [Positives::OwnPair, Positives::EqualTexts] {
            for block in [13, 128] {
                let found = contrastive_loss(features, positives, 14.3, block, &|| true).unwrap();
                let expected = dense(features, positives, 14.3);
                assert_eq!(found.candidates, 13);
                assert!(
                    (found.mean - expected).abs() < 1e-6,
                    "{} {expected}",
                    found.mean
                );
            }
        }
    }

    /// Equal features everywhere: the loss of every block is the logarithm of its size, that of the last one too.
    #[test]
    fn every_row_has_as_many_candidates_as_in_a_step() {
        let one = unit_rows(1, 3);
        let rows: Vec<f32> = one.iter().copied().cycle().take(61 * DIMENSION).collect();
        let text_of: Vec<u32> = (0..61).collect();
        let features = PairedFeatures {
            queries: &rows,
            texts: &rows,
            text_of: &text_of,
            dimension: DIMENSION,
        };
        let found = contrastive_loss(features, Positives::OwnPair, 100.0, 16, &|| true).unwrap();
        assert_eq!(found.candidates, 16);
        assert!((found.mean - 16f64.ln()).abs() < 1e-9, "{}", found.mean);
        assert!(contrastive_loss(features, Positives::OwnPair, 1.0, 16, &|| false).is_none());
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (queries, texts) = (unit_rows(200, 5), unit_rows(200, 6));
        let text_of: Vec<u32> = (0..200).collect();
        let found = [1, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(|| {
                let features = PairedFeatures {
                    queries: &queries,
                    texts: &texts,
                    text_of: &text_of,
                    dimension: DIMENSION,
                };
                let found = contrastive_loss(features, Positives::OwnPair, 30.0, 64, &|| true);
                found.unwrap().mean.to_bits()
            })
        });
        assert_eq!(found[0], found[1]);
        let order = fixed_order(200);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, text_of);
        assert_ne!(order, text_of);
    }
}
