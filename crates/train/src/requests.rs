//! What a run is asked for from outside while it goes on.

use std::sync::atomic::AtomicBool;

/// Flags that whoever takes signals sets, and the loop looks at between micro-batches and within evaluations.
#[derive(Debug, Default)]
pub struct Requests {
    /// Save and end.
    pub stop: AtomicBool,
    /// Save and go on.
    pub save: AtomicBool,
}

impl Requests {
    /// Nothing asked for.
    pub const fn new() -> Requests {
        Requests {
            stop: AtomicBool::new(false),
            save: AtomicBool::new(false),
        }
    }
}
