//! Prediction: from pictures to probabilities at their own size, a few pictures at a time.
//!
//! ```text
//! picture -> base     resized to the model's image size, or the picture itself
//! base    -> rows     one row, padded by mirroring to a size that the stages can halve; if the base is larger than the requested tiles,
//!                     overlapping tiles, weighted by a Gaussian
//! rows    -> logits   the forward program of that size, in batches of its number of rows
//! logits  -> picture  probabilities of the base, averaged over mirrored rows if requested, then resized back
//! ```
//!
//! The size of a row depends on its picture and the task, never on the budget or on other pictures. So a picture gets the same
//! probabilities at any budget and in any company. Reading, resizing and the caller's `work` run in parallel on the device's
//! threads; results are collected in the order of the samples.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use fast_image_resize::Resizer;
use holdall_data::DataError;
use holdall_data::decode::{PictureCost, Scratch, WholePicture};
use holdall_data::loader::Skipped;
use holdall_data::samples::Samples;
use holdall_data::segmentation::{
    MaskCoding, RowShape, probabilities_to_native, read_whole, resize_pixels,
};
use holdall_device::Device;
use holdall_device::cpu::MAX_KEPT_BUFFER_BYTES;
use holdall_metrics::segmentation::ImageScorer;
use holdall_metrics::segmentation::tiles::{Mirror, Tiling};
use rayon::prelude::*;

use super::SegmentTask;
use super::step::{PROGRAM_ROWS, program};
use crate::engine::forward::Forward;
use crate::engine::task::Unfinished;

/// Most pictures in flight, unless they are small.
const MOST_LARGE: usize = 8;
/// Small pictures: as many in flight as fit into this, up to [`MOST_SMALL`].
const SMALL_BYTES: u64 = 32 << 20;
const MOST_SMALL: usize = 16;

/// Pixels per forward pass; at least one row. More are hardly faster, and unused rows of a batch cost as much as used ones.
const PIXELS_AT_A_TIME: usize = 1 << 18;

/// Most row sizes with a forward program in a training plan: each candidate of the plan's search plans every program again.
const MOST_SIZES_BESIDE_A_STEP: usize = 16;

/// Default number of rows per forward pass.
pub(super) fn max_forward_batch(task: &SegmentTask) -> usize {
    (PIXELS_AT_A_TIME / task.row.num_pixels().max(1)).clamp(1, MOST_SMALL)
}

/// The pictures to predict.
pub(super) struct Pictures<'a> {
    pub samples: &'a Samples,
    /// Coding of masks; `None` reads no masks.
    pub coding: Option<&'a MaskCoding>,
    /// Samples to read, in this order.
    pub chosen: &'a [u32],
    pub stop: &'a AtomicBool,
}

/// A picture and its predicted probabilities.
pub struct Segmented<'a> {
    /// At its own size, with its mask if it has one.
    pub picture: &'a WholePicture,
    /// `[height, width, outputs]`, at the picture's own size.
    pub probabilities_hwk: &'a [f32],
    /// Scorer for pictures with a mask.
    pub scorer: &'a mut ImageScorer,
}

/// Buffers of one picture in flight.
struct Slot {
    resizer: Resizer,
    scorer: ImageScorer,
    read: Option<Result<InWork, DataError>>,
}

/// A picture that was read, and its probabilities so far.
struct InWork {
    picture: WholePicture,
    /// The picture at the model's image size, if that differs.
    resized: Option<Vec<u8>>,
    /// Height and width of the image that is cut into rows.
    base: [usize; 2],
    tiling: Tiling,
    /// Weighted sums of the base's probabilities.
    sums_hwk: Vec<f32>,
}

/// Number of pictures in flight, for pictures of the task's largest size.
fn in_flight(task: &SegmentTask, num_pictures: usize, threads: usize) -> usize {
    let slot = SlotBytes::of(task, task.largest, true).all();
    let small = (SMALL_BYTES / slot.max(1)) as usize;
    small
        .clamp(threads.min(MOST_LARGE), MOST_SMALL)
        .min(num_pictures)
}

