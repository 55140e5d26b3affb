//! Normalized features, cross-entropy and the contrastive loss: f32 whatever the activations are.
//!
//! Legend: `b` samples, `n` rows, `c` classes, `d` width.

use holdall_graph::ValueId;
use holdall_graph::ops::contrastive::CONTRASTIVE_TILE;

use super::harness::{ALL, FORMATS, Gpu, Settings, Sketch};

fn normalize(s: &mut Sketch, x_nd: ValueId) -> ValueId {
    let shape = s.graph.shape(x_nd);
    let y_nd = s.graph.statistic("y", shape.dims());
    s.graph.normalize_into("y", x_nd, y_nd);
    y_nd
}

#[test]
fn normalize_of_every_width() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [2, 19, 64, 100, 512, 768, 1030] {
        for rows in [1, 17, 300] {
            let what = format!("normalize of {rows} rows, {width} wide");
            gpu.compare(&what, FORMATS, |s| {
                let x_nd = s.input(&[rows, width]);
                vec![normalize(s, x_nd)]
            });
        }
    }
}

#[test]
fn normalize_of_first_tokens_and_beside_another_reader() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("normalize of first tokens", FORMATS, |s| {
        let x_btd = s.input(&[17, 5, 64]);
        let first = s.graph.first_tokens(x_btd);
        vec![normalize(s, first)]
    });
    gpu.compare("normalize beside another reader", ALL, |s| {
        let x_nd = s.input(&[17, 64]);
        let y_nd = normalize(s, x_nd);
        let weight = s.parameter(&[32, 64]);
        vec![y_nd, s.graph.linear("z", x_nd, weight, None, None)]
    });
}

/// Labels, some of them ignored, and weights, some of them zero.
fn labels_and_weights(s: &mut Sketch, rows: usize, classes: usize) -> [ValueId; 2] {
    let labels: Vec<i64> = (0..rows)
        .map(|row| match row % 5 {
            3 => -1,
            4 if row % 2 == 0 => -100,
            _ => s.random.below(classes) as i64,
        })
        .collect();
    let weights: Vec<f64> = (0..rows)
        .map(|row| [1.0, 0.5, 1.0, 2.0, 0.0, 1.5][row % 6])
        .collect();
    [
        s.indices(&[rows], &labels),
        s.full_constant(&[rows], &weights),
    ]
}

fn logits(s: &mut Sketch, rows: usize, classes: usize) -> ValueId {
    let values = s.numbers(rows * classes, 4.0);
    s.full_input(&[rows, classes], &values)
}

#[test]
fn cross_entropy_with_smoothing_ignored_and_weightless_rows() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full();
    for [rows, classes] in [[3, 4], [6, 5], [300, 33], [64, 1000], [5000, 10]] {
        for smoothing in [0.0, 0.1] {
            let what = format!("cross-entropy of {rows} rows, {classes} classes, {smoothing}");
            gpu.compare_with(&what, settings, |s| {
                let logits_nc = logits(s, rows, classes);
                let [labels_n, weights_n] = labels_and_weights(s, rows, classes);
                let sum = s.total();
                s.graph
                    .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, smoothing);
                vec![sum]
            });
        }
    }
}

#[test]
fn cross_entropy_of_a_head_over_normalized_features() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("label head", ALL, |s| {
        let x_nd = s.input(&[50, 64]);
        let features_nd = normalize(s, x_nd);
        let (weight, bias) = (s.parameter(&[10, 64]), s.parameter(&[10]));
        let logits_nc = s
            .graph
            .linear("head", features_nd, weight, Some(bias), None);
        let [labels_n, weights_n] = labels_and_weights(s, 50, 10);
        let sum = s.total();
        s.graph
            .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.1);
        // The features have another gradient besides: the head's is added to it.
        vec![sum, features_nd]
    });
}

#[test]
fn cross_entropy_adds_to_a_gradient_that_is_there() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("cross-entropy beside a product", ALL, |s| {
        let logits_nc = logits(s, 30, 7);
        let [labels_n, weights_n] = labels_and_weights(s, 30, 7);
        let sum = s.total();
        s.graph
            .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.0);
        let weight = s.parameter(&[5, 7]);
        vec![sum, s.graph.linear("z", logits_nc, weight, None, None)]
    });
}

