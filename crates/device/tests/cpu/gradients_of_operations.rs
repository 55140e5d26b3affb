//! Gradient checks, operation by operation. Sizes are small and uneven on purpose.
//!
//! Legend: `b` samples, `t` tokens, `d` width, `n` rows, `i` inputs, `o` outputs.

use holdall_graph::adapters::{AdapterDropout, Adapters};
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::{DType, Decay, Op, Section, ValueId, Write, backward};

use super::gradient_check::{Sketch, backward_nodes, check_gradients};
use super::step::Contents;

const ACTIVATIONS: [Activation; 2] = [Activation::QuickGelu, Activation::Gelu];

#[test]
fn linear_with_and_without_bias_and_residual() {
    for (bias, residual) in [(false, false), (true, false), (false, true), (true, true)] {
        check_gradients(|s| {
            let x_ni = s.input(&[5, 7]);
            let weight_oi = s.parameter(&[6, 7]);
            let bias_o = bias.then(|| s.parameter(&[6]));
            let residual_no = residual.then(|| s.input(&[5, 6]));
            vec![s.graph.linear("y", x_ni, weight_oi, bias_o, residual_no)]
        });
    }
}

#[test]
fn linear_whose_residual_is_its_input() {
    check_gradients(|s| {
        let x_ni = s.input(&[2, 3, 5]);
        let weight_oi = s.parameter(&[5, 5]);
        vec![s.graph.linear("y", x_ni, weight_oi, None, Some(x_ni))]
    });
}

#[test]
fn linear_of_strided_views() {
    check_gradients(|s| {
        let x_ni = s.input(&[4, 11]);
        let columns = s.graph.columns(x_ni, 3, 6);
        let weight_oi = s.parameter(&[5, 6]);
        let bias_o = s.parameter(&[5]);
        vec![s.graph.linear("y", columns, weight_oi, Some(bias_o), None)]
    });
    check_gradients(|s| {
        let x_btd = s.input(&[3, 4, 5]);
        let first = s.graph.first_tokens(x_btd);
        let weight_oi = s.parameter(&[2, 5]);
        vec![s.graph.linear("y", first, weight_oi, None, None)]
    });
}

#[test]
fn linear_over_more_rows_than_a_strip() {
    check_gradients(|s| {
        let x_ni = s.input(&[2100, 2]);
        let weight_oi = s.parameter(&[3, 2]);
        let bias_o = s.parameter(&[3]);
        let hidden = s
            .graph
            .linear_activated("h", x_ni, weight_oi, bias_o, Activation::Gelu);
        let weight_oi = s.parameter(&[2, 3]);
        vec![s.graph.linear("y", hidden, weight_oi, None, Some(x_ni))]
    });
}

#[test]
fn linear_activated_alone() {
    for activation in ACTIVATIONS {
        let graph = check_gradients(|s| {
            let x_ni = s.input(&[5, 4]);
            let weight_oi = s.parameter(&[6, 4]);
            let bias_o = s.parameter(&[6]);
            vec![
                s.graph
                    .linear_activated("y", x_ni, weight_oi, bias_o, activation),
            ]
        });
        assert!(
            backward_nodes(&graph)
                .iter()
                .any(|node| matches!(node.op, Op::ActivateGrad(_)))
        );
    }
}

#[test]
fn the_activation_of_the_layer_before_is_fused_into_the_product() {
    for activation in ACTIVATIONS {
        let graph = check_gradients(|s| {
            let x_ni = s.input(&[5, 4]);
            let (weight, bias) = (s.parameter(&[6, 4]), s.parameter(&[6]));
            let hidden = s
                .graph
                .linear_activated("h", x_ni, weight, bias, activation);
            let (weight, bias) = (s.parameter(&[4, 6]), s.parameter(&[4]));
            vec![s.graph.linear("y", hidden, weight, Some(bias), Some(x_ni))]
        });
        let nodes = backward_nodes(&graph);
        let fused =
            |op: &Op| matches!(op, Op::LinearInputGrad(op) if op.activation == Some(activation));
        assert_eq!(nodes.iter().filter(|node| fused(&node.op)).count(), 1);
        assert!(
            !nodes
                .iter()
                .any(|node| matches!(node.op, Op::ActivateGrad(_)))
        );
    }
}

