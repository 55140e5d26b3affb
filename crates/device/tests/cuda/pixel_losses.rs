//! Losses of every pixel, and overlap losses, of logits in f32 and in the compute format.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `k` logits.

use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind::{self, Sigmoid, Softmax};
use holdall_graph::{DType, ValueId};

use super::harness::{FORMATS, Gpu, Settings, Sketch};
use super::step::Contents;

/// Pictures with their labels: one logit in whole accesses and not, a few and many classes, several parts of a sum.
const SIZES: [(PixelLossKind, [usize; 4]); 7] = [
    (Sigmoid, [2, 8, 16, 1]),
    (Sigmoid, [3, 5, 7, 1]),
    (Sigmoid, [2, 120, 104, 1]),
    (Softmax, [2, 9, 7, 3]),
    (Softmax, [1, 6, 8, 11]),
    (Softmax, [2, 90, 71, 2]),
    (Softmax, [1, 3, 3, 1]),
];

#[derive(Clone, Copy)]
struct Labels {
    /// Byte of a row at which they begin.
    offset: usize,
    /// Every so-manieth pixel of larger ones.
    step: usize,
}

const WHOLE: Labels = Labels { offset: 0, step: 1 };

/// Classes, some that are none, and pixels that are ignored.
fn labels(s: &mut Sketch, kind: PixelLossKind, [n, h, w, k]: [usize; 4], place: Labels) -> ValueId {
    let classes = kind.num_classes(k);
    let [h, w] = [h, w].map(|size| size * place.step);
    let row_bytes = (place.offset + h * w).next_multiple_of(8);
    let bytes = (0..n * row_bytes).map(|_| match s.random.below(8) {
        0 => 255,
        1 => classes as u8,
        _ => s.random.below(classes) as u8,
    });
    let bytes = Contents::Bytes(bytes.collect());
    let rows = s.given(&[n, row_bytes], DType::U8, bytes);
    let labels = s.graph.picture_view(rows, place.offset, &[h, w]);
    match place.step {
        1 => labels,
        step => s.graph.every_pixel(labels, step),
    }
}

fn logits(s: &mut Sketch, dims: [usize; 4], full: bool) -> ValueId {
    if full {
        let values = s.numbers(dims.iter().product(), 4.0);
        s.full_input(&dims, &values)
    } else {
        s.scaled_input(&dims, 4.0)
    }
}

fn weights(s: &mut Sketch, count: usize) -> ValueId {
    let values: Vec<f64> = (0..count)
        .map(|index| [1.0, 0.5, 0.0, 2.0][index % 4])
        .collect();
    s.full_constant(&[count], &values)
}

fn pixel_loss(
    s: &mut Sketch,
    kind: PixelLossKind,
    [logits, labels]: [ValueId; 2],
    focal: Option<f64>,
) -> ValueId {
    let shape = s.graph.shape(logits);
    let class_weights = weights(s, kind.num_classes(shape.width()));
    let sample_weights = weights(s, shape.dims()[0]);
    let sum = s.total();
    s.graph.pixel_loss_into(
        "loss",
        logits,
        labels,
        class_weights,
        sample_weights,
        sum,
        kind,
        focal,
    );
    sum
}

fn settings(full: bool) -> Settings {
    let settings = Settings::of(FORMATS).long_sums();
    if full { settings.kept_full() } else { settings }
}

#[test]
fn pixel_losses_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (kind, dims) in SIZES {
        for full in [false, true] {
            for focal in [None, Some(2.0), Some(0.5)] {
                let what = format!("{kind:?} loss of {dims:?}, focal {focal:?}, f32 {full}");
                gpu.compare_with(&what, settings(full), |s| {
                    let logits = logits(s, dims, full);
                    let labels = labels(s, kind, dims, WHOLE);
                    vec![pixel_loss(s, kind, [logits, labels], focal)]
                });
            }
        }
    }
}

