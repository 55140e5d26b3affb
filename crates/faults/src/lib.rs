//! Faults for tests: a library that is preloaded into a process (`LD_PRELOAD`) and makes one of its calls go wrong.
//!
//! ```text
//! the program -> open, write, fsync, rename, ...   -> here -> the system
//!             -> cuMemAlloc, cublasLtMatmul, ...   -> here -> the GPU's libraries, which the program opens at run time
//! ```
//!
//! A call is addressed by what it does to which file for the how-many-th time, so that the same fault is met again whatever the
//! threads do. Four variables say what happens:
//!
//! | variable | meaning |
//! |---|---|
//! | `HOLDALL_FAULT_UNDER` | only files below this folder are watched |
//! | `HOLDALL_FAULT` | `OPERATION FILE OCCURRENCE ACTION`, with tabs between; FILE is relative to that folder, or the name of a library's function |
//! | `HOLDALL_FAULT_CALLS` | at the end, every operation and file is written there with the number of its calls |
//! | `HOLDALL_FAULT_PEAK` | at the end, the most memory that was resident is written there, in bytes |
//!
//! | action | what happens |
//! |---|---|
//! | `once:N` | the call fails with error N and does nothing |
//! | `always:N` | so do all later calls that write below the folder: the disk is full and stays so |
//! | `half:N` | a write writes half of its bytes, and the next one fails with error N |
//! | `kill` | the process is killed instead of the call |
//! | `torn` | a write writes half of its bytes, then the process is killed |
//!
//! Linux on x86-64 alone; elsewhere it is empty, and tests that need it say that they were skipped.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod files;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod libraries;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod watch;