/// Host memory for these pictures, in bytes. A [`PictureCost`] has what reading takes beside pixels and mask; `work_bytes` is the
/// most that the caller's `work` takes for one picture.
pub(super) fn host_bytes(
    task: &SegmentTask,
    pictures: &[PictureCost],
    threads: usize,
    has_masks: bool,
    work_bytes: u64,
) -> u64 {
    let num_slots = in_flight(task, pictures.len(), threads);
    let num_threads = num_slots.min(threads);
    let size = |cost: &PictureCost| [cost.height as usize, cost.width as usize];
    let slots = || {
        let each = pictures.iter();
        each.map(|cost| SlotBytes::of(task, size(cost), has_masks))
    };
    // Scorers are reused, so that a slot's scorer grows to its largest picture; together they hold at most this.
    let scorers = largest(slots().map(|slot| slot.scorer), num_slots);
    let held_scorers = if pictures.len() > num_slots {
        scorers
    } else {
        0
    };
    let reading = largest(slots().map(|slot| slot.read), num_slots)
        + largest(pictures.iter().map(|cost| cost.bytes), num_threads)
        + held_scorers;
    let work = pictures.iter().map(|cost| {
        let [resizing, resized] = resize_bytes(task, size(cost));
        resizing.max(resized + work_bytes)
    });
    // Freed decode buffers stay with the process where they are small: pixels, mask and resized pixels.
    let kept = slots().map(|slot| slot.read.min(MAX_KEPT_BUFFER_BYTES.saturating_mul(3)));
    let finishing = largest(slots().map(|slot| slot.read + slot.sums), num_slots)
        + largest(kept, num_threads)
        + largest(work, num_threads)
        + scorers;
    let heap = ((reading + finishing) / HEAP_SHARE)
        .min(MAX_KEPT_BUFFER_BYTES.saturating_mul(KEPT_BUFFERS_PER_SLOT * num_slots as u64));
    let row_outputs = task.row.num_pixels() * task.model.num_outputs();
    reading.max(finishing)
        + (row_outputs * size_of::<f32>()) as u64
        + heap
        + threads as u64 * THREAD_BYTES
        + HEAP_BYTES
}

/// Freed buffers that the allocator keeps, beside the peak of those in use: 1.6 MiB of 29 measured with one thread, 1.1 MiB with
/// nine.
const HEAP_BYTES: u64 = 1 << 20;
const HEAP_SHARE: u64 = 32;
/// Bound on those buffers: they are small, however large the pictures.
const KEPT_BUFFERS_PER_SLOT: u64 = 8;
const THREAD_BYTES: u64 = 128 << 10;

/// Sum of the `count` largest.
fn largest(bytes: impl Iterator<Item = u64>, count: usize) -> u64 {
    let mut all: Vec<u64> = bytes.collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.iter().take(count).sum()
}

/// Memory of a slot for one picture.
struct SlotBytes {
    /// Pixels, mask, and pixels at the model's image size.
    read: u64,
    /// Probabilities; zeroed pages take no memory until the first row is added.
    sums: u64,
    scorer: u64,
}

impl SlotBytes {
    fn of(task: &SegmentTask, size: [usize; 2], has_masks: bool) -> SlotBytes {
        let (pixels, outputs) = (size[0] * size[1], task.model.num_outputs());
        let pixel_bytes = task.row_shape().pixel_bytes();
        let base = task.model.image_size.unwrap_or(size);
        let base_pixels = base[0] * base[1];
        let resized = if base == size {
            0
        } else {
            base_pixels * pixel_bytes
        };
        let mask = if has_masks { pixels } else { 0 };
        SlotBytes {
            read: (pixels * pixel_bytes + mask + resized) as u64,
            sums: (base_pixels * outputs * size_of::<f32>()) as u64,
            scorer: if has_masks {
                ImageScorer::bytes(outputs, size)
            } else {
                0
            },
        }
    }

    fn all(&self) -> u64 {
        self.read + self.sums + self.scorer
    }
}

