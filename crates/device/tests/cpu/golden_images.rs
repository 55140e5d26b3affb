//! The operations of images against PyTorch: outputs and every gradient, in f64 to the ten digits of the file and in f32 to 1e-5.
//!
//! `fixtures/make_images.py` made the values; inputs are formulas, here and there.

use std::collections::HashMap;
use std::sync::OnceLock;

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{DType, Graph, Output, Role, Section, ValueId, backward};
use holdall_plan::{Recompute, RecomputePolicy};

use super::gradient_check::{Sketch, cpu};
use super::step::{Contents, Kept, Planned, Step, norm, zero_gradients};

/// `make_images.py` has the same: numbers that f32 holds exactly.
fn numbers(count: usize, salt: usize, step: f64, modulus: usize) -> Vec<f64> {
    let number = |i: usize| ((i * 7919 + salt * 104_729 + 13) % modulus) as f64 / step;
    let middle = modulus as f64 / step / 2.0;
    (0..count).map(|i| number(i) - middle).collect()
}

pub fn common(count: usize, salt: usize) -> Vec<f64> {
    numbers(count, salt, 256.0, 1009)
}

/// Tensors of a file, by name.
pub type Golden = HashMap<&'static str, Vec<f64>>;

pub fn parse(text: &'static str) -> Golden {
    let lines = text.lines().map(|line| {
        // The name ends in a word, or in a word and a number.
        let name = match line.split_once("/output ") {
            Some((case, _)) => &line[..case.len() + "/output".len()],
            None => {
                let (case, rest) = line.split_once('/').unwrap();
                let mut spaces = rest.match_indices(' ').map(|(at, _)| at);
                &line[..case.len() + 1 + spaces.nth(1).unwrap()]
            }
        };
        let values = line[name.len()..].split_whitespace();
        (name, values.map(|value| value.parse().unwrap()).collect())
    });
    lines.collect()
}

fn check(case: &str, salts: &[usize], write: impl Fn(&mut Sketch) -> (Vec<ValueId>, ValueId)) {
    static GOLDEN: OnceLock<Golden> = OnceLock::new();
    let golden = GOLDEN.get_or_init(|| parse(include_str!("../fixtures/images.txt")));
    check_against(golden, case, salts, write);
}

/// What `write` writes has inputs and parameters in the order of the file; `salts` are those of the parameters' formulas.
pub fn check_against(
    golden: &Golden,
    case: &str,
    salts: &[usize],
    write: impl Fn(&mut Sketch) -> (Vec<ValueId>, ValueId),
) {
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-5)] {
        let mut sketch = Sketch::new(dtype);
        let (inputs, output) = write(&mut sketch);
        zero_gradients(&mut sketch.graph);
        let shape = sketch.graph.shape(output);
        let seed = match shape.dims().len() {
            4 => common(shape.num_elements(), 9),
            _ => vec![1.0],
        };
        let seed = sketch.given(shape.dims(), Contents::Floats(seed));
        let graph = &mut sketch.graph;
        let seeds = [(output, seed)];
        let gradients = backward(graph, Section::Forward, Section::Backward, &seeds, &inputs);
        let observe = |graph: &mut Graph, value: ValueId, name: &str, section| {
            let shape = graph.shape(value);
            let copy = graph.tensor(name, shape.dims(), dtype, Role::Feature);
            graph.enter(section);
            graph.push(AddInto {}, vec![value], vec![Output::overwrite(copy)]);
        };
        observe(graph, output, "output", Section::Forward);
        for (index, gradient) in gradients.into_iter().enumerate() {
            let name = format!("input {index}");
            observe(graph, gradient.unwrap(), &name, Section::Backward);
        }
        let mut step: Step = sketch.into_step();
        for ((_, values), &salt) in step.initial.iter_mut().zip(salts) {
            *values = common(values.len(), salt);
        }
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
        let outcome = step.run(&planned, cpu());
        let parameters = (0..salts.len()).map(|index| format!("parameter {index}"));
        let tensors = (0..inputs.len())
            .map(|index| format!("input {index}"))
            .chain(["output".to_owned()])
            .map(|name| (name.clone(), name))
            .chain(parameters.map(|name| (format!("{name}.grad"), name)));
        for (ours, theirs) in tensors {
            let (found, expected) = (outcome.of(&ours), &golden[&*format!("{case}/{theirs}")]);
            assert_eq!(found.len(), expected.len(), "{case}/{theirs}");
            let difference = found.iter().zip(expected).map(|(a, b)| a - b);
            let error = norm(difference) / norm(expected.iter().copied());
            println!("{case}/{theirs}, {dtype:?}: {error:e}");
            assert!(error < tolerance, "{case}/{theirs} is off by {error:e}");
        }
    }
}

fn pictures(s: &mut Sketch, dims: &[usize], salt: usize) -> ValueId {
    let values = common(dims.iter().product(), salt);
    s.given(dims, Contents::Floats(values))
}

