//! The same picture more than once: by its bytes, whatever it is called.

use std::collections::{HashMap, HashSet};

use super::AllFacts;
use super::findings::At;
use super::picture_state::State;
use super::row_facts::Facts;

/// Rows that show the same bytes: the first that is trained on, and the first that is held out, numbered through both
/// files.
pub(super) struct Groups(HashMap<u128, [u32; 2]>);

const NO_ROW: u32 = u32::MAX;

impl Groups {
    pub(super) fn new(all: &AllFacts) -> Groups {
        let mut groups: HashMap<u128, [u32; 2]> = HashMap::new();
        for at in all.rows_where(|facts| facts.look.state == State::Good) {
            let group = groups.entry(all.at(at).look.contents);
            let first = &mut group.or_insert([NO_ROW; 2])[usize::from(all.is_held(at))];
            if *first == NO_ROW {
                // Lines are numbered in 32 bits, in each file; past that the first is not named.
                *first = u32::try_from(at.0 * all.rows.len() + at.1).unwrap_or(NO_ROW);
            }
        }
        Groups(groups)
    }

    pub(super) fn first(&self, all: &AllFacts, at: At, side: usize) -> Option<At> {
        let row = self.0.get(&all.at(at).look.contents)?[side];
        let (row, num_rows) = (row as usize, all.rows.len());
        (row != NO_ROW as usize).then(|| match row < num_rows {
            true => (0, row),
            false => (1, row - num_rows),
        })
    }

    /// Validation rows whose picture is trained on.
    pub(super) fn leaks(&self, all: &AllFacts) -> Vec<At> {
        let mut leaks = all.rows_where(|facts| facts.look.state == State::Good);
        leaks.retain(|at| all.is_held(*at) && self.first(all, *at, 0).is_some());
        leaks
    }

    /// Rows that repeat an earlier one of the same side.
    pub(super) fn duplicates(&self, all: &AllFacts) -> Vec<At> {
        let mut repeats = [(); 2].map(|()| Repeats::default());
        let mut rows = all.rows_where(|facts| facts.look.state == State::Good);
        rows.retain(|at| repeats[usize::from(all.is_held(*at))].is_repeated(all.at(*at)));
        rows
    }
}

/// Tells rows that add nothing: the same picture under another name, or again with the same caption. One file with several
/// captions is a data set like others.
#[derive(Default)]
pub(super) struct Repeats {
    path_of: HashMap<u128, u64>,
    pairs: HashSet<u128>,
}

impl Repeats {
    /// Whether an earlier row of those asked for showed it already.
    pub(super) fn is_repeated(&mut self, facts: &Facts) -> bool {
        let contents = facts.look.contents;
        let first_path = *self.path_of.entry(contents).or_insert(facts.path);
        let pair = contents ^ (u128::from(facts.caption) << 64 | u128::from(facts.caption));
        let is_new_pair = self.pairs.insert(pair);
        first_path != facts.path || !is_new_pair
    }
}