#[test]
fn a_hidden_layer_with_two_readers_is_fused_into_the_last_product() {
    let graph = check_gradients(|s| {
        let x_ni = s.input(&[5, 4]);
        let (weight, bias) = (s.parameter(&[6, 4]), s.parameter(&[6]));
        let hidden = s
            .graph
            .linear_activated("h", x_ni, weight, bias, Activation::Gelu);
        let (left, right) = (s.parameter(&[3, 6]), s.parameter(&[2, 6]));
        vec![
            s.graph.linear("left", hidden, left, None, None),
            s.graph.linear("right", hidden, right, None, None),
        ]
    });
    let nodes = backward_nodes(&graph);
    let fused = |op: &Op| matches!(op, Op::LinearInputGrad(op) if op.activation.is_some());
    let fused = nodes.iter().filter(|node| fused(&node.op));
    let modes: Vec<Write> = fused.map(|node| node.outputs[0].mode).collect();
    assert_eq!(modes, [Write::Accumulate]);
}

/// Adapters beside these layers, of rank 2.
fn adapt(s: &mut Sketch, modules: &[&str]) {
    s.graph.adapt(Adapters {
        rank: 2,
        scale: 1.5,
        modules: modules.iter().map(|&module| module.to_owned()).collect(),
        dropout: None,
    });
}

/// A layer's weight and bias, the weight frozen as it is beside an adapter.
fn frozen_layer(s: &mut Sketch, module: &str, dims: [usize; 2]) -> [ValueId; 2] {
    let weight = s
        .graph
        .parameter(&format!("{module}.weight"), &dims, Decay::Yes);
    s.freeze(weight);
    [weight, s.parameter(&[dims[0]])]
}

#[test]
fn adapters_beside_a_frozen_and_beside_a_trained_weight() {
    for frozen in [true, false] {
        let graph = check_gradients(|s| {
            adapt(s, &["layer"]);
            let x_ni = s.input(&[5, 7]);
            let weight = s.graph.parameter("layer.weight", &[6, 7], Decay::Yes);
            if frozen {
                s.freeze(weight);
            }
            let (bias, residual) = (s.parameter(&[6]), s.input(&[5, 6]));
            vec![
                s.graph
                    .linear("y", x_ni, weight, Some(bias), Some(residual)),
            ]
        });
        let gradients = backward_nodes(&graph);
        let of_weights = |op: &Op| matches!(op, Op::LinearWeightGrad(op) if op.weight);
        let of_weights = gradients.iter().filter(|node| of_weights(&node.op)).count();
        assert_eq!(of_weights, if frozen { 2 } else { 3 });
    }
}

#[test]
fn adapters_of_an_mlp_are_part_of_its_fused_products() {
    for activation in ACTIVATIONS {
        let graph = check_gradients(|s| {
            adapt(s, &["fc1", "fc2"]);
            let x_ni = s.input(&[5, 4]);
            let [weight, bias] = frozen_layer(s, "fc1", [6, 4]);
            let hidden = s
                .graph
                .linear_activated("h", x_ni, weight, bias, activation);
            let [weight, bias] = frozen_layer(s, "fc2", [4, 6]);
            vec![s.graph.linear("y", hidden, weight, Some(bias), Some(x_ni))]
        });
        let nodes = backward_nodes(&graph);
        assert!(
            !nodes
                .iter()
                .any(|node| matches!(node.op, Op::ActivateGrad(_)))
        );
    }
}

