//! Image files to square RGB pixels.
//!
//! Evaluation does to RGB pixels what the CLIP image processor of `transformers` does with the model's own
//! preprocessor_config.json ([`Framing`]): usually the shorter side becomes `size` with a bicubic filter (Pillow's,
//! a = -1/2, widened when it shrinks), then the middle is cut out. Alpha is dropped, as OpenAI's CLIP does; `transformers` 5.22
//! composites it over white. Training cuts out a random part instead. Either way only the pixels that are kept are computed, so a
//! picture of 1 x 65535 is no more expensive to resize than another.
//!
//! Formats that are read, and the distance of the pixels from those of Pillow and `transformers`, of 255, as the fixtures assert:
//!
//! | format | kinds | worst | mean |
//! |---|---|---|---|
//! | PNG | 1 to 16 bits, grey, RGB, palette, alpha; of an animation the first frame | 2 | 0.25 |
//! | WebP | lossy, lossless, alpha; of an animation the first frame | 2 | 0.25 |
//! | BMP | 1 to 32 bits, palette | 2 | 0.25 |
//! | TIFF | 1, 8 and 16 bits, grey, RGB, alpha, CMYK; strips, tiles, planes; LZW, deflate, PackBits | 2 | 0.25 |
//! | GIF | of an animation the first frame | 2 | 0.25 |
//! | PNM | PBM, PGM and PPM, as text or bytes, 8 and 16 bits | 2 | 0.25 |
//! | JPEG | baseline, progressive, grey, RGB, CMYK, YCCK, restarts, any subsampling | 2 | 0.25 |
//!
//! All are turned as EXIF says. Other kinds are refused by name (`refused.rs`). A file that is cut short is an error, unless
//! it has all its pixels.

mod augment;
mod colours;
mod decode;
mod frame;
mod framing;
mod geometry;
mod header;
mod jpeg;
mod native;
mod png;
mod refused;
mod smaller;
#[cfg(test)]
pub(crate) mod test_tiff;
#[cfg(test)]
mod tests;
mod thumbnail;
mod tiff;
mod webp;

use std::path::Path;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::metadata::Orientation;

use crate::config::{Augment, Decode};
use crate::decode::allowance::{Allowance, Claim, TooMuch};
use crate::decode::pair_buffers::{PairBuffers, PairCost};
use crate::error::DataError;
use augment::{Draw, mirror};
use geometry::Window;
use header::Header;

pub(crate) use decode::{broken, contained};
pub(crate) use frame::{
    FrameView, animated_webp_bytes, check_frame_size, check_webp, encoded_frame_cost, frame_cost,
    header_size,
};
pub use framing::{Filter, Framing, Resize};
pub(crate) use header::Cost;
pub(crate) use header::is_on_its_side;
pub use native::{Native, PixelDepth};
pub(crate) use native::{
    NativeCost, ReadAs, decode_native, native_cost, place_in_file, read_native, turned,
};
pub(crate) use refused::refused_kind;
pub use smaller::{FrameCoding, SmallerFormat};
pub(crate) use smaller::{SmallerFrame, SmallerFrames, smaller_mask, smaller_picture};
pub use thumbnail::thumbnail;

/// Red, green and blue.
pub const CHANNELS: usize = 3;

/// Buffers that one thread reuses for each picture.
#[derive(Debug, Default)]
pub struct Scratch {
    file: Vec<u8>,
    rgb: Vec<u8>,
    rows: Vec<u8>,
    pub(crate) pair: PairBuffers,
    pub(crate) resizer: Resizer,
    limits: Limits,
    needed: Needed,
    /// Pixels decoded since the last `take_num_pixels`.
    num_pixels: u64,
    /// EXIF orientation of the last decoded picture, which is upright in `rgb`.
    orientation: Option<Orientation>,
    /// Share of the memory allowance; without one, only the limits bound the buffers.
    claim: Option<Claim>,
}

impl Scratch {
    /// Buffers that count against an allowance.
    pub fn within(allowance: &Allowance) -> Scratch {
        Scratch {
            claim: Some(allowance.claim()),
            ..Scratch::default()
        }
    }

    /// Frees the buffers and returns their bytes to the allowance.
    pub fn free(&mut self) {
        self.free_buffers();
        if let Some(claim) = &mut self.claim {
            claim.give_back();
        }
    }

    /// Frees the buffers if another thread waits for the allowance.
    pub fn free_if_wanted(&mut self) {
        if self.claim.as_ref().is_some_and(Claim::is_wanted) {
            self.free();
        }
    }

