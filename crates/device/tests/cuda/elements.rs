//! Element-wise operations: sums, copies, other formats, one number everywhere.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::ops::fill::Fill;
use holdall_graph::{DType, Output, Role};

use super::harness::{ALL, FORMATS, Gpu};

/// From one element to more than a block takes, with and without a rest.
const SIZES: [[usize; 2]; 5] = [[1, 1], [3, 5], [17, 64], [33, 1001], [300, 768]];

const ACTIVATIONS: [Activation; 4] = [
    Activation::QuickGelu,
    Activation::Gelu,
    Activation::Relu,
    Activation::LeakyRelu,
];

#[test]
fn add_of_two_and_of_one_twice() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in SIZES {
        gpu.compare(&format!("add of {dims:?}"), FORMATS, |s| {
            let (a, b) = (s.input(&dims), s.input(&dims));
            vec![s.graph.add("y", a, b)]
        });
        gpu.compare(&format!("three times {dims:?}"), FORMATS, |s| {
            let a = s.input(&dims);
            let doubled = s.graph.add("doubled", a, a);
            vec![s.graph.add("y", doubled, a)]
        });
    }
}

#[test]
fn add_of_strided_views() {
    let Some(gpu) = Gpu::open() else { return };
    for (start, width) in [(16, 32), (3, 32), (8, 21)] {
        let what = format!("add of columns {start} to {}", start + width);
        gpu.compare(&what, FORMATS, |s| {
            let wide = s.input(&[17, 64]);
            let columns = s.graph.columns(wide, start, width);
            let tokens = s.input(&[17, 5, width]);
            let first = s.graph.first_tokens(tokens);
            let other = s.input(&[17, width]);
            let sum = s.graph.add("sum", columns, other);
            let sum = s.graph.reshape(sum, &[17, 1, width]);
            vec![s.graph.add("y", first, sum)]
        });
    }
}

#[test]
fn activation_on_its_own() {
    let Some(gpu) = Gpu::open() else { return };
    for activation in ACTIVATIONS {
        for dims in SIZES {
            gpu.compare(&format!("{activation:?} of {dims:?}"), FORMATS, |s| {
                let (near, far) = (s.input(&dims), s.scaled_input(&dims, 9.0));
                vec![
                    s.graph.activate("near", near, activation),
                    s.graph.activate("far", far, activation),
                ]
            });
        }
    }
}

#[test]
fn cast_there_and_back() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in SIZES {
        gpu.compare(&format!("cast of {dims:?}"), FORMATS, |s| {
            let x = s.input(&dims);
            let wide = s.graph.cast("wide", x, DType::F32);
            let narrow = s.graph.cast("narrow", wide, s.graph.compute());
            let other = s.input(&dims);
            // A second gradient of the wide one, which the cast's is added to.
            vec![s.graph.add("y", narrow, other), wide]
        });
    }
}

#[test]
fn cast_adds_to_a_wider_gradient_that_is_there() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("cast beside another reader", ALL, |s| {
        let values = s.numbers(37 * 64, 1.0);
        let x_nd = s.full_input(&[37, 64], &values);
        let narrow = s.graph.cast("narrow", x_nd, s.graph.compute());
        let weight = s.parameter(&[24, 64]);
        let y = s.graph.linear("y", narrow, weight, None, None);
        let full = s.parameter(&[10, 64]);
        vec![y, s.graph.linear("z", x_nd, full, None, None)]
    });
}

#[test]
fn fill_with_a_number() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in SIZES {
        gpu.compare(&format!("fill of {dims:?}"), FORMATS, |s| {
            let narrow = s.graph.activation("narrow", &dims);
            let full = s.graph.statistic("full", &dims);
            for value in [narrow, full] {
                let number = Fill { value: -0.375 };
                s.graph.push_new(number, Vec::new(), &[value]);
            }
            vec![narrow, full]
        });
    }
}