#[test]
fn adapters_of_some_parts_of_one_product() {
    for modules in [&["q", "v"][..], &["k"], &["q", "k", "v"]] {
        let graph = check_gradients(|s| {
            adapt(s, modules);
            let x_ni = s.input(&[5, 6]);
            let parts = ["q", "k", "v"].map(|part| (format!("{part}.weight"), vec![4, 6]));
            let weight = s.graph.packed_parameters(&parts, Decay::Yes);
            s.freeze(weight);
            let qkv = s.graph.linear("qkv", x_ni, weight, None, None);
            // The last block of a tower: keys and values of all tokens, the query of one.
            let (kv, q) = (s.graph.rows(weight, 4, 8), s.graph.rows(weight, 0, 4));
            let kv = s.graph.linear("kv", x_ni, kv, None, None);
            let q = s.graph.linear("q", x_ni, q, None, None);
            vec![qkv, kv, q]
        });
        let lora = graph
            .parameters()
            .iter()
            .filter(|one| one.name.contains("lora"));
        assert_eq!(lora.count(), 2 * modules.len());
    }
}

#[test]
fn adapters_over_more_rows_than_a_strip_and_of_one_row() {
    for rows in [1, 2100] {
        check_gradients(|s| {
            adapt(s, &["layer"]);
            let x_ni = s.input(&[rows, 3]);
            let [weight, bias] = frozen_layer(s, "layer", [2, 3]);
            vec![s.graph.linear("y", x_ni, weight, Some(bias), None)]
        });
    }
}

#[test]
fn adapters_that_drop_what_they_read() {
    check_gradients(|s| {
        let (ids, stream) = (s.indices(&[3], &[4, 9, 2]), s.indices(&[2], &[5, 1]));
        s.graph.adapt(Adapters {
            rank: 2,
            scale: 0.5,
            modules: ["layer".to_owned()].into(),
            dropout: Some(AdapterDropout {
                rate: 0.3,
                sample_ids_b: ids,
                stream_2: stream,
            }),
        });
        // Two frames of each sample.
        let x_btd = s.input(&[6, 2, 5]);
        let [weight, bias] = frozen_layer(s, "layer", [4, 5]);
        vec![s.graph.linear("y", x_btd, weight, Some(bias), None)]
    });
}

#[test]
fn activation_on_its_own() {
    for activation in ACTIVATIONS {
        check_gradients(|s| {
            let z_nd = s.input(&[3, 5]);
            let y_nd = s.graph.activate("y", z_nd, activation);
            // A second time, so that the slope of a large range is seen.
            let weight = s.parameter(&[4, 5]);
            let z_no = s.graph.linear("z", y_nd, weight, None, None);
            vec![s.graph.activate("twice", z_no, activation)]
        });
    }
}

#[test]
fn layer_norm_of_a_whole_matrix_and_of_first_tokens() {
    check_gradients(|s| {
        let x_nd = s.input(&[37, 9]); // more rows than the partial sums
        let (gamma_d, beta_d) = (s.parameter(&[9]), s.parameter(&[9]));
        vec![s.graph.layer_norm("y", x_nd, gamma_d, beta_d, 1e-5)]
    });
    check_gradients(|s| {
        let x_btd = s.input(&[3, 4, 20]); // wider than the lanes of a reduction
        let first = s.graph.first_tokens(x_btd);
        let (gamma_d, beta_d) = (s.parameter(&[20]), s.parameter(&[20]));
        vec![s.graph.layer_norm("y", first, gamma_d, beta_d, 1e-5)]
    });
}

#[test]
fn layer_norm_with_frozen_parameters() {
    for frozen in [[true, false], [false, true], [true, true]] {
        check_gradients(|s| {
            let x_nd = s.input(&[4, 6]);
            let parameters = [s.parameter(&[6]), s.parameter(&[6])];
            for (parameter, frozen) in parameters.into_iter().zip(frozen) {
                if frozen {
                    s.freeze(parameter);
                }
            }
            vec![
                s.graph
                    .layer_norm("y", x_nd, parameters[0], parameters[1], 1e-5),
            ]
        });
    }
}

