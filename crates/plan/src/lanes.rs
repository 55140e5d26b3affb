//! Memory and time of lanes that run side by side.
//!
//! Consecutive nodes of different lanes form a stretch: they may run at the same time. Storages that only one lane of a
//! stretch uses are packed together as one bundle, which does not overlap the bundles of other lanes during the stretch. Any
//! other storage is alive for the whole of every stretch in which it is used.

use std::collections::HashMap;
use std::ops::Range;

use holdall_graph::{Node, StorageId};

use crate::pack::{Item, Packing, Spacing, pack, pack_around};
use crate::recompute::LaneOrder;

/// Lower bound of the time of lanes side by side, as a share of their time in turn: measured as 0.77 on an H200, 8 samples of
/// ViT-B/32 at a time.
const LEAST_SHARE: f64 = 0.75;

/// Stretch and lane in which a storage is used.
type Home = (usize, usize);

/// Lanes of one program.
pub(crate) struct Lanes {
    stretches: Vec<Range<usize>>,
    /// Moment -> stretch and lane.
    homes: Vec<Option<Home>>,
    /// Storage -> the one home of all its uses; `None` if there are several, or a use outside of stretches.
    used: HashMap<StorageId, Option<Home>>,
    /// Storage -> every stretch in which it is used.
    touched: HashMap<StorageId, Vec<usize>>,
    members: HashMap<Home, Vec<usize>>,
    /// For each stretch: seconds by lane, and the seconds at full load of the device.
    times: Vec<(HashMap<usize, f64>, f64)>,
    outside: f64,
}

/// Items that are packed together, with their common lifetime.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bundle {
    members: Vec<usize>,
    start: usize,
    end: usize,
}

impl Lanes {
    pub fn new(nodes: &[&Node], order: LaneOrder) -> Lanes {
        let stretches = match order {
            LaneOrder::InTurn => Vec::new(),
            LaneOrder::SideBySide => stretches(nodes),
        };
        let mut homes = vec![None; nodes.len()];
        for (index, stretch) in stretches.iter().enumerate() {
            for moment in stretch.clone() {
                homes[moment] = nodes[moment].lane.map(|lane| (index, lane));
            }
        }
        Lanes {
            times: vec![Default::default(); stretches.len()],
            stretches,
            homes,
            used: HashMap::new(),
            touched: HashMap::new(),
            members: HashMap::new(),
            outside: 0.0,
        }
    }

    /// Records that a node uses a storage.
    pub fn used(&mut self, storage: StorageId, moment: usize) {
        if self.stretches.is_empty() {
            return;
        }
        let home = self.homes[moment];
        let all = self.used.entry(storage).or_insert(home);
        if *all != home {
            *all = None;
        }
        if let Some((stretch, _)) = home {
            self.touched.entry(storage).or_default().push(stretch);
        }
    }

    /// Records a node's time and its load of the device.
    pub fn takes(&mut self, moment: usize, seconds: f64, busy: f64) {
        match self.homes[moment] {
            None => self.outside += seconds,
            Some((stretch, lane)) => {
                let (by_lane, work) = &mut self.times[stretch];
                *by_lane.entry(lane).or_default() += seconds;
                *work += seconds * busy;
            }
        }
    }

    /// Predicted time of the program: a stretch takes as long as its longest lane, or as the device needs for all of its
    /// lanes.
    pub fn seconds(&self) -> f64 {
        let stretches = self.times.iter().map(|(by_lane, work)| {
            let longest = by_lane.values().copied().fold(0.0, f64::max);
            let in_turn: f64 = by_lane.values().sum();
            longest.max(*work).max(LEAST_SHARE * in_turn)
        });
        self.outside + stretches.sum::<f64>()
    }

    /// Records an item as a node's scratch.
    pub fn scratch(&mut self, moment: usize, item: usize) {
        if let Some(home) = self.homes[moment] {
            self.members.entry(home).or_default().push(item);
        }
    }

