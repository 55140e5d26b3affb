//! One file per command.

pub mod bench_clip;
pub mod plan;
pub mod verify;
