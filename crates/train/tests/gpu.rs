//! Training on a GPU: against the CPU, against itself, and against what was forecast.
//!
//! Without a card everything is skipped, aloud; with `HOLDALL_REQUIRE_GPU` set that fails. `--nocapture` shows the numbers.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up should stop

#[path = "engine/caption_case.rs"]
mod caption_case;
#[path = "gpu/captions.rs"]
mod captions;
#[path = "gpu/card.rs"]
mod card;
#[path = "gpu/classify.rs"]
mod classify;
#[path = "gpu/evaluation.rs"]
mod evaluation;
#[path = "gpu/forecast.rs"]
mod forecast;
#[path = "gpu/freeze.rs"]
mod freeze;
#[path = "gpu/host_state.rs"]
mod host_state;
#[path = "gpu/in_parts.rs"]
mod in_parts;
#[path = "gpu/overflow.rs"]
mod overflow;
#[path = "engine/parts_case.rs"]
mod parts_case;
#[path = "gpu/processes.rs"]
mod processes;
#[path = "gpu/restored.rs"]
mod restored;
#[path = "gpu/segment.rs"]
mod segment;
#[path = "gpu/splits.rs"]
mod splits;
#[path = "gpu/state_formats.rs"]
mod state_formats;
#[path = "engine/support.rs"]
#[allow(dead_code)] // what reads golden files is for the CPU's tests
mod support;
#[path = "gpu/training.rs"]
mod training;
#[path = "gpu/video_text.rs"]
mod video_text;
#[path = "engine/video_text_case.rs"]
mod video_text_case;
