//! Systems whose own calls are not implemented and tested: no number is better than a wrong one.

use std::path::Path;

use super::ProcessMemory;

pub fn memory_of(_pid: Option<u32>) -> Option<ProcessMemory> {
    None
}

#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    let free = (disk.f_bavail as u64).checked_mul(disk.f_frsize as u64)?;
    (disk.f_blocks > 0).then_some(free)
}

#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}
