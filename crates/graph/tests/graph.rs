//! The backward pass on toy graphs: its gradients are those of small changes, for every trainable parameter and no other.

use std::collections::HashMap;

use holdall_graph::ops::activation::Activation;
use holdall_graph::{
    BlockId, DType, Decay, Graph, Node, Op, Section, Shape, StorageId, Value, ValueId, Write,
    backward,
};
use proptest::prelude::*;

/// Samples.
const BATCH: usize = 2;
const WIDTH: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Block {
    /// Two products, an activation function between them, and what entered added.
    Residual,
    /// Three views of one product, added up.
    Views,
    /// Two branches of one value, one of them with an activation function of its own, added up.
    Diamond,
    /// Only a column of what enters is read.
    Part,
    /// The same elements under another shape.
    Reshaped,
    /// A product with a weight that other blocks use too.
    Shared,
    /// Read twice by one operation.
    Doubled,
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    use Block::*;
    let block = prop::sample::select(vec![
        Residual, Views, Diamond, Part, Reshaped, Shared, Doubled,
    ]);
    prop::collection::vec(block, 1..6)
}

fn product(g: &mut Graph, name: &str, x: ValueId) -> ValueId {
    let inputs = g.shape(x).width();
    let weight = g.parameter(name, &[WIDTH, inputs], Decay::Yes);
    g.linear(name, x, weight, None, None)
}

fn write_block(g: &mut Graph, name: &str, block: Block, x: ValueId) -> ValueId {
    match block {
        Block::Residual => {
            let weight = g.parameter(&format!("{name}.up"), &[4, WIDTH], Decay::Yes);
            let bias = g.parameter(&format!("{name}.bias"), &[4], Decay::No);
            let up = g.linear_activated(name, x, weight, bias, Activation::Gelu);
            let down = g.parameter(&format!("{name}.down"), &[WIDTH, 4], Decay::Yes);
            g.linear(name, up, down, None, Some(x))
        }
        Block::Views => {
            let parts = ["q", "k", "v"].map(|part| (format!("{name}.{part}"), vec![WIDTH, WIDTH]));
            let weight = g.packed_parameters(&parts, Decay::Yes);
            let qkv = g.linear(name, x, weight, None, None);
            let [q, k, v] = [0, 1, 2].map(|part| g.columns(qkv, part * WIDTH, WIDTH));
            let sum = g.add(name, q, k);
            g.add(name, sum, v)
        }
        Block::Diamond => {
            let left = product(g, &format!("{name}.left"), x);
            let left = g.activate(name, left, Activation::QuickGelu);
            let right = product(g, &format!("{name}.right"), x);
            g.add(name, left, right)
        }
        Block::Part => {
            let column = g.columns(x, 1, 1);
            product(g, name, column)
        }
        Block::Reshaped => {
            let flat = g.reshape(x, &[1, BATCH * WIDTH]);
            let active = g.activate(name, flat, Activation::Gelu);
            g.reshape(active, &[BATCH, WIDTH])
        }
        Block::Shared => product(g, "shared", x),
        Block::Doubled => g.add(name, x, x),
    }
}

struct Chain {
    graph: Graph,
    result: ValueId,
    seed: ValueId,
}

/// A chain of blocks, and its backward pass from a seed; every so many-th parameter is frozen.
fn chain(blocks: &[Block], frozen: usize) -> Chain {
    let mut graph = Graph::new(DType::F64);
    let g = &mut graph;
    let pixels = g.input("pixels", &[BATCH, WIDTH], DType::F64);
    let mut x = product(g, "embedding", pixels);
    for (index, &block) in blocks.iter().enumerate() {
        let name = format!("block {index}");
        x = g.block(&name, |g| {
            g.in_lane(index % 2, |g| write_block(g, &name, block, x))
        });
    }
    let mut storages: Vec<StorageId> = vec![];
    for parameter in g.parameters() {
        let storage = g.value(parameter.value).storage;
        if !storages.contains(&storage) {
            storages.push(storage);
        }
    }
    let storage_of: HashMap<String, StorageId> = (g.parameters().iter())
        .map(|parameter| (parameter.name.clone(), g.value(parameter.value).storage))
        .collect();
    g.configure_parameters(|parameter| {
        let place = storages
            .iter()
            .position(|&id| id == storage_of[&parameter.name]);
        parameter.trainable = frozen == 0 || place.map_or(0, |place| place + 1) % frozen != 0;
    });
    let seed = g.input("seed", &[BATCH, WIDTH], DType::F64);
    backward(g, Section::Forward, Section::Backward, &[(x, seed)], &[]);
    Chain {
        graph,
        result: x,
        seed,
    }
}

