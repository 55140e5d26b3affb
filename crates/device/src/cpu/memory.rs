//! What the process holds, as the system counts it.

/// Resident memory now; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    status_field("VmRSS:")
}

/// Highest resident memory so far; `None` where the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    status_field("VmHWM:")
}

#[cfg(target_os = "linux")]
fn status_field(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    let kib: u64 = line[name.len()..].split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(not(target_os = "linux"))]
fn status_field(_name: &str) -> Option<u64> {
    None
}
