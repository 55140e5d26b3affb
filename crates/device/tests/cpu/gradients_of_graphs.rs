//! Gradient checks of what operations do together: values with several readers, parameters in several places, what
//! is frozen.

use holdall_graph::ops::activation::Activation;
use holdall_graph::{DType, Decay, Op, Section, ValueId, backward};
use holdall_plan::{Recompute, RecomputePolicy};

use super::gradient_check::{Sketch, backward_nodes, check_gradients, check_sketch};
use super::step::zero_gradients;

#[test]
fn a_parameter_in_two_places() {
    check_gradients(|s| {
        let x = s.input(&[3, 4]);
        let weight = s.parameter(&[4, 4]);
        let (gamma, beta) = (s.parameter(&[4]), s.parameter(&[4]));
        let once = s.graph.linear("once", x, weight, None, None);
        let normed = s.graph.layer_norm("norm", once, gamma, beta, 1e-5);
        let twice = s
            .graph
            .linear("twice", normed, weight, Some(beta), Some(once));
        vec![s.graph.layer_norm("again", twice, gamma, beta, 1e-5)]
    });
}

#[test]
fn a_value_with_several_readers() {
    check_gradients(|s| {
        let x = s.input(&[3, 4]);
        let weight = s.parameter(&[4, 4]);
        let h = s.graph.linear("h", x, weight, None, None);
        let a = s.graph.activate("a", h, Activation::Gelu);
        let b = s.graph.linear("b", h, weight, None, Some(a));
        let c = s.graph.add("c", b, h);
        vec![s.graph.add("d", c, a), h]
    });
}

#[test]
fn a_value_and_its_reshape() {
    check_gradients(|s| {
        let x = s.input(&[2, 3, 4]);
        let weight = s.parameter(&[4, 4]);
        let h = s.graph.linear("h", x, weight, None, None);
        let flat = s.graph.reshape(h, &[6, 4]);
        let one = s.graph.linear("one", h, weight, None, None);
        vec![one, s.graph.linear("two", flat, weight, None, None)]
    });
}

#[test]
fn columns_of_which_only_some_lead_to_the_loss() {
    check_gradients(|s| {
        let x = s.input(&[3, 4]);
        let weight = s.parameter(&[8, 4]);
        let h = s.graph.linear("h", x, weight, None, None);
        let [left, right] = [0, 4].map(|start| s.graph.columns(h, start, 4));
        let small = s.parameter(&[2, 4]);
        s.graph.linear("unused", right, small, None, None);
        vec![s.graph.linear("used", left, small, None, None)]
    });
}

#[test]
fn rows_that_overlap() {
    check_gradients(|s| {
        let x = s.input(&[4, 3]);
        let [top, middle] = [0, 1].map(|start| s.graph.rows(x, start, 2));
        let weight = s.parameter(&[2, 3]);
        let top = s.graph.linear("top", top, weight, None, None);
        vec![top, s.graph.linear("middle", middle, weight, None, None)]
    });
}

#[test]
fn row_slices_of_packed_parameters() {
    let graph = check_gradients(|s| {
        let x = s.input(&[2, 3, 4]);
        let parts = ["q", "k", "v"];
        let weights = parts.map(|part| (format!("{part}.weight"), vec![4, 4]));
        let biases = parts.map(|part| (format!("{part}.bias"), vec![4]));
        let weight = s.graph.packed_parameters(&weights, Decay::Yes);
        let bias = s.graph.packed_parameters(&biases, Decay::No);
        let (kv_weight, kv_bias) = (s.graph.rows(weight, 4, 8), s.graph.rows(bias, 4, 8));
        let kv = s.graph.linear("kv", x, kv_weight, Some(kv_bias), None);
        let [k, v] = [0, 4].map(|start| s.graph.columns(kv, start, 4));
        let first = s.graph.first_tokens(x);
        let (q_weight, q_bias) = (s.graph.rows(weight, 0, 4), s.graph.rows(bias, 0, 4));
        let q = s.graph.linear("q", first, q_weight, Some(q_bias), None);
        vec![s.graph.attention("o", [q, k, v], None, 2, false)]
    });
    let k_weight = &graph.parameters()[1];
    let gradient = graph.parameter_gradient(k_weight).unwrap();
    assert_eq!(gradient.offset, graph.value(k_weight.value).offset);
}

