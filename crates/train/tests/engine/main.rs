//! The engine as a whole: against Hugging Face's numbers, and against itself under every split.

#![allow(clippy::unwrap_used)] // a test that cannot read its own fixture should stop

mod classify_golden;
mod classify_splits;
mod contrastive;
mod evaluation;
mod export;
mod fewer_bits;
mod freeze;
mod golden;
mod in_parts;
mod layout;
mod lora;
mod memory_map;
mod processes;
mod segment_golden;
mod segment_splits;
mod splits;
#[path = "../support/mod.rs"]
#[allow(dead_code)] // a few cases are for a card
mod support;
mod threads;
mod video_text_captions;
mod video_text_golden;
mod video_text_splits;
