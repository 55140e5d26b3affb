//! Clips to train on: moving shapes, drawn from a seed, each with a caption that only the order of frames reveals.
//!
//! A coloured shape moves left, right, up or down, slowly or quickly; some shapes change colour on the way, some grow, some shrink. At the
//! middle of a clip, position, size and colour have the same distribution for every direction, speed and change: `place(time) = middle +
//! velocity (time - 1/2)`. So the middle frame alone reveals none of them. With a change of colour it shows the first or the second colour,
//! each as often.
//!
//! ```text
//! seed, index -> Story (attributes) -> caption, CSV row of labels
//!                  |
//!                  +-> frames -> a folder of JPEG, a GIF, an AVI or an array
//! ```
//!
//! A clip depends on the seed, its index, the size and the number of frames, never on the number of clips.

mod caption;
mod folder;
mod frames;
mod story;

pub use folder::{ClipFormat, ClipsFolder, MovingShapesError, write};
pub use frames::draw;
pub use story::{Change, Direction, Paint, Shape, Speed, Story, describe};

/// Parameters of a set of clips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovingShapesConfig {
    /// Number of clips; the last fifth is for validation.
    pub count: usize,
    /// Width and height in pixels.
    pub size: u32,
    /// Frames per clip.
    pub frames: usize,
    pub seed: u64,
    pub format: ClipFormat,
}

/// Smallest width at which shapes are distinguishable.
pub const MIN_SIZE: u32 = 32;
pub const MAX_SIZE: u32 = 1024;
/// A clip of fewer frames shows no movement.
pub const MIN_FRAMES: usize = 2;
pub const MAX_FRAMES: usize = 1024;

impl Default for MovingShapesConfig {
    fn default() -> MovingShapesConfig {
        MovingShapesConfig {
            count: 400,
            size: 96,
            frames: 16,
            seed: 0,
            format: ClipFormat::Frames,
        }
    }
}
