//! Every forward operation against its definition, in plain loops: f64 to 1e-14 of the norm, f32 to 1e-6.
//!
//! A gradient check says that backward fits forward; this says that forward is what it should be.
//!
//! Legend: `b` samples, `t` queries or tokens, `s` keys, `d` width, `n` rows.

use holdall_graph::adapters::{Adapters, name_of_a, name_of_b};
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::patchify::Normalization;
use holdall_graph::{DType, Decay, Output, Role, ValueId};
use holdall_plan::{Recompute, RecomputePolicy};

use super::gradient_check::{Sketch, cpu};
use super::step::{Contents, Kept, NORMALIZATION, Planned, norm};

/// Values that the reference reads: inputs as they are, weights as they were drawn.
pub struct Known {
    values: Vec<(ValueId, Vec<f64>)>,
}

impl Known {
    pub fn of(&self, value: ValueId) -> &[f64] {
        &self.values.iter().find(|(id, _)| *id == value).unwrap().1
    }
}

/// Runs what `write` writes in both formats; `reference` computes the same from the operands that `write` names.
pub fn compare(
    write: impl Fn(&mut Sketch) -> (Vec<ValueId>, ValueId),
    reference: impl Fn(&Known, &[ValueId]) -> Vec<f64>,
) {
    for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
        let mut sketch = Sketch::new(dtype);
        let (operands, output) = write(&mut sketch);
        let shape = sketch.graph.shape(output);
        let seen = sketch
            .graph
            .tensor("seen", shape.dims(), dtype, Role::Feature);
        let copy = vec![Output::overwrite(seen)];
        sketch.graph.push(AddInto {}, vec![output], copy);
        let role = |sketch: &Sketch, id| {
            let storage = sketch.graph.value(id).storage;
            sketch.graph.storage(storage).role
        };
        let inputs = operands
            .iter()
            .filter(|&&id| role(&sketch, id) == Role::Input);
        let mut values: Vec<_> = inputs.map(|&id| (id, sketch.floats(id))).collect();
        let step = sketch.into_step();
        for &id in &operands {
            let storage = step.graph.value(id).storage;
            if let Some((_, weights)) = step.initial.iter().find(|(other, _)| *other == storage) {
                values.push((id, weights.clone()));
            }
        }
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
        let outcome = step.run(&planned, cpu());
        let found = outcome.of("seen");
        let expected = reference(&Known { values }, &operands);
        assert_eq!(found.len(), expected.len());
        let difference = found.iter().zip(&expected).map(|(a, b)| a - b);
        let error = norm(difference) / norm(expected.iter().copied());
        println!("{dtype:?}: {error:e}");
        assert!(error < tolerance, "{dtype:?} is off by {error:e}");
    }
}

fn activated(activation: Activation, z: f64) -> f64 {
    match activation {
        Activation::QuickGelu => z / (1.0 + (-1.702 * z).exp()),
        Activation::Gelu => z * normal_distribution(z),
        Activation::Relu => z.max(0.0),
        Activation::LeakyRelu => z.max(0.01 * z),
    }
}

