//! One file per command.

pub mod bench_clip;
pub mod data_sample;
pub mod demo;
pub mod eval;
pub mod plan;
pub mod predict;
pub mod train;
pub mod verify;
