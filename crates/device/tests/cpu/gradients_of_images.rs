//! Gradient checks of the operations of images. Sizes are small and uneven on purpose.
//!
//! ReLU and maxima have kinks: there the numbers are drawn by a seed that keeps them away from one.
//!
//! Legend: `n` samples, `h` and `w` rows and columns of pixels, `c` channels, `o` channels out, `k` classes.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::normalize_pixels::PixelDepth;
use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{Op, ValueId, Write};

use super::gradient_check::{Sketch, backward_nodes, check_gradients};
use super::step::{Contents, Random};

#[test]
fn conv2d_of_every_kernel_stride_and_padding() {
    // Picture, kernel, stride, padding.
    let cases = [
        ([5, 4], [1, 1], [1, 1], [0, 0]),
        ([5, 4], [1, 1], [2, 2], [0, 0]),
        ([5, 4], [2, 2], [2, 2], [0, 0]),
        ([5, 6], [2, 3], [1, 2], [1, 0]),
        ([5, 4], [3, 3], [1, 1], [1, 1]),
        ([6, 5], [3, 3], [2, 2], [1, 1]),
        ([4, 3], [3, 3], [1, 1], [2, 2]),
        ([3, 4], [3, 3], [2, 1], [0, 2]),
        ([6, 5], [5, 5], [1, 1], [2, 2]),
        ([4, 7], [5, 1], [2, 3], [2, 0]),
        ([7, 6], [7, 7], [1, 1], [2, 1]),
        ([5, 3], [7, 7], [2, 2], [2, 2]),
    ];
    for (index, (picture, kernel, stride, padding)) in cases.into_iter().enumerate() {
        check_gradients(|s| {
            let x = s.input(&[2, picture[0], picture[1], 3]);
            let weight = s.parameter(&[4, kernel[0], kernel[1], 3]);
            let bias = (index % 2 == 0).then(|| s.parameter(&[4]));
            vec![s.graph.conv2d("y", x, weight, bias, stride, padding)]
        });
    }
}

#[test]
fn conv2d_over_more_lines_than_a_band_and_more_channels_than_lanes() {
    check_gradients(|s| {
        let x = s.input(&[1, 3, 70, 2]);
        let weight = s.parameter(&[3, 3, 3, 2]);
        vec![s.graph.conv2d("y", x, weight, None, [1, 1], [1, 1])]
    });
    check_gradients(|s| {
        let x = s.input(&[1, 70, 3, 1]);
        let weight = s.parameter(&[2, 3, 3, 1]);
        vec![s.graph.conv2d("y", x, weight, None, [1, 1], [1, 1])]
    });
    check_gradients(|s| {
        let x = s.input(&[1, 3, 3, 19]);
        let weight = s.parameter(&[37, 3, 3, 19]);
        vec![s.graph.conv2d("y", x, weight, None, [1, 1], [1, 1])]
    });
}

#[test]
fn conv2d_of_some_channels_read_twice() {
    for stride in [1, 2] {
        let graph = check_gradients(|s| {
            let x = s.input(&[2, 4, 5, 7]);
            let [left, right] = [(0, 4), (3, 4)].map(|(start, c)| s.graph.columns(x, start, c));
            [left, left, right]
                .into_iter()
                .map(|x| {
                    let weight = s.parameter(&[3, 3, 3, 4]);
                    s.graph.conv2d("y", x, weight, None, [stride; 2], [1; 2])
                })
                .collect()
        });
        let nodes = backward_nodes(&graph);
        let gradients = nodes
            .iter()
            .filter(|node| matches!(node.op, Op::Conv2dInputGrad(_)));
        let adds = gradients.filter(|node| node.outputs[0].mode == Write::Accumulate);
        assert_eq!(adds.count(), 3, "views overlap: zeros first, then sums");
    }
}

#[test]
fn conv2d_with_frozen_parameters() {
    for frozen in 0..4 {
        let graph = check_gradients(|s| {
            let x = match frozen {
                3 => s.constant(&[1, 4, 4, 3]),
                _ => s.input(&[1, 4, 4, 3]),
            };
            let (weight, bias) = (s.parameter(&[2, 3, 3, 3]), s.parameter(&[2]));
            for (bit, parameter) in [(1, weight), (2, bias)] {
                if frozen == bit {
                    s.freeze(parameter);
                }
            }
            vec![s.graph.conv2d("y", x, weight, Some(bias), [1; 2], [1; 2])]
        });
        let nodes = backward_nodes(&graph);
        let order: Vec<&str> = nodes.iter().map(|node| node.op.variant()).collect();
        assert_eq!(
            order[0], "Conv2dWeightGrad",
            "x is free before dx is written"
        );
        assert_eq!(order.contains(&"Conv2dInputGrad"), frozen != 3);
        let Op::Conv2dWeightGrad(op) = &nodes[0].op else {
            panic!("{order:?}");
        };
        assert_eq!((op.weight, op.bias), (frozen != 1, frozen != 2));
    }
}