/// `Phi(z)`, by its series: `1/2 + phi(z) (z + z^3 / 3 + z^5 / 15 + ...)`.
fn normal_distribution(z: f64) -> f64 {
    let mut term = z;
    let mut sum = z;
    for index in 1..200 {
        term *= z * z / f64::from(2 * index + 1);
        sum += term;
    }
    0.5 + sum * (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn linear() {
    for activation in [None, Some(Activation::QuickGelu), Some(Activation::Gelu)] {
        compare(
            |s| {
                let (x, weight, bias) = (
                    s.constant(&[300, 20]),
                    s.parameter(&[17, 20]),
                    s.parameter(&[17]),
                );
                let y = match activation {
                    Some(activation) => s.graph.linear_activated("y", x, weight, bias, activation),
                    None => s.graph.linear("y", x, weight, Some(bias), None),
                };
                (vec![x, weight, bias], y)
            },
            |known, operands| {
                let [x, weight, bias] = [0, 1, 2].map(|index| known.of(operands[index]));
                let rows = x.chunks(20).flat_map(|x| {
                    let products = weight.chunks(20).zip(bias);
                    products.map(move |(weight, bias)| dot(x, weight) + bias)
                });
                rows.map(|z| activation.map_or(z, |activation| activated(activation, z)))
                    .collect()
            },
        );
    }
}

#[test]
fn a_linear_layer_with_an_adapter() {
    for activation in [None, Some(Activation::QuickGelu)] {
        compare(
            |s| {
                s.graph.adapt(Adapters {
                    rank: 3,
                    scale: 1.5,
                    modules: ["layer".to_owned()].into(),
                    dropout: None,
                });
                let x = s.constant(&[300, 20]);
                let weight = s.graph.parameter("layer.weight", &[17, 20], Decay::Yes);
                let bias = s.parameter(&[17]);
                let y = match activation {
                    Some(activation) => s.graph.linear_activated("y", x, weight, bias, activation),
                    None => s.graph.linear("y", x, weight, Some(bias), None),
                };
                // Named again, they are the same.
                let a = s.graph.parameter(&name_of_a("layer"), &[3, 20], Decay::Yes);
                let b = s.graph.parameter(&name_of_b("layer"), &[17, 3], Decay::Yes);
                (vec![x, weight, bias, a, b], y)
            },
            |known, operands| {
                let [x, weight, bias, a, b] =
                    [0, 1, 2, 3, 4].map(|index| known.of(operands[index]));
                let rows = x.chunks(20).flat_map(|x| {
                    let h: Vec<f64> = a.chunks(20).map(|a| dot(x, a)).collect();
                    let products = weight.chunks(20).zip(bias).zip(b.chunks(3));
                    products
                        .map(|((weight, bias), b)| dot(x, weight) + bias + 1.5 * dot(&h, b))
                        .collect::<Vec<f64>>()
                });
                rows.map(|z| activation.map_or(z, |activation| activated(activation, z)))
                    .collect()
            },
        );
    }
}

#[test]
fn linear_with_a_residual_and_add() {
    compare(
        |s| {
            let (x, weight, residual) = (
                s.constant(&[5, 4]),
                s.parameter(&[3, 4]),
                s.constant(&[5, 3]),
            );
            let y = s.graph.linear("y", x, weight, None, Some(residual));
            (vec![x, weight, residual], s.graph.add("sum", y, residual))
        },
        |known, operands| {
            let [x, weight, residual] = [0, 1, 2].map(|index| known.of(operands[index]));
            let products = x
                .chunks(4)
                .flat_map(|x| weight.chunks(4).map(move |w| dot(x, w)));
            products
                .zip(residual)
                .map(|(product, residual)| product + 2.0 * residual)
                .collect()
        },
    );
}

#[test]
fn layer_norm() {
    compare(
        |s| {
            let (x, gamma, beta) = (
                s.constant(&[40, 37]),
                s.parameter(&[37]),
                s.parameter(&[37]),
            );
            (
                vec![x, gamma, beta],
                s.graph.layer_norm("y", x, gamma, beta, 1e-5),
            )
        },
        |known, operands| {
            let [x, gamma, beta] = [0, 1, 2].map(|index| known.of(operands[index]));
            let rows = x.chunks(37).flat_map(|x| {
                let mean = x.iter().sum::<f64>() / 37.0;
                let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 37.0;
                let scaled = x.iter().map(move |x| (x - mean) / (variance + 1e-5).sqrt());
                scaled
                    .zip(gamma.iter().zip(beta))
                    .map(|(h, (gamma, beta))| h * gamma + beta)
            });
            rows.collect()
        },
    );
}

#[test]
fn attention() {
    const HEADS: usize = 2;
    const WIDTH: usize = 3;
    let d = HEADS * WIDTH;
    for (causal, lengths, [t, s]) in [
        (false, None, [5, 7]),
        (true, None, [130, 130]),
        (true, Some([2, 6]), [6, 6]),
        (false, Some([1, 7]), [1, 7]),
    ] {
        compare(
            |sketch| {
                let q = sketch.constant(&[2, t, d]);
                let [k, v] = [(); 2].map(|()| sketch.constant(&[2, s, d]));
                let keys = lengths.map(|lengths: [i64; 2]| sketch.indices(&[2], &lengths));
                let o = sketch.graph.attention("o", [q, k, v], keys, HEADS, causal);
                (vec![q, k, v], o)
            },
            |known, operands| {
                let [q, k, v] = [0, 1, 2].map(|index| known.of(operands[index]));
                let part = |all: &[f64], [sample, token, head]: [usize; 3], tokens: usize| {
                    let start = (sample * tokens + token) * d + head * WIDTH;
                    all[start..start + WIDTH].to_vec()
                };
                let mut o = Vec::new();
                for (sample, query) in (0..2).flat_map(|sample| (0..t).map(move |t| (sample, t))) {
                    let exist = lengths.map_or(s, |lengths| lengths[sample] as usize);
                    let seen = if causal { exist.min(query + 1) } else { exist };
                    for head in 0..HEADS {
                        let q = part(q, [sample, query, head], t);
                        let score = |key| dot(&q, &part(k, [sample, key, head], s));
                        let scale = 1.0 / (WIDTH as f64).sqrt();
                        let weights: Vec<f64> =
                            (0..seen).map(|key| (scale * score(key)).exp()).collect();
                        let total: f64 = weights.iter().sum();
                        for column in 0..WIDTH {
                            let value = |key| part(v, [sample, key, head], s)[column];
                            let mixed = weights.iter().enumerate().map(|(key, w)| w * value(key));
                            o.push(mixed.sum::<f64>() / total);
                        }
                    }
                }
                o
            },
        );
    }
}

#[test]
fn embedding() {
    let ids = [3, 0, 0, 2, 1, 3];
    compare(
        |s| {
            let (table, positions) = (s.parameter(&[4, 5]), s.parameter(&[6, 5]));
            let ids = s.indices(&[2, 3], &ids);
            let first = s.graph.rows(positions, 0, 3);
            (
                vec![table, positions],
                s.graph.embedding("x", ids, table, first, None),
            )
        },
        |known, operands| {
            let (table, positions) = (known.of(operands[0]), known.of(operands[1]));
            let elements = (0..6).flat_map(|row| (0..5).map(move |column| (row, column)));
            let sum = |(row, column)| {
                table[ids[row] as usize * 5 + column] + positions[row % 3 * 5 + column]
            };
            elements.map(sum).collect()
        },
    );
}

#[test]
fn class_token_and_gather_rows() {
    compare(
        |s| {
            let (patches, class, positions) = (
                s.constant(&[2, 3, 5]),
                s.parameter(&[5]),
                s.parameter(&[4, 5]),
            );
            let x = s.graph.class_token("x", patches, class, positions);
            (vec![patches, class, positions], x)
        },
        |known, operands| {
            let [patches, class, positions] = [0, 1, 2].map(|index| known.of(operands[index]));
            let tokens = patches
                .chunks(15)
                .flat_map(|patches| class.iter().chain(patches));
            tokens
                .zip(positions.iter().cycle())
                .map(|(x, position)| x + position)
                .collect()
        },
    );
    compare(
        |s| {
            let x = s.constant(&[2, 3, 2]);
            let index = s.indices(&[2], &[2, 0]);
            (vec![x], s.graph.gather_rows("y", x, index))
        },
        |known, operands| {
            let x = known.of(operands[0]);
            [&x[4..6], &x[6..8]].concat()
        },
    );
}

#[test]
fn patchify_of_bytes_and_of_numbers() {
    // Two pictures of 4 x 6 in patches of 2: channel, row, column within a patch.
    let place = |index: usize| {
        let (sample, patch, within) = (index / 72, index / 12 % 6, index % 12);
        let (channel, y, x) = (within / 4, within / 2 % 2, within % 2);
        let (row, column) = (patch / 3 * 2 + y, patch % 3 * 2 + x);
        (((sample * 4 + row) * 6 + column) * 3 + channel, channel)
    };
    compare(
        |s| {
            let pixels = s.constant(&[2, 4, 6, 3]);
            let patches = s.graph.patchify("patches", pixels, 2, NORMALIZATION);
            (vec![pixels], patches)
        },
        |known, operands| {
            (0..144)
                .map(|index| known.of(operands[0])[place(index).0])
                .collect()
        },
    );
    let bytes: Vec<u8> = (0..144u32).map(|index| (index * 37 % 256) as u8).collect();
    let other = Normalization {
        mean: [0.5, 0.25, 0.0],
        std: [0.5, 0.125, 1.0],
    };
    for normalization in [NORMALIZATION, other] {
        compare(
            |s| {
                let pixels = s.given(&[2, 4, 6, 3], Contents::Bytes(bytes.clone()));
                let patches = s.graph.patchify("patches", pixels, 2, normalization);
                (vec![], patches)
            },
            |_, _| {
                let Normalization { mean, std } = normalization;
                let normalised = |index| {
                    let (pixel, channel) = place(index);
                    let value = f64::from(bytes[pixel]) / 255.0 - f64::from(mean[channel]);
                    value / f64::from(std[channel])
                };
                (0..144).map(normalised).collect()
            },
        );
    }
}

#[test]
fn normalize() {
    compare(
        |s| {
            let x = s.constant(&[3, 20]);
            let y = s.graph.activation("y", &[3, 20]);
            s.graph.normalize_into("y", x, y);
            (vec![x], y)
        },
        |known, operands| {
            let rows = known.of(operands[0]).chunks(20);
            rows.flat_map(|x| x.iter().map(|value| value / dot(x, x).sqrt()))
                .collect()
        },
    );
}

#[test]
fn cross_entropy() {
    // As PyTorch defines smoothing: a share of the label, the rest spread over all classes alike. What either gives to a class
    // is weighted by the class.
    for smoothing in [0.0, 0.1, 0.5] {
        cross_entropy_with(smoothing, None);
        cross_entropy_with(smoothing, Some([0.5, 1.0, 2.0, 0.0, 0.75]));
    }
}

fn cross_entropy_with(smoothing: f64, class_weights: Option<[f64; 5]>) {
    let each_class = class_weights.unwrap_or([1.0; 5]);
    let (labels, weights) = ([4, -1, 0, 2], [1.0, 1.0, 0.0, 0.5]);
    compare(
        |s| {
            let logits = s.constant(&[4, 5]);
            let labels = s.indices(&[4], &labels);
            let weights = s.given(&[4], Contents::Floats(weights.to_vec()));
            let sum = s.total();
            match class_weights {
                None => s
                    .graph
                    .cross_entropy_into("loss", logits, labels, weights, sum, smoothing),
                Some(class_weights) => {
                    let class_weights = s.given(&[5], Contents::Floats(class_weights.to_vec()));
                    s.graph.weighted_cross_entropy_into(
                        "loss",
                        logits,
                        labels,
                        weights,
                        class_weights,
                        sum,
                        smoothing,
                    );
                }
            }
            (vec![logits], sum)
        },
        |known, operands| {
            let rows = known
                .of(operands[0])
                .chunks(5)
                .zip(labels.iter().zip(weights));
            let losses =
                rows.filter(|(_, (label, _))| **label >= 0)
                    .map(|(logits, (&label, weight))| {
                        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
                        let class = |c: usize| each_class[c] * (total.ln() - logits[c]);
                        let own = class(label as usize);
                        let spread = (0..5).map(class).sum::<f64>() / 5.0;
                        weight * ((1.0 - smoothing) * own + smoothing * spread)
                    });
            vec![losses.sum()]
        },
    );
}

/// Columns 2 to 6 of what is 9 wide: one of several heads of one product.
const HEAD: std::ops::Range<usize> = 2..7;

fn heads(all: &[f64]) -> impl Iterator<Item = &[f64]> {
    all.chunks(9).map(|row| &row[HEAD])
}

#[test]
fn cross_entropy_of_a_column_slice() {
    let (labels, weights) = ([4, 0, 2], [1.0, 2.0, 0.5]);
    compare(
        |s| {
            let all = s.constant(&[3, 9]);
            let logits = s.graph.columns(all, HEAD.start, HEAD.len());
            let labels = s.indices(&[3], &labels);
            let weights = s.given(&[3], Contents::Floats(weights.to_vec()));
            let sum = s.total();
            s.graph
                .cross_entropy_into("loss", logits, labels, weights, sum, 0.0);
            (vec![all], sum)
        },
        |known, operands| {
            let rows = heads(known.of(operands[0])).zip(labels.iter().zip(weights));
            let losses = rows.map(|(logits, (&label, weight))| {
                let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
                weight * (total.ln() - logits[label as usize])
            });
            vec![losses.sum()]
        },
    );
}

#[test]
fn losses_of_one_number_each() {
    // A target that is not there may hold anything.
    let targets = [0.0, 1.0, 0.3, f64::NAN, 1.0].repeat(3);
    let weights = [1.0, 0.5, 2.0, 0.0, 3.0].repeat(3);
    for squared in [false, true] {
        compare(
            |s| {
                let all = s.constant(&[3, 9]);
                let predictions = s.graph.columns(all, HEAD.start, HEAD.len());
                let [targets, weights] = [&targets, &weights]
                    .map(|values| s.given(&[3, 5], Contents::Floats(values.clone())));
                let sum = s.total();
                if squared {
                    s.graph
                        .squared_error_into("loss", predictions, targets, weights, sum)
                } else {
                    s.graph
                        .binary_cross_entropy_into("loss", predictions, targets, weights, sum)
                }
                (vec![all], sum)
            },
            |known, operands| {
                let predictions = heads(known.of(operands[0])).flatten();
                let each = predictions.zip(targets.iter().zip(&weights));
                let losses = each.filter(|(_, (_, weight))| **weight > 0.0).map(
                    |(&x, (&target, &weight))| {
                        let share = 1.0 / (1.0 + (-x).exp());
                        let loss = if squared {
                            (x - target) * (x - target)
                        } else {
                            -target * share.ln() - (1.0 - target) * (1.0 - share).ln()
                        };
                        weight * loss
                    },
                );
                vec![losses.sum()]
            },
        );
    }
}

/// Where `1 - sigmoid(z)` is zero in every format, the loss is the logit's size.
#[test]
fn binary_cross_entropy_of_large_logits() {
    compare(
        |s| {
            let logits = s.given(
                &[1, 4],
                Contents::Floats(vec![200.0, -200.0, 200.0, -200.0]),
            );
            let targets = s.given(&[1, 4], Contents::Floats(vec![1.0, 0.0, 0.0, 1.0]));
            let weights = s.given(&[1, 4], Contents::Floats(vec![1.0; 4]));
            let sum = s.total();
            s.graph
                .binary_cross_entropy_into("loss", logits, targets, weights, sum);
            (vec![], sum)
        },
        |_, _| vec![400.0],
    );
}

#[test]
fn mean_tokens() {
    for first in [0, 1, 2] {
        compare(
            |s| {
                let x = s.constant(&[2, 5, 3]);
                (vec![x], s.graph.mean_tokens("y", x, first, None))
            },
            |known, operands| {
                let samples = known.of(operands[0]).chunks(15);
                let mean = |sample: &[f64], column: usize| {
                    let tokens = sample.chunks(3).skip(first);
                    tokens.map(|token| token[column]).sum::<f64>() / (5 - first) as f64
                };
                samples
                    .flat_map(|sample| (0..3).map(move |column| mean(sample, column)))
                    .collect()
            },
        );
    }
}

#[test]
fn scale_columns() {
    compare(
        |s| {
            let (x, gamma) = (s.constant(&[2, 3, 7]), s.parameter(&[7]));
            (vec![x, gamma], s.graph.scale_columns("y", x, gamma))
        },
        |known, operands| {
            let [x, gamma] = [0, 1].map(|index| known.of(operands[index]));
            let factors = gamma.iter().cycle();
            x.iter().zip(factors).map(|(x, gamma)| x * gamma).collect()
        },
    );
}

#[test]
fn two_tokens_before_the_patches() {
    compare(
        |s| {
            let (patches, class, positions) = (
                s.constant(&[2, 3, 5]),
                s.parameter(&[2, 5]),
                s.parameter(&[5, 5]),
            );
            let x = s.graph.class_token("x", patches, class, positions);
            (vec![patches, class, positions], x)
        },
        |known, operands| {
            let [patches, class, positions] = [0, 1, 2].map(|index| known.of(operands[index]));
            let tokens = patches
                .chunks(15)
                .flat_map(|patches| class.iter().chain(patches));
            tokens
                .zip(positions.iter().cycle())
                .map(|(x, position)| x + position)
                .collect()
        },
    );
}

/// Two pictures of 3 x 4, and what is mixed: by half, and a box of which a part lies outside.
const MIX: [[f64; 5]; 2] = [[0.25, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 2.0, 3.0, 9.0]];

fn pictures(step: u32) -> Vec<u8> {
    (0..72u32).map(|index| (index * step % 256) as u8).collect()
}

#[test]
fn mix_pictures() {
    let (own, partner) = (pictures(37), pictures(91));
    let Normalization { mean, std } = NORMALIZATION;
    compare(
        |s| {
            let [pixels, partners] = [&own, &partner]
                .map(|bytes| s.given(&[2, 3, 4, 3], Contents::Bytes(bytes.clone())));
            let mix = s.given(&[2, 5], Contents::Floats(MIX.concat()));
            let mixed = s
                .graph
                .mix_pictures("mixed", pixels, partners, mix, NORMALIZATION);
            (vec![], mixed)
        },
        |_, _| {
            let value = |index: usize| {
                let [lambda, y0, x0, y1, x1] = MIX[index / 36];
                let (y, x) = ((index % 36 / 12) as f64, (index % 12 / 3) as f64);
                let [own, partner] = [&own, &partner].map(|bytes| f64::from(bytes[index]));
                let boxed = y0 <= y && y < y1 && x0 <= x && x < x1;
                let mixed = if boxed {
                    partner
                } else {
                    lambda * own + (1.0 - lambda) * partner
                };
                (mixed / 255.0 - f64::from(mean[index % 3])) / f64::from(std[index % 3])
            };
            (0..72).map(value).collect()
        },
    );
}

/// Not mixed, pictures have the bits that they have without the operation.
#[test]
fn pictures_that_are_left_alone() {
    let patches = |mixed: bool| {
        let mut s = Sketch::new(DType::F32);
        let [pixels, partner] =
            [37, 91].map(|step| s.given(&[2, 3, 4, 3], Contents::Bytes(pictures(step))));
        let mix = s.given(
            &[2, 5],
            Contents::Floats([1.0, 0.0, 0.0, 0.0, 0.0].repeat(2)),
        );
        let pixels = if mixed {
            s.graph
                .mix_pictures("mixed", pixels, partner, mix, NORMALIZATION)
        } else {
            pixels
        };
        let patches = s.graph.patchify("patches", pixels, 1, NORMALIZATION);
        observed(s, patches)
    };
    assert_eq!(patches(true), patches(false));
}

/// What a forward pass leaves in a value.
pub fn observed(mut sketch: Sketch, value: ValueId) -> Vec<f64> {
    let (shape, dtype) = (sketch.graph.shape(value), sketch.graph.dtype(value));
    let seen = sketch
        .graph
        .tensor("seen", shape.dims(), dtype, Role::Feature);
    let copy = vec![Output::overwrite(seen)];
    sketch.graph.push(AddInto {}, vec![value], copy);
    let step = sketch.into_step();
    let policy = RecomputePolicy::uniform(Recompute::None, 0);
    let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
    step.run(&planned, cpu()).of("seen").to_vec()
}

#[test]
fn contrastive() {
    for (rows, tile) in [(7usize, 3), (7, 7), (150, 64)] {
        let counts = |row: usize| row % 3 != 1;
        compare(
            |s| {
                let (image, text) = (s.constant(&[rows, 4]), s.constant(&[rows, 4]));
                let weights = (0..rows)
                    .map(|row| f64::from(u8::from(counts(row))))
                    .collect();
                let weights = s.given(&[rows], Contents::Floats(weights));
                let scale = s.parameter(&[]);
                let sum = s.total();
                s.graph
                    .contrastive_into([image, text], weights, scale, sum, tile);
                (vec![image, text, scale], sum)
            },
            |known, operands| {
                let [image, text, scale] = [0, 1, 2].map(|index| known.of(operands[index]));
                let score = |i: usize, j: usize| {
                    scale[0].exp() * dot(&image[4 * i..4 * i + 4], &text[4 * j..4 * j + 4])
                };
                let real: Vec<usize> = (0..rows).filter(|&row| counts(row)).collect();
                let losses = real.iter().map(|&i| {
                    let along: f64 = real.iter().map(|&j| score(i, j).exp()).sum();
                    let across: f64 = real.iter().map(|&j| score(j, i).exp()).sum();
                    0.5 * (along.ln() + across.ln()) - score(i, i)
                });
                vec![losses.sum()]
            },
        );
    }
}
