//! From pictures to probabilities at their own size, a few pictures at a time.
//!
//! ```text
//! picture -> base     resized to the model's image size, or the picture itself
//! base    -> rows     one row, padded, where it is not larger than a row; else overlapping tiles, weighted by a Gaussian
//! rows    -> logits   the forward program, as many rows at a time as it has
//! logits  -> picture  probabilities of the base, averaged over mirrored rows if that is asked for, then resized back
//! ```
//!
//! A row's size is part of the task, never of the budget: the same pictures give the same probabilities in any memory. Reading, resizing and
//! what is made of a picture run side by side on the threads of the device; what is collected is collected in the order of the samples.

use std::sync::atomic::{AtomicBool, Ordering};

use fast_image_resize::Resizer;
use holdall_data::error::DataError;
use holdall_data::loader::Skipped;
use holdall_data::picture::Scratch;
use holdall_data::samples::Samples;
use holdall_data::segmentation::{
    MaskCoding, RowShape, WholePicture, probabilities_to_native, read_whole, resize_pixels,
};
use holdall_device::{Device, HostRow};
use holdall_metrics::segmentation::ImageScorer;
use holdall_metrics::segmentation::tiles::{Mirror, Tiling};
use rayon::prelude::*;

use super::SegmentTask;
use super::step::{LOGITS, PROGRAM, PROGRAM_ROWS};
use crate::forward::Forward;
use crate::task::Unfinished;

/// Pictures in work at a time, at most, unless they are small.
const MOST_LARGE: usize = 8;
/// Small pictures are as many as take this.
const SMALL_BYTES: u64 = 32 << 20;
const MOST_SMALL: usize = 16;

/// Pixels of the rows that the model sees at a time, at least one row: more are hardly faster, and rows that are not used cost as much.
const PIXELS_AT_A_TIME: usize = 1 << 18;
/// Large rows that there is room for on the host.
const MOST_LARGE_ROWS: usize = 4;

/// Rows that a forward program takes at a time where nobody says how many.
pub(super) fn most_at_a_time(task: &SegmentTask) -> usize {
    (PIXELS_AT_A_TIME / task.row.num_pixels().max(1)).clamp(1, MOST_SMALL)
}

/// Rows that there is room for on the host.
fn most_rows(task: &SegmentTask) -> usize {
    match task.row.num_pixels() <= PIXELS_AT_A_TIME {
        true => MOST_SMALL,
        false => MOST_LARGE_ROWS,
    }
}

/// What pictures are read from, and until when.
pub(super) struct Pictures<'a> {
    pub samples: &'a Samples,
    /// What masks hold; without it none is read.
    pub coding: Option<&'a MaskCoding>,
    /// Which samples, in this order.
    pub chosen: &'a [u32],
    pub stop: &'a AtomicBool,
}

/// A picture with what the model says of it.
pub struct Segmented<'a> {
    /// At its own size, with its mask where there is one.
    pub picture: &'a WholePicture,
    /// `[height, width, outputs]`, at its own size.
    pub probabilities_hwk: &'a [f32],
    /// Scores it, where there is a mask.
    pub scorer: &'a mut ImageScorer,
}

/// What one picture takes while it is in work.
struct Slot {
    scratch: Scratch,
    resizer: Resizer,
    scorer: ImageScorer,
    read: Option<Result<InWork, DataError>>,
}

/// A picture on its way.
struct InWork {
    picture: WholePicture,
    /// The picture at the size of the model, where that is another.
    resized: Option<Vec<u8>>,
    /// Height and width of what is cut into rows.
    base: [usize; 2],
    tiling: Tiling,
    /// Of the base's probabilities.
    sums_hwk: Vec<f32>,
}

/// How many of these pictures, of the task's largest size, are in work at a time.
fn in_flight(task: &SegmentTask, num_pictures: usize, threads: usize) -> usize {
    let small = (SMALL_BYTES / slot_bytes(task, 0).max(1)) as usize;
    small
        .clamp(threads.min(MOST_LARGE), MOST_SMALL)
        .min(num_pictures)
}

/// Bytes on the host for so many pictures, where reading the largest and its mask takes `decode_bytes`.
pub(super) fn host_bytes(
    task: &SegmentTask,
    num_pictures: usize,
    decode_bytes: u64,
    threads: usize,
) -> u64 {
    let pictures = in_flight(task, num_pictures, threads) as u64;
    let row_outputs = (task.row.num_pixels() * task.model.num_outputs()) as u64;
    // Rows, and the logits and probabilities of one.
    let rows = (most_rows(task) * task.row.row_bytes()) as u64 + 8 * row_outputs;
    pictures * slot_bytes(task, decode_bytes) + rows
}