#[test]
fn layer_norm_of_something_without_a_gradient() {
    check_gradients(|s| {
        let x_nd = s.constant(&[4, 6]);
        let (gamma_d, beta_d) = (s.parameter(&[6]), s.parameter(&[6]));
        vec![s.graph.layer_norm("y", x_nd, gamma_d, beta_d, 1e-5)]
    });
}

/// Self-attention whose q, k and v are columns of one product.
fn packed_attention(
    s: &mut Sketch,
    [b, t, d]: [usize; 3],
    heads: usize,
    causal: bool,
) -> Vec<ValueId> {
    let x_btd = s.input(&[b, t, d]);
    let names = ["q", "k", "v"];
    let weights = names.map(|name| (format!("{name}.weight"), vec![d, d]));
    let biases = names.map(|name| (format!("{name}.bias"), vec![d]));
    let weight = s.graph.packed_parameters(&weights, Decay::Yes);
    let bias = s.graph.packed_parameters(&biases, Decay::No);
    let qkv = s.graph.linear("qkv", x_btd, weight, Some(bias), None);
    let parts = [0, 1, 2].map(|part| s.graph.columns(qkv, part * d, d));
    vec![s.graph.attention("o", parts, None, heads, causal)]
}

#[test]
fn self_attention_of_packed_columns() {
    for causal in [false, true] {
        let graph = check_gradients(|s| packed_attention(s, [2, 5, 6], 2, causal));
        // Side by side in one storage, which needs no zeros first.
        let nodes = backward_nodes(&graph);
        assert!(!nodes.iter().any(|node| matches!(node.op, Op::Fill(_))));
    }
}

#[test]
fn attention_over_more_queries_than_a_tile() {
    for causal in [false, true] {
        check_gradients(|s| packed_attention(s, [1, 131, 2], 1, causal));
    }
}

#[test]
fn cross_attention_with_another_number_of_keys() {
    for [t, k] in [[3, 7], [7, 3], [1, 5]] {
        check_gradients(|s| {
            let q_btd = s.input(&[2, t, 6]);
            let k_bsd = s.input(&[2, k, 6]);
            let v_bsd = s.input(&[2, k, 6]);
            vec![
                s.graph
                    .attention("o", [q_btd, k_bsd, v_bsd], None, 3, false),
            ]
        });
    }
}

#[test]
fn attention_over_as_many_keys_as_exist() {
    for causal in [false, true] {
        check_gradients(|s| {
            let q_btd = s.input(&[4, 3, 4]);
            let [k_bsd, v_bsd] = [(); 2].map(|()| s.input(&[4, 6, 4]));
            // All of them, more than there are, one, and a sample without any.
            let lengths_b = s.indices(&[4], &[6, 9, 1, 0]);
            vec![
                s.graph
                    .attention("o", [q_btd, k_bsd, v_bsd], Some(lengths_b), 2, causal),
            ]
        });
    }
}

#[test]
#[should_panic(expected = "queries, keys and values are three different views")]
fn attention_of_a_value_over_itself_is_refused() {
    // Their gradients would be one tensor, written three times by one kernel.
    let mut s = Sketch::new(DType::F64);
    let x_btd = s.input(&[2, 4, 4]);
    s.graph
        .attention("o", [x_btd, x_btd, x_btd], None, 2, false);
}

#[test]
fn attention_where_only_queries_or_only_keys_and_values_have_a_gradient() {
    for queries in [true, false] {
        check_gradients(|s| {
            let mut side = |wanted, tokens| {
                if wanted {
                    s.input(&[2, tokens, 4])
                } else {
                    s.constant(&[2, tokens, 4])
                }
            };
            let parts = [side(queries, 3), side(!queries, 5), side(!queries, 5)];
            vec![s.graph.attention("o", parts, None, 2, false)]
        });
    }
}

