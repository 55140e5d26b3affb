//! The threshold of each item: the score of its best positive.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::count::Count;
use super::exact_comparison::{ExactComparison, RowScratch, Score};
use super::rank_statistics::{Entry, Ranked};
use super::{Job, Side};

/// Thresholds of one side.
pub struct BestPositives {
    side: Side,
    /// Best positive of each item, the first of equals; [`NONE`] if it has no positive.
    positives: Vec<u32>,
    scores: Vec<Score>,
    /// Number of positives with the best score, itself included. Counting sees them as ties; they are subtracted later.
    level: Vec<u32>,
}

/// Marks an item without a positive.
const NONE: u32 = u32::MAX;

/// Memory of one item's threshold.
pub const BYTES_PER_ITEM: usize = size_of::<Score>() + 2 * size_of::<u32>();

impl BestPositives {
    pub fn new(job: &Job<'_>, comparison: &ExactComparison<'_>, side: Side) -> Self {
        BestPositives::from_scores(job, comparison, side, |_, pair, scratch| {
            comparison.score(pair, scratch)
        })
    }

    /// `score` computes the score of a pair; its first argument is the index among all pairs of this side.
    pub fn from_scores(
        job: &Job<'_>,
        comparison: &ExactComparison<'_>,
        side: Side,
        score: impl Fn(usize, [usize; 2], &mut RowScratch) -> Score + Sync,
    ) -> Self {
        let items = (0..job.pairs.num_items(side)).into_par_iter();
        let best = items.map_init(RowScratch::default, |scratch, item| {
            let pair = |positive: u32| pair(side, item, positive as usize);
            let mut positives = (job.pairs.start(side, item)..)
                .zip(job.pairs.positives(side, item).iter().copied());
            let Some((place, first)) = positives.next() else {
                let none = Score {
                    value: f64::INFINITY,
                    error: 0.0,
                };
                return (NONE, (none, 0));
            };
            let (mut best, mut best_score, mut level) =
                (first, score(place, pair(first), scratch), 1);
            for (place, positive) in positives {
                let score = score(place, pair(positive), scratch);
                let order = comparison.compare(score, best_score);
                match order
                    .unwrap_or_else(|| comparison.exactly(pair(positive), pair(best), scratch))
                {
                    Ordering::Greater => (best, best_score, level) = (positive, score, 1),
                    Ordering::Equal => level += 1,
                    Ordering::Less => {}
                }
            }
            (best, (best_score, level))
        });
        let (positives, (scores, level)) = best.unzip();
        BestPositives {
            side,
            positives,
            scores,
            level,
        }
    }

    /// Best positive of each item; `u32::MAX` if it has none.
    pub fn positives(&self) -> &[u32] {
        &self.positives
    }

    /// Score of the best positive; infinite if there is none.
    pub fn score(&self, item: usize) -> Score {
        self.scores[item]
    }

    /// An item's pair with its best positive; the item must have one.
    pub fn pair(&self, item: usize) -> [usize; 2] {
        pair(self.side, item, self.positives[item] as usize)
    }

    /// Ranks from the counts over all items, positives included.
    pub fn ranked(&self, counts: &[Count]) -> Ranked {
        let items = self.positives.iter().enumerate();
        let entries = items.filter(|(_, positive)| **positive != NONE);
        let entries = entries.map(|(item, &positive)| Entry {
            item: item as u32,
            positive,
            above: counts[item].above(),
            level: counts[item].level() - self.level[item],
        });
        Ranked {
            entries: entries.collect(),
        }
    }
}

/// (query, gallery item) of a pair seen from one side.
fn pair(side: Side, own: usize, other: usize) -> [usize; 2] {
    match side {
        Side::Query => [own, other],
        Side::Gallery => [other, own],
    }
}
