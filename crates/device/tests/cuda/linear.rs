//! Products with what is fused into them: bias, residual, activation, and gradients of all of these.
//!
//! Legend: `b` samples, `t` tokens, `d` width, `n` rows, `i` inputs, `o` outputs.

use holdall_graph::ops::activation::Activation;
use holdall_graph::{Copies, ValueId};

use super::harness::{ALL, FULL, Gpu, HALVES, Settings, Sketch, assert_same_bits};

const ACTIVATIONS: [Activation; 2] = [Activation::QuickGelu, Activation::Gelu];

/// From one row to more than a single pass over a bias gradient takes.
const ROWS: [usize; 4] = [1, 17, 400, 5000];

#[test]
fn linear_with_and_without_bias_and_residual() {
    let Some(gpu) = Gpu::open() else { return };
    for n in ROWS {
        for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("linear of {n} rows, bias {bias}, residual {residual}");
            gpu.compare(&what, ALL, |s| {
                let x_ni = s.input(&[n, 72]);
                let weight_oi = s.parameter(&[40, 72]);
                let bias_o = bias.then(|| s.parameter(&[40]));
                let residual_no = residual.then(|| s.input(&[n, 40]));
                vec![s.graph.linear("y", x_ni, weight_oi, bias_o, residual_no)]
            });
        }
    }
}

#[test]
fn linear_of_odd_widths() {
    let Some(gpu) = Gpu::open() else { return };
    for n in ROWS {
        for [i, o] in [[37, 21], [101, 259], [3, 5]] {
            gpu.compare(&format!("linear of {n} rows, {i} to {o}"), FULL, |s| {
                let x_ni = s.input(&[n, i]);
                let (weight_oi, bias_o) = (s.parameter(&[o, i]), s.parameter(&[o]));
                let residual_no = s.input(&[n, o]);
                vec![
                    s.graph
                        .linear("y", x_ni, weight_oi, Some(bias_o), Some(residual_no)),
                ]
            });
        }
    }
}

#[test]
fn linear_as_wide_as_a_model() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("linear of 400 rows, 768 to 2304", ALL, |s| {
        let x_ni = s.input(&[400, 768]);
        let (weight_oi, bias_o) = (s.parameter(&[2304, 768]), s.parameter(&[2304]));
        vec![s.graph.linear("y", x_ni, weight_oi, Some(bias_o), None)]
    });
}

#[test]
fn linear_whose_residual_is_its_input() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("linear, its input as residual", ALL, |s| {
        let x_btd = s.input(&[2, 13, 64]);
        let weight_oi = s.parameter(&[64, 64]);
        vec![s.graph.linear("y", x_btd, weight_oi, None, Some(x_btd))]
    });
}

#[test]
fn linear_of_first_tokens_and_of_columns() {
    let Some(gpu) = Gpu::open() else { return };
    for n in [1, 17, 400] {
        gpu.compare(&format!("linear of {n} first tokens"), ALL, |s| {
            let x_btd = s.input(&[n, 5, 64]);
            let first = s.graph.first_tokens(x_btd);
            let (weight_oi, bias_o) = (s.parameter(&[32, 64]), s.parameter(&[32]));
            vec![s.graph.linear("y", first, weight_oi, Some(bias_o), None)]
        });
        gpu.compare(&format!("linear of columns, {n} rows"), ALL, |s| {
            let x_ni = s.input(&[n, 72]);
            let columns = s.graph.columns(x_ni, 16, 32);
            let (weight_oi, bias_o) = (s.parameter(&[40, 32]), s.parameter(&[40]));
            vec![s.graph.linear("y", columns, weight_oi, Some(bias_o), None)]
        });
        gpu.compare(&format!("linear of odd columns, {n} rows"), FULL, |s| {
            let x_ni = s.input(&[n, 11]);
            let columns = s.graph.columns(x_ni, 3, 6);
            let (weight_oi, bias_o) = (s.parameter(&[5, 6]), s.parameter(&[5]));
            vec![s.graph.linear("y", columns, weight_oi, Some(bias_o), None)]
        });
    }
}

