//! Packs rectangles of (time, address) that must not overlap, with a low peak.
//!
//! Items are placed largest first, each at the lowest address where it does not overlap an item with an overlapping lifetime.
//! This is not optimal, but on training graphs it stays within a few per cent of the lower bound, the most bytes alive at one
//! time. Two orders are tried, and the better result is taken.

/// An item to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub bytes: u64,
    /// First moment of its life.
    pub start: usize,
    /// Last moment of its life.
    pub end: usize,
}

/// Result of packing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// One offset per item.
    pub offsets: Vec<u64>,
    /// Highest address used.
    pub peak_bytes: u64,
}

/// How tensors lie beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spacing {
    /// Every offset is a multiple of this.
    pub alignment: u64,
    /// With a gap, so many bytes stay free behind every tensor, and no two tensors ever share memory: for tests that find accesses
    /// outside of tensors.
    pub gap_bytes: Option<u64>,
}

impl Spacing {
    /// Tensors side by side, and in each other's place when their lifetimes allow it.
    pub fn dense(alignment: u64) -> Spacing {
        Spacing {
            alignment,
            gap_bytes: None,
        }
    }

    /// Bytes that a tensor occupies: a multiple of the alignment, with the gap behind it.
    pub(crate) fn occupied(self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        (bytes + self.gap_bytes.unwrap_or(0)).next_multiple_of(self.alignment)
    }

    /// Whether two items may not overlap in memory.
    fn separates(self, a: &Item, b: &Item) -> bool {
        self.gap_bytes.is_some() || (a.start <= b.end && b.start <= a.end)
    }
}

/// The most bytes alive at one time: no packing has a lower peak.
pub fn liveness_peak(items: &[Item], spacing: Spacing) -> u64 {
    let moments = items.iter().map(|item| item.end + 2).max().unwrap_or(0);
    let mut change = vec![0i64; moments];
    for item in items {
        let bytes = spacing.occupied(item.bytes) as i64;
        change[item.start] += bytes;
        change[item.end + 1] -= bytes;
    }
    let mut alive = 0;
    let mut peak = 0;
    for step in change {
        alive += step;
        peak = peak.max(alive);
    }
    peak as u64
}

/// Places every item.
pub fn pack(items: &[Item], spacing: Spacing) -> Packing {
    pack_around(&[], items, spacing)
}

/// Places items around other items with fixed offsets.
pub fn pack_around(fixed: &[(u64, Item)], items: &[Item], spacing: Spacing) -> Packing {
    let mut all: Vec<Item> = items.to_vec();
    all.extend(fixed.iter().map(|&(_, item)| item));
    let offsets: Vec<u64> = fixed.iter().map(|&(offset, _)| offset).collect();
    let bound = liveness_peak(&all, spacing);
    let by_size = place(&all, &offsets, spacing, |item| {
        (item.bytes, item.end - item.start)
    });
    if by_size.peak_bytes == bound {
        return by_size;
    }
    let by_duration = place(&all, &offsets, spacing, |item| {
        ((item.end - item.start) as u64, item.bytes as usize)
    });
    if by_duration.peak_bytes < by_size.peak_bytes {
        by_duration
    } else {
        by_size
    }
}

/// Places items; the last `fixed.len()` of them have fixed offsets.
fn place(
    items: &[Item],
    fixed: &[u64],
    spacing: Spacing,
    rank: impl Fn(&Item) -> (u64, usize),
) -> Packing {
    let num_free = items.len() - fixed.len();
    let mut order: Vec<usize> = (0..num_free).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(rank(&items[index])), index));
    let mut offsets = vec![0; num_free];
    // (offset, end of bytes, item), by offset
    let mut placed: Vec<(u64, u64, usize)> = Vec::with_capacity(items.len());
    let mut peak_bytes = 0;
    for (index, &offset) in fixed.iter().enumerate() {
        let end = offset + spacing.occupied(items[num_free + index].bytes);
        placed.push((offset, end, num_free + index));
        peak_bytes = peak_bytes.max(end);
    }
    placed.sort_unstable();
    for index in order {
        let item = &items[index];
        if item.bytes == 0 {
            continue;
        }
        let bytes = spacing.occupied(item.bytes);
        let mut best: Option<(u64, u64)> = None; // (gap, offset)
        let mut cursor = 0;
        for &(offset, end, other) in &placed {
            if !spacing.separates(item, &items[other]) {
                continue;
            }
            if offset >= cursor + bytes {
                let gap = offset - cursor;
                if best.is_none_or(|(smallest, _)| gap < smallest) {
                    best = Some((gap, cursor));
                }
            }
            cursor = cursor.max(end);
        }
        let offset = best.map_or(cursor, |(_, offset)| offset);
        offsets[index] = offset;
        peak_bytes = peak_bytes.max(offset + bytes);
        let at = placed.partition_point(|&(other, _, _)| other <= offset);
        placed.insert(at, (offset, offset + bytes, index));
    }
    Packing {
        offsets,
        peak_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn items() -> impl Strategy<Value = Vec<Item>> {
        let item = (0u64..5000, 0usize..40, 0usize..12).prop_map(|(bytes, start, length)| Item {
            bytes,
            start,
            end: start + length,
        });
        prop::collection::vec(item, 0..60)
    }

    proptest! {
        #[test]
        fn what_is_alive_together_never_overlaps_and_the_peak_is_what_the_offsets_say(
            items in items(), shift in 0u32..9, gap_bytes in prop::option::of(1u64..300),
        ) {
            let alignment = 1u64 << shift;
            let spacing = Spacing { alignment, gap_bytes };
            let packing = pack(&items, spacing);
            let mut peak = 0;
            for (index, item) in items.iter().enumerate() {
                let offset = packing.offsets[index];
                prop_assert_eq!(offset % alignment, 0);
                if item.bytes > 0 {
                    peak = peak.max(offset + spacing.occupied(item.bytes));
                }
                for (other, before) in items[..index].iter().enumerate() {
                    let together = spacing.separates(item, before);
                    let gap_bytes = gap_bytes.unwrap_or(0);
                    let apart = offset + item.bytes + gap_bytes <= packing.offsets[other]
                        || packing.offsets[other] + before.bytes + gap_bytes <= offset;
                    prop_assert!(
                        !together || apart || item.bytes == 0 || before.bytes == 0,
                        "items {} and {}", index, other
                    );
                }
            }
            prop_assert_eq!(packing.peak_bytes, peak);
            prop_assert!(packing.peak_bytes >= liveness_peak(&items, spacing));
        }
    }
}
