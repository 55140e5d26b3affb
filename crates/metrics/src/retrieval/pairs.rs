//! Positive pairs: the gallery items of each query, and the queries of each gallery item.

use crate::retrieval::{RetrievalError, Side};

/// One list per item, stored one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lists {
    /// Start of each list; one more entry at the end.
    starts: Vec<u32>,
    entries: Vec<u32>,
}

impl Lists {
    /// `pairs` must be sorted, without duplicates.
    fn new(num_items: usize, pairs: &[(u32, u32)]) -> Lists {
        let mut starts = vec![0; num_items + 1];
        for &(item, _) in pairs {
            starts[item as usize + 1] += 1;
        }
        for item in 0..num_items {
            starts[item + 1] += starts[item];
        }
        let entries = pairs.iter().map(|&(_, other)| other).collect();
        Lists { starts, entries }
    }

    fn of(&self, item: usize) -> &[u32] {
        &self.entries[self.starts[item] as usize..self.starts[item + 1] as usize]
    }
}

/// Positive pairs in both directions, without duplicates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    by_query: Lists,
    by_gallery: Lists,
}

impl Pairs {
    /// Builds the lists from (query, gallery item).
    ///
    /// # Errors
    /// If an index is out of range, or there are more items or pairs than fit 32 bits.
    pub fn new(
        num_queries: usize,
        num_gallery: usize,
        mut pairs: Vec<(u32, u32)>,
    ) -> Result<Pairs, RetrievalError> {
        let most = num_queries.max(num_gallery).max(pairs.len());
        if u32::try_from(most).is_err() {
            return Err(RetrievalError::TooMany { found: most });
        }
        for (pair, &(query, gallery)) in pairs.iter().enumerate() {
            for (side, item, count) in [
                (Side::Query, query, num_queries),
                (Side::Gallery, gallery, num_gallery),
            ] {
                if item as usize >= count {
                    return Err(RetrievalError::PairOutOfRange {
                        pair,
                        side,
                        item,
                        count,
                    });
                }
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let by_query = Lists::new(num_queries, &pairs);
        for pair in &mut pairs {
            *pair = (pair.1, pair.0);
        }
        pairs.sort_unstable();
        let by_gallery = Lists::new(num_gallery, &pairs);
        Ok(Pairs {
            by_query,
            by_gallery,
        })
    }

    /// One positive per query: `gallery_of[query]`.
    ///
    /// # Errors
    /// Like [`Pairs::new`].
    pub fn one_each(gallery_of: &[u32], num_gallery: usize) -> Result<Pairs, RetrievalError> {
        let pairs = (0..).zip(gallery_of.iter().copied()).collect();
        Pairs::new(gallery_of.len(), num_gallery, pairs)
    }

    /// Number of distinct pairs.
    pub fn len(&self) -> usize {
        self.by_query.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of items on one side.
    pub fn num_items(&self, side: Side) -> usize {
        self.lists(side).starts.len() - 1
    }

    /// Positives of an item, ascending.
    pub fn positives(&self, side: Side, item: usize) -> &[u32] {
        self.lists(side).of(item)
    }

    /// Offset of an item's positives in the concatenation of all lists of its side.
    pub fn start(&self, side: Side, item: usize) -> usize {
        self.lists(side).starts[item] as usize
    }

    /// Every pair as (query, gallery item), sorted by the items of one side.
    pub fn in_order(&self, side: Side) -> Vec<[u32; 2]> {
        let items = 0..self.num_items(side);
        let pairs = items.flat_map(|item| {
            let positives = self.positives(side, item).iter();
            positives.map(move |&positive| match side {
                Side::Query => [item as u32, positive],
                Side::Gallery => [positive, item as u32],
            })
        });
        pairs.collect()
    }

    /// First item without a positive, and the number of such items.
    pub fn unpaired(&self, side: Side) -> Option<(usize, usize)> {
        let mut without =
            (0..self.num_items(side)).filter(|&item| self.lists(side).of(item).is_empty());
        let first = without.next()?;
        Some((first, 1 + without.count()))
    }

    /// Memory of the lists for these sizes.
    pub fn bytes_for(num_queries: usize, num_gallery: usize, num_pairs: usize) -> usize {
        (num_queries + num_gallery + 2 + 2 * num_pairs) * size_of::<u32>()
    }

    fn lists(&self, side: Side) -> &Lists {
        match side {
            Side::Query => &self.by_query,
            Side::Gallery => &self.by_gallery,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_in_order_and_each_once() {
        let pairs = vec![(2, 0), (0, 1), (2, 1), (0, 1)];
        let pairs = Pairs::new(3, 2, pairs).unwrap();
        assert_eq!(pairs.len(), 3);
        assert_eq!(pairs.positives(Side::Query, 2), [0, 1]);
        assert_eq!(pairs.positives(Side::Gallery, 1), [0, 2]);
        assert_eq!(pairs.unpaired(Side::Query), Some((1, 1)));
        assert_eq!(pairs.unpaired(Side::Gallery), None);
    }

    #[test]
    fn an_item_that_is_not_there_is_named() {
        let error = Pairs::new(3, 2, vec![(0, 0), (1, 2)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "pair 1: gallery item 2: expected one of 0 to 1"
        );
    }
}
