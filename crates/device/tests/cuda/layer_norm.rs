//! Layer norm and its gradients, for every way in which a row is shared out among threads.

use super::harness::{ALL, F32, FORMATS, Gpu, Sketch};
use holdall_graph::ValueId;

fn norm(s: &mut Sketch, x_nd: ValueId) -> ValueId {
    let d = s.graph.shape(x_nd).width();
    let (gamma_d, beta_d) = (s.parameter(&[d]), s.parameter(&[d]));
    s.graph.layer_norm("y", x_nd, gamma_d, beta_d, 1e-5)
}

#[test]
fn layer_norm_of_every_width() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [8, 128, 256, 512, 768, 1024, 1280, 2048, 4096] {
        for rows in [1, 37] {
            let what = format!("layer norm of {rows} rows, {width} wide");
            gpu.compare(&what, FORMATS, |s| {
                let x_nd = s.input(&[rows, width]);
                vec![norm(s, x_nd)]
            });
        }
    }
}

#[test]
fn layer_norm_of_widths_that_are_not_aligned() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [3, 37, 100, 770, 1030, 3001] {
        let what = format!("layer norm of 37 rows, {width} wide");
        gpu.compare(&what, F32, |s| {
            let x_nd = s.input(&[37, width]);
            vec![norm(s, x_nd)]
        });
    }
    // No multiple of an access of eight 16-bit numbers.
    gpu.compare("layer norm of 37 rows, 100 wide", FORMATS, |s| {
        let x_nd = s.input(&[37, 100]);
        vec![norm(s, x_nd)]
    });
}

#[test]
fn layer_norm_of_more_rows_than_a_card_takes_at_a_time() {
    let Some(gpu) = Gpu::open() else { return };
    // The software card takes 384 rows at a time.
    for (rows, width) in gpu.sizes(&[(5000, 128), (5000, 1280)], &[(900, 128), (900, 1280)]) {
        let what = format!("layer norm of {rows} rows, {width} wide");
        gpu.compare(&what, FORMATS, |s| {
            let x_nd = s.input(&[rows, width]);
            vec![norm(s, x_nd)]
        });
    }
}

#[test]
fn layer_norm_of_first_tokens_and_of_columns() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [128, 1280] {
        gpu.compare("layer norm of first tokens", FORMATS, |s| {
            let x_btd = s.input(&[17, 5, width]);
            let first = s.graph.first_tokens(x_btd);
            vec![norm(s, first)]
        });
        gpu.compare("layer norm of columns", FORMATS, |s| {
            let x_nd = s.input(&[17, 2 * width]);
            let columns = s.graph.columns(x_nd, 64, width);
            vec![norm(s, columns)]
        });
    }
    gpu.compare("layer norm of odd columns", F32, |s| {
        let x_nd = s.input(&[17, 111]);
        let columns = s.graph.columns(x_nd, 3, 100);
        vec![norm(s, columns)]
    });
}

#[test]
fn layer_norm_adds_to_a_gradient_that_is_there() {
    let Some(gpu) = Gpu::open() else { return };
    for width in [64, 768, 2048] {
        let what = format!("layer norm beside another reader, {width} wide");
        gpu.compare(&what, ALL, |s| {
            let x_nd = s.input(&[37, width]);
            let y_nd = norm(s, x_nd);
            let weight = s.parameter(&[48, width]);
            vec![y_nd, s.graph.linear("z", x_nd, weight, None, None)]
        });
    }
}

#[test]
fn layer_norm_with_frozen_parameters_or_of_something_without_a_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    for frozen in [[true, false], [false, true], [true, true]] {
        gpu.compare(&format!("gamma and beta frozen {frozen:?}"), FORMATS, |s| {
            let x_nd = s.input(&[37, 128]);
            let parameters = [s.parameter(&[128]), s.parameter(&[128])];
            for (parameter, frozen) in parameters.into_iter().zip(frozen) {
                if frozen {
                    s.freeze(parameter);
                }
            }
            let [gamma_d, beta_d] = parameters;
            vec![s.graph.layer_norm("y", x_nd, gamma_d, beta_d, 1e-5)]
        });
    }
    for width in [128, 1280] {
        gpu.compare("layer norm of a constant", FORMATS, |s| {
            let x_nd = s.constant(&[37, width]);
            vec![norm(s, x_nd)]
        });
    }
}
