//! How long processes wait for each other.

use std::time::Duration;

/// Time limits on waiting for other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For all processes to start.
    pub start: Duration,
    /// Silence after which a process is lost, and standstill after which work made of small parts counts as hanging.
    pub silence: Duration,
    /// After this time, a process that is alive but does not make the call that all others wait in is lost.
    pub stall: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            start: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            // Rank 0 may plan, compile or save for minutes while the others wait.
            stall: Duration::from_secs(1800),
        }
    }
}

/// Time between heartbeats, and between checks for them.
pub(crate) fn interval(deadline: Duration) -> Duration {
    (deadline / 6).clamp(Duration::from_millis(20), Duration::from_secs(5))
}