#[test]
fn convolutions() {
    for (case, x, weight, stride, padding) in [
        ("conv 3x3", [2, 3, 4, 3], [4, 3, 3, 3], [1, 1], [1, 1]),
        (
            "conv 3x3 stride 2",
            [1, 5, 4, 3],
            [4, 3, 3, 3],
            [2, 2],
            [1, 1],
        ),
        ("conv 5x2", [1, 6, 4, 2], [3, 5, 2, 2], [2, 1], [2, 0]),
        ("conv 1x1", [1, 3, 3, 5], [2, 1, 1, 5], [1, 1], [0, 0]),
    ] {
        check(case, &[1, 2], |s| {
            let x = pictures(s, &x, 0);
            let (w, bias) = (s.parameter(&weight), s.parameter(&weight[..1]));
            (
                vec![x],
                s.graph.conv2d("y", x, w, Some(bias), stride, padding),
            )
        });
    }
    check("transposed", &[1, 2], |s| {
        let x = pictures(s, &[1, 3, 2, 4], 0);
        let (weight, bias) = (s.parameter(&[4, 2, 2, 3]), s.parameter(&[3]));
        let y = s.graph.activation("y", &[1, 6, 4, 3]);
        s.graph
            .transposed_conv2d_into("y", x, weight, Some(bias), [2, 2], y);
        (vec![x], y)
    });
}

#[test]
fn norms() {
    for (case, groups, activation) in [
        ("norm", 2, None),
        ("norm relu", 3, Some(Activation::Relu)),
        ("norm leaky", 1, Some(Activation::LeakyRelu)),
        ("norm gelu", 6, Some(Activation::Gelu)),
    ] {
        check(case, &[1, 2], |s| {
            let x = pictures(s, &[2, 2, 3, 6], 0);
            let [gamma, beta] = [(); 2].map(|()| s.parameter(&[6]));
            let y = s
                .graph
                .group_norm("y", x, gamma, beta, groups, 1e-5, activation, None);
            (vec![x], y)
        });
    }
    check("instance norm residual", &[1, 2], |s| {
        let [x, residual] = [0, 3].map(|salt| pictures(s, &[1, 3, 2, 4], salt));
        let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
        let relu = Some(Activation::Relu);
        let y = s
            .graph
            .group_norm("y", x, gamma, beta, 4, 1e-5, relu, Some(residual));
        (vec![x, residual], y)
    });
}

#[test]
fn pooling_and_upsampling() {
    check("max ties", &[], |s| {
        let x = s.given(&[1, 6, 6, 2], Contents::Floats(numbers(72, 0, 1.0, 3)));
        (vec![x], s.graph.pool2d("y", x, Pool::Max, 3))
    });
    for (case, kind) in [("max", Pool::Max), ("average", Pool::Average)] {
        check(case, &[], |s| {
            let x = pictures(s, &[1, 4, 6, 3], 0);
            (vec![x], s.graph.pool2d("y", x, kind, 2))
        });
    }
    for (case, factor, mode) in [
        ("nearest", 2, Upsampling::Nearest),
        ("bilinear 2", 2, Upsampling::Bilinear),
        ("bilinear 3", 3, Upsampling::Bilinear),
    ] {
        check(case, &[], |s| {
            let x = pictures(s, &[1, 3, 4, 2], 0);
            (vec![x], s.graph.upsample2d("y", x, factor, mode))
        });
    }
}

/// Logits, labels, and weights of samples.
fn masks(s: &mut Sketch, kind: PixelLossKind, k: usize) -> [ValueId; 3] {
    let logits = pictures(s, &[2, 3, 4, k], 0);
    let label = |i: usize| match i % 11 {
        10 => 255,
        _ => (i * 7 / 3 % kind.num_classes(k)) as u8,
    };
    let labels = s.given(&[2, 3, 4], Contents::Bytes((0..24).map(label).collect()));
    [
        logits,
        labels,
        s.given(&[2], Contents::Floats(vec![1.0; 2])),
    ]
}

#[test]
fn pixel_losses() {
    let weights = [0.5, 2.0, 1.0, 0.25];
    for (case, kind, k, focal) in [
        ("bce", PixelLossKind::Sigmoid, 1, None),
        ("bce focal", PixelLossKind::Sigmoid, 1, Some(2.0)),
        ("ce", PixelLossKind::Softmax, 4, None),
        ("ce focal", PixelLossKind::Softmax, 4, Some(1.5)),
    ] {
        check(case, &[], |s| {
            let [logits, labels, samples] = masks(s, kind, k);
            let classes = kind.num_classes(k);
            let contents = Contents::Floats(weights[..classes].to_vec());
            let classes = s.given(&[classes], contents);
            let sum = s.total();
            s.graph
                .pixel_loss_into("y", logits, labels, classes, samples, sum, kind, focal);
            (vec![logits], sum)
        });
    }
}

#[test]
fn overlap_losses() {
    let dice = [0.5, 0.5, 0.5];
    let tversky = [0.3, 0.7, 0.5];
    for (case, kind, k, reduction, [alpha, beta, smooth]) in [
        ("dice", PixelLossKind::Sigmoid, 1, Reduction::Batch, dice),
        (
            "dice per sample",
            PixelLossKind::Sigmoid,
            1,
            Reduction::PerSample,
            dice,
        ),
        (
            "tversky",
            PixelLossKind::Softmax,
            4,
            Reduction::Batch,
            tversky,
        ),
        (
            "tversky per sample",
            PixelLossKind::Softmax,
            4,
            Reduction::PerSample,
            tversky,
        ),
    ] {
        check(case, &[], |s| {
            let [logits, labels, samples] = masks(s, kind, k);
            let sums = s.graph.overlap_sums("sums", logits, labels, kind);
            let sum = s.total();
            let op = OverlapLoss {
                reduction,
                alpha,
                beta,
                smooth,
                first_class: usize::from(k > 1),
            };
            s.graph.overlap_loss_into("y", sums, samples, sum, op);
            (vec![logits], sum)
        });
    }
}