#[test]
fn neighbours_are_set_to_zero_and_nothing_else_is() {
    let Some(gpu) = Gpu::open() else { return };
    // Sizes that end within, at and just beyond a unit of placement; the third and the last keep what they have.
    for sizes in [
        [1, 3, 7, 65, 5],
        [64, 128, 64, 256, 63],
        [1000, 1, 129, 2, 1],
    ] {
        gpu.compare(&format!("zeros among {sizes:?}"), FORMATS, |s| {
            let features: Vec<_> = sizes
                .iter()
                .map(|&size| {
                    let x = s.constant(&[size]);
                    let dtype = s.graph.dtype(x);
                    let name = format!("of {size}");
                    let feature = s.graph.tensor(name, &[size], dtype, Role::Feature);
                    let copied = vec![Output::overwrite(feature)];
                    s.graph.push(AddInto {}, vec![x], copied);
                    feature
                })
                .collect();
            for index in [0, 1, 3] {
                let zero = Fill { value: 0.0 };
                s.graph.push_new(zero, Vec::new(), &[features[index]]);
            }
            s.seen.extend(features);
            Vec::new()
        });
    }
}

#[test]
fn add_into_rows_that_move_with_the_micro_batch() {
    let Some(gpu) = Gpu::open() else { return };
    const MICRO_BATCHES: usize = 3;
    for [rows, width] in [[1, 64], [17, 37], [8, 512]] {
        let what = format!("rows of micro-batches of {rows}, {width} wide");
        gpu.compare(&what, FORMATS, |s| {
            s.micro_batches = MICRO_BATCHES;
            let x = s.input(&[rows, width]);
            let y = s.graph.add("doubled", x, x);
            let values = s.numbers(MICRO_BATCHES * rows * width, 1.0);
            let all = s.full_constant(&[MICRO_BATCHES * rows, width], &values);
            let moving = s.graph.micro_rows(all, rows);
            let here = s.graph.statistic("here", &[rows, width]);
            s.graph
                .push(AddInto {}, vec![moving], vec![Output::overwrite(here)]);
            for (name, value) in [("all narrow", y), ("all full", here)] {
                let (dims, dtype) = ([MICRO_BATCHES * rows, width], s.graph.dtype(value));
                let all = s.graph.tensor(name, &dims, dtype, Role::Feature);
                let moving = s.graph.micro_rows(all, rows);
                let outputs = vec![Output::overwrite(moving)];
                s.graph.push(AddInto {}, vec![value], outputs);
                s.seen.push(all);
            }
            vec![y]
        });
    }
}

#[test]
fn scale_columns_trained_and_frozen() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in SIZES {
        for [x, gamma] in [[true, true], [true, false], [false, true]] {
            let what = format!("scaled columns of {dims:?}, x and factors trained {x}, {gamma}");
            gpu.compare(&what, FORMATS, |s| {
                let x_nd = if x { s.input(&dims) } else { s.constant(&dims) };
                let gamma_d = s.parameter(&dims[1..]);
                if !gamma {
                    s.freeze(gamma_d);
                }
                vec![s.graph.scale_columns("y", x_nd, gamma_d)]
            });
        }
    }
}

/// The same mask as on the CPU, in every format, for each micro-batch's own samples.
#[test]
fn dropout_of_elements_and_of_samples() {
    let Some(gpu) = Gpu::open() else { return };
    const MICRO_BATCHES: usize = 2;
    for [samples, tokens, width] in [[4, 1, 1], [5, 3, 37], [9, 50, 64]] {
        for mode in [DropoutMode::Element, DropoutMode::Sample] {
            let what = format!("{mode:?} dropout of {samples} x {tokens} x {width}");
            gpu.compare(&what, FORMATS, |s| {
                s.micro_batches = MICRO_BATCHES;
                let x_btd = s.input(&[samples, tokens, width]);
                let numbers: Vec<i64> = (0..MICRO_BATCHES * samples)
                    .map(|sample| (sample * sample) as i64 - 3)
                    .collect();
                let all = s.indices(&[numbers.len()], &numbers);
                let own = s.graph.micro_rows(all, samples);
                let stream = s.indices(&[2], &[-17, 1 << 40]);
                let op = Dropout {
                    rate: 0.3,
                    layer: u64::MAX - 2,
                    mode,
                };
                let full = s.numbers(samples * width, 1.0);
                let full = s.full_input(&[samples, width], &full);
                vec![
                    s.graph.dropout("y", x_btd, own, stream, op.clone()),
                    s.graph.dropout("full", full, own, stream, op),
                ]
            });
        }
    }
}
