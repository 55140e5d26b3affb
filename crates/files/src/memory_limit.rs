//! The memory limit of readers: what the budget leaves.
//!
//! The budget covers the whole process, so there is one limit, set once by the command that has resolved its budget. Readers of tables,
//! texts and headers check it before allocations whose size a file alone decides: the length of a row, the number of rows.

use crate::numbers::show_bytes;
use crate::system::resident_bytes;
use std::sync::atomic::{AtomicU64, Ordering};

const NONE: u64 = u64::MAX;

static LIMIT: AtomicU64 = AtomicU64::new(NONE);

/// Error: an allocation that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// Bytes of the allocation.
    pub needed_bytes: u64,
    /// Bytes between the process's resident memory and the limit.
    pub left_bytes: u64,
    /// Resident memory after the allocation.
    pub total_bytes: u64,
}

impl std::fmt::Display for OverLimit {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [needed, left] = [self.needed_bytes, self.left_bytes].map(show_bytes);
        write!(out, "takes {needed} more, and the budget leaves {left}")
    }
}

impl std::error::Error for OverLimit {}

/// Sets the limit on resident memory of this process.
pub fn set_memory_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Refuses an allocation that would bring the process above its limit, if a limit is set.
///
/// # Errors
/// [`OverLimit`] with the excess.
pub fn check_memory(needed_bytes: u64) -> Result<(), OverLimit> {
    let limit = LIMIT.load(Ordering::Relaxed);
    match limit {
        NONE => Ok(()),
        limit => check_within(limit, resident_bytes().unwrap_or(0), needed_bytes),
    }
}

fn check_within(limit: u64, held_bytes: u64, needed_bytes: u64) -> Result<(), OverLimit> {
    let total_bytes = held_bytes.saturating_add(needed_bytes);
    if total_bytes <= limit {
        Ok(())
    } else {
        Err(OverLimit {
            needed_bytes,
            left_bytes: limit.saturating_sub(held_bytes),
            total_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_leaves_may_be_taken() {
        assert_eq!(check_within(100, 60, 40), Ok(()));
        let over = check_within(100, 60, 41).unwrap_err();
        assert_eq!((over.left_bytes, over.total_bytes), (40, 101));
        // A process above its limit may allocate nothing, not even zero bytes.
        assert_eq!(check_within(100, 101, 0).unwrap_err().left_bytes, 0);
        assert!(check_within(100, 60, u64::MAX).is_err());
        assert_eq!(check_memory(u64::MAX), Ok(()));
    }
}
