//! A sample to a row: its picture and its mask, fitted and augmented together.
//!
//! ```text
//! whole    the files at their own size
//! base     the whole picture, or resized to the row: what a cache keeps
//! row      input of training: the base, a patch of it, or the base padded with its mirror images, which do not count
//! ```

use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use super::augment::PairDraw;
use super::cache::PairCache;
use super::coding::MaskCoding;
use super::field_of_view::Outline;
use super::filters::{add_noise, blur};
use super::fit::{resize_mask, resize_pixels};
use super::row::{IGNORED, RowShape};
use super::sample::{Map, RowBuffers, coarsen, sample};
use super::whole::read_into;
use crate::config::PairAugment;
use crate::decode::PixelDepth;
use crate::decode::WholePicture;
use crate::decode::{Fingerprint, Limits, NativeCost, Occasion, PictureCost, Scratch, native_cost};
use crate::decode::{PairBuffers, PairCost};
use crate::error::DataError;
use crate::random::{DrawPurpose, Random};
use crate::samples::Samples;

/// How a picture gets the size of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// Resized, whatever its proportions.
    Resize,
    /// Kept at its size, with mirror images to the right and below.
    Pad,
    /// Training sees a patch at the picture's own size; evaluation through a loader sees the middle one.
    Patch {
        /// Share of patches that are placed around a foreground pixel, of any class but the background.
        foreground: f64,
    },
}

/// How a sample becomes a row.
#[derive(Clone, Debug, PartialEq)]
pub struct PairFraming {
    pub shape: RowShape,
    /// How a picture gets the row's size.
    pub fit: Fit,
    /// Classes by mask value.
    pub coding: Arc<MaskCoding>,
    /// Augmentation for training.
    pub augment: PairAugment,
}

/// Statistics of one pair, for checks.
pub(crate) struct PairSummary {
    pub(crate) size: (usize, usize),
    /// Pixels of each mask value.
    pub(crate) counts: [u64; 256],
    /// Hash of the image's pixels.
    pub(crate) pixels: u128,
    /// Hash of the mask's classes.
    pub(crate) mask: Option<u128>,
    /// Outline of a mask that may be a field of view.
    pub(crate) outline: Option<Outline>,
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl PairFraming {
    /// Peak memory of reading a sample, from headers alone, and the width and height of its image.
    pub fn cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        let (cost, image) = self.cost_by_buffer(samples, sample, Limits::default())?;
        Ok(PictureCost {
            width: image.native.width,
            height: image.native.height,
            bytes: cost.total(),
        })
    }

    /// Memory of [`super::read_whole`] beside the pixels and mask it returns, from headers alone, and the width and height of the image.
    pub fn whole_cost(&self, samples: &Samples, sample: usize) -> Result<PictureCost, DataError> {
        let limits = Limits::default();
        let image = native_cost(&samples.image_path(sample), limits)?;
        let native = image.native;
        let kept = (native.num_pixels() * self.shape.pixel_bytes()) as u64;
        let is_one_file = samples.further_image_paths(sample).next().is_none();
        let is_alike = (native.channels, native.depth) == (self.shape.channels, self.shape.depth);
        // The decoder's output becomes the picture itself where the pixel formats agree.
        let decoded = if is_one_file && is_alike {
            image.pixels.saturating_sub(kept)
        } else {
            image.pixels
        };
        let (mut file, mut beside) = (image.file, decoded + image.beside);
        for path in samples.companion_paths(sample) {
            let companion = native_cost(&path, limits)?;
            file = file.max(companion.file);
            beside = beside.max(companion.pixels + companion.beside);
        }
        Ok(PictureCost {
            width: native.width,
            height: native.height,
            bytes: file + beside,
        })
    }

