//! Windows reports memory of the machine, and the limit of the job that a process belongs to.

use super::{Bound, Room};

/// The machine, then what limits this process on it.
pub fn rooms() -> Option<Vec<Room>> {
    let memory = holdall_files::windows_memory()?;
    let machine = Room {
        bound: Bound::Machine,
        total_bytes: memory.total_bytes,
        available_bytes: memory.available_bytes,
    };
    let held = holdall_files::resident_bytes().unwrap_or(0);
    let job = memory.job_limit_bytes.map(|limit| Room {
        bound: Bound::Job,
        total_bytes: limit,
        available_bytes: limit.saturating_sub(held),
    });
    Some([machine].into_iter().chain(job).collect())
}
