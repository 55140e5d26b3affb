//! What the operating system reports: memory of processes, and free disk space. `None` where it does not.

#[cfg_attr(target_os = "linux", path = "system/linux.rs")]
#[cfg_attr(windows, path = "system/windows.rs")]
#[cfg_attr(not(any(target_os = "linux", windows)), path = "system/other.rs")]
mod calls;

use std::path::Path;

#[cfg(windows)]
pub use calls::{WindowsMemory, windows_memory};

/// Resident memory of this process.
pub fn resident_bytes() -> Option<u64> {
    calls::memory_of(None).map(|memory| memory.resident_bytes)
}

/// The highest resident memory of this process so far.
pub fn peak_resident_bytes() -> Option<u64> {
    calls::memory_of(None).map(|memory| memory.peak_resident_bytes)
}

/// Resident memory of another process.
pub fn resident_bytes_of(pid: u32) -> Option<u64> {
    calls::memory_of(Some(pid)).map(|memory| memory.resident_bytes)
}

/// Bytes that this user may still write in a folder.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    calls::free_bytes(folder)
}

/// Parses a line of Linux's `/proc`, such as `VmRSS:  24683520 kB`; returns bytes.
pub fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Memory of a process.
struct ProcessMemory {
    resident_bytes: u64,
    peak_resident_bytes: u64,
}

#[cfg(all(test, any(target_os = "linux", windows)))]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_is_resident_and_stays_in_the_peak() {
        const BYTES: usize = 64 << 20;
        let before = resident_bytes().unwrap();
        let written = std::hint::black_box(vec![1_u8; BYTES]);
        // Linux counts pages by processor, and adds these up now and then.
        let least = before + BYTES as u64 * 9 / 10;
        let with = resident_bytes().unwrap();
        assert!(with >= least, "{with}, expected {least}");
        drop(written);
        let peak = peak_resident_bytes().unwrap();
        assert!(peak >= least, "{peak}, expected {least}");
        assert!(resident_bytes_of(std::process::id()).is_some());
        assert_eq!(resident_bytes_of(u32::MAX - 3), None);
    }

    #[test]
    fn disks_tell_what_is_free() {
        assert!(free_bytes(&std::env::temp_dir()).unwrap() > 0);
        assert_eq!(free_bytes(Path::new("no such folder")), None);
        // A file system without blocks.
        #[cfg(target_os = "linux")]
        assert_eq!(free_bytes(Path::new("/sys")), None);
    }
}