/// Memory to resize probabilities back to a picture of this size: the peak, with one plane of either size, and the result.
fn resize_bytes(task: &SegmentTask, size: [usize; 2]) -> [u64; 2] {
    let pixels = size[0] * size[1];
    match task.model.image_size {
        Some(base) if base != size => {
            let resized = pixels * task.model.num_outputs();
            let planes = pixels + base[0] * base[1];
            [resized + planes, resized].map(|floats| (floats * size_of::<f32>()) as u64)
        }
        _ => [0, 0],
    }
}

/// Predicts pictures. `work` processes the results in parallel; `each` gets what `work` returned, in the order of the samples,
/// with the picture's scorer, and returns whether to continue. Returns the unreadable pictures.
pub(super) fn predict<R: Send>(
    task: &SegmentTask,
    device: &Device,
    forward: &mut Forward<'_>,
    pictures: &Pictures<'_>,
    work: impl Fn(u32, Segmented<'_>) -> Result<R, Unfinished> + Sync,
    mut each: impl FnMut(u32, &ImageScorer, R) -> bool,
) -> Result<Vec<Skipped>, Unfinished> {
    let threshold = task.model.threshold as f32;
    let num_slots = in_flight(task, pictures.chosen.len(), device.cpu().num_threads());
    let mut rows = Rows {
        at_a_time: forward.rows(PROGRAM_ROWS),
        probabilities: vec![0.0; task.row.num_pixels() * task.model.num_outputs()],
    };
    let mut slots: Vec<Slot> = (0..num_slots)
        .map(|_| Slot {
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
            &mut Scratch::default(),
        );
        self.read = Some(picture.map(|picture| InWork::new(task, picture, &mut self.resizer)));
    }

    /// The result of `work`, or the error of reading the picture.
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
            tiling: Tiling::new(base, task.program_size(native)),
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

/// Batch size of the forward programs, and a buffer for the probabilities of one row.
struct Rows {
    at_a_time: usize,
    probabilities: Vec<f32>,
}

/// A tile of the picture in a slot.
#[derive(Clone, Copy)]
struct Tile {
    slot: usize,
    number: usize,
    mirror: Mirror,
}

impl Rows {
    /// Predicts every tile of every picture: grouped by size, and in order within a picture.
    fn run(
        &mut self,
        task: &SegmentTask,
        forward: &mut Forward<'_>,
        samples: &Samples,
        slots: &mut [Slot],
        chosen: &[u32],
    ) -> Result<(), Unfinished> {
        for &[height, width] in &task.sizes {
            let row = RowShape {
                height,
                width,
                ..task.row
            };
            let tiles = tiles_of(task, slots, [height, width]);
            for batch in tiles.chunks(self.at_a_time) {
                self.run_batch(task, forward, row, slots, batch, |slot| {
                    samples.image(chosen[slot] as usize)
                })?;
            }
        }
        Ok(())
    }

    /// Predicts one batch of tiles of one size.
    fn run_batch<'s>(
        &mut self,
        task: &SegmentTask,
        forward: &mut Forward<'_>,
        row: RowShape,
        slots: &mut [Slot],
        batch: &[Tile],
        name: impl Fn(usize) -> &'s str,
    ) -> Result<(), Unfinished> {
        let program = program(task, [row.height, row.width]);
        forward.feed_bytes(&format!("{program}/rows"), |bytes| {
            for (bytes, tile) in bytes.chunks_mut(row.row_bytes()).zip(batch) {
                let picture = in_work(&mut slots[tile.slot]);
                let (tiling, pixels) = (&picture.tiling, picture.pixels());
                let to = &mut bytes[row.pixels()];
                tiling.cut(tile.number, tile.mirror, pixels, row.pixel_bytes(), to);
            }
        });
        forward.run(&program)?;
        let logits = forward.read_rows(&format!("{program}/logits"), batch.len())?;
        let outputs = task.model.num_outputs();
        for (logits, tile) in logits.chunks(row.num_pixels() * outputs).zip(batch) {
            if let Some(value) = logits.iter().find(|value| !value.is_finite()) {
                let image = name(tile.slot);
                return Err(Unfinished::NotFinite(format!(
                    "{image}: its outputs are not finite: found {value}"
                )));
            }
            let probabilities = &mut self.probabilities[..logits.len()];
            write_probabilities(logits, outputs, probabilities);
            let InWork {
                tiling, sums_hwk, ..
            } = in_work(&mut slots[tile.slot]);
            tiling.add(tile.number, tile.mirror, probabilities, outputs, sums_hwk);
        }
        Ok(())
    }
}

/// All tiles of this height and width.
fn tiles_of(task: &SegmentTask, slots: &[Slot], size: [usize; 2]) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for (slot, read) in slots.iter().enumerate() {
        let Some(Ok(picture)) = &read.read else {
            continue;
        };
        if picture.tiling.tile() != size {
            continue;
        }
        for number in 0..picture.tiling.num_tiles() {
            tiles.extend(task.mirrors().iter().map(|&mirror| Tile {
                slot,
                number,
                mirror,
            }));
        }
    }
    tiles
}