    fn free_buffers(&mut self) {
        for buffer in [&mut self.file, &mut self.rgb, &mut self.rows] {
            *buffer = Vec::new();
        }
        self.pair = PairBuffers::default();
        self.resizer.reset_internal_buffers();
        holdall_buffers::release();
    }

    /// Claims memory for buffers that have grown to what a picture costs.
    fn make_room(&mut self, cost: Cost) -> Result<(), TooMuch> {
        let kept = |buffer: &Vec<u8>| buffer.capacity() as u64;
        let beside = kept(&self.rows) + self.resizer.size_of_internal_buffers() as u64;
        // The decoder's memory and the resizer's buffers exist at the same time.
        let grown = kept(&self.file).max(cost.file) + kept(&self.rgb).max(cost.pixels);
        let pair = self.pair.kept_bytes();
        holdall_buffers::keep_at_most(cost.beside);
        self.claim_bytes(grown + cost.beside + beside + pair, cost.total())
    }

    /// Like `make_room`, for a picture with its mask, which have buffers of their own.
    pub(crate) fn make_room_for_pair(&mut self, cost: &PairCost) -> Result<(), TooMuch> {
        let kept = |buffer: &Vec<u8>| buffer.capacity() as u64;
        let beside = kept(&self.rgb) + kept(&self.rows);
        let resizer = (self.resizer.size_of_internal_buffers() as u64).max(cost.resizer);
        let file = kept(&self.file).max(cost.file);
        let grown = file + self.pair.grown_bytes(cost) + resizer + cost.decoder + beside;
        holdall_buffers::keep_at_most(cost.decoder);
        self.claim_bytes(grown, cost.total())
    }

    /// Claims `grown` bytes, which keeps the existing buffers, or `fresh` bytes after freeing them.
    fn claim_bytes(&mut self, grown: u64, fresh: u64) -> Result<(), TooMuch> {
        let Some(mut claim) = self.claim.take() else {
            return Ok(());
        };
        let mut claimed = Ok(());
        // A thread that waits for memory holds none.
        if !claim.try_grow(grown) {
            self.free_buffers();
            if !claim.try_grow(fresh) {
                claimed = claim.exchange(fresh);
            }
        }
        self.claim = Some(claim);
        claimed
    }

    /// Returns and resets the number of pixels decoded.
    pub(crate) fn take_num_pixels(&mut self) -> u64 {
        std::mem::take(&mut self.num_pixels)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Buffers with other limits than the defaults.
    pub fn with_limits(limits: Limits) -> Scratch {
        Scratch {
            limits,
            ..Scratch::default()
        }
    }
}

/// Size limits of a picture; a larger one is refused before memory is reserved for it.
///
/// Reading a picture within these limits takes at most [`Limits::peak_bytes`], buffers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Width times height.
    pub most_pixels: u64,
    pub most_file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            most_pixels: 100_000_000,
            most_file_bytes: 1 << 30,
        }
    }
}

impl Limits {
    /// Memory that a decoder may reserve for the picture in these bytes.
    fn decoder_bytes(self, bytes: &[u8]) -> u64 {
        let file_bytes = bytes.len() as u64;
        match Header::of(bytes) {
            Some(header) if header.num_pixels() <= self.most_pixels => {
                // The strips of a TIFF count as reserved even where they are only read.
                header.cost(file_bytes, None, Needed::All).beside + file_bytes
            }
            _ => Cost::of_no_picture(file_bytes).beside,
        }
    }

    /// Upper bound of the memory for reading one picture: `tests/hostile.rs` checks every reader against it.
    ///
    /// Per pixel: 8 bytes of a decoder's coefficients or planes, 8 as decoded (four colours of 16 bits), 3 of RGB, 3 while
    /// it is turned, 1 of a mask's class. Some decoders hold the file a second time.
    pub fn peak_bytes(self) -> u64 {
        const PIXEL_BYTES: u64 = 8 + 8 + 3 + 3 + 1;
        // A lossy WebP may claim a partition of up to 16 MiB, which its decoder reserves unchecked.
        const TABLES: u64 = 24 << 20;
        self.most_pixels * PIXEL_BYTES + self.most_file_bytes * 2 + TABLES
    }
}

/// Resolution that is needed of a JPEG, which can be decoded at a reduced scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Needed {
    /// Every pixel.
    #[default]
    All,
    /// A part of this share of the area must still have `size` pixels to a side.
    Part { least: f64, size: u32 },
}