#[test]
fn embedding_with_repeated_ids_and_fewer_positions_than_the_table() {
    check_gradients(|s| {
        let ids_bt = s.indices(&[3, 4], &[0, 2, 2, 1, 2, 2, 5, 0, 1, 1, 1, 1]);
        let table_vd = s.parameter(&[6, 5]);
        let all_positions = s.parameter(&[7, 5]);
        let positions_td = s.graph.rows(all_positions, 0, 4);
        vec![s.graph.embedding("x", ids_bt, table_vd, positions_td, None)]
    });
}

#[test]
fn embedding_over_more_columns_than_a_task() {
    check_gradients(|s| {
        let ids_bt = s.indices(&[1, 3], &[1, 0, 1]);
        let (table_vd, positions_td) = (s.parameter(&[2, 70]), s.parameter(&[3, 70]));
        vec![s.graph.embedding("x", ids_bt, table_vd, positions_td, None)]
    });
}

#[test]
fn class_token_trained_and_frozen() {
    for frozen in [false, true] {
        check_gradients(|s| {
            let patches_bnd = s.input(&[3, 4, 5]);
            let (class_d, positions_td) = (s.parameter(&[5]), s.parameter(&[5, 5]));
            if frozen {
                s.freeze(class_d);
                s.freeze(positions_td);
            }
            vec![s.graph.class_token("x", patches_bnd, class_d, positions_td)]
        });
    }
}

#[test]
fn class_token_before_patches_without_a_gradient() {
    check_gradients(|s| {
        let patches_bnd = s.constant(&[3, 4, 70]);
        let (class_d, positions_td) = (s.parameter(&[70]), s.parameter(&[5, 70]));
        vec![s.graph.class_token("x", patches_bnd, class_d, positions_td)]
    });
}

#[test]
fn two_tokens_before_the_patches() {
    check_gradients(|s| {
        let patches_bnd = s.input(&[3, 4, 5]);
        let (class_kd, positions_td) = (s.parameter(&[2, 5]), s.parameter(&[6, 5]));
        vec![
            s.graph
                .class_token("x", patches_bnd, class_kd, positions_td),
        ]
    });
}

#[test]
fn mean_tokens_alone_and_beside_another_reader() {
    for first in [0, 1, 3] {
        check_gradients(|s| {
            let x_btd = s.input(&[3, 4, 5]);
            vec![s.graph.mean_tokens("y", x_btd, first, None)]
        });
        check_gradients(|s| {
            let x_btd = s.input(&[3, 4, 5]);
            let mean_b1d = s.graph.mean_tokens("y", x_btd, first, None);
            let weight = s.parameter(&[2, 5]);
            vec![mean_b1d, s.graph.linear("z", x_btd, weight, None, None)]
        });
    }
}

#[test]
fn scale_columns_trained_and_frozen() {
    for [x, gamma] in [[true, true], [true, false], [false, true]] {
        check_gradients(|s| {
            // More rows than the partial sums.
            let x_nd = if x {
                s.input(&[37, 9])
            } else {
                s.constant(&[37, 9])
            };
            let gamma_d = s.parameter(&[9]);
            if !gamma {
                s.freeze(gamma_d);
            }
            vec![s.graph.scale_columns("y", x_nd, gamma_d)]
        });
    }
}

#[test]
fn scale_columns_of_a_residual_branch() {
    check_gradients(|s| {
        let x_nd = s.input(&[4, 6]);
        let (weight, gamma_d) = (s.parameter(&[6, 6]), s.parameter(&[6]));
        let z_nd = s.graph.linear("z", x_nd, weight, None, None);
        let scaled = s.graph.scale_columns("y", z_nd, gamma_d);
        vec![s.graph.add("sum", x_nd, scaled)]
    });
    check_gradients(|s| {
        let x_btd = s.input(&[3, 4, 6]);
        let first = s.graph.first_tokens(x_btd);
        let gamma_d = s.parameter(&[6]);
        vec![s.graph.scale_columns("y", first, gamma_d)]
    });
}