#[test]
fn transposed_conv2d_into_channels_of_a_wider_value() {
    for (stride, bias) in [([2, 2], true), ([3, 1], false), ([1, 2], true)] {
        check_gradients(|s| {
            let x = s.input(&[2, 3, 4, 5]);
            let some = s.graph.columns(x, 1, 3);
            let y = s
                .graph
                .activation("y", &[2, 3 * stride[0], 4 * stride[1], 9]);
            for (x, inner, start, out) in [(x, 5, 0, 4), (some, 3, 4, 5)] {
                let weight = s.parameter(&[inner, stride[0], stride[1], out]);
                let bias = bias.then(|| s.parameter(&[out]));
                let part = s.graph.columns(y, start, out);
                s.graph
                    .transposed_conv2d_into("y", x, weight, bias, stride, part);
            }
            vec![y]
        });
    }
    let graph = check_gradients(|s| {
        let x = s.constant(&[1, 2, 2, 3]);
        let (weight, bias) = (s.parameter(&[3, 2, 2, 4]), s.parameter(&[4]));
        s.freeze(weight);
        let y = s.graph.activation("y", &[1, 4, 4, 4]);
        s.graph
            .transposed_conv2d_into("y", x, weight, Some(bias), [2, 2], y);
        vec![y]
    });
    assert_eq!(backward_nodes(&graph).len(), 1);
}

const CURVES: [Option<Activation>; 5] = [
    None,
    Some(Activation::QuickGelu),
    Some(Activation::Gelu),
    Some(Activation::Relu),
    Some(Activation::LeakyRelu),
];

fn normed(s: &mut Sketch, x: ValueId, groups: usize, curve: Option<Activation>) -> ValueId {
    let channels = s.graph.shape(x).width();
    let [gamma, beta] = [(); 2].map(|()| s.parameter(&[channels]));
    s.graph
        .group_norm("y", x, gamma, beta, groups, 1e-5, curve, None)
}

#[test]
fn group_norm_in_groups_of_every_size() {
    for (groups, curve) in [1, 2, 3, 6]
        .into_iter()
        .flat_map(|g| CURVES.map(|c| (g, c)))
    {
        let graph = check_gradients(|s| {
            s.random = Random(5);
            let x = s.input(&[2, 2, 2, 6]);
            vec![normed(s, x, groups, curve)]
        });
        // dx lies on dy: nothing else is written.
        let nodes = backward_nodes(&graph);
        let norm = nodes.iter().find(|n| matches!(n.op, Op::GroupNormGrad(_)));
        let norm = norm.unwrap();
        assert_eq!(norm.outputs[2].value, norm.inputs[0]);
    }
}

#[test]
fn group_norm_of_more_channels_than_lanes_and_more_pixels_than_a_run() {
    let gelu = Some(Activation::Gelu);
    check_gradients(|s| {
        let x = s.input(&[1, 2, 2, 36]);
        vec![normed(s, x, 4, gelu)]
    });
    check_gradients(|s| {
        let x = s.input(&[1, 43, 51, 2]);
        vec![normed(s, x, 1, gelu)]
    });
}

#[test]
fn group_norm_with_a_residual() {
    for curve in CURVES {
        for (wants_x, wants_residual) in [(true, true), (true, false), (false, true)] {
            check_gradients(|s| {
                s.random = Random(4);
                let [x, residual] = [wants_x, wants_residual].map(|wants| {
                    if wants {
                        s.input(&[1, 3, 2, 4])
                    } else {
                        s.constant(&[1, 3, 2, 4])
                    }
                });
                let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
                if !wants_x {
                    s.freeze(gamma);
                }
                if !wants_residual {
                    s.freeze(beta);
                }
                let residual = Some(residual);
                vec![
                    s.graph
                        .group_norm("y", x, gamma, beta, 2, 1e-5, curve, residual),
                ]
            });
        }
    }
    // The residual is x itself, or read by others too.
    check_gradients(|s| {
        let x = s.input(&[2, 2, 3, 4]);
        let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
        let y = s
            .graph
            .group_norm("y", x, gamma, beta, 2, 0.1, None, Some(x));
        let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
        let gelu = Some(Activation::Gelu);
        let z = s
            .graph
            .group_norm("z", y, gamma, beta, 4, 0.1, gelu, Some(x));
        vec![y, z]
    });
}