/// `x -> first -> norm -> second (activated) -> third`; returns the parameters, layer by layer.
fn layers(s: &mut Sketch, x: ValueId) -> (ValueId, [Vec<ValueId>; 4]) {
    let first = vec![s.parameter(&[5, 4]), s.parameter(&[5])];
    let h = s.graph.linear("first", x, first[0], Some(first[1]), None);
    let norm = vec![s.parameter(&[5]), s.parameter(&[5])];
    let n = s.graph.layer_norm("norm", h, norm[0], norm[1], 1e-5);
    let second = vec![s.parameter(&[6, 5]), s.parameter(&[6])];
    let a = s
        .graph
        .linear_activated("second", n, second[0], second[1], Activation::Gelu);
    let third = vec![s.parameter(&[5, 6]), s.parameter(&[5])];
    let y = s
        .graph
        .linear("third", a, third[0], Some(third[1]), Some(h));
    (y, [first, norm, second, third])
}

#[test]
fn any_layers_frozen_under_any_recomputation() {
    let policies = [
        RecomputePolicy::uniform(Recompute::None, 1),
        RecomputePolicy::uniform(Recompute::Cheap, 1),
        RecomputePolicy::uniform(Recompute::Blocks, 1),
    ];
    for frozen in 0..16u32 {
        for policy in policies {
            for from_input in [false, true] {
                if frozen == 15 && !from_input {
                    continue; // nothing to check
                }
                let mut s = Sketch::new(DType::F64);
                let x = if from_input {
                    s.input(&[3, 4])
                } else {
                    s.constant(&[3, 4])
                };
                let (y, parameters) = s.block(|s| layers(s, x));
                for (layer, parameters) in parameters.iter().enumerate() {
                    if frozen >> layer & 1 == 1 {
                        parameters.iter().for_each(|&parameter| s.freeze(parameter));
                    }
                }
                println!("frozen {frozen:04b}, {policy:?}");
                check_sketch(s, &[y], policy);
            }
        }
    }
}

#[test]
fn a_trainable_bias_beside_a_frozen_weight() {
    check_gradients(|s| {
        let x = s.input(&[3, 4]);
        let (weight, bias) = (s.parameter(&[5, 4]), s.parameter(&[5]));
        s.freeze(weight);
        vec![s.graph.linear("y", x, weight, Some(bias), None)]
    });
}

#[test]
fn a_frozen_branch_has_no_backward_nodes() {
    let mut s = Sketch::new(DType::F64);
    let (frozen_x, trained_x) = (s.constant(&[3, 4]), s.constant(&[3, 4]));
    let (frozen, parameters) = layers(&mut s, frozen_x);
    for parameter in parameters.into_iter().flatten() {
        s.freeze(parameter);
    }
    let (trained, _) = layers(&mut s, trained_x);
    let y = s.graph.add("y", frozen, trained);
    zero_gradients(&mut s.graph);
    let seed = s.constant(&[3, 5]);
    let forward_values: Vec<ValueId> = (s.graph.nodes().iter().take(4))
        .flat_map(|node| node.outputs.iter().map(|output| output.value))
        .collect();
    backward(
        &mut s.graph,
        Section::Forward,
        Section::Backward,
        &[(y, seed)],
        &[],
    );
    let nodes = backward_nodes(&s.graph);
    let storage = |value: ValueId| s.graph.value(value).storage;
    assert_eq!(
        nodes
            .iter()
            .filter(|node| matches!(node.op, Op::LinearWeightGrad(_)))
            .count(),
        3
    );
    assert_eq!(
        nodes
            .iter()
            .filter(|node| matches!(node.op, Op::LinearInputGrad(_)))
            .count(),
        2
    );
    for node in nodes {
        for &input in &node.inputs {
            let touched = forward_values
                .iter()
                .any(|&value| storage(value) == storage(input));
            assert!(!touched, "{:?} reads the frozen branch", node.op);
        }
    }
    let gradients: Vec<_> = s
        .graph
        .storages()
        .iter()
        .map(|storage| storage.name.as_str())
        .collect();
    assert!(!gradients.contains(&"parameter 0.grad"), "{gradients:?}");
    assert!(gradients.contains(&"parameter 8.grad"), "{gradients:?}");
}