#[test]
fn dropout_of_elements_and_of_samples() {
    for mode in [DropoutMode::Element, DropoutMode::Sample] {
        let op = Dropout {
            rate: 0.4,
            layer: 3,
            mode,
        };
        // Beside a residual, and where another reader has left a gradient already.
        check_gradients(|s| {
            let x_btd = s.input(&[5, 3, 4]);
            let (samples, stream) = (
                s.indices(&[5], &[9, 2, 44, 7, 1]),
                s.indices(&[2], &[17, 3]),
            );
            let weight = s.parameter(&[4, 4]);
            let z = s.graph.linear("z", x_btd, weight, None, None);
            let left = s.graph.dropout("left", z, samples, stream, op.clone());
            let sum = s.graph.add("sum", x_btd, left);
            vec![sum, s.graph.activate("a", z, Activation::Gelu)]
        });
    }
}

#[test]
fn gather_rows_alone_and_beside_another_reader() {
    check_gradients(|s| {
        let x_btd = s.input(&[4, 3, 5]);
        let index_b = s.indices(&[4], &[0, 2, 1, 2]);
        vec![s.graph.gather_rows("y", x_btd, index_b)]
    });
    for gather_first in [true, false] {
        check_gradients(|s| {
            let x_btd = s.input(&[4, 3, 5]);
            let index_b = s.indices(&[4], &[0, 2, 1, 2]);
            let weight = s.parameter(&[2, 5]);
            if gather_first {
                let gathered = s.graph.gather_rows("y", x_btd, index_b);
                vec![gathered, s.graph.linear("z", x_btd, weight, None, None)]
            } else {
                let z = s.graph.linear("z", x_btd, weight, None, None);
                vec![z, s.graph.gather_rows("y", x_btd, index_b)]
            }
        });
    }
}

#[test]
fn first_tokens_beside_the_whole() {
    check_gradients(|s| {
        let x_btd = s.input(&[3, 4, 5]);
        let first = s.graph.first_tokens(x_btd);
        let (one, all) = (s.parameter(&[2, 5]), s.parameter(&[3, 5]));
        let one = s.graph.linear("one", first, one, None, None);
        vec![one, s.graph.linear("all", x_btd, all, None, None)]
    });
}

#[test]
fn normalize() {
    check_gradients(|s| {
        let x_nd = s.input(&[4, 19]);
        let y_nd = s.graph.activation("y", &[4, 19]);
        s.graph.normalize_into("y", x_nd, y_nd);
        vec![y_nd]
    });
}

#[test]
fn normalize_adds_to_a_gradient_that_is_there() {
    check_gradients(|s| {
        let x_nd = s.input(&[4, 6]);
        let y_nd = s.graph.activation("y", &[4, 6]);
        s.graph.normalize_into("y", x_nd, y_nd);
        let weight = s.parameter(&[3, 6]);
        vec![y_nd, s.graph.linear("z", x_nd, weight, None, None)]
    });
}

#[test]
fn cross_entropy_with_ignored_and_weightless_rows() {
    check_gradients(|s| {
        let logits_nc = s.input(&[6, 5]);
        let labels_n = s.indices(&[6], &[0, 4, -1, 2, -100, 1]);
        let weights_n = s.given(&[6], Contents::Floats(vec![1.0, 0.5, 1.0, 0.0, 2.0, 1.5]));
        let sum = s.total();
        s.graph
            .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.0);
        vec![sum]
    });
}

