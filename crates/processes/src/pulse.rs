//! Detects whether this process makes progress or hangs.
//!
//! In work made of many small parts (pictures, operations, batches) a process records each finished part, and a long silence means that it
//! hangs. In other work (planning, compiling, saving) progress cannot be observed, so silence means nothing. A process that waits for other
//! processes polls now and then and records that as progress: it does not hang, another process may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::state::Shared;

pub(crate) struct Pulse {
    began: Instant,
    /// Time of the last recorded progress, in nanoseconds since `began`.
    last: AtomicU64,
    /// Number of active stretches made of small parts.
    expected: AtomicUsize,
    /// Number of active stretches without parts, within those.
    excepted: AtomicUsize,
}

impl Pulse {
    pub fn new() -> Pulse {
        Pulse {
            began: Instant::now(),
            last: AtomicU64::new(0),
            expected: AtomicUsize::new(0),
            excepted: AtomicUsize::new(0),
        }
    }

    pub fn beat(&self) {
        let now = self.began.elapsed().as_nanos() as u64;
        self.last.store(now, Ordering::Release);
    }

    /// Whether nothing was recorded for longer than `most`, while progress is expected.
    pub fn is_still(&self, most: Duration) -> bool {
        let is_expected = self.expected.load(Ordering::Acquire) > 0;
        let is_excepted = self.excepted.load(Ordering::Acquire) > 0;
        let last = Duration::from_nanos(self.last.load(Ordering::Acquire));
        is_expected && !is_excepted && self.began.elapsed().saturating_sub(last) > most
    }
}

/// Guard of a stretch of work: one made of small parts (see [`crate::Group::expect_progress`]), or one without parts within it.
#[must_use]
pub struct Stretch {
    shared: Option<Arc<Shared>>,
    count: fn(&Pulse) -> &AtomicUsize,
}

impl Stretch {
    pub(crate) fn of_small_parts(shared: Option<Arc<Shared>>) -> Stretch {
        Stretch::begin(shared, |pulse| &pulse.expected)
    }

    pub(crate) fn of_one_part(shared: Option<Arc<Shared>>) -> Stretch {
        Stretch::begin(shared, |pulse| &pulse.excepted)
    }

    fn begin(shared: Option<Arc<Shared>>, count: fn(&Pulse) -> &AtomicUsize) -> Stretch {
        if let Some(shared) = &shared {
            shared.pulse.beat();
            count(&shared.pulse).fetch_add(1, Ordering::AcqRel);
        }
        Stretch { shared, count }
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            // Recorded before the count changes, so that a reader of the new count also sees this progress.
            shared.pulse.beat();
            (self.count)(&shared.pulse).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
