//! Decoded and resized pairs that stay in memory, so that an epoch after the first decodes less. Decoding a PNG of 2048 x 2048 takes a hundred
//! times as long as mirroring it.
//!
//! What is kept is what augmentation starts from, byte for byte what reading the files again gives: rows are the same with and without. Pairs
//! are kept as they come until there is no more room; none is dropped for another, because every epoch sees all of them once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::whole::WholePicture;
use crate::samples::Samples;

/// Pairs that are kept, and how many bytes they may be.
#[derive(Debug, Default)]
pub(crate) struct PairCache(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    most_bytes: u64,
    held_bytes: u64,
    pairs: HashMap<Key, Arc<WholePicture>>,
}

/// A list, by its address (whoever reads from it holds it), and the place in it.
type Key = (usize, u32);

/// What an entry takes beside its pixels: its place in the map, and two allocations rounded up to pages.
pub(super) const ENTRY_BYTES: u64 = 10 << 10;

fn bytes_of(pair: &WholePicture) -> u64 {
    (pair.pixels.len() + pair.mask.as_ref().map_or(0, Vec::len)) as u64 + ENTRY_BYTES
}

fn key(samples: &Samples, sample: usize) -> Key {
    (std::ptr::from_ref(samples) as usize, sample as u32)
}

impl PairCache {
    /// What kept pairs may take from here on. What is kept already stays.
    pub(crate) fn set_most_bytes(&self, bytes: u64) {
        self.lock().most_bytes = bytes;
    }

    /// What kept pairs take.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    pub(super) fn get(&self, samples: &Samples, sample: usize) -> Option<Arc<WholePicture>> {
        self.lock().pairs.get(&key(samples, sample)).cloned()
    }

    /// Keeps a copy if there is room for it.
    pub(super) fn keep(&self, samples: &Samples, sample: usize, pair: &WholePicture) {
        let bytes = bytes_of(pair);
        let mut state = self.lock();
        if state.held_bytes + bytes > state.most_bytes {
            return;
        }
        // Claimed before it is copied, so that others do not claim it too.
        state.held_bytes += bytes;
        drop(state);
        // A clone has no more capacity than it needs.
        let copy = Arc::new(pair.clone());
        let mut state = self.lock();
        if state.pairs.insert(key(samples, sample), copy).is_some() {
            state.held_bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.0.lock().unwrap_or_else(|error| error.into_inner())
    }
}