/// Of one picture of the largest size.
fn slot_bytes(task: &SegmentTask, decode_bytes: u64) -> u64 {
    let [height, width] = task.largest;
    let (pixels, outputs) = (height * width, task.model.num_outputs());
    let pixel_bytes = task.row_shape().pixel_bytes();
    let float = size_of::<f32>();
    let resized = match task.model.image_size {
        // Pixels and probabilities of the base, and two planes while they are resized.
        Some([h, w]) => h * w * (pixel_bytes + outputs * float) + (h * w + pixels) * float,
        None => 0,
    };
    decode_bytes
        + (pixels * outputs * float + resized) as u64
        + ImageScorer::bytes(outputs, task.largest)
}

/// Lets the model look at pictures. `work` makes something of each, side by side; `each` gets it in the order of the samples, with the scorer
/// that was used last for it, and says whether to go on. Returns what could not be read.
pub(super) fn look_at<R: Send>(
    task: &SegmentTask,
    device: &Device,
    forward: &mut Forward<'_>,
    pictures: &Pictures<'_>,
    work: impl Fn(u32, Segmented<'_>) -> Result<R, Unfinished> + Sync,
    mut each: impl FnMut(u32, &ImageScorer, R) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let threshold = task.model.threshold as f32;
    let num_slots = in_flight(task, pictures.chosen.len(), device.cpu().num_threads());
    let num_rows = forward.rows(PROGRAM_ROWS).min(most_rows(task));
    let mut rows = Rows {
        rows: device.host_rows(num_rows, task.row.row_bytes())?,
        padding: task.padding_bytes(),
        probabilities: vec![0.0; task.row.num_pixels() * task.model.num_outputs()],
    };
    let mut slots: Vec<Slot> = (0..num_slots)
        .map(|_| Slot {
            scratch: Scratch::default(),
            resizer: Resizer::new(),
            scorer: ImageScorer::new(task.model.num_outputs(), threshold),
            read: None,
        })
        .collect();
    let mut skipped = Vec::new();
    for chosen in pictures.chosen.chunks(num_slots.max(1)) {
        if pictures.stop.load(Ordering::Relaxed) {
            return Err(Unfinished::Stopped);
        }
        let slots = &mut slots[..chosen.len()];
        device.cpu().scope(|| {
            let each = slots.par_iter_mut().zip(chosen);
            each.for_each(|(slot, &sample)| slot.read(task, pictures, sample));
        });
        rows.run(task, forward, pictures.samples, slots, chosen)?;
        let made = device.cpu().scope(|| {
            let each = slots.par_iter_mut().zip(chosen);
            let made = each.map(|(slot, &sample)| slot.finish(task, sample, &work));
            made.collect::<Vec<_>>()
        });
        for ((slot, &sample), made) in slots.iter_mut().zip(chosen).zip(made) {
            match made {
                Ok(made) => {
                    if !each(sample, &slot.scorer, made?) {
                        return Err(Unfinished::Stopped);
                    }
                }
                Err(error) => skipped.push(Skipped { sample, error }),
            }
        }
    }
    Ok(skipped)
}

impl Slot {
    fn read(&mut self, task: &SegmentTask, pictures: &Pictures<'_>, sample: u32) {
        let RowShape {
            channels, depth, ..
        } = task.row_shape();
        let picture = read_whole(
            pictures.samples,
            sample as usize,
            channels,
            depth,
            pictures.coding,
            &mut self.scratch,
        );
        self.read = Some(picture.map(|picture| InWork::new(task, picture, &mut self.resizer)));
    }

    /// What `work` makes of the picture, or why it could not be read.
    fn finish<R>(
        &mut self,
        task: &SegmentTask,
        sample: u32,
        work: &impl Fn(u32, Segmented<'_>) -> Result<R, Unfinished>,
    ) -> Result<Result<R, Unfinished>, DataError> {
        let in_work = self.read.take().expect("read before")?;
        let picture = &in_work.picture;
        let outputs = task.model.num_outputs();
        let [height, width] = in_work.base;
        let mut probabilities = in_work.sums_hwk;
        let mirrors = task.mirrors().len();
        in_work.tiling.finish(mirrors, outputs, &mut probabilities);
        let native = (picture.width, picture.height);
        if (width, height) != native {
            let base = (width, height);
            let resizer = &mut self.resizer;
            probabilities = probabilities_to_native(&probabilities, outputs, base, native, resizer);
        }
        let segmented = Segmented {
            picture,
            probabilities_hwk: &probabilities,
            scorer: &mut self.scorer,
        };
        Ok(work(sample, segmented))
    }
}

impl InWork {
    fn new(task: &SegmentTask, picture: WholePicture, resizer: &mut Resizer) -> InWork {
        let native = [picture.height, picture.width];
        let base = task.model.image_size.unwrap_or(native);
        let resized = (base != native).then(|| {
            let [height, width] = base;
            let shape = RowShape {
                height,
                width,
                ..task.row_shape()
            };
            let mut pixels = vec![0; shape.pixels().len()];
            resize_pixels(&picture, shape, resizer, &mut pixels);
            pixels
        });
        InWork {
            tiling: Tiling::new(base, [task.row.height, task.row.width]),
            sums_hwk: vec![0.0; base[0] * base[1] * task.model.num_outputs()],
            picture,
            resized,
            base,
        }
    }

    fn pixels(&self) -> &[u8] {
        self.resized.as_ref().unwrap_or(&self.picture.pixels)
    }
}

/// Rows on their way to the device, and what it says of one of them.
struct Rows {
    rows: Vec<HostRow>,
    /// The bytes of a pixel.
    padding: Vec<u8>,
    probabilities: Vec<f32>,
}

impl Rows {
    /// Every tile of every picture, in order.
    fn run(
        &mut self,
        task: &SegmentTask,
        forward: &mut Forward<'_>,
        samples: &Samples,
        slots: &mut [Slot],
        chosen: &[u32],
    ) -> Result<(), Unfinished> {
        let mut tiles = Vec::new();
        for (at, slot) in slots.iter().enumerate() {
            if let Some(Ok(picture)) = &slot.read {
                let of_picture = (0..picture.tiling.num_tiles())
                    .flat_map(|tile| task.mirrors().iter().map(move |&mirror| (at, tile, mirror)));
                tiles.extend(of_picture);
            }
        }
        for batch in tiles.chunks(self.rows.len()) {
            for (row, &(at, tile, mirror)) in self.rows.iter_mut().zip(batch) {
                let picture = in_work(&mut slots[at]);
                let pixels = &mut row.as_mut()[task.row.pixels()];
                let tiling = &picture.tiling;
                tiling.cut(tile, mirror, picture.pixels(), &self.padding, pixels);
            }
            forward.feed_pictures(PROGRAM_ROWS, &self.rows[..batch.len()]);
            forward.run(PROGRAM)?;
            let logits = forward.read_rows(LOGITS, batch.len())?;
            let each = logits.chunks(self.probabilities.len());
            for (logits, &(at, tile, mirror)) in each.zip(batch) {
                if let Some(value) = logits.iter().find(|value| !value.is_finite()) {
                    let image = samples.image(chosen[at] as usize);
                    return Err(Unfinished::NotFinite(format!(
                        "{image}: its outputs are not finite: found {value}"
                    )));
                }
                self.write_probabilities(logits, task.model.num_outputs());
                self.add(in_work(&mut slots[at]), (tile, mirror), task);
            }
        }
        Ok(())
    }

    fn add(&self, picture: &mut InWork, (tile, mirror): (usize, Mirror), task: &SegmentTask) {
        let outputs = task.model.num_outputs();
        let InWork {
            tiling, sums_hwk, ..
        } = picture;
        tiling.add(tile, mirror, &self.probabilities, outputs, sums_hwk);
    }

    /// Sigmoid of one output, softmax of several.
    fn write_probabilities(&mut self, logits: &[f32], outputs: usize) {
        let pixels = self.probabilities.chunks_mut(outputs);
        for (to, from) in pixels.zip(logits.chunks(outputs)) {
            if let ([to], [from]) = (&mut *to, from) {
                *to = 1.0 / (1.0 + (-from).exp());
                continue;
            }
            let highest = from.iter().fold(f32::MIN, |a, &b| a.max(b));
            let mut sum = 0.0;
            for (to, from) in to.iter_mut().zip(from) {
                *to = (from - highest).exp();
                sum += *to;
            }
            to.iter_mut().for_each(|to| *to /= sum);
        }
    }
}

fn in_work(slot: &mut Slot) -> &mut InWork {
    match &mut slot.read {
        Some(Ok(picture)) => picture,
        _ => unreachable!("tiles are of pictures that were read"),
    }
}

impl SegmentTask {
    /// How rows are mirrored; the results are averaged.
    pub(super) fn mirrors(&self) -> &'static [Mirror] {
        match self.mirror {
            true => &Mirror::ALL,
            false => &Mirror::NONE,
        }
    }

    /// A row, as the loader calls it.
    pub(super) fn row_shape(&self) -> RowShape {
        self.row
    }

    /// What padding pixels are, as near to the mean as whole numbers allow.
    pub(super) fn padding(&self) -> Vec<u16> {
        let maximum = f64::from(self.row_shape().depth.maximum());
        let nearest = |mean: &f64| (mean * maximum).round().clamp(0.0, maximum) as u16;
        self.model.input.mean.iter().map(nearest).collect()
    }

    /// The bytes of a padding pixel.
    fn padding_bytes(&self) -> Vec<u8> {
        let bytes = self.row_shape().depth.bytes();
        let values = self.padding().into_iter();
        values
            .flat_map(|value| value.to_le_bytes().into_iter().take(bytes))
            .collect()
    }
}