/// Numbers of every storage.
#[derive(Clone)]
struct Memory(Vec<Vec<f64>>);

impl Memory {
    /// Small numbers that are all different; gradients of weights start at zero.
    fn new(graph: &Graph) -> Memory {
        let storages = graph.storages().iter().enumerate();
        Memory(
            storages
                .map(|(index, storage)| {
                    let number =
                        |element: usize| ((index * 31 + element * 7 + 3) % 23) as f64 / 23.0 - 0.4;
                    match storage.role {
                        holdall_graph::Role::Gradient => vec![0.0; storage.num_elements],
                        // What was never written must not be read.
                        holdall_graph::Role::Activation => vec![f64::NAN; storage.num_elements],
                        _ => (0..storage.num_elements).map(number).collect(),
                    }
                })
                .collect(),
        )
    }

    fn places(value: &Value) -> Vec<usize> {
        let mut places = vec![value.offset];
        for (&dim, &stride) in value.shape.dims().iter().zip(value.strides.dims()) {
            let along = |place: usize| (0..dim).map(move |index| place + index * stride);
            places = places.into_iter().flat_map(along).collect();
        }
        places
    }

    fn read(&self, value: &Value) -> Vec<f64> {
        let places = Memory::places(value).into_iter();
        places.map(|place| self.0[value.storage.0][place]).collect()
    }

    fn run(&mut self, graph: &Graph, section: Section) {
        for node in graph.nodes().iter().filter(|node| node.section == section) {
            let inputs: Vec<Vec<f64>> = (node.inputs.iter())
                .map(|&id| self.read(graph.value(id)))
                .collect();
            let results = compute(graph, node, &inputs);
            for (output, result) in node.outputs.iter().zip(results) {
                let value = graph.value(output.value);
                for (place, new) in Memory::places(value).into_iter().zip(result) {
                    let old = &mut self.0[value.storage.0][place];
                    *old = match output.mode {
                        Write::Overwrite => new,
                        Write::Accumulate => *old + new,
                    };
                }
                // An activation that is fused into the last contribution is passed by all of them.
                if let (Op::LinearInputGrad(op), Some(z)) = (&node.op, inputs.get(2)) {
                    let kind = op
                        .activation
                        .expect("a third input is what it was applied to");
                    for (place, &z) in Memory::places(value).into_iter().zip(z) {
                        self.0[value.storage.0][place] *= activation(kind, z)[1];
                    }
                }
            }
        }
    }
}

/// An activation function and its slope.
fn activation(kind: Activation, z: f64) -> [f64; 2] {
    // Any smooth function will do, as long as both sides of the comparison use it.
    let rate = match kind {
        Activation::QuickGelu => 1.0,
        _ => 0.5,
    };
    [(rate * z).sin(), rate * (rate * z).cos()]
}

fn activated(kind: Option<Activation>, z: &[f64]) -> Vec<f64> {
    z.iter()
        .map(|&z| kind.map_or(z, |kind| activation(kind, z)[0]))
        .collect()
}

/// `x W^T`: rows of `inner` numbers each.
fn times_transposed(x: &[f64], w: &[f64], inner: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    x.chunks(inner)
        .flat_map(|row| w.chunks(inner).map(move |column| dot(row, column)))
        .collect()
}

fn transposed(x: &[f64], width: usize) -> Vec<f64> {
    (0..width)
        .flat_map(|column| x.iter().skip(column).step_by(width).copied())
        .collect()
}