#[test]
fn group_norm_of_views_into_views() {
    check_gradients(|s| {
        let (x, residual) = (s.input(&[2, 3, 2, 9]), s.input(&[2, 3, 2, 7]));
        let y = s.graph.activation("y", &[2, 3, 2, 8]);
        for start in [0, 4] {
            let [x, residual] = [(x, start), (residual, start / 2)]
                .map(|(whole, start)| s.graph.columns(whole, start, 4));
            let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
            let y = s.graph.columns(y, start, 4);
            let gelu = Some(Activation::Gelu);
            s.graph
                .group_norm_into("y", x, gamma, beta, 2, 1e-5, gelu, Some(residual), y);
        }
        vec![y]
    });
}

#[test]
fn pooling() {
    for (kind, size) in [
        (Pool::Max, 2),
        (Pool::Max, 3),
        (Pool::Average, 2),
        (Pool::Average, 3),
        (Pool::Max, 1),
    ] {
        check_gradients(|s| {
            // No two numbers are near each other.
            let count = 2 * 2 * size * size * 7;
            let numbers = (0..count).map(|at| (at * 37 % count) as f64 / 50.0);
            let x = s.moved(&[2, 2 * size, size, 7], numbers.collect());
            let some = s.graph.columns(x, 2, 4);
            let whole = s.graph.pool2d("whole", x, kind, size);
            // Twice of the same: the second gradient is added.
            let views = [(); 2].map(|()| s.graph.pool2d("some", some, kind, size));
            vec![whole, views[0], views[1]]
        });
    }
}

#[test]
fn upsampling_into_channels_of_a_wider_value() {
    for (mode, factor) in [
        (Upsampling::Nearest, 2),
        (Upsampling::Nearest, 3),
        (Upsampling::Bilinear, 1),
        (Upsampling::Bilinear, 2),
        (Upsampling::Bilinear, 3),
        (Upsampling::Bilinear, 4),
    ] {
        check_gradients(|s| {
            let x = s.input(&[2, 3, 4, 5]);
            let some = s.graph.columns(x, 1, 3);
            let y = s.graph.activation("y", &[2, 3 * factor, 4 * factor, 6]);
            let [left, right] = [0, 3].map(|start| s.graph.columns(y, start, 3));
            s.graph.upsample2d_into("y", some, factor, mode, left);
            s.graph.upsample2d_into("y", some, factor, mode, right);
            vec![y, s.graph.upsample2d("z", x, factor, mode)]
        });
    }
    check_gradients(|s| {
        let x = s.input(&[1, 1, 1, 2]);
        vec![s.graph.upsample2d("y", x, 2, Upsampling::Bilinear)]
    });
}

/// A decoder reads what an encoder stage and a transposed convolution wrote side by side; the next stage reads a part.
#[test]
fn a_skip_join_copies_nothing_and_clears_nothing() {
    let graph = check_gradients(|s| {
        let x = s.input(&[1, 4, 4, 3]);
        let joined = s.graph.activation("joined", &[1, 4, 4, 7]);
        let [skip, up] = [(0, 4), (4, 3)].map(|(start, c)| s.graph.columns(joined, start, c));
        let weight = s.parameter(&[4, 3, 3, 3]);
        let y = s.graph.conv2d("stage", x, weight, None, [1; 2], [1; 2]);
        let [gamma, beta] = [(); 2].map(|()| s.parameter(&[4]));
        let gelu = Some(Activation::Gelu);
        s.graph
            .group_norm_into("norm", y, gamma, beta, 2, 1e-5, gelu, None, skip);
        let pooled = s.graph.pool2d("pooled", skip, Pool::Max, 2);
        let weight = s.parameter(&[5, 3, 3, 4]);
        let deep = s.graph.conv2d("deep", pooled, weight, None, [1; 2], [1; 2]);
        let weight = s.parameter(&[5, 2, 2, 3]);
        s.graph
            .transposed_conv2d_into("up", deep, weight, None, [2; 2], up);
        let weight = s.parameter(&[2, 3, 3, 7]);
        vec![
            s.graph
                .conv2d("decoder", joined, weight, None, [1; 2], [1; 2]),
        ]
    });
    let nodes = backward_nodes(&graph);
    let variants: Vec<&str> = nodes.iter().map(|node| node.op.variant()).collect();
    assert!(!variants.contains(&"Fill"), "{variants:?}");
    assert_eq!(variants.iter().filter(|v| **v == "AddInto").count(), 1); // the test's own look at dx
    let pool = nodes.iter().find(|n| matches!(n.op, Op::Pool2dGrad(_)));
    assert_eq!(pool.unwrap().outputs[0].mode, Write::Accumulate);
}