    /// Records an item as a storage that does not outlive the program.
    pub fn transient(&mut self, storage: StorageId, item: usize) {
        if let Some(Some(home)) = self.used.get(&storage) {
            self.members.entry(*home).or_default().push(item);
        }
    }

    /// Lifetime of a storage: if several homes use it, it is extended over every stretch in which it is used.
    pub fn widened(&self, storage: StorageId, (start, end): (usize, usize)) -> (usize, usize) {
        if let Some(Some(_)) = self.used.get(&storage) {
            return (start, end);
        }
        let touched = self.touched.get(&storage).into_iter().flatten();
        touched.fold((start, end), |(start, end), &stretch| {
            let Range {
                start: from,
                end: to,
            } = self.stretches[stretch];
            (start.min(from), end.max(to - 1))
        })
    }

    /// The bundles of all stretches.
    pub fn bundles(self) -> Vec<Bundle> {
        let mut members: Vec<_> = self.members.into_iter().collect();
        members.sort();
        let bundle = |((stretch, _), members): (Home, Vec<usize>)| {
            let Range { start, end } = self.stretches[stretch];
            Bundle {
                members,
                start,
                end: end - 1,
            }
        };
        members.into_iter().map(bundle).collect()
    }
}

/// Ranges of consecutive nodes in lanes, with more than one lane.
fn stretches(nodes: &[&Node]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for run in nodes.chunk_by(|a, b| a.lane.is_some() == b.lane.is_some()) {
        let end = start + run.len();
        if run[0].lane.is_some() && run.iter().any(|node| node.lane != run[0].lane) {
            found.push(start..end);
        }
        start = end;
    }
    found
}

impl Bundle {
    /// The items with each bundle replaced by one item of the size of its packing; items outside of bundles come first.
    pub fn outermost(
        bundles: &[Bundle],
        items: &[Item],
        size: impl Fn(&[Item]) -> u64,
    ) -> Vec<Item> {
        let mut bundled = vec![false; items.len()];
        for &member in bundles.iter().flat_map(|bundle| &bundle.members) {
            bundled[member] = true;
        }
        let alone = items.iter().zip(&bundled).filter(|(_, bundled)| !**bundled);
        let mut all: Vec<Item> = alone.map(|(&item, _)| item).collect();
        all.extend(bundles.iter().map(|bundle| Item {
            bytes: size(&bundle.items(items)),
            start: bundle.start,
            end: bundle.end,
        }));
        all
    }

    fn items(&self, items: &[Item]) -> Vec<Item> {
        self.members.iter().map(|&member| items[member]).collect()
    }
}

/// Places all items, with those of a bundle adjacent.
pub(crate) fn pack_bundled(
    fixed: &[(u64, Item)],
    items: &[Item],
    bundles: &[Bundle],
    spacing: Spacing,
) -> Packing {
    if bundles.is_empty() {
        return pack_around(fixed, items, spacing);
    }
    let inner: Vec<Packing> = bundles
        .iter()
        .map(|bundle| pack(&bundle.items(items), spacing))
        .collect();
    let mut sizes = inner.iter().map(|packing| packing.peak_bytes);
    let mut outermost = Bundle::outermost(bundles, items, |_| 0);
    let first = outermost.len() - bundles.len();
    for bundle in &mut outermost[first..] {
        bundle.bytes = sizes.next().expect("one per bundle");
    }
    let outer = pack_around(fixed, &outermost, spacing);
    let mut offsets = vec![None; items.len()];
    for (index, bundle) in bundles.iter().enumerate() {
        for (&member, offset) in bundle.members.iter().zip(&inner[index].offsets) {
            offsets[member] = Some(outer.offsets[first + index] + offset);
        }
    }
    let mut alone = outer.offsets.iter();
    let offsets = offsets
        .into_iter()
        .map(|offset| offset.unwrap_or_else(|| *alone.next().expect("one per item alone")))
        .collect();
    Packing {
        offsets,
        peak_bytes: outer.peak_bytes,
    }
}
