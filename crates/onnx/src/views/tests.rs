use holdall_graph::{DType, Decay, Graph, Role};

use super::*;
use crate::{PictureSize, Precision};

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims)
}

#[test]
fn a_view_begins_where_its_offset_says() {
    let storage = holdall_graph::StorageId(0);
    let whole = Value::whole(storage, shape(&[BATCH, 5, 12]));
    let columns = Value {
        offset: 8,
        shape: shape(&[BATCH, 5, 4]),
        ..whole
    };
    assert_eq!(
        starts_within(&whole, &whole.shape, &columns),
        Some(vec![0, 0, 8])
    );
    let token = Value {
        offset: 24,
        shape: shape(&[BATCH, 1, 12]),
        ..whole
    };
    assert_eq!(
        starts_within(&whole, &whole.shape, &token),
        Some(vec![0, 2, 0])
    );
    // Half of the batch is refused: the batch cannot be sliced.
    let samples = Value {
        shape: shape(&[BATCH / 2, 5, 12]),
        ..whole
    };
    assert_eq!(starts_within(&whole, &whole.shape, &samples), None);
    let beyond = Value {
        offset: 9,
        ..columns
    };
    assert_eq!(starts_within(&whole, &whole.shape, &beyond), None);
}

#[test]
fn the_strides_of_a_view_say_of_which_shape_it_is_a_part() {
    let storage = holdall_graph::StorageId(0);
    let first_tokens = Value {
        storage,
        offset: 0,
        shape: shape(&[3 * BATCH, 1, 8]),
        strides: shape(&[40, 8, 1]),
        micro_stride: 0,
    };
    let base = base_shape(BATCH * 15 * 8, &first_tokens);
    assert_eq!(base, Some(shape(&[3 * BATCH, 5, 8])));
}

/// q, k and v are rows of one weight, and columns of the product with it.
#[test]
fn rows_are_joined_and_columns_sliced() {
    let mut graph = Graph::new(DType::F32);
    let x = graph.input("x", &[BATCH, 4], DType::F32);
    let parts = ["q", "k", "v"].map(|name| (format!("{name}.weight"), vec![4, 4]));
    let weight = graph.packed_parameters(&parts, Decay::Yes);
    let qkv = graph.linear("qkv", x, weight, None, None);
    let k = graph.columns(qkv, 4, 4);
    let rows = graph.rows(weight, 4, 8);
    let kv = graph.linear("kv", k, rows, None, None);
    let mut writer = Writer::new(&graph, Precision::Full);
    writer.numbers("x", x);
    writer.write_nodes().unwrap();
    writer.output("y", kv, PictureSize::Fixed).unwrap();
    let nodes = writer.finish("rows").graph.node;
    let said = nodes
        .iter()
        .map(|node| format!("{} {}", node.op_type, node.input.join(" ")));
    let said: Vec<String> = said.collect();
    assert_eq!(
        said,
        [
            "Concat q.weight k.weight v.weight",
            "Transpose qkv/concat",
            "MatMul x qkv/transpose",
            "Slice qkv/matmul constant constant_2 constant_3",
            "Concat k.weight v.weight",
            "Transpose kv/concat",
            "MatMul kv/slice kv/transpose",
            "Identity kv/matmul",
        ]
    );
}

#[test]
fn what_nobody_wrote_is_named() {
    let mut graph = Graph::new(DType::F32);
    let x = graph.tensor("scores", &[BATCH, 4], DType::F32, Role::Activation);
    let y = graph.activate("y", x, holdall_graph::ops::activation::Activation::Relu);
    let mut writer = Writer::new(&graph, Precision::Full);
    let refused = writer.write_nodes().unwrap_err().to_string();
    assert!(
        refused.starts_with("scores: [1000003, 4] from element 0 on"),
        "{refused}"
    );
    let _ = y;
}

#[test]
fn operations_of_training_are_refused_by_name() {
    let mut graph = Graph::new(DType::F32);
    let x = graph.input("x", &[BATCH, 4], DType::F32);
    graph.push_new(
        holdall_graph::ops::fill::Fill { value: 0.0 },
        Vec::new(),
        &[x],
    );
    let mut writer = Writer::new(&graph, Precision::Full);
    let refused = writer.write_nodes().unwrap_err().to_string();
    assert!(
        refused.starts_with("fill: has no ONNX counterpart"),
        "{refused}"
    );
}
