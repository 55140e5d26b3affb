//! Linux: `/proc` and `statvfs`.

use std::fs;
use std::path::Path;

use super::ProcessMemory;

pub fn memory_of(pid: Option<u32>) -> Option<ProcessMemory> {
    let process = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    Some(ProcessMemory {
        resident_bytes: kib_field(&status, "VmRSS:")?,
        peak_resident_bytes: kib_field(&status, "VmHWM:")?,
    })
}

/// Parses a line such as `VmRSS:  24683520 kB`; returns bytes.
fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems report 0 of 0 blocks.
    let free = disk.f_bavail.checked_mul(disk.f_frsize)?;
    (disk.f_blocks > 0).then_some(free)
}