impl Needed {
    /// Divisor of width and height: 1, 2, 4 or 8.
    fn divisor(self, width: u32, height: u32) -> u32 {
        let Needed::Part { least, size } = self else {
            return 1;
        };
        // The shorter side of the smallest part, at 3:4; see `geometry::random_part`.
        let area = least * f64::from(width) * f64::from(height);
        let side = (area * 0.75).sqrt().min(f64::from(width.min(height)));
        let has_enough = |divisor: &u32| side / f64::from(*divisor) >= f64::from(size);
        [8, 4, 2].into_iter().find(has_enough).unwrap_or(1)
    }
}

/// Key of a picture's random augmentation: equal occasions give equal pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occasion {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    pub sample: u64,
}

/// Writes a picture as evaluation sees it: `framing.size` squared x 3 bytes, rows from the top.
///
/// # Panics
/// If `out` has another length.
pub fn evaluated_into(
    path: &Path,
    framing: Framing,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    check_length(out, framing.size);
    let rows = |width, height| {
        let window = geometry::middle(width, height, framing);
        framing.rows_needed(window, height)
    };
    let decoded = decode::decode(path, Some(framing), rows, scratch)?;
    evaluate(path, decoded, framing, scratch, out)
}

/// Like [`evaluated_into`], for a picture in memory; `path` is for messages.
///
/// # Panics
/// If `out` has another length.
pub fn evaluated_from(
    path: &Path,
    bytes: &[u8],
    framing: Framing,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    check_length(out, framing.size);
    let decoded = decode::decode_bytes(path, bytes, scratch)?;
    evaluate(path, decoded, framing, scratch, out)
}

fn evaluate(
    path: &Path,
    (width, height): (u32, u32),
    framing: Framing,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    let window = geometry::middle(width, height, framing);
    resize_as_pillow(path, scratch, (width, height), window, framing, out)
}

/// Writes a picture as training sees it on this occasion: a random part, perhaps mirrored or with jittered colours.
///
/// # Panics
/// If `out` is not `framing.size` squared x 3 long.
pub fn augmented_into(
    path: &Path,
    framing: Framing,
    (augment, decode): (Augment, Decode),
    occasion: Occasion,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    let size = framing.size;
    check_length(out, size);
    if decode == Decode::Fast {
        let least = augment.crop;
        scratch.needed = Needed::Part { least, size };
    }
    let rows = |width, height| {
        let draw = Draw::new((width, height), augment, occasion);
        framing.rows_needed(draw.window, height)
    };
    let decoded = decode::decode(path, Some(framing), rows, scratch);
    scratch.needed = Needed::All;
    let decoded = decoded?;
    let draw = Draw::new(decoded, augment, occasion);
    draw_into(path, decoded, draw, framing, scratch, out)
}

fn draw_into(
    path: &Path,
    (width, height): (u32, u32),
    draw: Draw,
    Framing { size, filter, .. }: Framing,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<(), DataError> {
    let Scratch { rgb, resizer, .. } = scratch;
    match filter.convolution() {
        None => nearest_into::<CHANNELS>(rgb, (width, height), draw.window, size, out),
        Some(filter) => resize(
            (path, resizer, filter),
            (rgb, width, height),
            draw.window,
            (out, size, size),
        )?,
    }
    if draw.is_mirrored {
        mirror::<CHANNELS>(out, size);
    }
    draw.colours.apply(out);
    Ok(())
}

/// Decodes a picture to check that it can be read; returns its width and height only.
pub fn probe(path: &Path, scratch: &mut Scratch) -> Result<(u32, u32), DataError> {
    decode::decode(path, None, |_, height| height, scratch)
}

/// Peak memory of reading a picture, from its header alone, and its width and height. An upper bound for evaluation and training alike.
///
/// A file that is no supported picture takes little; its width is 0.
pub fn cost(path: &Path, framing: Framing) -> Result<PictureCost, DataError> {
    let (_, file_bytes, header) = decode::header_of(path, Limits::default())?;
    let Some(header) = header else {
        return Ok(PictureCost {
            width: 0,
            height: 0,
            bytes: Cost::of_no_picture(file_bytes).total(),
        });
    };
    decode::check_size(path, header.width, header.height, Limits::default())?;
    Ok(PictureCost {
        width: header.width,
        height: header.height,
        bytes: header.cost(file_bytes, Some(framing), Needed::All).total(),
    })
}

/// Memory for resizing a picture, in either orientation: buffers that are kept for the next one.
pub(crate) fn resizer_bytes((width, height): (u32, u32), framing: Framing) -> u64 {
    let sides = (u64::from(width), u64::from(height));
    let turned = (sides.1, sides.0);
    header::resize_bytes(sides, framing).max(header::resize_bytes(turned, framing))
}

/// Like [`cost`], for a picture in memory.
pub fn cost_from(bytes: &[u8], framing: Framing) -> u64 {
    let file_bytes = bytes.len() as u64;
    let cost = match Header::of(bytes) {
        Some(header) => header.cost(file_bytes, Some(framing), Needed::All),
        None => Cost::of_no_picture(file_bytes),
    };
    cost.total()
}

/// Size of a picture and the memory for reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureCost {
    /// Width in pixels, as stored in the file.
    pub width: u32,
    /// Height in pixels, as stored in the file.
    pub height: u32,
    /// Peak memory in bytes, including the file.
    pub bytes: u64,
}

