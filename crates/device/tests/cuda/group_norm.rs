//! Group norm with its activation, and its gradients, for every way in which threads share channels and pixels.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `c` channels.

use holdall_graph::ValueId;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::pool2d::Pool;

use super::harness::{F32, FORMATS, Gpu, Settings, Sketch};

/// Sizes, and groups: channels that fill accesses and that do not, few pixels and more than one part of a sum.
const SIZES: [([usize; 4], usize); 9] = [
    ([2, 8, 8, 64], 8),
    ([1, 5, 7, 24], 3),
    ([2, 3, 5, 5], 5),
    ([3, 1, 1, 8], 1),
    ([2, 4, 4, 320], 8),
    ([1, 64, 40, 16], 4),
    ([2, 33, 31, 32], 32),
    ([1, 2, 2, 1024], 1),
    ([1, 300, 30, 3], 1),
];

const ACTIVATIONS: [Option<Activation>; 5] = [
    None,
    Some(Activation::Relu),
    Some(Activation::LeakyRelu),
    Some(Activation::QuickGelu),
    Some(Activation::Gelu),
];

fn settings() -> Settings {
    Settings::of(FORMATS).long_sums()
}

fn norm(
    s: &mut Sketch,
    x_nhwc: ValueId,
    groups: usize,
    activation: Option<Activation>,
    residual: Option<ValueId>,
) -> ValueId {
    let c = s.graph.shape(x_nhwc).width();
    let (gamma_c, beta_c) = (s.parameter(&[c]), s.parameter(&[c]));
    s.graph.group_norm(
        "y", x_nhwc, gamma_c, beta_c, groups, 1e-5, activation, residual,
    )
}

#[test]
fn group_norm_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (dims, groups) in SIZES {
        let what = format!("group norm of {dims:?} in {groups} groups");
        gpu.compare_with(&what, settings(), |s| {
            let x_nhwc = s.input(&dims);
            vec![norm(s, x_nhwc, groups, Some(Activation::Relu), None)]
        });
    }
}

#[test]
fn group_norm_with_every_activation_and_a_residual() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in [[2, 6, 5, 16], [1, 6, 5, 6]] {
        for activation in ACTIVATIONS {
            let what = format!("group norm of {dims:?}, {activation:?}");
            gpu.compare_with(&what, settings(), |s| {
                let x_nhwc = s.input(&dims);
                vec![norm(s, x_nhwc, 2, activation, None)]
            });
            for wanted in [true, false] {
                let what = format!("{what}, residual with a gradient {wanted}");
                gpu.compare_with(&what, settings(), |s| {
                    let x_nhwc = s.input(&dims);
                    let residual = if wanted {
                        s.input(&dims)
                    } else {
                        s.constant(&dims)
                    };
                    vec![norm(s, x_nhwc, 2, activation, Some(residual))]
                });
            }
        }
    }
}

#[test]
fn group_norm_of_channels_of_a_wider_value() {
    let Some(gpu) = Gpu::open() else { return };
    // The first two are whole accesses in every format; the others in none.
    for [start, channels, wide] in [[8, 16, 64], [16, 24, 40], [3, 16, 32], [8, 12, 27]] {
        let what = format!("group norm of channels {start}.. of {wide}");
        gpu.compare_with(&what, settings(), |s| {
            let [n, h, w] = [2, 9, 7];
            let x = s.input(&[n, h, w, wide]);
            let x = s.graph.columns(x, start, channels);
            let residual = s.input(&[n, h, w, wide]);
            let residual = s.graph.columns(residual, start, channels);
            let joined = s.graph.activation("joined", &[n, h, w, wide]);
            let y = s.graph.columns(joined, start, channels);
            let (gamma_c, beta_c) = (s.parameter(&[channels]), s.parameter(&[channels]));
            let leaky = Some(Activation::LeakyRelu);
            s.graph
                .group_norm_into("y", x, gamma_c, beta_c, 4, 1e-5, leaky, Some(residual), y);
            // A whole value: what the gradient comes from is a view again.
            vec![s.graph.pool2d("copy", y, Pool::Average, 1)]
        });
    }
}

