//! The operations of clips and captions against their definitions, in plain loops: f64 to 1e-14 of the norm, f32 to 1e-6.
//!
//! Legend: `b` samples, `t` tokens, `d` width, `v` vocabulary.

use holdall_device::cpu::Cpu;
use holdall_graph::{DType, Role, Section, ValueId};
use holdall_plan::{Recompute, RecomputePolicy};

use super::definitions::{compare, dot, observed};
use super::gradient_check::Sketch;
use super::gradients_of_captions::{groups, targets};
use super::step::{Contents, Kept, Outcome, Planned, zero_gradients};

#[test]
fn add_positions_and_repeat() {
    for (rows, repeat) in [(6, 1), (2, 3)] {
        compare(
            |s| {
                let (x, table) = (s.constant(&[2, 6, 5]), s.parameter(&[rows, 5]));
                (vec![x, table], s.graph.add_positions("y", x, table, repeat))
            },
            |known, operands| {
                let [x, table] = [0, 1].map(|index| known.of(operands[index]));
                let position = |at: usize| table[at % 30 / 5 / repeat * 5 + at % 5];
                (0..60).map(|at| x[at] + position(at)).collect()
            },
        );
    }
    compare(
        |s| {
            let table = s.parameter(&[3, 5]);
            (vec![table], s.graph.repeat("y", table, 4))
        },
        |known, operands| known.of(operands[0]).repeat(4),
    );
}

#[test]
fn mean_of_as_many_tokens_as_there_are() {
    let lengths = [2, 0, 3, 9];
    compare(
        |s| {
            let x = s.constant(&[4, 4, 3]);
            let lengths_b = s.indices(&[4], &lengths);
            (vec![x], s.graph.mean_tokens("y", x, 1, Some(lengths_b)))
        },
        |known, operands| {
            let x = known.of(operands[0]);
            let mean = |sample: usize, column: usize| {
                let length = (lengths[sample] as usize).min(3);
                let tokens = (1..1 + length).map(|token| x[(sample * 4 + token) * 3 + column]);
                tokens.sum::<f64>() / length.max(1) as f64
            };
            (0..12).map(|at| mean(at / 3, at % 3)).collect()
        },
    );
}

/// A caption's loss over `[b, t]` tokens: the operands, and the sum.
fn vocabulary_loss(
    s: &mut Sketch,
    [b, t, d, v]: [usize; 4],
    tile: usize,
    smoothing: f64,
) -> ([ValueId; 4], ValueId) {
    let (x_btd, weight_vd) = (s.constant(&[b, t, d]), s.parameter(&[v, d]));
    let [labels, token_weights, sample_weights] = targets(s, [b, t, v]);
    let sum = s.total();
    s.graph.vocabulary_loss_into(
        "loss",
        x_btd,
        weight_vd,
        labels,
        token_weights,
        sample_weights,
        sum,
        smoothing,
        tile,
    );
    ([x_btd, weight_vd, token_weights, sample_weights], sum)
}

#[test]
fn the_vocabulary_loss() {
    // Within a tile and a chunk, in several tiles, in several chunks, and both.
    for ([b, t, d, v], tile) in [
        ([3, 5, 4, 11], 512),
        ([7, 9, 4, 11], 5),
        ([2, 3, 20, 2100], 512),
        ([110, 8, 4, 1025], 100_000),
    ] {
        for smoothing in [0.0, 0.1] {
            compare(
                |s| {
                    let (operands, sum) = vocabulary_loss(s, [b, t, d, v], tile, smoothing);
                    (operands.to_vec(), sum)
                },
                |known, operands| {
                    let [x, weight, token_weights, sample_weights] =
                        [0, 1, 2, 3].map(|index| known.of(operands[index]));
                    let loss = |row: usize| {
                        let x = &x[row * d..(row + 1) * d];
                        let logits: Vec<f64> = weight.chunks(d).map(|w| dot(x, w)).collect();
                        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
                        let mean = logits.iter().sum::<f64>() / v as f64;
                        let own = logits[row * 389 % v];
                        let weight = token_weights[row] * sample_weights[row / t];
                        weight * (sum.ln() - (1.0 - smoothing) * own - smoothing * mean)
                    };
                    let with_target = (0..b * t).filter(|row| row % 3 != 1);
                    vec![with_target.map(loss).sum()]
                },
            );
        }
    }
}

/// Gradients and loss, by so many threads.
fn trained_by(num_threads: usize) -> Outcome {
    let mut s = Sketch::new(DType::F32);
    let ([x_btd, ..], sum) = vocabulary_loss(&mut s, [40, 16, 24, 1500], 200, 0.1);
    zero_gradients(&mut s.graph);
    let seed = s.given(&[1], Contents::Floats(vec![0.5]));
    let sections = [Section::Forward, Section::Backward];
    let seeds = [(sum, seed)];
    let found = holdall_graph::backward(&mut s.graph, sections[0], sections[1], &seeds, &[x_btd]);
    let dx = s
        .graph
        .tensor("dx", &[40, 16, 24], DType::F32, Role::Feature);
    s.graph.enter(Section::Backward);
    let copy = vec![holdall_graph::Output::overwrite(dx)];
    let from = vec![found[0].unwrap()];
    s.graph
        .push(holdall_graph::ops::add::AddInto {}, from, copy);
    let step = s.into_step();
    let policy = RecomputePolicy::uniform(Recompute::None, 0);
    let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, num_threads);
    step.run(&planned, &Cpu::new(Some(num_threads)))
}