impl Scratch {
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// Pixels of the picture decoded last, upright: rows from the top, red, green and blue.
    pub(crate) fn rgb(&self) -> &[u8] {
        &self.rgb
    }
}

/// Resizes horizontally, then vertically, like Pillow: the filter's overshoot is clamped in between, so the order
/// shows at hard edges (by up to 6 of 255). A single two-dimensional call would go vertically first, which is faster.
fn resize_as_pillow(
    path: &Path,
    scratch: &mut Scratch,
    (width, height): (u32, u32),
    window: Window,
    Framing { size, filter, .. }: Framing,
    out: &mut [u8],
) -> Result<(), DataError> {
    let Some(convolution) = filter.convolution() else {
        nearest_into::<CHANNELS>(&scratch.rgb, (width, height), window, size, out);
        return Ok(());
    };
    let (first, last) = window.rows_in_reach(height, size, filter);
    let num_rows = last - first;
    let across = Window {
        top: f64::from(first),
        height: f64::from(num_rows),
        ..window
    };
    let down = Window {
        left: 0.0,
        top: window.top - f64::from(first),
        width: f64::from(size),
        height: window.height,
    };
    let Scratch {
        rgb, rows, resizer, ..
    } = scratch;
    decode::sized(rows, size as usize * num_rows as usize * CHANNELS);
    resize(
        (path, resizer, convolution),
        (rgb, width, height),
        across,
        (rows, size, num_rows),
    )?;
    resize(
        (path, resizer, convolution),
        (rows, size, num_rows),
        down,
        (out, size, size),
    )
}

fn resize(
    (path, resizer, filter): (&Path, &mut Resizer, FilterType),
    (source, source_width, source_height): (&[u8], u32, u32),
    window: Window,
    (target, target_width, target_height): (&mut [u8], u32, u32),
) -> Result<(), DataError> {
    let failed = |cause: &dyn std::fmt::Display| DataError::broken_picture(path, cause);
    // The typed call: the untyped one would compile every kernel for every pixel type.
    let source = TypedImageRef::<U8x3>::from_buffer(source_width, source_height, source)
        .map_err(|cause| failed(&cause))?;
    let mut target = TypedImage::<U8x3>::from_buffer(target_width, target_height, target)
        .map_err(|cause| failed(&cause))?;
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(filter))
        .crop(window.left, window.top, window.width, window.height)
        .use_alpha(false);
    // Growing buffers that hold an earlier picture's rows would double their memory.
    let most_bytes = (window.width.ceil() as usize + 16) * target_height as usize * CHANNELS;
    if resizer.size_of_internal_buffers() < most_bytes {
        resizer.reset_internal_buffers();
    }
    resizer
        .resize_typed(&source, &mut target, &options)
        .map_err(|cause| failed(&cause))
}

/// Pillow's nearest neighbour: the pixel of `N` bytes under the middle of each pixel of the result.
fn nearest_into<const N: usize>(
    source: &[u8],
    (width, height): (u32, u32),
    window: Window,
    size: u32,
    out: &mut [u8],
) {
    let place = |start: f64, span: f64, sides: u32, at: usize| {
        let middle = start + (at as f64 + 0.5) * span / f64::from(size);
        // The cast saturates at 0; rounding may reach the end.
        (middle as u32).min(sides - 1) as usize
    };
    let columns: Vec<usize> = (0..size as usize)
        .map(|at| place(window.left, window.width, width, at))
        .collect();
    for (at, row) in out.chunks_exact_mut(size as usize * N).enumerate() {
        let start = place(window.top, window.height, height, at) * width as usize * N;
        let source = &source[start..start + width as usize * N];
        for (pixel, column) in row.chunks_exact_mut(N).zip(&columns) {
            pixel.copy_from_slice(&source[column * N..(column + 1) * N]);
        }
    }
}

fn check_length(out: &[u8], size: u32) {
    let expected = size as usize * size as usize * CHANNELS;
    assert_eq!(out.len(), expected, "bytes of a picture of {size} x {size}");
}
