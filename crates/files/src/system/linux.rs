//! Linux: `/proc` and `statvfs`.

use std::fs;
use std::path::Path;

use super::{ProcessMemory, kib_field};

pub fn memory_of(pid: Option<u32>) -> Option<ProcessMemory> {
    let process = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(ProcessMemory {
        resident_bytes: kib_field(&status, "VmRSS:")?,
        peak_resident_bytes: kib_field(&status, "VmHWM:")?,
    })
}

pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems report 0 of 0 blocks.
    let free = disk.f_bavail.checked_mul(disk.f_frsize)?;
    (disk.f_blocks > 0).then_some(free)
}
