//! Statistics of ranks: R@k, median and mean rank, MRR, NDCG@k.

use serde::{Deserialize, Serialize};

/// Statistics of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranks {
    /// Share of queries whose positive has rank 1.
    pub r1: f64,
    /// Share of queries whose positive is among the first five.
    pub r5: f64,
    /// Share of queries whose positive is among the first ten.
    pub r10: f64,
    pub median_rank: f64,
    pub mean_rank: f64,
    /// Mean reciprocal rank.
    pub mrr: f64,
}

/// How items with the same score as the positive affect its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ties {
    /// The positive comes before all of them.
    Optimistic,
    /// The positive comes after all of them: identical features rank last.
    Pessimistic,
    /// The positive comes in their middle: identical features rank in the middle.
    #[default]
    Mean,
}

/// Counts that determine the rank of a positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The item that searches.
    pub item: u32,
    /// Its positive, on the other side.
    pub positive: u32,
    /// Items with a higher score.
    pub above: u32,
    /// Other items with the same score.
    pub level: u32,
}

impl Entry {
    /// Rank from 1.
    pub fn rank(&self, ties: Ties) -> f64 {
        let lost = match ties {
            Ties::Optimistic => 0.0,
            Ties::Pessimistic => f64::from(self.level),
            Ties::Mean => f64::from(self.level) / 2.0,
        };
        1.0 + f64::from(self.above) + lost
    }
}

/// Ranks of one direction, in the order of their items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranked {
    /// One per item that has a positive; one per pair under [`Rule::Recall`](super::Rule::Recall).
    pub entries: Vec<Entry>,
}

impl Ranked {
    /// Number of items that have a rank.
    pub fn num_items(&self) -> usize {
        self.per_item().count()
    }

    /// Number of positives with ties.
    pub fn num_tied(&self) -> usize {
        self.entries.iter().filter(|entry| entry.level > 0).count()
    }

    fn per_item(&self) -> impl Iterator<Item = &[Entry]> {
        self.entries.chunk_by(|a, b| a.item == b.item)
    }

    /// R@k: each item's share of positives with a rank of at most `k`, averaged over items.
    pub fn within(&self, k: u64, ties: Ties) -> f64 {
        let share = |entries: &[Entry]| {
            let within = entries.iter().filter(|entry| entry.rank(ties) <= k as f64);
            within.count() as f64 / entries.len() as f64
        };
        mean(self.per_item().map(share))
    }

    /// NDCG@k with relevance 1 for a positive and 0 for others, averaged over items:
    ///
    /// ```text
    /// sum over positives with rank <= k of 1 / log2(1 + rank)  over  sum over i = 1 .. min(k, positives) of 1 / log2(1 + i)
    /// ```
    ///
    /// Under [`Rule::Best`](super::Rule::Best) an item has one positive, its best. With ties a rank may be fractional, and so may its gain.
    pub fn ndcg(&self, k: u64, ties: Ties) -> f64 {
        let gain = |rank: f64| 1.0 / (1.0 + rank).log2();
        let normalised = |entries: &[Entry]| {
            let ranks = entries.iter().map(|entry| entry.rank(ties));
            let found: f64 = ranks.filter(|&rank| rank <= k as f64).map(gain).sum();
            let places = (entries.len() as u64).min(k);
            let most: f64 = (1..=places).map(|place| gain(place as f64)).sum();
            found / most
        };
        mean(self.per_item().map(normalised))
    }

    /// The standard statistics. NaN without ranks.
    pub fn ranks(&self, ties: Ties) -> Ranks {
        let mut ranks: Vec<f64> = self.entries.iter().map(|entry| entry.rank(ties)).collect();
        ranks.sort_unstable_by(f64::total_cmp);
        let middle = |index: usize| ranks.get(index).copied().unwrap_or(f64::NAN);
        Ranks {
            r1: self.within(1, ties),
            r5: self.within(5, ties),
            r10: self.within(10, ties),
            median_rank: (middle(ranks.len().saturating_sub(1) / 2) + middle(ranks.len() / 2))
                / 2.0,
            mean_rank: mean(ranks.iter().copied()),
            mrr: mean(ranks.iter().map(|rank| 1.0 / rank)),
        }
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value;
        count += 1.0;
    }
    sum / count
}
