//! Comparisons that are right: in f64 where its error bound decides, without rounding where it does not.
//!
//! A product of two f32 is exact in f64, so that only additions round, each by at most 2^-53 of what it gives: a sum of n
//! products is off by less than n 2^-52 times the sum of their sizes, in any order.

use std::cmp::Ordering;

use super::thresholds::Thresholds;
use super::{Job, Side};
use crate::exact;
use crate::features::Features;

/// Independent sums, so that the compiler may use vectors.
const LANES: usize = 16;

/// A dot product, and how far off it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Rounded.
    pub value: f64,
    /// The exact one is no further away.
    pub error: f64,
}

/// Knows the features.
pub struct Judge<'a> {
    queries: &'a Features<'a>,
    gallery: &'a Features<'a>,
}

impl<'a> Judge<'a> {
    pub fn new(job: &Job<'a>) -> Self {
        Judge {
            queries: job.queries,
            gallery: job.gallery,
        }
    }

    /// In f64.
    pub fn score(&self, query: usize, item: usize) -> Score {
        self.with_rows(query, item, dot)
    }

    fn with_rows<R>(&self, query: usize, item: usize, f: impl Fn(&[f32], &[f32]) -> R) -> R {
        let mut rooms = [
            vec![0.0; self.queries.dimension()],
            vec![0.0; self.queries.dimension()],
        ];
        let [q, g] = &mut rooms;
        f(self.queries.row(query, q), self.gallery.row(item, g))
    }

    /// The score of a pair against that of another.
    pub fn compare(
        &self,
        (score, pair): (Score, [usize; 2]),
        (than, other): (Score, [usize; 2]),
    ) -> Ordering {
        let difference = score.value - than.value;
        if difference.abs() > score.error + than.error {
            return difference.total_cmp(&0.0);
        }
        self.exactly(pair, other)
    }

    /// Without rounding.
    pub fn exactly(&self, pair: [usize; 2], other: [usize; 2]) -> Ordering {
        self.with_rows(pair[0], pair[1], |a, b| {
            self.with_rows(other[0], other[1], |c, d| {
                if (a, b) == (c, d) {
                    return Ordering::Equal;
                }
                exact::compare([a, b], [c, d])
            })
        })
    }

    /// A pair against the threshold of one of its two; `None` where that one has none.
    pub fn against(
        &self,
        thresholds: &Thresholds,
        query: usize,
        item: usize,
        own: usize,
    ) -> Option<Ordering> {
        let (than, positive) = thresholds.of(own)?;
        let other = match thresholds.side() {
            Side::Query => [own, positive],
            Side::Gallery => [positive, own],
        };
        Some(self.compare((self.score(query, item), [query, item]), (than, other)))
    }
}

/// `a . b`.
pub fn dot(a: &[f32], b: &[f32]) -> Score {
    let arch = pulp::Arch::new();
    arch.dispatch(
        #[inline(always)]
        || {
            let (mut sums, mut sizes) = ([0.0; LANES], [0.0; LANES]);
            let (whole_a, rest_a) = a.as_chunks::<LANES>();
            let (whole_b, rest_b) = b.as_chunks::<LANES>();
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
                error: (a.len() + 2) as f64 * f64::EPSILON * size,
            }
        },
    )
}
