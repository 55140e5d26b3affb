//! Whether this process goes on: what tells one that works from one that hangs.
//!
//! Where work is made of many small parts (pictures, operations, batches) a process says after each that it goes on, and within such
//! work a long silence means that it hangs. Elsewhere (planning, compiling, saving) nobody can tell, and nothing is concluded. Who waits
//! for other processes looks around every now and then, and says so too: it goes on, another may hang.

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
    /// Stretches within those that are not.
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

    /// Whether a sign is overdue by this much.
    pub fn is_still(&self, most: Duration) -> bool {
        let is_expected = self.expected.load(Ordering::Acquire) > 0;
        let is_excepted = self.excepted.load(Ordering::Acquire) > 0;
        let last = Duration::from_nanos(self.last.load(Ordering::Acquire));
        is_expected && !is_excepted && self.began.elapsed().saturating_sub(last) > most
    }
}

/// A stretch of work, until it is dropped: one that is made of small parts (see [`crate::Group::expect_progress`]), or one within that is not.
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
            // Who sees that it is over sees this too.
            shared.pulse.beat();
            (self.count)(&shared.pulse).fetch_sub(1, Ordering::AcqRel);
        }
    }
}
