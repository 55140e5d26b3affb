//! A sample to a row: its picture and its mask, fitted and changed as one.
//!
//! ```text
//! whole    files at their own size
//! base     the same, or resized to the row: what a cache keeps
//! row      what training or evaluation sees: the base, a part of it, or the base and padding around it
//! ```

use std::sync::Arc;

use super::coding::MaskCoding;
use super::fit::{padding_pixel, resize_mask, resize_pixels};
use super::row::{IGNORED, RowShape};
use super::whole::{WholePicture, read_into};
use crate::error::DataError;
use crate::picture::{Limits, NativeCost, Occasion, PictureCost, Scratch, native_cost};
use crate::random::{Purpose, Random};
use crate::samples::Samples;

/// How a picture becomes as large as a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// It is resized, whatever its proportions.
    Resize,
    /// It keeps its size, and there is padding to its right and below.
    Pad,
    /// Training sees a part of it, at its own size; evaluation through a loader the middle.
    Patch {
        /// The share of the parts that are laid around a pixel of some class other than the background.
        foreground: f64,
    },
}

/// How a sample becomes a row.
#[derive(Clone, Debug, PartialEq)]
pub struct PairFraming {
    /// The row.
    pub shape: RowShape,
    /// How a picture becomes as large.
    pub fit: Fit,
    /// What masks hold.
    pub coding: Arc<MaskCoding>,
    /// What padding pixels are, a value for each channel: as near to the mean as bytes allow, so that they are zero once they are normalised.
    pub padding: Vec<u16>,
}

/// Buffers for pairs that one thread uses again.
#[derive(Debug, Default)]
pub(crate) struct PairBuffers {
    decoded: Vec<u8>,
    whole: WholePicture,
    base: WholePicture,
}

/// What reading a pair takes, by buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairCost {
    pub file: u64,
    decoded: u64,
    pixels: u64,
    mask: u64,
    base_pixels: u64,
    base_mask: u64,
    /// What a decoder holds beside them.
    pub decoder: u64,
    pub resizer: u64,
}

impl PairCost {
    pub(crate) fn total(&self) -> u64 {
        self.file
            + self.decoded
            + self.pixels
            + self.mask
            + self.base_pixels
            + self.base_mask
            + self.decoder
            + self.resizer
    }
}

impl PairBuffers {
    fn buffers(&self) -> [u64; 5] {
        let kept = |buffer: &Vec<u8>| buffer.capacity() as u64;
        let mask = |picture: &WholePicture| picture.mask.as_ref().map_or(0, kept);
        [
            kept(&self.decoded),
            kept(&self.whole.pixels),
            mask(&self.whole),
            kept(&self.base.pixels),
            mask(&self.base),
        ]
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.buffers().iter().sum()
    }

    /// What they are once they have held a pair of this cost.
    pub(crate) fn grown_bytes(&self, cost: &PairCost) -> u64 {
        let [decoded, pixels, mask, base_pixels, base_mask] = self.buffers();
        // The first two change places.
        let either = cost.decoded.max(cost.pixels);
        decoded.max(either)
            + pixels.max(either)
            + mask.max(cost.mask)
            + base_pixels.max(cost.base_pixels)
            + base_mask.max(cost.base_mask)
    }
}

