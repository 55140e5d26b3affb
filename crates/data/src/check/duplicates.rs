//! Duplicates among pictures: equal by their pixels, or nearly equal by their perceptual hash, whatever their file names.

use std::collections::{HashMap, HashSet};

use super::AllFacts;
use super::findings::At;
use super::picture_state::PictureState;
use super::row_facts::Facts;
use crate::decode::{Fingerprint, near_pairs};
use crate::table::Side;

/// Groups of rows that show the same picture: the first row on each side, numbered through both files.
pub(super) struct CopyGroups {
    first_rows: HashMap<u128, [u32; 3]>,
    /// Contents of near copies, mapped to the first contents of their group; empty where only equal pixels count.
    near: HashMap<u128, u128>,
}

const NO_ROW: u32 = u32::MAX;

impl CopyGroups {
    /// Groups rows with equal pixels.
    pub(super) fn equal(all: &AllFacts) -> CopyGroups {
        CopyGroups::new(all, HashMap::new())
    }

    /// Groups rows with equal pixels or near copies.
    pub(super) fn near(all: &AllFacts) -> CopyGroups {
        CopyGroups::new(all, near_contents(all))
    }

    fn new(all: &AllFacts, near: HashMap<u128, u128>) -> CopyGroups {
        let mut groups = CopyGroups {
            first_rows: HashMap::new(),
            near,
        };
        for at in all.rows_where(|facts| facts.look.state == PictureState::Good) {
            let group = groups.first_rows.entry(groups.near_key(all.at(at)));
            let first = &mut group.or_insert([NO_ROW; 3])[all.side(at).index()];
            if *first == NO_ROW {
                // Row numbers are 32 bits; a row past that is not recorded as the first.
                *first = u32::try_from(at.0 * all.rows.len() + at.1).unwrap_or(NO_ROW);
            }
        }
        groups
    }

    fn near_key(&self, facts: &Facts) -> u128 {
        let contents = facts.look.contents;
        *self.near.get(&contents).unwrap_or(&contents)
    }

    pub(super) fn first(&self, all: &AllFacts, at: At, side: Side) -> Option<At> {
        let row = self.first_rows.get(&self.near_key(all.at(at)))?[side.index()];
        let (row, num_rows) = (row as usize, all.rows.len());
        (row != NO_ROW as usize).then(|| {
            if row < num_rows {
                (0, row)
            } else {
                (1, row - num_rows)
            }
        })
    }

    /// The first of the earlier sides that shows the row's picture too.
    pub(super) fn earlier_side(&self, all: &AllFacts, at: At) -> Option<Side> {
        let earlier = Side::ALL.into_iter().take(all.side(at).index());
        let mut shown = earlier.filter(|side| self.first(all, at, *side).is_some());
        shown.next()
    }

    /// Rows whose picture is also on an earlier side: validation and test rows that are in training, test rows that are in validation.
    pub(super) fn leaks(&self, all: &AllFacts) -> Vec<At> {
        let mut leaks = all.rows_where(|facts| facts.look.state == PictureState::Good);
        leaks.retain(|at| self.earlier_side(all, *at).is_some());
        leaks
    }

    /// Rows that are near copies of an earlier row of the same side and the first with exactly their pixels.
    pub(super) fn near_duplicates(&self, all: &AllFacts, equal: &CopyGroups) -> Vec<At> {
        let mut rows = all.rows_where(|facts| facts.look.state == PictureState::Good);
        rows.retain(|at| {
            let side = all.side(*at);
            let is_first_of_equals = equal.first(all, *at, side) == Some(*at);
            is_first_of_equals && self.first(all, *at, side) != Some(*at)
        });
        rows
    }
}

/// Maps contents of near copies to the first contents of their group.
pub(super) fn near_contents(all: &AllFacts) -> HashMap<u128, u128> {
    let mut known = HashSet::new();
    let (mut contents, mut fingerprints): (Vec<u128>, Vec<Fingerprint>) = Default::default();
    for at in all.rows_where(|facts| facts.look.state == PictureState::Good) {
        let look = &all.at(at).look;
        if let (Some(fingerprint), true) = (look.fingerprint, known.insert(look.contents)) {
            contents.push(look.contents);
            fingerprints.push(fingerprint);
        }
    }
    let mut first_of: Vec<u32> = (0..contents.len() as u32).collect();
    // Pairs are sorted by their first, whose own group is known by then.
    for (first, later) in near_pairs(&fingerprints) {
        first_of[later as usize] = first_of[later as usize].min(first_of[first as usize]);
    }
    let later = contents.iter().zip(&first_of).enumerate();
    let later = later.filter(|(at, (_, first))| *at != **first as usize);
    later
        .map(|(_, (copy, first))| (*copy, contents[*first as usize]))
        .collect()
}

/// Rows that repeat an earlier row of the same side.
pub(super) fn duplicates(all: &AllFacts) -> Vec<At> {
    let mut repeats = Side::ALL.map(|_| Repeats::default());
    let mut rows = all.rows_where(|facts| facts.look.state == PictureState::Good);
    rows.retain(|at| repeats[all.side(*at).index()].is_repeated(all.at(*at)));
    rows
}

/// Contents that the CSV shows under different labels.
pub(super) fn with_two_labels(all: &AllFacts) -> HashSet<u128> {
    let mut label_of: HashMap<u128, u64> = HashMap::new();
    let labelled = all.rows.iter().filter(|facts| facts.label_text != 0);
    let mut conflicts = HashSet::new();
    for facts in labelled.filter(|facts| facts.look.state == PictureState::Good) {
        let contents = facts.look.contents;
        let first = *label_of.entry(contents).or_insert(facts.label_text);
        if first != facts.label_text {
            conflicts.insert(contents);
        }
    }
    conflicts
}

/// Detects rows that add nothing: the same picture under another file name, or with the same caption again. One file with several captions
/// is a usual data set and no repeat.
#[derive(Default)]
pub(super) struct Repeats {
    path_of: HashMap<u128, u64>,
    pairs: HashSet<u128>,
}

impl Repeats {
    /// Whether an earlier row of the calls so far showed the picture; records the row.
    pub(super) fn is_repeated(&mut self, facts: &Facts) -> bool {
        let contents = facts.look.contents;
        let first_path = *self.path_of.entry(contents).or_insert(facts.path);
        let pair = contents ^ (u128::from(facts.caption) << 64 | u128::from(facts.caption));
        let is_new_pair = self.pairs.insert(pair);
        first_path != facts.path || !is_new_pair
    }
}