/// What each output is to get.
fn compute(graph: &Graph, node: &Node, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let width = |input: usize| graph.shape(node.inputs[input]).width();
    match &node.op {
        Op::Linear(op) => {
            let mut z = times_transposed(&inputs[0], &inputs[1], width(0));
            let outputs = inputs[1].len() / width(0);
            if op.bias {
                z.iter_mut()
                    .enumerate()
                    .for_each(|(at, z)| *z += inputs[2][at % outputs]);
            }
            let mut y = activated(op.activation, &z);
            if op.residual {
                y.iter_mut()
                    .zip(&inputs[inputs.len() - 1])
                    .for_each(|(y, more)| *y += more);
            }
            vec![y, z]
        }
        Op::LinearInputGrad(_) => {
            let weight_io = transposed(&inputs[1], width(1));
            vec![times_transposed(&inputs[0], &weight_io, width(0))]
        }
        Op::LinearWeightGrad(op) => {
            let (dz, x) = (
                transposed(&inputs[0], width(0)),
                transposed(&inputs[1], width(1)),
            );
            let rows = inputs[0].len() / width(0);
            let mut results = vec![];
            if op.weight {
                results.push(times_transposed(&dz, &x, rows));
            }
            if op.bias {
                results.push(dz.chunks(rows).map(|column| column.iter().sum()).collect());
            }
            results
        }
        Op::Add(_) => vec![
            inputs[0]
                .iter()
                .zip(&inputs[1])
                .map(|(a, b)| a + b)
                .collect(),
        ],
        Op::AddInto(_) => vec![inputs[0].clone()],
        Op::Activate(op) => vec![activated(Some(op.activation), &inputs[0])],
        Op::ActivateGrad(op) => {
            let both = inputs[0].iter().zip(&inputs[1]);
            vec![
                both.map(|(dy, &z)| dy * activation(op.activation, z)[1])
                    .collect(),
            ]
        }
        Op::Fill(op) => {
            let value = graph.shape(node.outputs[0].value);
            vec![vec![op.value; value.num_elements()]]
        }
        op => panic!("{} is not in these graphs", op.rules().name()),
    }
}

