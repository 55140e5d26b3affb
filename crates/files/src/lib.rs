//! Files that are complete or absent, and checked when they are read.
//!
//! ```text
//! write:  NAME.partial is written and synced -> renamed to NAME -> the folder is synced
//! read:   opened without blocking -> a regular file, no larger than allowed -> read
//! check:  the checksum from the time of writing, compared when the file is read
//! ```
//!
//! A process killed at any of these points leaves the old file or the new one, never a mixture; so does a power loss.
//!
//! This is the lowest crate: it also holds number formatting, random numbers, the memory of processes, the limit of readers, and the header of `.npy` files.

mod checksum;
mod existing;
mod fnv;
mod folder;
mod memory_limit;
mod npy;
mod numbers;
mod open;
mod splitmix;
mod system;
mod write;

pub use checksum::{Checksum, NotAChecksum, RunningChecksum};
pub use existing::{Existing, Occupied};
pub use fnv::{FNV_START, fnv1a};
pub use folder::{copy_whole, create_folders, remove_folder, repair_folder, write_whole_folder};
pub use memory_limit::{OverLimit, check_memory, set_memory_limit};
pub use npy::{NpyError, NpyHeader};
pub use numbers::{counted, show_bytes, thousands};
pub use open::{open_regular, read_regular};
pub use splitmix::{GOLDEN, SplitMix64, mix};
#[cfg(windows)]
pub use system::{WindowsMemory, windows_memory};
pub use system::{free_bytes, kib_field, peak_resident_bytes, resident_bytes, resident_bytes_of};
pub use write::{
    partial, remove_file, rename, sync_folder, write_shared, write_whole, write_whole_by,
    write_whole_file,
};

use std::path::PathBuf;

/// Environment variable that replaces the system's cache folder.
pub const CACHE_VARIABLE: &str = "HOLDALL_CACHE";

/// Folder for files that can be recomputed; `None` where the environment names no cache folder.
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
