//! How evaluation makes a square of a picture: target size, filter, and the middle that is kept.

use fast_image_resize::FilterType;

use super::geometry::Window;

/// Size that a picture is resized to before its middle is cut out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side gets this many pixels, the longer one in proportion, rounded down.
    Shorter(u32),
    /// Both sides get a fixed number of pixels, whatever the proportions.
    Exactly {
        /// In pixels, like the height.
        width: u32,
        height: u32,
    },
}

impl Resize {
    /// Width and height of a resized picture.
    pub(super) fn of(self, width: u32, height: u32) -> [u64; 2] {
        let shorter = u64::from(width.min(height));
        match self {
            Resize::Shorter(size) => {
                [width, height].map(|side| u64::from(side) * u64::from(size) / shorter)
            }
            Resize::Exactly { width, height } => [width, height].map(u64::from),
        }
    }
}

/// Pillow's filters, widened when a picture shrinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The nearest pixel; not widened.
    Nearest,
    /// Lanczos, three pixels to either side.
    Lanczos,
    /// Triangle filter.
    Bilinear,
    /// Cubic, a = -1/2.
    Bicubic,
    /// Mean over a box.
    Box,
    Hamming,
}

impl Filter {
    /// The convolution filter; `None` for the nearest pixel.
    pub(super) fn convolution(self) -> Option<FilterType> {
        match self {
            Filter::Nearest => None,
            Filter::Lanczos => Some(FilterType::Lanczos3),
            Filter::Bilinear => Some(FilterType::Bilinear),
            Filter::Bicubic => Some(FilterType::CatmullRom),
            Filter::Box => Some(FilterType::Box),
            Filter::Hamming => Some(FilterType::Hamming),
        }
    }

    /// Pixels read to either side, when the filter is not widened.
    pub(super) fn reach(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box | Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    /// Name in Pillow.
    pub fn name(self) -> &'static str {
        match self {
            Filter::Nearest => "nearest",
            Filter::Lanczos => "lanczos",
            Filter::Bilinear => "bilinear",
            Filter::Bicubic => "bicubic",
            Filter::Box => "box",
            Filter::Hamming => "hamming",
        }
    }
}

/// How a picture becomes a square: resizing, filter and crop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Side of the square in pixels. The resized picture has at least as many.
    pub size: u32,
    /// Resizing in evaluation; training takes a random part instead.
    pub resize: Resize,
    /// Resizing filter, in training too.
    pub filter: Filter,
}

impl Framing {
    /// Rows from the top that the filter reads when this part of a picture becomes the square.
    pub(super) fn rows_needed(&self, window: Window, height: u32) -> u32 {
        window.rows_in_reach(height, self.size, self.filter).1
    }

    /// OpenAI's framing: the shorter side becomes `size` with the bicubic filter, and the middle is kept.
    pub fn clip(size: u32) -> Framing {
        Framing {
            size,
            resize: Resize::Shorter(size),
            filter: Filter::Bicubic,
        }
    }
}