impl PairFraming {
    /// What reading a sample takes at its peak, from headers alone, and the width and height of its image.
    pub fn cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        let (cost, image) = self.cost_by_buffer(samples, sample, Limits::default())?;
        Ok(PictureCost {
            width: image.native.width,
            height: image.native.height,
            bytes: cost.total(),
        })
    }

    fn cost_by_buffer(
        &self,
        samples: &Samples,
        sample: usize,
        limits: Limits,
    ) -> Result<(PairCost, NativeCost), DataError> {
        let image = native_cost(&samples.image_path(sample), limits)?;
        let mut cost = PairCost::default();
        let mut add = |file: NativeCost| {
            cost.file = cost.file.max(file.file);
            cost.decoded = cost.decoded.max(file.pixels);
            cost.decoder = cost.decoder.max(file.beside);
        };
        add(image);
        let companions = [
            samples.mask_path(sample),
            samples.field_of_view_path(sample),
        ];
        let companions = companions.into_iter().flatten();
        for path in companions.chain(samples.further_image_paths(sample)) {
            add(native_cost(&path, limits)?);
        }
        let num_pixels = image.native.num_pixels() as u64;
        cost.pixels = (num_pixels * self.shape.pixel_bytes() as u64).max(cost.decoded);
        cost.decoded = cost.pixels;
        cost.mask = num_pixels;
        if self.fit == Fit::Resize {
            cost.base_pixels = self.shape.pixels().len() as u64;
            cost.base_mask = self.shape.num_pixels() as u64;
            cost.resizer = self.resizer_bytes(image);
        }
        Ok((cost, image))
    }

    /// Pixels between the two passes of a resize, its weights, and copies of a channel where there are not one or three of 8 bits.
    fn resizer_bytes(&self, image: NativeCost) -> u64 {
        let (width, height) = (
            u64::from(image.native.width),
            u64::from(image.native.height),
        );
        let (to_width, to_height) = (self.shape.width as u64, self.shape.height as u64);
        let between = (to_width * height).max(width * to_height) * self.shape.pixel_bytes() as u64;
        let weights = 64 * (width + height + to_width + to_height);
        let channel = 2 * (width * height + to_width * to_height);
        between + weights + channel
    }

    /// Writes a row of a sample: as evaluation sees it, or as training does on an occasion.
    ///
    /// # Panics
    /// If `row` has another length.
    pub fn write_row(
        &self,
        samples: &Samples,
        sample: usize,
        occasion: Option<Occasion>,
        scratch: &mut Scratch,
        row: &mut [u8],
    ) -> Result<(), DataError> {
        assert_eq!(row.len(), self.shape.row_bytes(), "bytes of a row");
        let (cost, image) = self.cost_by_buffer(samples, sample, scratch.limits())?;
        scratch
            .make_room_for_pair(&cost)
            .map_err(|refused| DataError::PictureOverBudget {
                path: samples.image_path(sample),
                width: image.native.width,
                height: image.native.height,
                needed_bytes: cost.total(),
                allowed_bytes: refused.allowed_bytes,
            })?;
        let mut buffers = std::mem::take(&mut scratch.pair);
        let written = self.read_base(samples, sample, scratch, &mut buffers);
        let written = written.and_then(|()| self.draw(self.base_of(&buffers), occasion, row));
        scratch.pair = buffers;
        written
    }

    /// Where [`PairFraming::read_base`] left the base: at its own size the picture is it.
    fn base_of<'a>(&self, buffers: &'a PairBuffers) -> &'a WholePicture {
        match self.fit {
            Fit::Resize => &buffers.base,
            Fit::Pad | Fit::Patch { .. } => &buffers.whole,
        }
    }

    /// Reads a sample.
    fn read_base(
        &self,
        samples: &Samples,
        sample: usize,
        scratch: &mut Scratch,
        buffers: &mut PairBuffers,
    ) -> Result<(), DataError> {
        let PairBuffers {
            decoded,
            whole,
            base,
        } = buffers;
        whole.channels = self.shape.channels;
        whole.depth = self.shape.depth;
        read_into(samples, sample, Some(&self.coding), scratch, decoded, whole)?;
        if self.fit != Fit::Resize {
            return Ok(());
        }
        let shape = self.shape;
        (base.width, base.height) = (shape.width, shape.height);
        (base.channels, base.depth) = (shape.channels, shape.depth);
        base.pixels.resize(shape.pixels().len(), 0);
        resize_pixels(whole, shape, &mut scratch.resizer, &mut base.pixels);
        base.mask = match &whole.mask {
            None => None,
            Some(mask) => {
                let mut classes = base.mask.take().unwrap_or_default();
                classes.resize(shape.num_pixels(), 0);
                let from = (whole.width, whole.height);
                resize_mask(mask, from, (shape.width, shape.height), &mut classes);
                Some(classes)
            }
        };
        Ok(())
    }

    /// Writes a whole picture as evaluation sees it through a model of this framing.
    ///
    /// # Panics
    /// If `row` has another length.
    pub fn write_whole(
        &self,
        picture: &WholePicture,
        scratch: &mut Scratch,
        row: &mut [u8],
    ) -> Result<(), DataError> {
        if self.fit != Fit::Resize {
            return self.draw(picture, None, row);
        }
        resize_pixels(
            picture,
            self.shape,
            &mut scratch.resizer,
            &mut row[self.shape.pixels()],
        );
        let mask = &mut row[self.shape.mask()];
        match &picture.mask {
            None => mask.fill(IGNORED),
            Some(classes) => {
                let (from, to) = (
                    (picture.width, picture.height),
                    (self.shape.width, self.shape.height),
                );
                resize_mask(classes, from, to, mask);
            }
        }
        self.shape.write_counts(row);
        Ok(())
    }

    /// Writes a row of a base.
    fn draw(
        &self,
        base: &WholePicture,
        occasion: Option<Occasion>,
        row: &mut [u8],
    ) -> Result<(), DataError> {
        let shape = self.shape;
        if self.fit == Fit::Pad && (base.width > shape.width || base.height > shape.height) {
            return Err(DataError::invalid(
                "data",
                format_args!(
                    "pictures of at most {} x {} pixels",
                    shape.width, shape.height
                ),
                format_args!("{} x {}", base.width, base.height),
                "an `image_size` resizes them; `patch` takes parts of them",
            ));
        }
        let (left, top) = match (self.fit, occasion) {
            (Fit::Resize | Fit::Pad, _) => (0, 0),
            (Fit::Patch { .. }, None) => middle(base, shape),
            (Fit::Patch { foreground }, Some(occasion)) => {
                random_part(base, shape, foreground, occasion)
            }
        };
        let padding = padding_pixel(shape, &self.padding);
        let pixel = padding.len();
        let end = shape.pixels().end;
        let (pixels, rest) = row.split_at_mut(end);
        let mask = &mut rest[..shape.num_pixels()];
        for y in 0..shape.height {
            let line = &mut pixels[y * shape.width * pixel..][..shape.width * pixel];
            let classes = &mut mask[y * shape.width..][..shape.width];
            let columns = left..(left + shape.width).min(base.width);
            let inside = if top + y < base.height {
                columns.len()
            } else {
                0
            };
            let start = (top + y) * base.width + left;
            if inside > 0 {
                line[..inside * pixel]
                    .copy_from_slice(&base.pixels[start * pixel..][..inside * pixel]);
                match &base.mask {
                    Some(mask) => classes[..inside].copy_from_slice(&mask[start..start + inside]),
                    None => classes[..inside].fill(IGNORED),
                }
            }
            for outside in line[inside * pixel..].chunks_exact_mut(pixel) {
                outside.copy_from_slice(&padding);
            }
            classes[inside..].fill(IGNORED);
        }
        shape.write_counts(row);
        Ok(())
    }
}

