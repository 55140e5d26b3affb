//! Fault injection for tests: a library that is preloaded into a process (`LD_PRELOAD`) and makes one call fail.
//!
//! ```text
//! the program -> open, write, fsync, rename, ...   -> here -> the system
//!             -> cuMemAlloc, cublasLtMatmul, ...   -> here -> the GPU's libraries, which the program opens at run time
//! ```
//!
//! A call is addressed by operation, file and occurrence (the n-th call), so that a fault hits the same call whatever the timing of the
//! threads. Four environment variables control it:
//!
//! | variable | meaning |
//! |---|---|
//! | `HOLDALL_FAULT_UNDER` | only files below this folder are watched |
//! | `HOLDALL_FAULT` | `OPERATION FILE OCCURRENCE ACTION`, with tabs between; FILE is relative to that folder, or the name of a library's function |
//! | `HOLDALL_FAULT_CALLS` | file that receives, at the end, every operation and file with its number of calls |
//! | `HOLDALL_FAULT_PEAK` | file that receives, at the end, the peak resident memory in bytes |
//!
//! | action | what happens |
//! |---|---|
//! | `once:N` | the call fails with error N and does nothing |
//! | `always:N` | the call and all later calls that write below the folder fail with error N: the disk is full and stays full |
//! | `half:N` | a write writes half of its bytes, and the next one fails with error N |
//! | `kill` | the process is killed instead of the call |
//! | `torn` | a write writes half of its bytes, then the process is killed |
//!
//! Linux on x86-64 only; elsewhere the library is empty, and tests that need it report that they were skipped.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod files;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod libraries;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod watch;