#[test]
fn labels_at_any_byte_and_of_every_other_pixel() {
    let Some(gpu) = Gpu::open() else { return };
    for (offset, step) in [(8, 1), (3, 1), (0, 2), (5, 4)] {
        for (kind, dims) in [(Sigmoid, [2, 8, 16, 1]), (Softmax, [2, 8, 16, 3])] {
            let what = format!("{kind:?}, labels from byte {offset} on, every {step}");
            gpu.compare_with(&what, settings(true), |s| {
                let place = Labels { offset, step };
                let logits = logits(s, dims, true);
                let labels = labels(s, kind, dims, place);
                let sums = s.graph.overlap_sums("sums", logits, labels, kind);
                vec![pixel_loss(s, kind, [logits, labels], None), sums]
            });
        }
    }
}

#[test]
fn logits_that_are_channels_of_a_wider_value() {
    let Some(gpu) = Gpu::open() else { return };
    for (kind, k) in [(Sigmoid, 1), (Softmax, 4)] {
        let dims = [2, 8, 8, k];
        gpu.compare_with(&format!("{kind:?} of channels"), settings(false), |s| {
            let wide = s.scaled_input(&[2, 8, 8, 8], 4.0);
            let logits = s.graph.columns(wide, 0, k);
            let labels = labels(s, kind, dims, WHOLE);
            let sums = s.graph.overlap_sums("sums", logits, labels, kind);
            vec![pixel_loss(s, kind, [logits, labels], None), sums]
        });
    }
}

fn tversky(reduction: Reduction, first_class: usize) -> OverlapLoss {
    OverlapLoss {
        reduction,
        alpha: 0.3,
        beta: 0.7,
        smooth: 0.5,
        first_class,
    }
}

#[test]
fn overlap_losses_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (kind, dims) in SIZES {
        for full in [false, true] {
            for reduction in [Reduction::Batch, Reduction::PerSample] {
                let what = format!("{kind:?} overlap of {dims:?}, {reduction:?}, f32 {full}");
                gpu.compare_with(&what, settings(full), |s| {
                    let logits = logits(s, dims, full);
                    let labels = labels(s, kind, dims, WHOLE);
                    let sums = s.graph.overlap_sums("sums", logits, labels, kind);
                    let sample_weights = weights(s, dims[0]);
                    let total = s.total();
                    let op = tversky(reduction, usize::from(dims[3] > 1));
                    s.graph
                        .overlap_loss_into("overlap", sums, sample_weights, total, op);
                    // A second gradient of the sums, and of the logits.
                    vec![
                        total,
                        sums,
                        pixel_loss(s, kind, [logits, labels], Some(1.0)),
                    ]
                });
            }
        }
    }
}

/// Weights are those of the whole effective batch.
#[test]
fn each_micro_batch_has_its_own_weights() {
    let Some(gpu) = Gpu::open() else { return };
    const MICRO_BATCHES: usize = 3;
    for (kind, dims) in [(Sigmoid, [2, 8, 16, 1]), (Softmax, [3, 5, 7, 4])] {
        gpu.compare_with(&format!("{kind:?} of micro-batches"), settings(true), |s| {
            s.micro_batches = MICRO_BATCHES;
            let logits = logits(s, dims, true);
            let labels = labels(s, kind, dims, WHOLE);
            let class_weights = weights(s, kind.num_classes(dims[3]));
            let all = weights(s, MICRO_BATCHES * dims[0]);
            let own = s.graph.micro_rows(all, dims[0]);
            let [pixel, overlap] = [(); 2].map(|()| s.total());
            s.graph.pixel_loss_into(
                "loss",
                logits,
                labels,
                class_weights,
                own,
                pixel,
                kind,
                None,
            );
            let sums = s.graph.overlap_sums("sums", logits, labels, kind);
            let op = tversky(Reduction::PerSample, 0);
            s.graph.overlap_loss_into("overlap", sums, own, overlap, op);
            vec![pixel, overlap]
        });
    }
}
