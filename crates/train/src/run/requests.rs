//! Requests to a running training loop.

use std::sync::atomic::{AtomicBool, AtomicU8};

/// Flags that a signal handler sets, and that the loop reads between micro-batches and within evaluations.
#[derive(Debug, Default)]
pub struct Requests {
    /// Save and end.
    pub stop: AtomicBool,
    /// Number of the signal that requested the stop, in this process or in another one of the run; 0 if there was none.
    pub stopped_by: AtomicU8,
    /// Save and continue.
    pub save: AtomicBool,
}

impl Requests {
    pub const fn new() -> Requests {
        Requests {
            stop: AtomicBool::new(false),
            stopped_by: AtomicU8::new(0),
            save: AtomicBool::new(false),
        }
    }
}
