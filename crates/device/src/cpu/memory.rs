//! Resident memory of the process, as the system counts it.

pub use holdall_files::{peak_resident_bytes, resident_bytes};

/// Current resident memory, exact to the page. Since Linux 6.2 `VmRSS` sums per-processor counters lazily and may be off by some pages
/// per processor; this function walks all pages, which takes about a millisecond.
#[cfg(not(windows))]
pub fn resident_bytes_exactly() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/smaps_rollup").ok();
    let exactly = pages.and_then(|text| holdall_files::kib_field(&text, "Rss:"));
    exactly.or_else(resident_bytes)
}

/// Current resident memory: Windows counts exactly.
#[cfg(windows)]
pub fn resident_bytes_exactly() -> Option<u64> {
    resident_bytes()
}

/// Allocations from this size on have their own pages, which go back to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: libc::c_int = 256 << 10;

/// Memory of one freed buffer that the process may keep: after [`steady_allocator`], larger ones go back to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub const MAX_KEPT_BUFFER_BYTES: u64 = OWN_PAGES_BYTES as u64;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub const MAX_KEPT_BUFFER_BYTES: u64 = u64::MAX;

/// Makes the system's allocator deterministic; to be called once, before threads start. By default glibc raises the threshold for
/// allocations with their own pages to the size of the last one freed, up to 32 MiB, and whether each thread's heap keeps its largest
/// buffer depends on the order of events: memory would differ from run to run. Overrides settings from the environment
/// (`MALLOC_...`, `GLIBC_TUNABLES`).
pub fn steady_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls take no pointers and set parameters of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, OWN_PAGES_BYTES);
        libc::mallopt(libc::M_TOP_PAD, 64 << 10);
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes no pointers. On systems that use large pages by default, it restricts them to memory that requests them:
    // the arena. Before Linux 6.18 the kernel does not support this, and the call does nothing.
    unsafe {
        const EXCEPT_ADVISED: libc::c_ulong = 2;
        let nothing: libc::c_ulong = 0;
        libc::prctl(
            libc::PR_SET_THP_DISABLE,
            1 as libc::c_ulong,
            EXCEPT_ADVISED,
            nothing,
            nothing,
        );
    }
}

/// Gives freed memory back to the system, which the allocator may otherwise keep: planning makes thousands of small allocations, and
/// what is left of them would differ from run to run.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer and only touches the allocator's own free lists, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