/// Weights of classes, some of them zero.
fn class_weights(s: &mut Sketch, classes: usize) -> ValueId {
    let weights: Vec<f64> = (0..classes)
        .map(|class| [0.5, 1.0, 2.0, 0.0, 1.25][class % 5])
        .collect();
    s.full_constant(&[classes], &weights)
}

#[test]
fn cross_entropy_with_class_weights() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full();
    const MICRO_BATCHES: usize = 2;
    for [rows, classes] in [[3, 4], [300, 33], [64, 1000]] {
        for smoothing in [0.0, 0.1] {
            let what = format!("class weights of {rows} rows, {classes} classes, {smoothing}");
            gpu.compare_with(&what, settings, |s| {
                s.micro_batches = MICRO_BATCHES;
                let logits_nc = logits(s, rows, classes);
                let all = labels_and_weights(s, MICRO_BATCHES * rows, classes);
                let [labels_n, weights_n] = all.map(|all| s.graph.micro_rows(all, rows));
                let weights_c = class_weights(s, classes);
                let sum = s.total();
                s.graph.weighted_cross_entropy_into(
                    "loss", logits_nc, labels_n, weights_n, weights_c, sum, smoothing,
                );
                vec![sum]
            });
        }
    }
}

#[test]
fn cross_entropy_of_each_micro_batch_has_its_own_rows() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full();
    const MICRO_BATCHES: usize = 3;
    for rows in [1, 6, 70] {
        let what = format!("cross-entropy of {MICRO_BATCHES} micro-batches of {rows}");
        gpu.compare_with(&what, settings, |s| {
            s.micro_batches = MICRO_BATCHES;
            let logits_nc = logits(s, rows, 12);
            let all = labels_and_weights(s, MICRO_BATCHES * rows, 12);
            let [labels_n, weights_n] = all.map(|all| s.graph.micro_rows(all, rows));
            let sum = s.total();
            s.graph
                .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.1);
            // The sum over all of them, and the last one's gradient.
            vec![sum]
        });
    }
}

/// One head of every kind in one product, in f32 and in the compute format.
#[test]
fn losses_of_column_slices() {
    let Some(gpu) = Gpu::open() else { return };
    for [rows, classes, labels, numbers] in [[5, 3, 4, 1], [33, 40, 70, 3]] {
        for full in [true, false] {
            let what = format!("heads of {classes}, {labels}, {numbers}, {rows} rows, full {full}");
            gpu.compare(&what, ALL, |s| {
                let all = classes + labels + numbers;
                let logits = if full {
                    logits(s, rows, all)
                } else {
                    s.input(&[rows, all])
                };
                let sums = [(); 3].map(|()| s.total());
                let head = s.graph.columns(logits, 0, classes);
                let [labels_n, weights_n] = labels_and_weights(s, rows, classes);
                s.graph
                    .cross_entropy_into("classes", head, labels_n, weights_n, sums[0], 0.1);
                // Adds to the gradient that is there.
                let weights_c = class_weights(s, classes);
                s.graph.weighted_cross_entropy_into(
                    "weighted", head, labels_n, weights_n, weights_c, sums[0], 0.1,
                );
                let width = labels + numbers;
                let targets: Vec<f64> = (0..rows * width).map(|i| (i % 4) as f64 / 3.0).collect();
                let weights: Vec<f64> = (0..rows * width)
                    .map(|i| [1.0, 0.0, 2.0, 0.5, 1.0][i % 5])
                    .collect();
                let targets = s.full_constant(&[rows, width], &targets);
                let weights = s.full_constant(&[rows, width], &weights);
                let part = |s: &mut Sketch, of, start, width| s.graph.columns(of, start, width);
                let head = part(s, logits, classes, labels);
                let [t, w] = [targets, weights].map(|of| part(s, of, 0, labels));
                s.graph
                    .binary_cross_entropy_into("labels", head, t, w, sums[1]);
                let head = part(s, logits, classes + labels, numbers);
                let [t, w] = [targets, weights].map(|of| part(s, of, labels, numbers));
                s.graph.squared_error_into("numbers", head, t, w, sums[2]);
                sums.to_vec()
            });
        }
    }
}

