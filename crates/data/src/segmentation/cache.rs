//! Cache of decoded pairs, so that epochs after the first decode less. Decoding a PNG of 2048 x 2048 takes a hundred times as long as
//! mirroring it.
//!
//! The cache holds the input of augmentation, byte for byte what reading the files again gives: rows are the same with and without it.
//! Pairs are kept as they come until the cache is full. None is evicted, because every epoch visits each pair once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::decode::WholePicture;
use crate::samples::Samples;

/// Cached pairs and a byte limit.
#[derive(Debug, Default)]
pub(crate) struct PairCache(Mutex<CacheState>);

#[derive(Debug, Default)]
struct CacheState {
    most_bytes: u64,
    held_bytes: u64,
    pairs: HashMap<Key, Arc<WholePicture>>,
}

/// Address of a sample list, which its readers keep alive, and the sample's number.
type Key = (usize, u32);

/// Overhead of an entry: its slot in the map, and two allocations rounded up to pages.
pub(super) const ENTRY_BYTES: u64 = 10 << 10;

fn bytes_of(pair: &WholePicture) -> u64 {
    (pair.pixels.len() + pair.mask.as_ref().map_or(0, Vec::len)) as u64 + ENTRY_BYTES
}

fn key(samples: &Samples, sample: usize) -> Key {
    (std::ptr::from_ref(samples) as usize, sample as u32)
}

impl PairCache {
    /// Sets the byte limit for new entries; existing entries stay.
    pub(crate) fn set_most_bytes(&self, bytes: u64) {
        self.lock().most_bytes = bytes;
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().held_bytes
    }

    pub(super) fn get(&self, samples: &Samples, sample: usize) -> Option<Arc<WholePicture>> {
        self.lock().pairs.get(&key(samples, sample)).cloned()
    }

    /// Caches a copy if the limit allows it.
    pub(super) fn keep(&self, samples: &Samples, sample: usize, pair: &WholePicture) {
        let bytes = bytes_of(pair);
        let mut state = self.lock();
        if state.held_bytes + bytes > state.most_bytes {
            return;
        }
        // The bytes are claimed before the copy, so that no other thread claims them too.
        state.held_bytes += bytes;
        drop(state);
        // The clone has no spare capacity.
        let copy = Arc::new(pair.clone());
        let mut state = self.lock();
        if state.pairs.insert(key(samples, sample), copy).is_some() {
            state.held_bytes -= bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(|error| error.into_inner())
    }
}