/// Where the part in the middle begins; 0 where the picture is smaller.
fn middle(base: &WholePicture, shape: RowShape) -> (usize, usize) {
    let left = base.width.saturating_sub(shape.width) / 2;
    let top = base.height.saturating_sub(shape.height) / 2;
    (left, top)
}

/// Where a random part begins: anywhere, or around a pixel of the foreground.
fn random_part(
    base: &WholePicture,
    shape: RowShape,
    foreground: f64,
    occasion: Occasion,
) -> (usize, usize) {
    let words = [occasion.seed, occasion.epoch, occasion.sample];
    let mut random = Random::new(Purpose::Patch, &words);
    let wants_foreground = random.unit() < foreground;
    let most_left = base.width.saturating_sub(shape.width);
    let most_top = base.height.saturating_sub(shape.height);
    let anywhere = (random.below(most_left + 1), random.below(most_top + 1));
    let mask = match &base.mask {
        Some(mask) if wants_foreground => mask,
        _ => return anywhere,
    };
    let is_foreground = |class: &u8| *class != 0 && *class != IGNORED;
    let num_foreground = mask.iter().filter(|class| is_foreground(class)).count();
    if num_foreground == 0 {
        return anywhere;
    }
    let chosen = random.below(num_foreground);
    let mut places = mask
        .iter()
        .enumerate()
        .filter(|(_, class)| is_foreground(class));
    let Some((at, _)) = places.nth(chosen) else {
        return anywhere;
    };
    let around = |place: usize, side: usize, most: usize, throw: usize| {
        place.saturating_sub(throw.min(side - 1)).min(most)
    };
    let (x, y) = (at % base.width, at / base.width);
    let (left, top) = (random.below(shape.width), random.below(shape.height));
    (
        around(x, shape.width, most_left, left),
        around(y, shape.height, most_top, top),
    )
}

#[cfg(test)]
mod tests;
