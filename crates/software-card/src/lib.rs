//! A GPU in software, for tests: one library that replaces NVIDIA's driver, NVRTC, cuBLASLt, cuDNN, NVML and NCCL.
//!
//! The program finds the library under the names of the real ones, and calls the same functions with the same kernels. Work that is
//! enqueued in a stream runs only when the program waits, and streams take turns in an order drawn from a seed: a missing event or wait
//! shows up as a wrong result. The machine's C++ compiler compiles the kernels, threads of a block run as fibers, and uninitialised memory
//! holds NaNs.
//!
//! ```text
//! model      which card: HOLDALL_SOFTWARE_GPU
//! foreign    pointers that callers hand over
//! memory     the card's memory: counted, guarded, poisoned
//! streams    streams, events, captured graphs, and the order of work
//! driver     libcuda: the calls
//! nvrtc      libnvrtc: kernels through g++ or clang++
//! module     loaded kernels, and launches over the cores
//! faults     signals of kernels as errors of the card
//! products   libcublasLt
//! cudnn      libcudnn: convolutions
//! nvml       libnvidia-ml: readings
//! nccl       libnccl: exchanges between processes
//! numbers    number formats, and the product of two matrices
//! ```
//!
//! Time is that of a model card, not of this machine: a product takes its number of operations divided by a rate. Times between events
//! are therefore the same in every run.

#![cfg(target_os = "linux")]
#![allow(non_snake_case)] // exported functions have the names that NVIDIA's headers give them

mod cudnn;
mod driver;
mod faults;
mod foreign;
mod memory;
mod model;
mod module;
mod nccl;
mod numbers;
mod nvml;
mod nvrtc;
mod products;
mod streams;