#[test]
fn group_norm_adds_to_gradients_that_are_there() {
    let Some(gpu) = Gpu::open() else { return };
    for dims in [[2, 5, 6, 32], [1, 7, 3, 10]] {
        let what = format!("group norms of {dims:?} beside each other");
        gpu.compare_with(&what, settings(), |s| {
            let (x, residual) = (s.input(&dims), s.input(&dims));
            let first = norm(s, x, 2, Some(Activation::Relu), Some(residual));
            let second = norm(s, x, 2, None, Some(residual));
            vec![first, second, norm(s, residual, 2, None, None)]
        });
    }
}

#[test]
fn group_norm_with_frozen_parameters_or_of_something_without_a_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    for [gamma, beta, x, residual] in [
        [true, false, true, true],
        [false, true, true, false],
        [true, true, false, true],
        [false, false, false, true],
        [false, false, true, false],
        [true, false, false, false],
    ] {
        let what = format!("gamma, beta, x, residual trained: {gamma}, {beta}, {x}, {residual}");
        gpu.compare_with(&what, settings(), |s| {
            let dims = [2, 6, 5, 16];
            let [x, residual] = [x, residual].map(|wanted| {
                if wanted {
                    s.input(&dims)
                } else {
                    s.constant(&dims)
                }
            });
            let parameters = [gamma, beta].map(|trained| {
                let parameter = s.parameter(&[16]);
                if !trained {
                    s.freeze(parameter);
                }
                parameter
            });
            let [gamma_c, beta_c] = parameters;
            let relu = Some(Activation::Relu);
            let y = s
                .graph
                .group_norm("y", x, gamma_c, beta_c, 4, 1e-5, relu, Some(residual));
            vec![y]
        });
    }
}

/// A mean far from zero: a sum of squares in f32 would have no digits left for the variance.
#[test]
fn group_statistics_of_numbers_far_from_zero() {
    let Some(gpu) = Gpu::open() else { return };
    let ([pixels, c, groups], each) = ([40 * 40, 16, 4], 4);
    let values: Vec<f64> = (0..pixels * c)
        .map(|at| f64::from(300.0 + (at * 7919 % 1000) as f32 / 500.0))
        .collect();
    let settings = Settings {
        arithmetics: F32,
        full_tolerance: 1e-3, // f32 has five digits left of such numbers
        ..settings()
    };
    let found = gpu.compare_with("group norm of numbers around 300", settings, |s| {
        let x = s.full_input(&[1, 40, 40, c], &values);
        let gamma_c = s.parameter_of(&[c], &[1.0; 16]);
        let beta_c = s.parameter_of(&[c], &[0.0; 16]);
        let y = s
            .graph
            .group_norm("y", x, gamma_c, beta_c, groups, 0.0, None, None);
        vec![y]
    });
    let y = &found[0].0[0].1;
    for group in 0..groups {
        let of_group = |at: &usize| at % c / each == group;
        let places: Vec<usize> = (0..values.len()).filter(of_group).collect();
        let count = places.len() as f64;
        let mean = places.iter().map(|&at| values[at]).sum::<f64>() / count;
        let squares = places.iter().map(|&at| (values[at] - mean).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        for &at in &places {
            let expected = (values[at] - mean) / deviation;
            let error = (y[at] - expected).abs();
            assert!(error < 1e-4, "[{at}] is {}, expected {expected}", y[at]);
        }
    }
}

/// A picture's numbers are the same bits whatever the batch that it is part of.
#[test]
fn a_picture_does_not_depend_on_the_others_of_its_batch() {
    let Some(gpu) = Gpu::open() else { return };
    let [h, w, c] = [40, 33, 64];
    let of_batch = |n: usize| {
        let what = format!("group norm of {n} pictures");
        gpu.compare_with(&what, settings(), |s| {
            let (gamma_c, beta_c) = (s.parameter(&[c]), s.parameter(&[c]));
            let x = s.input(&[n, h, w, c]);
            let relu = Some(Activation::Relu);
            let y = s
                .graph
                .group_norm("y", x, gamma_c, beta_c, 8, 1e-5, relu, None);
            let seed = (0..n * h * w * c).map(|at| (at % 17) as f64 / 16.0 - 0.5);
            s.seed(y, seed.collect());
            vec![y]
        })
    };
    let (alone, together) = (of_batch(1), of_batch(5));
    for (alone, together) in alone.iter().zip(&together) {
        // y, then the gradient of x.
        for index in [0, 1] {
            let (one, all) = (&alone.0[index].1, &together.0[index].1);
            assert_eq!(one[..], all[..one.len()], "{}", alone.0[index].0);
        }
    }
}
