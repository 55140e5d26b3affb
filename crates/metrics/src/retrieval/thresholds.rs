//! What others are compared with: each item's best positive.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::judge::{Judge, Score};
use super::standing::{Entry, Ranked};
use super::{Job, Side};

/// Of one side.
pub struct Thresholds {
    side: Side,
    /// The best positive of each item, the first of those on a level; [`NONE`] where there is none.
    positives: Vec<u32>,
    scores: Vec<Score>,
    /// Positives on a level with the best, itself included: they are counted as ties with themselves, and taken off.
    level: Vec<u32>,
}

/// No positive.
const NONE: u32 = u32::MAX;

impl Thresholds {
    pub fn new(job: &Job<'_>, judge: &Judge<'_>, side: Side) -> Self {
        let best = |item: usize| {
            let pair = |positive: u32| match side {
                Side::Query => [item, positive as usize],
                Side::Gallery => [positive as usize, item],
            };
            let score = |positive: u32| judge.score(pair(positive)[0], pair(positive)[1]);
            let mut positives = job.pairs.positives(side, item).iter().copied();
            let Some(first) = positives.next() else {
                let none = Score {
                    value: f64::INFINITY,
                    error: 0.0,
                };
                return (NONE, (none, 0));
            };
            let (mut best, mut best_score, mut level) = (first, score(first), 1);
            for positive in positives {
                let found = score(positive);
                match judge.compare((found, pair(positive)), (best_score, pair(best))) {
                    Ordering::Greater => (best, best_score, level) = (positive, found, 1),
                    Ordering::Equal => level += 1,
                    Ordering::Less => {}
                }
            }
            (best, (best_score, level))
        };
        let items = (0..job.pairs.num_items(side)).into_par_iter().map(best);
        let (positives, (scores, level)) = items.unzip();
        Thresholds {
            side,
            positives,
            scores,
            level,
        }
    }

    pub fn side(&self) -> Side {
        self.side
    }

    /// The best positive and its score.
    pub fn of(&self, item: usize) -> Option<(Score, usize)> {
        match self.positives[item] {
            NONE => None,
            positive => Some((self.scores[item], positive as usize)),
        }
    }

    /// From what was counted among all, positives included.
    pub fn ranked(&self, above: &[u32], level: &[u32]) -> Ranked {
        let entries = (0..self.positives.len()).filter_map(|item| {
            self.of(item)?;
            Some(Entry {
                item: item as u32,
                positive: self.positives[item],
                above: above[item],
                level: level[item] - self.level[item],
            })
        });
        Ranked {
            entries: entries.collect(),
        }
    }
}