impl Chain {
    /// The sum of results times the seed: the seed is its gradient.
    fn loss(&self, memory: &Memory) -> f64 {
        let mut memory = memory.clone();
        memory.run(&self.graph, Section::Forward);
        let both = [self.result, self.seed].map(|id| memory.read(self.graph.value(id)));
        both[0].iter().zip(&both[1]).map(|(y, seed)| y * seed).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn gradients_are_those_of_small_changes(blocks in blocks(), frozen in 0..4usize) {
        let chain = chain(&blocks, frozen);
        let graph = &chain.graph;
        let memory = Memory::new(graph);
        let mut after = memory.clone();
        after.run(graph, Section::Forward);
        after.run(graph, Section::Backward);
        for parameter in graph.parameters() {
            let gradient = graph.parameter_gradient(parameter);
            if !parameter.trainable {
                prop_assert!(gradient.is_none(), "{} is frozen", parameter.name);
                continue;
            }
            let gradient = gradient.expect("every trainable parameter has a gradient");
            let found = after.read(&gradient);
            let value = *graph.value(parameter.value);
            for (element, place) in Memory::places(&value).into_iter().enumerate() {
                const CHANGE: f64 = 1e-5;
                let at = |change: f64| {
                    let mut memory = memory.clone();
                    memory.0[value.storage.0][place] += change;
                    chain.loss(&memory)
                };
                let expected = (at(CHANGE) - at(-CHANGE)) / (2.0 * CHANGE);
                prop_assert!(
                    (found[element] - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                    "{} [{}]: {} against {}", parameter.name, element, found[element], expected
                );
            }
        }
    }

    #[test]
    fn backward_nodes_belong_to_the_block_and_lane_of_their_forward_node(blocks in blocks()) {
        let chain = chain(&blocks, 0);
        let nodes = chain.graph.nodes().iter();
        for node in nodes.filter(|node| node.section == Section::Backward) {
            let lane = node.block.map(|BlockId(index)| index % 2);
            prop_assert_eq!(node.lane, lane);
        }
    }
}

/// Nothing is carried back to what cannot change.
#[test]
fn what_is_frozen_up_to_the_input_has_no_backward_nodes() {
    let mut graph = Graph::new(DType::F64);
    let g = &mut graph;
    let pixels = g.input("pixels", &[BATCH, WIDTH], DType::F64);
    let frozen = g.block("frozen", |g| {
        write_block(g, "frozen", Block::Residual, pixels)
    });
    let head = g.block("head", |g| product(g, "head", frozen));
    g.configure_parameters(|parameter| parameter.trainable = parameter.name == "head");
    let seed = g.input("seed", &[BATCH, WIDTH], DType::F64);
    let wanted = backward(g, Section::Forward, Section::Backward, &[(head, seed)], &[]);
    assert!(wanted.is_empty());
    let nodes = graph.nodes().iter();
    let back: Vec<&Node> = nodes
        .filter(|node| node.section == Section::Backward)
        .collect();
    assert!(matches!(
        back[..],
        [Node {
            op: Op::LinearWeightGrad(_),
            block: Some(BlockId(1)),
            ..
        }]
    ));
}

/// A value that is asked for has a gradient although it is no parameter; one that nothing leads to has none.
#[test]
fn wanted_values_have_gradients() {
    let mut graph = Graph::new(DType::F64);
    let g = &mut graph;
    let [pixels, others] =
        ["pixels", "others"].map(|name| g.input(name, &[BATCH, WIDTH], DType::F64));
    let x = product(g, "weight", pixels);
    let y = g.add("y", x, others);
    product(g, "unread", y);
    let seed = g.input("seed", &[BATCH, WIDTH], DType::F64);
    let wanted = backward(
        g,
        Section::Forward,
        Section::Backward,
        &[(x, seed)],
        &[pixels, others],
    );
    assert!(wanted[0].is_some());
    assert_eq!(wanted[1], None);
    let unread = graph
        .parameters()
        .iter()
        .find(|parameter| parameter.name == "unread");
    assert_eq!(graph.parameter_gradient(unread.unwrap()), None);
}

#[test]
fn endpoints_have_one_name_each() {
    let mut graph = Graph::new(DType::F32);
    let pixels = graph.input("pixels", &[4, 2], DType::F32);
    let in_program = graph.forward_program("evaluate", |g| {
        let again = g.input("pixels", &[3, 2], DType::F32);
        assert_eq!(g.section(), Section::ForwardProgram(0));
        again
    });
    assert_eq!(graph.section(), Section::Forward);
    assert_eq!(graph.endpoint("pixels"), Some(pixels));
    assert_eq!(graph.endpoint("evaluate/pixels"), Some(in_program));
    assert_eq!(graph.endpoint("labels"), None);
    assert_eq!(graph.endpoints().count(), 2);
    let taken = std::panic::catch_unwind(move || graph.input("pixels", &[1], DType::F32));
    assert!(taken.is_err());
}

#[test]
fn views_look_at_the_elements_that_they_name() {
    let mut graph = Graph::new(DType::F32);
    let g = &mut graph;
    let x = g.input("x", &[6, 4], DType::F32);
    let columns = g.columns(x, 1, 2);
    let rows = g.rows(columns, 2, 2);
    assert_eq!(Memory::places(g.value(rows)), [9, 10, 13, 14]);
    let of_micro_batch = g.micro_rows(x, 2);
    let view = *g.value(of_micro_batch);
    assert_eq!((view.micro_stride, view.shape), (8, Shape::new(&[2, 4])));
    let flat = g.reshape(x, &[24]);
    assert_eq!(Memory::places(g.value(flat)), (0..24).collect::<Vec<_>>());
    let strided = std::panic::AssertUnwindSafe(|| g.reshape(columns, &[12]));
    assert!(std::panic::catch_unwind(strided).is_err());
}
