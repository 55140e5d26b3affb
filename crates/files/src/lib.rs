//! Files that are whole or not there, and are what they seem.
//!
//! ```text
//! write:  NAME.partial, written and on disk -> renamed to NAME -> the folder on disk
//! read:   opened without waiting -> a regular file, no larger than allowed -> read
//! check:  a checksum, taken when it was written, compared when it is read
//! ```
//!
//! A process killed at any of these points leaves the old file or the new one, never a mixture; a machine that loses power, too.
//!
//! The lowest crate: how numbers are written for people, and drawn at random, and what readers may hold, is here as well.

mod checksum;
mod existing;
mod fnv;
mod folder;
mod memory_limit;
mod numbers;
mod open;
mod splitmix;
mod write;

pub use checksum::{Checksum, NotAChecksum, RunningChecksum};
pub use existing::{Existing, Occupied};
pub use fnv::{FNV_START, fnv1a};
pub use folder::{copy_whole, create_folders, remove_folder, repair_folder, write_whole_folder};
pub use memory_limit::{OverLimit, check_memory, resident_bytes, set_memory_limit};
pub use numbers::{counted, show_bytes, thousands};
pub use open::{open_regular, read_regular};
pub use splitmix::{GOLDEN, SplitMix64, mix};
pub use write::{
    partial, sync_folder, write_shared, write_whole, write_whole_by, write_whole_file,
};

use std::path::{Path, PathBuf};

/// Names the folder of caches, where it should be another than the system's.
pub const CACHE_VARIABLE: &str = "HOLDALL_CACHE";

/// Where what can be made again is kept; `None` where the environment names no folder for such things.
pub fn cache_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let base = || {
        if cfg!(windows) {
            Some(folder("LOCALAPPDATA")?.join("holdall"))
        } else {
            Some(
                folder("XDG_CACHE_HOME")
                    .or_else(|| Some(folder("HOME")?.join(".cache")))?
                    .join("holdall"),
            )
        }
    };
    folder(CACHE_VARIABLE).or_else(base)
}

/// Bytes that may still be written in a folder by whoever asks; `None` where the system does not tell.
#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // Some file systems have no blocks to count: they say zero of zero.
    let free = disk.f_bavail.checked_mul(disk.f_frsize)?;
    (disk.f_blocks > 0).then_some(free)
}

// Windows has its own call for this; until it is written and tried there, nobody is told a wrong number.
#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_blocks_tells_nothing() {
        assert!(free_bytes(&std::env::temp_dir()).is_some());
        assert_eq!(free_bytes(Path::new("/sys")), None);
    }
}