#[test]
fn the_vocabulary_loss_has_the_same_bits_whatever_the_number_of_threads() {
    let expected = trained_by(1);
    expected.assert_finite("one thread");
    for num_threads in [2, 3, 5] {
        let found = trained_by(num_threads);
        expected.assert_same_bits(&found, &format!("{num_threads} threads"));
    }
}

/// No row counts: nothing is added, and the gradient is zero and not what was there.
#[test]
fn the_vocabulary_loss_of_padding_alone() {
    let mut s = Sketch::new(DType::F32);
    let (x_btd, weight_vd) = (s.constant(&[2, 3, 4]), s.parameter(&[5, 4]));
    let labels = s.indices(&[2, 3], &[-1, -1, -1, 2, 2, 2]);
    let token_weights = s.given(&[2, 3], Contents::Floats(vec![1.0; 6]));
    let sample_weights = s.given(&[2], Contents::Floats(vec![1.0, 0.0]));
    let sum = s.total();
    let g = &mut s.graph;
    g.vocabulary_loss_into(
        "loss",
        x_btd,
        weight_vd,
        labels,
        token_weights,
        sample_weights,
        sum,
        0.0,
        512,
    );
    assert_eq!(observed(s, sum), [0.0]);
}

#[test]
fn contrastive_with_several_positives() {
    for (rows, tile) in [(7usize, 3), (7, 7), (150, 64)] {
        compare(
            |s| {
                let (image, text) = (s.constant(&[rows, 4]), s.constant(&[rows, 4]));
                let [weights, groups, shares] = groups(s, rows);
                let scale = s.parameter(&[]);
                let sum = s.total();
                s.graph.contrastive_groups_into(
                    [image, text],
                    weights,
                    groups,
                    shares,
                    scale,
                    sum,
                    tile,
                );
                (vec![image, text, scale], sum)
            },
            |known, operands| {
                let [image, text, scale] = [0, 1, 2].map(|index| known.of(operands[index]));
                let score = |i: usize, j: usize| {
                    scale[0].exp() * dot(&image[4 * i..4 * i + 4], &text[4 * j..4 * j + 4])
                };
                let real: Vec<usize> = (0..rows).filter(|row| row % 4 != 2).collect();
                let losses = real.iter().map(|&i| {
                    let along: f64 = real.iter().map(|&j| score(i, j).exp()).sum();
                    let across: f64 = real.iter().map(|&j| score(j, i).exp()).sum();
                    let positives = real.iter().filter(|&&j| i % 3 == j % 3);
                    let count = positives.clone().count() as f64;
                    let both = positives.map(|&j| score(i, j) + score(j, i)).sum::<f64>();
                    0.5 * (along.ln() + across.ln() - both / count)
                });
                vec![losses.sum()]
            },
        );
    }
}

/// Where every row is a group of its own, it is the plain loss.
#[test]
fn groups_of_one_row() {
    let loss = |grouped: bool| {
        let mut s = Sketch::new(DType::F64);
        let features = [(); 2].map(|()| s.constant(&[9, 4]));
        let weights = s.given(&[9], Contents::Floats(vec![1.0; 9]));
        let groups = s.indices(&[9], &[8, 3, 1, 0, 2, 4, 5, 7, 6]);
        let shares = s.given(&[9], Contents::Floats(vec![1.0; 9]));
        let scale = s.parameter(&[]);
        let sum = s.total();
        if grouped {
            s.graph
                .contrastive_groups_into(features, weights, groups, shares, scale, sum, 4)
        } else {
            s.graph.contrastive_into(features, weights, scale, sum, 4)
        }
        observed(s, sum)[0]
    };
    let [plain, grouped] = [false, true].map(loss);
    assert!(
        (plain - grouped).abs() < 1e-13 * plain.abs(),
        "{plain} {grouped}"
    );
}

/// By every kernel: few queries in heads of whole vectors, others, more queries than a tile.
#[test]
fn cross_attention_over_the_frames_that_are_there() {
    for ([t, k], d) in [
        ([24, 260], 64),
        ([3, 700], 32),
        ([64, 5], 32),
        ([65, 5], 32),
        ([9, 50], 6),
    ] {
        let lengths = [k, 1, 3];
        compare(
            |s| {
                let q = s.constant(&[3, t, d]);
                let [keys, values] = [(); 2].map(|()| s.constant(&[3, k, d]));
                let lengths_b = s.indices(&[3], &lengths.map(|length| length as i64));
                let parts = [q, keys, values];
                let o = s.graph.attention("o", parts, Some(lengths_b), 2, false);
                (parts.to_vec(), o)
            },
            |known, operands| {
                let width = d / 2;
                let row = |part: usize, row: usize, head: usize| {
                    &known.of(operands[part])[row * d + head * width..][..width]
                };
                let mut out = Vec::new();
                for at in 0..3 * t * 2 {
                    let (query, head, sample) = (at / 2, at % 2, at / 2 / t);
                    let scores: Vec<f64> = (0..lengths[sample])
                        .map(|key| {
                            let key = row(1, sample * k + key, head);
                            (dot(row(0, query, head), key) / (width as f64).sqrt()).exp()
                        })
                        .collect();
                    let total: f64 = scores.iter().sum();
                    out.extend((0..width).map(|column| {
                        let keys = scores.iter().enumerate();
                        let terms =
                            keys.map(|(key, score)| score * row(2, sample * k + key, head)[column]);
                        terms.sum::<f64>() / total
                    }));
                }
                out
            },
        );
    }
}