#[test]
fn first_tokens_beside_the_whole() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("first tokens beside the whole", ALL, |s| {
        let x_btd = s.input(&[17, 5, 64]);
        let first = s.graph.first_tokens(x_btd);
        let (one, all) = (s.parameter(&[32, 64]), s.parameter(&[48, 64]));
        let wide = s.input(&[17, 1, 64]);
        let residual = s.graph.columns(wide, 8, 32);
        let one = s.graph.linear("one", first, one, None, Some(residual));
        vec![one, s.graph.linear("all", x_btd, all, None, None)]
    });
}

#[test]
fn linear_activated() {
    let Some(gpu) = Gpu::open() else { return };
    for activation in ACTIVATIONS {
        for n in ROWS {
            let what = format!("{activation:?} of {n} rows");
            gpu.compare(&what, ALL, |s| {
                let x_ni = s.input(&[n, 72]);
                let (weight_oi, bias_o) = (s.parameter(&[40, 72]), s.parameter(&[40]));
                vec![
                    s.graph
                        .linear_activated("y", x_ni, weight_oi, bias_o, activation),
                ]
            });
        }
        gpu.compare(&format!("{activation:?}, odd widths"), FULL, |s| {
            let x_ni = s.input(&[17, 37]);
            let (weight_oi, bias_o) = (s.parameter(&[21, 37]), s.parameter(&[21]));
            vec![
                s.graph
                    .linear_activated("y", x_ni, weight_oi, bias_o, activation),
            ]
        });
    }
}

/// Two layers with an activation between them and the input around them.
fn mlp(s: &mut Sketch, [n, d, hidden]: [usize; 3], activation: Activation) -> ValueId {
    let x_nd = s.input(&[n, d]);
    let (weight, bias) = (s.parameter(&[hidden, d]), s.parameter(&[hidden]));
    let inner = s
        .graph
        .linear_activated("inner", x_nd, weight, bias, activation);
    let (weight, bias) = (s.parameter(&[d, hidden]), s.parameter(&[d]));
    s.graph.linear("y", inner, weight, Some(bias), Some(x_nd))
}

#[test]
fn the_activation_of_the_layer_before_is_fused_into_the_product() {
    let Some(gpu) = Gpu::open() else { return };
    for activation in ACTIVATIONS {
        for sizes in [[1, 64, 256], [17, 128, 512], [5000, 64, 128]] {
            let what = format!("{activation:?} between layers, {sizes:?}");
            gpu.compare(&what, ALL, |s| vec![mlp(s, sizes, activation)]);
        }
        let what = format!("{activation:?} between odd layers");
        gpu.compare(&what, FULL, |s| vec![mlp(s, [29, 37, 51], activation)]);
    }
}

#[test]
fn a_layer_with_two_readers_has_a_gradient_that_is_added_to() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("two readers", ALL, |s| {
        let x_ni = s.input(&[50, 64]);
        let (weight, bias) = (s.parameter(&[96, 64]), s.parameter(&[96]));
        let hidden = s
            .graph
            .linear_activated("h", x_ni, weight, bias, Activation::Gelu);
        let (left, right) = (s.parameter(&[24, 96]), s.parameter(&[32, 96]));
        vec![
            s.graph.linear("left", hidden, left, None, None),
            s.graph.linear("right", hidden, right, None, None),
        ]
    });
}

#[test]
fn a_weight_that_is_used_twice_has_a_gradient_of_both_uses() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("tied weights", ALL, |s| {
        let x_nd = s.input(&[50, 64]);
        let (weight, bias) = (s.parameter(&[64, 64]), s.parameter(&[64]));
        let once = s.graph.linear("once", x_nd, weight, Some(bias), None);
        vec![
            s.graph
                .linear("twice", once, weight, Some(bias), Some(x_nd)),
        ]
    });
}

#[test]
fn frozen_weights_and_frozen_biases() {
    let Some(gpu) = Gpu::open() else { return };
    for frozen in [[true, false], [false, true], [true, true]] {
        gpu.compare(&format!("weight and bias frozen {frozen:?}"), ALL, |s| {
            let x_ni = s.input(&[17, 72]);
            let parameters = [s.parameter(&[40, 72]), s.parameter(&[40])];
            for (parameter, frozen) in parameters.into_iter().zip(frozen) {
                if frozen {
                    s.freeze(parameter);
                }
            }
            let [weight_oi, bias_o] = parameters;
            vec![s.graph.linear("y", x_ni, weight_oi, Some(bias_o), None)]
        });
    }
}

