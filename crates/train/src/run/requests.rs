//! What a run is asked for from outside while it goes on.

use std::sync::atomic::{AtomicBool, AtomicU8};

/// Flags that whoever takes signals sets, and the loop looks at between micro-batches and within evaluations.
#[derive(Debug, Default)]
pub struct Requests {
    /// Save and end.
    pub stop: AtomicBool,
    /// Number of the signal that asked for the stop, of this process or of another that works with it; 0 where none did.
    pub stopped_by: AtomicU8,
    /// Save and go on.
    pub save: AtomicBool,
}

impl Requests {
    /// Nothing asked for.
    pub const fn new() -> Requests {
        Requests {
            stop: AtomicBool::new(false),
            stopped_by: AtomicU8::new(0),
            save: AtomicBool::new(false),
        }
    }
}