    fn cost_by_buffer(
        &self,
        samples: &Samples,
        sample: usize,
        limits: Limits,
    ) -> Result<(PairCost, NativeCost), DataError> {
        let image = native_cost(&samples.image_path(sample), limits)?;
        let mut cost = self.drawing_cost();
        let mut add = |file: NativeCost| {
            cost.file = cost.file.max(file.file);
            cost.decoded = cost.decoded.max(file.pixels);
            cost.decoder = cost.decoder.max(file.beside);
        };
        add(image);
        for path in samples.companion_paths(sample) {
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

    /// Memory for resizing: pixels between the two passes, weights, and copies of a channel unless the picture has one or three of 8 bits.
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

    /// Memory of a cached pair, from the size of its image.
    pub fn kept_bytes(&self, image: &PictureCost) -> u64 {
        let pixels = match self.fit {
            Fit::Resize => self.shape.num_pixels() as u64,
            Fit::Pad | Fit::Patch { .. } => u64::from(image.width) * u64::from(image.height),
        };
        pixels * (self.shape.pixel_bytes() as u64 + 1) + super::cache::ENTRY_BYTES
    }

    /// Writes a row of a sample, augmented for an occasion, or as evaluation sees it.
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
        self.write_row_by(
            &PairCache::default(),
            samples,
            sample,
            occasion,
            scratch,
            row,
        )
    }

    /// Like [`PairFraming::write_row`], with a base from the cache where it has one.
    pub(crate) fn write_row_by(
        &self,
        cache: &PairCache,
        samples: &Samples,
        sample: usize,
        occasion: Option<Occasion>,
        scratch: &mut Scratch,
        row: &mut [u8],
    ) -> Result<(), DataError> {
        assert_eq!(row.len(), self.shape.row_bytes(), "bytes of a row");
        let kept = cache.get(samples, sample);
        let (cost, size) = match &kept {
            Some(base) => (self.drawing_cost(), (base.width as u32, base.height as u32)),
            None => {
                let (cost, image) = self.cost_by_buffer(samples, sample, scratch.limits())?;
                (cost, (image.native.width, image.native.height))
            }
        };
        self.claim(cost, size, samples, sample, scratch)?;
        let mut buffers = std::mem::take(&mut scratch.pair);
        let mut filtered = std::mem::take(&mut buffers.filtered);
        let read = match &kept {
            Some(_) => Ok(()),
            None => self.read_base(samples, sample, scratch, &mut buffers),
        };
        let written = read.and_then(|()| {
            let base = kept.as_deref().unwrap_or_else(|| self.base_of(&buffers));
            self.check_fits(base, &samples.image_path(sample))?;
            if kept.is_none() {
                cache.keep(samples, sample, base);
            }
            self.draw(base, occasion, &mut filtered, row);
            Ok(())
        });
        buffers.filtered = filtered;
        scratch.pair = buffers;
        written
    }

    /// Memory for a row of a cached pair.
    fn drawing_cost(&self) -> PairCost {
        let filtered = if self.augment.has_filters() {
            // The second term: source positions of a picture at reduced resolution.
            self.shape.pixels().len() + self.shape.num_pixels()
        } else {
            0
        };
        PairCost {
            filtered: filtered as u64,
            ..PairCost::default()
        }
    }

    /// Buffer in which [`PairFraming::read_base`] left the base: without resizing it is the whole picture.
    fn base_of<'a>(&self, buffers: &'a PairBuffers) -> &'a WholePicture {
        match self.fit {
            Fit::Resize => &buffers.base,
            Fit::Pad | Fit::Patch { .. } => &buffers.whole,
        }
    }

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
            ..
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

    /// Reads a sample and returns its size, the pixel count of each value, and hashes.
    pub(crate) fn classes_of(
        &self,
        samples: &Samples,
        sample: usize,
        scratch: &mut Scratch,
    ) -> Result<PairSummary, DataError> {
        let (cost, image) = self.cost_by_buffer(samples, sample, scratch.limits())?;
        let size = (image.native.width, image.native.height);
        self.claim(cost, size, samples, sample, scratch)?;
        let mut buffers = std::mem::take(&mut scratch.pair);
        let read = self.read_base(samples, sample, scratch, &mut buffers);
        let counted = read.map(|()| {
            let base = self.base_of(&buffers);
            let mut counts = [0; 256];
            for class in base.mask.iter().flatten() {
                counts[usize::from(*class)] += 1;
            }
            PairSummary {
                size: (base.width, base.height),
                counts,
                pixels: xxh3_128_with_seed(&base.pixels, base.width as u64),
                mask: base.mask.as_deref().map(xxh3_128),
                outline: Outline::of(base),
                fingerprint: Fingerprint::of_pixels(base.width, base.height, |column, row| {
                    base.rgb(column, row)
                }),
            }
        });
        scratch.pair = buffers;
        counted
    }

    fn claim(
        &self,
        cost: PairCost,
        (width, height): (u32, u32),
        samples: &Samples,
        sample: usize,
        scratch: &mut Scratch,
    ) -> Result<(), DataError> {
        let claimed = scratch.make_room_for_pair(&cost);
        claimed.map_err(|refused| DataError::PictureOverBudget {
            path: samples.image_path(sample),
            width,
            height,
            needed_bytes: cost.total(),
            allowed_bytes: refused.allowed_bytes,
        })
    }

    /// Writes a row from a base.
    fn draw(
        &self,
        base: &WholePicture,
        occasion: Option<Occasion>,
        filtered: &mut Vec<u8>,
        row: &mut [u8],
    ) {
        let shape = self.shape;
        let start = match (self.fit, occasion) {
            (Fit::Resize | Fit::Pad, _) => (0, 0),
            (Fit::Patch { .. }, None) => middle(base, shape),
            (Fit::Patch { foreground }, Some(occasion)) => {
                random_part(base, shape, foreground, occasion)
            }
        };
        let is_square = shape.width == shape.height;
        let draw = match occasion {
            None => PairDraw::NONE,
            Some(occasion) => PairDraw::new(&self.augment, is_square, occasion),
        };
        let table = draw.tone.table(shape.depth, || mean(base));
        let (pixels, rest) = row.split_at_mut(shape.pixels().end);
        let mut target = RowBuffers {
            shape,
            pixels: &mut *pixels,
            mask: &mut rest[..shape.num_pixels()],
        };
        let map = Map::new(&draw, shape, start);
        sample(base, map, table.as_deref(), &mut target);
        if let Some(coarseness) = draw.coarseness {
            coarsen(shape, coarseness, pixels, filtered);
        }
        if let Some(sigma) = draw.blur {
            blur(shape, sigma, pixels, filtered);
        }
        if let Some((deviation, state)) = draw.noise {
            add_noise(shape.depth, deviation, state, pixels);
        }
        shape.write_counts(row);
    }

    /// Refuses a picture larger than the row it is to be padded to.
    fn check_fits(&self, base: &WholePicture, path: &Path) -> Result<(), DataError> {
        let shape = self.shape;
        if self.fit != Fit::Pad || (base.width <= shape.width && base.height <= shape.height) {
            return Ok(());
        }
        Err(DataError::invalid(
            path.display(),
            format_args!("at most {} x {} pixels", shape.width, shape.height),
            format_args!("{} x {}", base.width, base.height),
            "`image_size: 1024` resizes pictures, `patch: 512` takes parts of them",
        ))
    }
}

/// Mean over all channels, as a share of white.
fn mean(picture: &WholePicture) -> f64 {
    let sum: u64 = match picture.depth {
        PixelDepth::Eight => picture.pixels.iter().map(|value| u64::from(*value)).sum(),
        PixelDepth::Sixteen => {
            let (values, _) = picture.pixels.as_chunks::<2>();
            values
                .iter()
                .map(|two| u64::from(u16::from_le_bytes(*two)))
                .sum()
        }
    };
    let count = (picture.num_pixels() * picture.channels).max(1);
    sum as f64 / count as f64 / f64::from(picture.depth.maximum())
}

/// Corner of the middle patch; 0 where the picture is smaller.
fn middle(base: &WholePicture, shape: RowShape) -> (usize, usize) {
    let left = base.width.saturating_sub(shape.width) / 2;
    let top = base.height.saturating_sub(shape.height) / 2;
    (left, top)
}

/// Corner of a random patch: anywhere, or around a foreground pixel.
fn random_part(
    base: &WholePicture,
    shape: RowShape,
    foreground: f64,
    occasion: Occasion,
) -> (usize, usize) {
    let words = [occasion.seed, occasion.epoch, occasion.sample];
    let mut random = Random::new(DrawPurpose::Patch, &words);
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
