//! Measures the process's memory during ranking, and keeps it within the limit.
//!
//! Pages of mapped files count as resident memory once they have been read, although the system may reclaim them at any time.
//! The limit is kept by dropping them before they are too many (`Inputs::meter`); reading them again from the file is slower than
//! memory, but better than failing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdall_files::kib_field;

/// Sampling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// Division of a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Memory that the limit leaves.
    pub free_bytes: u64,
    /// Share for ranking.
    pub work_bytes: u64,
    /// Share for pages of mapped files; `None` if all of them fit.
    pub mapped_bytes: Option<u64>,
}

impl Shares {
    /// Divides free memory. Features of up to half of it stay resident; larger ones get a quarter, and are streamed.
    pub fn of(free_bytes: u64, features_bytes: u64) -> Shares {
        let (work_bytes, mapped_bytes) = if features_bytes <= free_bytes / 2 {
            (free_bytes - features_bytes, None)
        } else {
            (free_bytes - free_bytes / 4, Some(free_bytes / 4))
        };
        Shares {
            free_bytes,
            work_bytes,
            mapped_bytes,
        }
    }

    /// Free memory needed so that ranking gets `work_bytes`.
    pub fn least_free_bytes(work_bytes: u64, features_bytes: u64) -> u64 {
        if features_bytes < work_bytes {
            work_bytes.saturating_add(features_bytes)
        } else {
            work_bytes.saturating_add(work_bytes.div_ceil(3))
        }
    }
}

/// Resident memory without file pages; `None` where the system does not report it.
fn private_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(kib_field(&status, "RssAnon:")? + kib_field(&status, "RssShmem:")?)
}

/// Runs `work` while a thread samples memory. Returns the peak of private bytes.
pub fn watched<R>(work: impl FnOnce() -> R) -> (R, Option<u64>) {
    let (is_done, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let look = || match private_bytes() {
        Some(bytes) => {
            most.fetch_max(bytes, Ordering::Relaxed);
            true
        }
        None => false,
    };
    let result = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) && look() {
                std::thread::park_timeout(PAUSE);
            }
        });
        let result = work();
        is_done.store(true, Ordering::Relaxed);
        watch.thread().unpark();
        result
    });
    look();
    let most = most.into_inner();
    (result, (most > 0).then_some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_stay_where_they_leave_half() {
        let shares = Shares::of(100, 50);
        assert_eq!((shares.work_bytes, shares.mapped_bytes), (50, None));
        let shares = Shares::of(100, 51);
        assert_eq!((shares.work_bytes, shares.mapped_bytes), (75, Some(25)));
    }

    #[test]
    fn the_least_free_bytes_are_enough() {
        for work_bytes in 1..200 {
            for features_bytes in 1..400 {
                let free_bytes = Shares::least_free_bytes(work_bytes, features_bytes);
                let shares = Shares::of(free_bytes, features_bytes);
                assert!(
                    shares.work_bytes >= work_bytes,
                    "{work_bytes} {features_bytes}: {shares:?}"
                );
            }
        }
    }

    #[test]
    #[cfg_attr(
        not(target_os = "linux"),
        ignore = "NOT CHECKED: this system has no /proc"
    )]
    fn memory_held_meanwhile_is_seen() {
        let before = private_bytes().unwrap();
        let ((), most) = watched(|| {
            let block = vec![1u8; 32 << 20];
            std::thread::sleep(4 * PAUSE);
            assert_eq!(
                block.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
                32 << 20
            );
        });
        assert!(most.unwrap() >= before + (30 << 20));
    }
}
