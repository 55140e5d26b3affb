//! Clips to learn from: shapes that move, drawn from a seed, each with a caption that only time can tell.
//!
//! A shape of a colour moves left, right, up or down, slowly or quickly; some change their colour on the way, some grow, some shrink. At the
//! middle of a clip, place, size and colour are drawn alike for every direction, speed and change: `place(time) = middle + velocity (time - 1/2)`.
//! So the middle frame alone tells nothing of them. Of a change of colour it shows the first or the second, each as often.
//!
//! ```text
//! seed, index -> Story (what happens) -> caption, row of labels
//!                  |
//!                  +-> frames -> a folder of JPEG, a GIF, an AVI or an array
//! ```
//!
//! A clip depends on the seed, its index, the size and the number of frames, never on how many others there are.

mod caption;
mod folder;
mod frames;
mod story;

pub use folder::{ClipFormat, ClipsFolder, MovingShapesError, write};
pub use frames::draw;
pub use story::{Change, Direction, Paint, Shape, Speed, Story, describe};

/// Which set of clips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovingShapesConfig {
    /// How many clips; the last fifth is for validation.
    pub count: usize,
    /// Width and height in pixels.
    pub size: u32,
    /// Frames of a clip.
    pub frames: usize,
    /// Another seed, another set.
    pub seed: u64,
    /// What clips are stored as.
    pub format: ClipFormat,
}

/// Widths that shapes can be told apart at.
pub const MIN_SIZE: u32 = 32;
/// Largest width.
pub const MAX_SIZE: u32 = 1024;
/// A clip of fewer frames shows no movement.
pub const MIN_FRAMES: usize = 2;
/// Most frames of a clip.
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
