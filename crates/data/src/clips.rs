//! Clips: files or folders of frames -> the frames that are seen -> rows of the loader.
//!
//! ```text
//! file          what a clip is told by, how many frames it has, and any of them as a model sees it
//!   frame_folder  a picture a frame, in natural order
//!   animation     GIF and WebP: frames build on each other, so all up to the last that is wanted are decoded
//!   npy           an array [t, h, w, 3] or [t, h, w] of bytes
//!   avi, mjpeg    Motion JPEG: a JPEG a frame
//!   video         MP4, MOV, MKV and others, by an installed `ffmpeg`; mp4_boxes knows how many frames without it
//! sampling      which frames of a clip are seen
//! framing       a sample's clips -> a row
//! packing       the frames that are seen of a clip, resized, as a file of their own
//!   frame_files   frames as an AVI or an array
//! ```
//!
//! Whatever the format, one frame is held at a time beside the row, and the frames that are not wanted are not kept.

mod animation;
mod avi;
mod file;
mod frame_files;
mod frame_folder;
mod framing;
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

pub(crate) use file::needs_ffmpeg;
pub use file::{ClipFile, is_clip_name, size_and_time};
pub(crate) use frame_files::{avi, npy};
pub use framing::ClipFraming;
pub(crate) use packing::ClipPacking;
pub(crate) use video::find_ffmpeg;

/// Frames of a clip that are counted; more are an attack, or a film.
pub(crate) const MOST_FRAMES: usize = 100_000;
