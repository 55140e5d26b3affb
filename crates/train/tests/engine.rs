//! The engine as a whole: against Hugging Face's numbers, and against itself under every split.

#![allow(clippy::unwrap_used)] // a test that cannot read its own fixture should stop

#[path = "engine/caption_case.rs"]
mod caption_case;
#[path = "engine/classify_golden.rs"]
mod classify_golden;
#[path = "engine/classify_splits.rs"]
mod classify_splits;
#[path = "engine/contrastive.rs"]
mod contrastive;
#[path = "engine/evaluation.rs"]
mod evaluation;
#[path = "engine/export.rs"]
mod export;
#[path = "engine/fewer_bits.rs"]
mod fewer_bits;
#[path = "engine/freeze.rs"]
mod freeze;
#[path = "engine/golden.rs"]
mod golden;
#[path = "engine/in_parts.rs"]
mod in_parts;
#[path = "engine/layout.rs"]
mod layout;
#[path = "engine/lora.rs"]
mod lora;
#[path = "engine/memory_map.rs"]
mod memory_map;
#[path = "engine/parts_case.rs"]
mod parts_case;
#[path = "engine/processes.rs"]
mod processes;
#[path = "engine/segment_golden.rs"]
mod segment_golden;
#[path = "engine/segment_splits.rs"]
mod segment_splits;
#[path = "engine/splits.rs"]
mod splits;
#[path = "engine/support.rs"]
mod support;
#[path = "engine/threads.rs"]
mod threads;
#[path = "engine/video_text_captions.rs"]
mod video_text_captions;
#[path = "engine/video_text_case.rs"]
mod video_text_case;
#[path = "engine/video_text_golden.rs"]
mod video_text_golden;
#[path = "engine/video_text_splits.rs"]
mod video_text_splits;
