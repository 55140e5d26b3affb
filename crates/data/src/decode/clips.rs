//! Clips: files or folders of frames -> sampled frames.
//!
//! ```text
//! file          detects a clip's format, counts its frames, decodes sampled frames into rows
//!   frame_folder  one picture per frame, in natural order
//!   animation     GIF and WebP: frames build on each other, so all up to the last sampled one are decoded
//!   npy           an array [t, h, w, 3] or [t, h, w] of bytes
//!   avi, mjpeg    Motion JPEG: one JPEG per frame
//!   video         MP4, MOV, MKV and others, by an installed `ffmpeg`; mp4_boxes counts frames without it
//! sampling      selects the frames of a clip
//! packing       the sampled frames of a clip, resized, as a file
//!   frame_files   frames as an AVI or an array
//! ```
//!
//! For every format, one frame at a time is held beside the row; frames that are not sampled are not kept.

mod animation;
mod avi;
mod file;
mod frame_files;
mod frame_folder;
mod gif_blocks;
mod mjpeg;
mod mp4_boxes;
mod npy;
mod packing;
mod sampling;
#[cfg(test)]
mod tests;
mod video;
mod webp_chunks;

pub use file::{ClipFile, size_and_time};
pub(crate) use file::{contents_of, first_bytes};
pub use frame_files::{avi, npy};
pub(crate) use packing::ClipPacking;
pub(crate) use sampling::{FrameChoice, chosen_videos};
pub(crate) use video::find_ffmpeg;

/// Limit on the frames of a clip; a longer file is an attack, or a film.
pub(crate) const MOST_FRAMES: usize = 100_000;