/// Sigmoid of one output, softmax of several.
fn write_probabilities(logits: &[f32], outputs: usize, probabilities: &mut [f32]) {
    let pixels = probabilities.chunks_mut(outputs);
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

fn in_work(slot: &mut Slot) -> &mut InWork {
    match &mut slot.read {
        Some(Ok(picture)) => picture,
        _ => unreachable!("tiles are of pictures that were read"),
    }
}

impl SegmentTask {
    /// Mirrorings whose predictions are averaged.
    pub(super) fn mirrors(&self) -> &'static [Mirror] {
        if self.mirror {
            &Mirror::ALL
        } else {
            &Mirror::NONE
        }
    }

    pub(super) fn row_shape(&self) -> RowShape {
        self.row
    }

    /// Height and width of a picture's rows: those of the picture, rounded up to what the stages can halve, or those of a smaller
    /// tile.
    pub(super) fn row_size(&self, picture: [usize; 2]) -> [usize; 2] {
        let multiple = self.model.size_multiple();
        let base = self.model.image_size.unwrap_or(picture);
        base.map(|side| {
            let own = side.next_multiple_of(multiple);
            self.tile.map_or(own, |tile| own.min(tile))
        })
    }

    /// Like [`SegmentTask::row_size`]; without a program of that size, the size of [`SegmentTask::row`].
    pub(super) fn program_size(&self, picture: [usize; 2]) -> [usize; 2] {
        let own = self.row_size(picture);
        let known = self.sizes.contains(&own).then_some(own);
        known.unwrap_or([self.row.height, self.row.width])
    }

    /// Adds forward programs for validation pictures to a training step, whose own rows all have one size. Returns a note if the
    /// pictures have too many sizes; they are then evaluated in rows of the step's size, padded by mirroring.
    pub(super) fn add_evaluated_sizes(&mut self, pictures: &[[usize; 2]]) -> Option<String> {
        let own = [self.row.height, self.row.width];
        let mut sizes: BTreeSet<_> = pictures.iter().map(|&size| self.row_size(size)).collect();
        if sizes.len() > MOST_SIZES_BESIDE_A_STEP {
            return Some(format!(
                "Validation: pictures of {} sizes, mirrored to {} x {} (width x height) as for training; `holdall eval` computes each at its own size",
                sizes.len(),
                own[1],
                own[0]
            ));
        }
        sizes.insert(own);
        self.sizes = sizes.into_iter().collect();
        None
    }

    /// Sets the row sizes, of which the largest becomes the task's own. At least one.
    pub(super) fn set_sizes(&mut self, sizes: BTreeSet<[usize; 2]>) {
        let largest = sizes.iter().max_by_key(|size| size[0] * size[1]);
        if let Some(&[height, width]) = largest {
            (self.row.height, self.row.width) = (height, width);
            self.sizes = sizes.into_iter().collect();
        }
    }
}
