//! The engine as a whole: against Hugging Face's numbers, and against itself under every split.

#![allow(clippy::unwrap_used)] // a test that cannot read its own fixture should stop

#[path = "engine/golden.rs"]
mod golden;
#[path = "engine/support.rs"]
mod support;