#[test]
fn biases_of_keys_have_no_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    for n in ROWS {
        let outcomes = gpu.compare(&format!("linear with keys, {n} rows"), ALL, |s| {
            let x_nd = s.input(&[n, 64]);
            let weight = s.packed(&[("q", &[64, 64]), ("k", &[64, 64]), ("v", &[64, 64])]);
            let bias = s.packed(&[("q.bias", &[64]), ("k.bias", &[64]), ("v.bias", &[64])]);
            vec![s.graph.linear_with_keys("y", x_nd, weight, bias, 64..128)]
        });
        for outcome in outcomes {
            let gradient = outcome.of("q.bias.grad");
            assert!(gradient[64..128].iter().all(|&element| element == 0.0));
            let others = gradient[..64].iter().chain(&gradient[128..]);
            assert!(others.filter(|&&element| element == 0.0).count() < 8);
        }
    }
}

#[test]
fn copies_for_each_use_give_the_bits_of_copies_that_stay() {
    let Some(gpu) = Gpu::open() else { return };
    let [resident, per_use] = [Copies::Resident, Copies::PerUse].map(|copies| {
        let settings = Settings {
            copies,
            ..Settings::of(HALVES)
        };
        gpu.compare_with(&format!("{copies:?} copies"), settings, |s| {
            let x_nd = s.input(&[50, 64]);
            let weight = s.packed(&[("q", &[64, 64]), ("k", &[64, 64])]);
            let bias = s.packed(&[("q.bias", &[64]), ("k.bias", &[64])]);
            let y = s.graph.linear("y", x_nd, weight, Some(bias), None);
            let (weight, bias) = (s.parameter(&[96, 128]), s.parameter(&[96]));
            let hidden = s
                .graph
                .linear_activated("h", y, weight, bias, Activation::QuickGelu);
            let tied = s.parameter(&[96, 96]);
            let once = s.graph.linear("once", hidden, tied, None, None);
            vec![s.graph.linear("twice", once, tied, None, Some(hidden))]
        })
    });
    for (resident, per_use) in resident.iter().zip(&per_use) {
        assert_same_bits(resident, per_use, "copies for each use");
    }
}

#[test]
fn adapters_of_one_product_and_of_an_mlp() {
    let Some(gpu) = Gpu::open() else { return };
    for n in ROWS {
        for (parts, rank) in [(1, 16), (3, 16), (3, 8), (2, 4)] {
            let what = format!("{n} rows, {parts} adapters of rank {rank}");
            gpu.compare(&what, ALL, |s| {
                let x_ni = s.input(&[n, 72]);
                let weight = s.adapted("part", parts, [40, 72], rank);
                let (bias, residual) = (s.parameter(&[parts * 40]), s.input(&[n, parts * 40]));
                vec![
                    s.graph
                        .linear("y", x_ni, weight, Some(bias), Some(residual)),
                ]
            });
        }
        for activation in ACTIVATIONS {
            let what = format!("{activation:?} of {n} rows with an adapter");
            gpu.compare(&what, ALL, |s| {
                let x_ni = s.input(&[n, 72]);
                let weight = s.adapted("fc", 1, [40, 72], 8);
                let bias = s.parameter(&[40]);
                let hidden = s
                    .graph
                    .linear_activated("h", x_ni, weight, bias, activation);
                let (weight, bias) = (s.parameter(&[24, 40]), s.parameter(&[24]));
                vec![s.graph.linear("y", hidden, weight, Some(bias), None)]
            });
        }
    }
    gpu.compare("adapters of odd sizes", FULL, |s| {
        let x_ni = s.input(&[17, 37]);
        let weight = s.adapted("part", 2, [21, 37], 5);
        vec![s.graph.linear("y", x_ni, weight, None, None)]
    });
}

#[test]
fn adapters_of_small_and_odd_ranks() {
    let Some(gpu) = Gpu::open() else { return };
    for rank in [1, 2, 3] {
        gpu.compare(&format!("adapters of rank {rank}"), ALL, |s| {
            let x_ni = s.input(&[400, 72]);
            let weight = s.adapted("part", 3, [40, 72], rank);
            vec![s.graph.linear("y", x_ni, weight, None, None)]
        });
    }
}
