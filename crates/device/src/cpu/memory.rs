//! What the process holds, as the system counts it.

/// Resident memory now; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    status_field("VmRSS:")
}

/// Highest resident memory so far; `None` where the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    status_field("VmHWM:")
}

/// Gives freed memory back to the system, which the allocator may otherwise keep: planning makes and drops thousands of
/// small things, and what is left of them would differ from start to start.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer and only touches the allocator's own free lists, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory of the machine; `None` where the system does not tell.
pub fn total_bytes() -> Option<u64> {
    meminfo_field("MemTotal:")
}

/// Memory that could be had now without swapping; `None` where the system does not tell.
pub fn available_bytes() -> Option<u64> {
    meminfo_field("MemAvailable:")
}

#[cfg(target_os = "linux")]
fn status_field(name: &str) -> Option<u64> {
    kib_field("/proc/self/status", name)
}

#[cfg(target_os = "linux")]
fn meminfo_field(name: &str) -> Option<u64> {
    kib_field("/proc/meminfo", name)
}

#[cfg(target_os = "linux")]
fn kib_field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line[name.len()..].split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

// Other systems have their own calls for this; until one is written and tried there, budgets must be explicit.
#[cfg(not(target_os = "linux"))]
fn meminfo_field(_name: &str) -> Option<u64> {
    None
}

#[cfg(not(target_os = "linux"))]
fn status_field(_name: &str) -> Option<u64> {
    None
}