#[test]
fn pointwise_losses_of_each_micro_batch_have_their_own_rows() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full();
    const MICRO_BATCHES: usize = 3;
    for [rows, width] in [[1, 1], [6, 5], [70, 33]] {
        let what = format!("pointwise losses of {MICRO_BATCHES} micro-batches of {rows}");
        gpu.compare_with(&what, settings, |s| {
            s.micro_batches = MICRO_BATCHES;
            let predictions = logits(s, rows, width);
            let all = [0.5, 1.0].map(|scale| {
                let values = s.numbers(MICRO_BATCHES * rows * width, scale);
                s.full_constant(&[MICRO_BATCHES * rows, width], &values)
            });
            let [targets, weights] = all.map(|all| s.graph.micro_rows(all, rows));
            let sums = [(); 2].map(|()| s.total());
            s.graph
                .binary_cross_entropy_into("binary", predictions, targets, weights, sums[0]);
            s.graph
                .squared_error_into("squared", predictions, targets, weights, sums[1]);
            sums.to_vec()
        });
    }
}

/// Features of length one.
pub fn unit_rows(s: &mut Sketch, [rows, width]: [usize; 2]) -> Vec<f64> {
    let mut values = s.numbers(rows * width, 1.0);
    for row in values.chunks_mut(width) {
        let length = row.iter().map(|value| value * value).sum::<f64>().sqrt();
        row.iter_mut().for_each(|value| *value /= length);
    }
    values
}

/// Which of pictures, texts and temperature have a gradient.
const EVERYTHING: [bool; 3] = [true; 3];

fn contrastive(s: &mut Sketch, dims: [usize; 2], padded: bool, trained: [bool; 3]) -> Vec<ValueId> {
    let [image_bd, text_bd] = [trained[0], trained[1]].map(|wanted| {
        let values = unit_rows(s, dims);
        if wanted {
            s.full_input(&dims, &values)
        } else {
            s.full_constant(&dims, &values)
        }
    });
    let counts = |row: usize| !padded || (row % 4 != 2 && row + 9 < dims[0]);
    let weights: Vec<f64> = (0..dims[0])
        .map(|row| if counts(row) { 1.0 } else { 0.0 })
        .collect();
    let weights_b = s.full_constant(&[dims[0]], &weights);
    let logit_scale = s.parameter_of(&[], &[2.6592]);
    if !trained[2] {
        s.freeze(logit_scale);
    }
    let sum = s.total();
    s.graph.contrastive_into(
        [image_bd, text_bd],
        weights_b,
        logit_scale,
        sum,
        CONTRASTIVE_TILE,
    );
    vec![sum]
}

#[test]
fn contrastive_with_and_without_padding() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full().long_sums();
    // The last have several tiles.
    let small = [[17, 512], [17, 5], [128, 64], [300, 48], [2049, 16]];
    let all = [&small[..], &[[5000, 32]]].concat();
    for dims in gpu.sizes(&all, &small) {
        for padded in [false, true] {
            let what = format!("contrastive of {dims:?}, padded {padded}");
            gpu.compare_with(&what, settings, |s| {
                contrastive(s, dims, padded, EVERYTHING)
            });
        }
    }
}

#[test]
fn contrastive_with_sides_that_have_no_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full().long_sums();
    for trained in [
        [true, true, false],
        [false, true, true],
        [true, false, true],
        [false, false, true],
    ] {
        let what = format!("contrastive, pictures, texts and temperature trained {trained:?}");
        gpu.compare_with(&what, settings, |s| contrastive(s, [40, 64], true, trained));
    }
}

#[test]
fn contrastive_of_features_with_another_reader() {
    let Some(gpu) = Gpu::open() else { return };
    for rows in [40, 2100] {
        let settings = Settings::of(ALL).long_sums();
        gpu.compare_with(
            &format!("contrastive of {rows} beside a head"),
            settings,
            |s| {
                let values = unit_rows(s, [rows, 64]);
                let image_bd = s.full_input(&[rows, 64], &values);
                let values = unit_rows(s, [rows, 64]);
                let text_bd = s.full_input(&[rows, 64], &values);
                let weights_b = s.full_constant(&[rows], &vec![1.0; rows]);
                let logit_scale = s.parameter_of(&[], &[2.6592]);
                let sum = s.total();
                s.graph
                    .contrastive_into([image_bd, text_bd], weights_b, logit_scale, sum, 512);
                let weight = s.parameter(&[10, 64]);
                vec![sum, s.graph.linear("z", image_bd, weight, None, None)]
            },
        );
    }
}