#[test]
fn cross_entropy_of_smoothed_labels() {
    check_gradients(|s| {
        let logits_nc = s.input(&[4, 5]);
        let labels_n = s.indices(&[4], &[0, 4, -1, 2]);
        let weights_n = s.given(&[4], Contents::Floats(vec![1.0, 0.5, 1.0, 2.0]));
        let sum = s.total();
        s.graph
            .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.1);
        vec![sum]
    });
}

#[test]
fn cross_entropy_with_class_weights() {
    for smoothing in [0.0, 0.1] {
        check_gradients(|s| {
            let logits_nc = s.input(&[4, 5]);
            let labels_n = s.indices(&[4], &[0, 4, -1, 2]);
            let weights_n = s.given(&[4], Contents::Floats(vec![1.0, 0.5, 1.0, 2.0]));
            let weights_c = s.given(&[5], Contents::Floats(vec![0.5, 1.0, 2.0, 0.0, 0.75]));
            let sum = s.total();
            s.graph.weighted_cross_entropy_into(
                "loss", logits_nc, labels_n, weights_n, weights_c, sum, smoothing,
            );
            // Where another reader has left a gradient already.
            let weight = s.parameter(&[2, 5]);
            vec![sum, s.graph.linear("z", logits_nc, weight, None, None)]
        });
    }
}

#[test]
fn cross_entropy_adds_to_a_gradient_that_is_there() {
    check_gradients(|s| {
        let logits_nc = s.input(&[3, 5]);
        let labels_n = s.indices(&[3], &[0, 4, -1]);
        let weights_n = s.given(&[3], Contents::Floats(vec![1.0, 0.5, 1.0]));
        let sum = s.total();
        s.graph
            .cross_entropy_into("loss", logits_nc, labels_n, weights_n, sum, 0.0);
        let weight = s.parameter(&[2, 5]);
        vec![sum, s.graph.linear("z", logits_nc, weight, None, None)]
    });
}

/// Heads of one product, of different widths and losses.
#[test]
fn losses_of_column_slices() {
    check_gradients(|s| {
        let (x_nd, weight) = (s.input(&[4, 6]), s.parameter(&[10, 6]));
        let logits = s.graph.linear("logits", x_nd, weight, None, None);
        let sums = [(); 3].map(|()| s.total());
        let labels_n = s.indices(&[4], &[0, 2, -1, 1]);
        let weights_n = s.given(&[4], Contents::Floats(vec![1.0, 0.5, 1.0, 2.0]));
        let classes = s.graph.columns(logits, 0, 3);
        s.graph
            .cross_entropy_into("classes", classes, labels_n, weights_n, sums[0], 0.1);
        let targets = s.given(&[4, 5], Contents::Floats([0.0, 1.0, 0.3, 1.0].repeat(5)));
        let weights = s.given(
            &[4, 5],
            Contents::Floats([1.0, 0.0, 2.0, 0.5, 1.0].repeat(4)),
        );
        let labels = s.graph.columns(logits, 3, 5);
        s.graph
            .binary_cross_entropy_into("labels", labels, targets, weights, sums[1]);
        let numbers = s.graph.columns(logits, 8, 2);
        let [targets, weights] = [targets, weights].map(|all| s.graph.columns(all, 1, 2));
        s.graph
            .squared_error_into("numbers", numbers, targets, weights, sums[2]);
        sums.to_vec()
    });
}

#[test]
fn pointwise_losses_add_to_a_gradient_that_is_there() {
    check_gradients(|s| {
        let x_nk = s.input(&[3, 5]);
        let [targets, weights] = [(); 2].map(|()| s.constant(&[3, 5]));
        let sums = [(); 2].map(|()| s.total());
        s.graph
            .squared_error_into("squared", x_nk, targets, weights, sums[0]);
        s.graph
            .binary_cross_entropy_into("binary", x_nk, targets, weights, sums[1]);
        sums.to_vec()
    });
}

