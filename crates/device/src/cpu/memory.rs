//! What the process holds, as the system counts it.

/// Resident memory now; `None` where the system does not tell.
pub fn resident_bytes() -> Option<u64> {
    holdall_files::resident_bytes()
}

/// Highest resident memory so far; `None` where the system does not tell.
pub fn peak_resident_bytes() -> Option<u64> {
    status_field("VmHWM:")
}

/// The same to the page. Since Linux 6.2 each processor keeps a count of its own, and `VmRSS` may be off by some pages for each;
/// here every page is looked at, which takes about a millisecond.
pub fn resident_bytes_exactly() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/smaps_rollup").ok();
    let exactly = pages.and_then(|text| super::limits::kib_field(&text, "Rss:"));
    exactly.or_else(resident_bytes)
}

/// Allocations from this size on are pages of their own, and go back to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES_BYTES: libc::c_int = 256 << 10;

/// Takes the guesswork out of the system's allocator, once, before threads are made. By itself it raises the size from which
/// allocations are pages of their own to that of whatever was freed last, up to 32 MiB, and each thread's heap then keeps its
/// largest buffer or not, by the order of events: what a run holds would differ from start to start. Settings from the
/// environment (`MALLOC_...`, `GLIBC_TUNABLES`) are overruled.
pub fn steady_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the calls take no pointers and set numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_PAGES_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, OWN_PAGES_BYTES);
        libc::mallopt(libc::M_TOP_PAD, 64 << 10);
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes no pointers. Where the system makes large pages unasked, only memory that asks for them gets them:
    // the arena. Before Linux 6.18 that cannot be said, and the call does nothing.
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

/// Gives freed memory back to the system, which the allocator may otherwise keep: planning makes and drops thousands of
/// small things, and what is left of them would differ from start to start.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call takes no pointer and only touches the allocator's own free lists, under its locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_os = "linux")]
fn status_field(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    super::limits::kib_field(&status, name)
}

// Other systems have their own calls for this; until one is written and tried there, nobody is told a wrong number.
#[cfg(not(target_os = "linux"))]
fn status_field(_name: &str) -> Option<u64> {
    None
}
