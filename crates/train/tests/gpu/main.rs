//! Training on a GPU: against the CPU, against itself, and against what was forecast.
//!
//! Without a card everything is skipped, aloud; with `HOLDALL_REQUIRE_GPU` set that fails. `--nocapture` shows the numbers.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up should stop

mod captions;
mod card;
mod classify;
mod evaluation;
mod forecast;
mod freeze;
mod host_state;
mod in_parts;
mod overflow;
mod processes;
mod restored;
mod segment;
mod splits;
mod state_formats;
#[path = "../support/mod.rs"]
#[allow(dead_code)] // what reads golden files is for the CPU's tests
mod support;
mod training;
mod video_text;
