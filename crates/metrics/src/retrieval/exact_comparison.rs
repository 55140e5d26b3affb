//! Exact comparisons of scores: in f64 where its error bound decides, otherwise without rounding.
//!
//! A product of two f32 is exact in f64, so only additions round, each by at most 2^-53 of its result: a sum of n
//! products is off by less than n 2^-52 times the sum of their magnitudes, in any order.

use std::cmp::Ordering;

use super::Job;
use crate::features::Features;
use crate::retrieval::exact_dot;

/// Independent partial sums, so that the compiler can vectorise.
const LANES: usize = 16;

/// A dot product in f64 with its error bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    pub value: f64,
    /// Bound on the distance to the exact value.
    pub error: f64,
}

/// Buffers for rows that are not stored as f32.
#[derive(Default)]
pub struct RowScratch {
    rows: [Vec<f32>; 4],
}

/// Compares scores of pairs of queries and gallery items.
pub struct ExactComparison<'a> {
    queries: &'a Features<'a>,
    gallery: &'a Features<'a>,
    sums: Sums,
}

/// Whether f64 dot products of this data round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Values have so few bits that sums never round.
    Exact,
    /// Each addition rounds.
    Rounded,
}

impl<'a> ExactComparison<'a> {
    pub fn new(job: &Job<'a>, sums: Sums) -> Self {
        ExactComparison {
            queries: job.queries,
            gallery: job.gallery,
            sums,
        }
    }

    /// Score of a pair in f64.
    pub fn score(&self, [query, item]: [usize; 2], scratch: &mut RowScratch) -> Score {
        let [q, g, ..] = &mut scratch.rows;
        let score = dot(self.queries.row(query, q), self.gallery.row(item, g));
        match self.sums {
            Sums::Rounded => score,
            Sums::Exact => Score {
                error: 0.0,
                ..score
            },
        }
    }

    /// Order of two scores; `None` if f64 cannot decide.
    pub fn compare(&self, score: Score, than: Score) -> Option<Ordering> {
        let (difference, error) = (score.value - than.value, score.error + than.error);
        if difference.abs() > error {
            Some(difference.total_cmp(&0.0))
        } else {
            // A zero error: exact sums, or rows of zeros.
            (error == 0.0).then_some(Ordering::Equal)
        }
    }

    /// Order of two pairs' scores, without rounding.
    pub fn exactly(
        &self,
        pair: [usize; 2],
        other: [usize; 2],
        scratch: &mut RowScratch,
    ) -> Ordering {
        let [a, b, c, d] = &mut scratch.rows;
        let [a, c] = [self.queries.row(pair[0], a), self.queries.row(other[0], c)];
        let [b, d] = [self.gallery.row(pair[1], b), self.gallery.row(other[1], d)];
        if (a, b) == (c, d) {
            return Ordering::Equal;
        }
        exact_dot::compare([a, b], [c, d])
    }
}

/// Dot product in f64 with its error bound.
pub fn dot(a: &[f32], b: &[f32]) -> Score {
    pulp::Arch::new().dispatch(Dot { a, b })
}

/// A struct rather than a closure: a closure would be compiled without the vector instructions of its caller.
struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl pulp::WithSimd for Dot<'_> {
    type Output = Score;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Score {
        let (mut sums, mut sizes) = ([0.0; LANES], [0.0; LANES]);
        let (whole_a, rest_a) = self.a.as_chunks::<LANES>();
        let (whole_b, rest_b) = self.b.as_chunks::<LANES>();
        for (a, b) in whole_a.iter().zip(whole_b) {
            for lane in 0..LANES {
                let product = f64::from(a[lane]) * f64::from(b[lane]);
                sums[lane] += product;
                sizes[lane] += product.abs();
            }
        }
        for (lane, (&a, &b)) in rest_a.iter().zip(rest_b).enumerate() {
            let product = f64::from(a) * f64::from(b);
            sums[lane] += product;
            sizes[lane] += product.abs();
        }
        let (value, size) = (sums.iter().sum::<f64>(), sizes.iter().sum::<f64>());
        Score {
            value,
            error: (self.a.len() + 2) as f64 * f64::EPSILON * size,
        }
    }
}
