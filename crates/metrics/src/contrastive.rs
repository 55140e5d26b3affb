//! The contrastive loss of features that wait on the host, for a validation loss that can stand beside that of training.
//!
//! The loss of a batch depends on how many candidates each row has, so every row meets as many as in a training step: rows are
//! shuffled in an order that never changes and cut into blocks of the effective batch. The last block is filled up with rows of the one before
//! it, which are candidates there and count no second time: every row counts once, among equally many.
//!
//! ```text
//! row i   ((log sum_j exp(s[i, j]) - positives) + (log sum_j exp(s[j, i]) - positives)) / 2,   s = scale * query . text
//! ```
//!
//! No score is held: rows have unit length, so `scale` bounds every score, and the logarithm needs no second pass.

use holdall_files::SplitMix64;
use rayon::prelude::*;

/// Rows that one task of the thread pool takes; their sums are added in order, whatever the number of threads.
const TASK_ROWS: usize = 32;

/// Lanes of a dot product: a fixed order of additions on every machine.
const LANES: usize = 16;

/// Queries, such as pictures, each with its text among different ones.
#[derive(Clone, Copy)]
pub struct PairedFeatures<'a> {
    /// Rows of unit length, one after another.
    pub queries: &'a [f32],
    /// Rows of unit length, one after another.
    pub texts: &'a [f32],
    /// Number of each query's text.
    pub text_of: &'a [u32],
    /// Values of a row.
    pub dimension: usize,
}

/// Which pairs of a block belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positives {
    /// Each query and its own text.
    OwnPair,
    /// Each query and every pair with an equal text, with equal shares.
    EqualTexts,
}

/// A mean loss, and how many candidates each row had: guessing gives the logarithm of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContrastiveLoss {
    /// Over all rows.
    pub mean: f64,
    /// Candidates of each row.
    pub candidates: usize,
}

/// Bytes that [`contrastive_loss`] holds for so many queries.
pub fn held_bytes(num_queries: usize) -> u64 {
    (num_queries * (size_of::<u32>() + size_of::<f64>())) as u64
}

/// The mean loss in blocks of `block` rows, or of all of them where there are fewer; `None` where there are no rows, or `go_on` says no
/// between two blocks. On the threads of rayon's current pool.
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
        // The last block begins early enough to be whole.
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

/// All rows, shuffled the same way every time: files often have equal labels side by side, and training shuffles them too.
fn fixed_order(num_rows: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..num_rows as u32).collect();
    let mut random = SplitMix64(0);
    for place in (1..num_rows).rev() {
        let other = (random.bits() % (place as u64 + 1)) as usize;
        order.swap(place, other);
    }
    order
}

/// Rows that are candidates of each other.
struct Block<'a> {
    features: PairedFeatures<'a>,
    rows: &'a [u32],
    positives: Positives,
    scale: f64,
}

impl Block<'_> {
    /// The loss of one row, both ways.
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

    /// The definition over all pairs at once, in f64.
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

    /// Features that know nothing: every block gives the logarithm of its size, the last one too, and not of what is left over.
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