/// Rows as a loader leaves them: pixels, then a mask, then something else.
fn rows(s: &mut Sketch, samples: usize, [pixels, mask]: [usize; 2], classes: u8) -> ValueId {
    let bytes = (0..samples).flat_map(|sample| {
        let pixel = move |at: usize| (at * 37 + sample * 101) as u8;
        let label = move |at: usize| match (at * 7 + sample * 3) % 11 {
            10 => 255,
            other => other as u8 % classes,
        };
        let rest = [9u8; 5];
        (0..pixels)
            .map(pixel)
            .chain((0..mask).map(label))
            .chain(rest)
            .collect::<Vec<u8>>()
    });
    let contents = Contents::Bytes(bytes.collect());
    s.given(&[samples, pixels + mask + 5], contents)
}

#[test]
fn the_first_convolution_reads_bytes() {
    for (depth, channels) in [(PixelDepth::Eight, 3), (PixelDepth::Sixteen, 1)] {
        check_gradients(|s| {
            let pixel_bytes = channels * depth.bytes();
            let rows = rows(s, 2, [4 * 5 * pixel_bytes, 20], 2);
            let pixels = s.graph.picture_view(rows, 0, &[4, 5, pixel_bytes]);
            let (mean, std) = (vec![0.4; channels], vec![0.2; channels]);
            let x = s.graph.normalize_pixels("x", pixels, depth, &mean, &std);
            let weight = s.parameter(&[2, 3, 3, channels]);
            vec![s.graph.conv2d("y", x, weight, None, [1; 2], [1; 2])]
        });
    }
}

fn labels_of(s: &mut Sketch, [n, h, w]: [usize; 3], step: usize, classes: usize) -> ValueId {
    let rows = rows(s, n, [3, h * w * step * step], classes as u8);
    let labels = s.graph.picture_view(rows, 3, &[h * step, w * step]);
    s.graph.every_pixel(labels, step)
}

const KINDS: [(PixelLossKind, usize); 3] = [
    (PixelLossKind::Sigmoid, 1),
    (PixelLossKind::Softmax, 2),
    (PixelLossKind::Softmax, 5),
];

#[test]
fn pixel_losses() {
    for (kind, k) in KINDS {
        for (focal, step) in [(None, 1), (None, 2), (Some(2.0), 1), (Some(0.5), 1)] {
            check_gradients(|s| {
                let logits = s.input(&[2, 3, 4, k + 2]);
                let logits = s.graph.columns(logits, 1, k);
                let classes = kind.num_classes(k);
                let labels = labels_of(s, [2, 3, 4], step, classes);
                let class_weights = (1..=classes).map(|class| 0.3 * class as f64).collect();
                let class_weights = s.given(&[classes], Contents::Floats(class_weights));
                let weights = s.given(&[2], Contents::Floats(vec![1.0, 0.7]));
                let sum = s.total();
                // Twice: the second gradient is added, and so is the sum.
                for _ in 0..2 {
                    s.graph.pixel_loss_into(
                        "loss",
                        logits,
                        labels,
                        class_weights,
                        weights,
                        sum,
                        kind,
                        focal,
                    );
                }
                vec![sum]
            });
        }
    }
}

#[test]
fn overlap_losses() {
    for (kind, k) in KINDS {
        for reduction in [Reduction::Batch, Reduction::PerSample] {
            for (alpha, beta, smooth) in [(0.5, 0.5, 0.5), (0.3, 0.9, 0.0)] {
                check_gradients(|s| {
                    let logits = s.input(&[3, 2, 5, k]);
                    let classes = kind.num_classes(k);
                    let labels = labels_of(s, [3, 2, 5], 1, classes);
                    let sums = s.graph.overlap_sums("sums", logits, labels, kind);
                    let weights = s.given(&[3], Contents::Floats(vec![1.0, 0.0, 0.7]));
                    let total = s.total();
                    let op = OverlapLoss {
                        reduction,
                        alpha,
                        beta,
                        smooth,
                        first_class: usize::from(k > 1),
                    };
                    s.graph.overlap_loss_into("loss", sums, weights, total, op);
                    vec![total, sums]
                });
            }
        }
    }
}

/// The sums as something that is moved itself: `G` has a derivative too.
#[test]
fn an_overlap_loss_of_sums() {
    for reduction in [Reduction::Batch, Reduction::PerSample] {
        check_gradients(|s| {
            let sums = [1.0, 2.5, 1.5, 2.0, 3.0, 4.0, 0.2, 1.1, 0.9];
            let sums: Vec<f64> = [sums, sums.map(|sum| 1.5 * sum + 0.3)].concat();
            let sums = s.moved(&[2, 9], sums);
            let weights = s.given(&[2], Contents::Floats(vec![0.4, 1.2]));
            let total = s.total();
            let op = OverlapLoss {
                reduction,
                alpha: 0.7,
                beta: 0.2,
                smooth: 1.0,
                first_class: 1,
            };
            s.graph.overlap_loss_into("loss", sums, weights, total, op);
            vec![total]
        });
    }
}