/// Rows of two modalities, some of them padding, and the contrastive loss over them.
fn contrastive(s: &mut Sketch, trained: [bool; 3], rows: usize, tile: usize) -> Vec<ValueId> {
    let mut side = |wanted| {
        if wanted {
            s.input(&[rows, 3])
        } else {
            s.constant(&[rows, 3])
        }
    };
    let (image_bd, text_bd) = (side(trained[0]), side(trained[1]));
    let weights = (0..rows).map(|row| if row % 4 == 2 { 0.0 } else { 1.0 });
    let weights_b = s.given(&[rows], Contents::Floats(weights.collect()));
    let logit_scale = s.parameter(&[]);
    if !trained[2] {
        s.freeze(logit_scale);
    }
    let sum = s.total();
    s.graph
        .contrastive_into([image_bd, text_bd], weights_b, logit_scale, sum, tile);
    vec![sum]
}

#[test]
fn contrastive_in_tiles_that_do_not_divide_the_batch() {
    for (rows, tile) in [(10, 4), (10, 10), (3, 512), (70, 67), (9, 1)] {
        check_gradients(|s| contrastive(s, [true; 3], rows, tile));
    }
}

#[test]
fn contrastive_with_a_frozen_scale() {
    check_gradients(|s| contrastive(s, [true, true, false], 6, 4));
}

#[test]
fn contrastive_with_a_side_that_has_no_gradient() {
    check_gradients(|s| contrastive(s, [false, true, true], 6, 4));
    check_gradients(|s| contrastive(s, [true, false, true], 6, 4));
    check_gradients(|s| contrastive(s, [false, false, true], 6, 4));
}

#[test]
fn contrastive_of_features_with_another_reader() {
    check_gradients(|s| {
        let sum = contrastive(s, [true; 3], 5, 2);
        let image_bd = s.wanted()[0];
        let weight = s.parameter(&[2, 3]);
        vec![sum[0], s.graph.linear("z", image_bd, weight, None, None)]
    });
}

#[test]
fn add_of_two_and_of_one_twice() {
    check_gradients(|s| {
        let (a, b) = (s.input(&[3, 4]), s.input(&[3, 4]));
        vec![s.graph.add("y", a, b)]
    });
    check_gradients(|s| {
        let a = s.input(&[3, 4]);
        let doubled = s.graph.add("2a", a, a);
        vec![s.graph.add("3a", doubled, a)]
    });
}

#[test]
fn cast_there_and_back() {
    check_gradients(|s| {
        let x = s.input(&[3, 4]);
        let y = s.graph.cast("copy", x, DType::F64);
        let weight = s.parameter(&[2, 4]);
        let z = s.graph.linear("z", y, weight, None, None);
        // A second reader of x, later in the graph: the cast's gradient adds to what is there.
        vec![z, s.graph.add("sum", x, y)]
    });
    // Through f32, differences drown in rounding; the gradient of `cast(x) + x` is twice the seed, cut to f32 and not.
    let graph = {
        let mut s = Sketch::new(DType::F64);
        let x = s.input(&[2, 3]);
        let narrow = s.graph.cast("narrow", x, DType::F32);
        let wide = s.graph.cast("wide", narrow, DType::F64);
        let seed = s.constant(&[2, 3]);
        let seeds = [(wide, seed)];
        let sections = [Section::Forward, Section::Backward];
        let found = backward(&mut s.graph, sections[0], sections[1], &seeds, &[x]);
        assert_eq!(s.graph.dtype(found[0].unwrap()), DType::F64);
        s.graph
    };
    let casts: Vec<_> = backward_nodes(&graph)
        .iter()
        .map(|node| {
            (
                graph.dtype(node.inputs[0]),
                graph.dtype(node.outputs[0].value),
                node.outputs[0].mode,
            )
        })
        .collect();
    let expected = [
        (DType::F64, DType::F32, Write::Overwrite),
        (DType::F32, DType::F64, Write::Overwrite),
    ];
    assert_eq!(casts, expected);
}
