//! Pictures and masks as the columns of a batch, and the pixel counts of the losses.

use holdall_data::loader::Loaded;
use holdall_data::segmentation::{IGNORED, RowShape};
use holdall_device::HostRow;
use holdall_models::init::Draw;

use super::SegmentTask;
use super::loss_terms::TermKind;
use crate::config::DiceOver;
use crate::engine::batch::{Batch, Scope, Values, random_bytes};

/// Pictures with their masks, `[b, row bytes]`.
pub(super) const ROWS: &str = "rows";
/// Weight of a pixel of each class, `[mask values]`.
pub(super) const CLASS_WEIGHTS: &str = "class weights";

/// Builds a batch; `pixels` and `masks` hold one sample after the other, in the layout of a row.
pub fn batch_of(task: &SegmentTask, pixels: &[u8], masks: &[u8]) -> Batch {
    let row = task.row;
    let num_samples = masks.len() / row.num_pixels();
    let mut rows = Vec::with_capacity(num_samples * row.row_bytes());
    let pictures = pixels.chunks(row.pixels().len());
    for (pixels, mask) in pictures.zip(masks.chunks(row.num_pixels())) {
        let start = rows.len();
        rows.extend_from_slice(pixels);
        rows.extend_from_slice(mask);
        rows.resize(start + row.row_bytes(), 0);
        row.write_counts(&mut rows[start..]);
    }
    let mut batch = Batch {
        num_samples,
        columns: Vec::new(),
    };
    *batch.column(ROWS, Scope::MicroBatch, || Values::Bytes(Vec::new())) = Values::Bytes(rows);
    set_class_weights(task, &mut batch);
    batch
}

pub(super) fn fill(task: &SegmentTask, batch: &mut Batch, loaded: &Loaded<HostRow>) {
    batch.num_samples = loaded.rows.len();
    batch.set_rows(ROWS, loaded.rows.iter());
    set_class_weights(task, batch);
}

fn set_class_weights(task: &SegmentTask, batch: &mut Batch) {
    let weights = batch.floats(CLASS_WEIGHTS, Scope::Step);
    weights.clone_from(&task.class_weights);
}

/// Denominators of the losses: the total weight of the pixels, the number of pictures, or 1.
pub(super) fn count_losses(task: &SegmentTask, batch: &Batch, counts: &mut [f64]) {
    for level in 0..task.model.num_heads() {
        // All pixel losses share one count, because pixel weights depend on the class only.
        let mut of_pixels = None;
        for (index, term) in task.terms.iter().enumerate() {
            counts[task.place_of(level, index)] = match term.kind {
                TermKind::Pixels { .. } => {
                    *of_pixels.get_or_insert_with(|| weight_of_pixels(task, batch, level))
                }
                TermKind::Overlap { over, .. } => match over {
                    DiceOver::Image => batch.num_samples as f64,
                    DiceOver::Batch => 1.0,
                },
            };
        }
    }
}

/// Total weight of the labelled pixels at a head's resolution.
fn weight_of_pixels(task: &SegmentTask, batch: &Batch, level: usize) -> f64 {
    let mut columns = batch.columns.iter();
    let rows = columns.find(|column| column.endpoint == ROWS);
    let each = |row: &[u8]| weight_of_row(&task.row, &task.class_weights, row, level);
    match rows.map(|column| &column.values) {
        Some(Values::Bytes(bytes)) => bytes.chunks(task.row.row_bytes()).map(each).sum(),
        Some(Values::Rows(rows)) => rows.iter().map(|row| each(row.as_ref())).sum(),
        other => panic!("{ROWS}: expected bytes, found {other:?}"),
    }
}

/// The loader has counted the full-size mask. Lower heads see every second, fourth, ... pixel of every such line.
fn weight_of_row(shape: &RowShape, class_weights: &[f32], row: &[u8], level: usize) -> f64 {
    let mut counts = [0u32; 256];
    if level == 0 {
        for (value, count) in (0..=u8::MAX).zip(&mut counts) {
            *count = shape.count(row, value);
        }
    } else {
        let lines = row[shape.mask()].chunks(shape.width).step_by(1 << level);
        for line in lines {
            let pixels = line.iter().step_by(1 << level);
            pixels.for_each(|&value| counts[usize::from(value)] += 1);
        }
    }
    // Mask values beyond the classes have no weight, as in the loss; the loader refuses them.
    let weighted = counts.iter().zip(class_weights);
    weighted
        .map(|(&count, &weight)| f64::from(count) * f64::from(weight))
        .sum()
}

/// Random pictures with pixels of every class, some of them ignored.
pub(super) fn random(task: &SegmentTask, num_samples: usize, seed: u64) -> Batch {
    let row = task.row;
    let mut draw = Draw::new(seed, "batch");
    let pixels = random_bytes(&mut draw, num_samples * row.pixels().len());
    let values = task.model.num_mask_values() as u64;
    let masks: Vec<u8> = (0..num_samples * row.num_pixels())
        .map(|_| {
            let bits = draw.bits();
            match bits % 64 {
                0 => IGNORED,
                // About one pixel in nine is foreground.
                1..8 => (1 + (bits >> 32) % (values - 1)) as u8,
                _ => 0,
            }
        })
        .collect();
    batch_of(task, &pixels, &masks)
}
