//! Whether this process goes on: what tells one that works from one that hangs.
//!
//! Where work is made of many small parts (pictures, operations, batches) a process says after each that it goes on, and within such
//! work a long silence means that it hangs. Elsewhere (planning, compiling, saving) nobody can tell, and nothing is concluded. Who waits
//! for other processes does not hang: one of those may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::state::Shared;

pub(crate) struct Pulse {
    began: Instant,
    /// The last sign, in nanoseconds from there.
    last: AtomicU64,
    /// Stretches of work under way that are made of small parts.
    expected: AtomicUsize,
    /// Waits for others under way.
    waits: AtomicUsize,
}

impl Pulse {
    pub fn new() -> Pulse {
        Pulse {
            began: Instant::now(),
            last: AtomicU64::new(0),
            expected: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
        }
    }

    pub fn beat(&self) {
        let now = self.began.elapsed().as_nanos() as u64;
        self.last.store(now, Ordering::Release);
    }

    /// Waits for others.
    pub fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.waits.fetch_add(1, Ordering::AcqRel);
        let answer = wait();
        // Who sees no wait sees this too.
        self.beat();
        self.waits.fetch_sub(1, Ordering::AcqRel);
        answer
    }

    /// Whether a sign is overdue by this much.
    pub fn is_still(&self, most: Duration) -> bool {
        let is_expected = self.expected.load(Ordering::Acquire) > 0;
        if !is_expected || self.waits.load(Ordering::Acquire) > 0 {
            return false;
        }
        let last = Duration::from_nanos(self.last.load(Ordering::Acquire));
        self.began.elapsed().saturating_sub(last) > most
    }
}

/// A stretch of work that is made of small parts, until it is dropped: see [`crate::Group::expect_progress`].
#[must_use]
pub struct Progressing(Option<Arc<Shared>>);

impl Progressing {
    pub(crate) fn new(shared: Option<Arc<Shared>>) -> Progressing {
        if let Some(shared) = &shared {
            shared.pulse.beat();
            shared.pulse.expected.fetch_add(1, Ordering::AcqRel);
        }
        Progressing(shared)
    }
}

impl Drop for Progressing {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.pulse.expected.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
