//! The operations of decoding against their definitions: attention over a cache, and the likeliest tokens.

use holdall_graph::ops::fill::Fill;
use holdall_graph::{DType, Section};
use holdall_plan::{Recompute, RecomputePolicy};

use super::definitions::{compare, dot};
use super::gradient_check::{Sketch, cpu};
use super::step::{Contents, Kept, Planned, Random};

const BEAMS: usize = 4;
const STEPS: usize = 5;
const WIDTH: usize = 6;
/// Which beam every beam goes on from, step by step.
const PARENTS: [[usize; BEAMS]; STEPS - 1] =
    [[0, 0, 0, 3], [1, 0, 3, 2], [2, 2, 1, 0], [3, 1, 1, 2]];

/// By row, where each earlier step of its text lies after `steps` steps.
fn ancestors(steps: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = vec![Vec::new(); BEAMS];
    for parents in &PARENTS[..steps] {
        all = parents
            .iter()
            .map(|&parent| {
                let mut lineage = all[parent].clone();
                lineage.push(parent);
                lineage
            })
            .collect();
    }
    all
}

/// Five steps of four beams that change places: each attends to its own beginning.
#[test]
fn cached_attention() {
    for position in 0..STEPS {
        compare(
            |s| {
                let caches = ["keys", "values"].map(|name| {
                    let cache = s.graph.cache(name, &[BEAMS, STEPS, WIDTH]);
                    s.graph.enter(Section::Begin);
                    let unset = Fill { value: f64::NAN };
                    s.graph.push_new(unset, Vec::new(), &[cache]);
                    s.graph.enter(Section::Forward);
                    cache
                });
                let mut operands = Vec::new();
                let mut last = None;
                for step in 0..=position {
                    let parts = [(); 3].map(|()| s.constant(&[BEAMS, 1, WIDTH]));
                    // What stands at and behind the step itself is not read.
                    let mut from = [[99; STEPS]; BEAMS];
                    for (row, lineage) in ancestors(step).into_iter().enumerate() {
                        for (at, parent) in lineage.into_iter().enumerate() {
                            from[row][at] = parent as i64;
                        }
                    }
                    let from = s.indices(&[BEAMS, STEPS], &from.concat());
                    let at = s.indices(&[1], &[step as i64]);
                    let name = format!("step {step}");
                    let g = &mut s.graph;
                    last = Some(g.cached_attention(&name, parts, from, at, caches, 2));
                    operands.extend(parts);
                }
                (operands, last.unwrap())
            },
            |known, operands| {
                let of = |step: usize, part: usize, row: usize, head: usize| {
                    &known.of(operands[3 * step + part])[row * WIDTH + head * 3..][..3]
                };
                let mut out = Vec::new();
                for (row, mut lineage) in ancestors(position).into_iter().enumerate() {
                    lineage.push(row);
                    for head in 0..2 {
                        let query = of(position, 0, row, head);
                        let steps = lineage.iter().enumerate();
                        let scores: Vec<f64> = steps
                            .map(|(step, &from)| {
                                (dot(query, of(step, 1, from, head)) / 3f64.sqrt()).exp()
                            })
                            .collect();
                        let total: f64 = scores.iter().sum();
                        out.extend((0..3).map(|column| {
                            let steps = lineage.iter().enumerate();
                            let terms = steps.map(|(step, &from)| {
                                scores[step] * of(step, 2, from, head)[column]
                            });
                            terms.sum::<f64>() / total
                        }));
                    }
                }
                out
            },
        );
    }
}

/// The largest logits of each row: values, ids and the logarithm of the sum.
fn top_tokens(logits: &[f64], banned: &[i64], rows: usize, count: usize) -> [Vec<f64>; 3] {
    let mut s = Sketch::new(DType::F32);
    let logits_rv = s.given(
        &[rows, logits.len() / rows],
        Contents::Floats(logits.to_vec()),
    );
    let banned_rm = s.indices(&[rows, banned.len() / rows], banned);
    let [values, ids] = ["values", "ids"].map(|name| s.graph.output(name, &[rows, count]));
    let lse = s.graph.output("lse", &[rows]);
    let places = [values, ids, lse];
    s.graph.top_tokens_into("top", logits_rv, banned_rm, places);
    let step = s.into_step();
    let policy = RecomputePolicy::uniform(Recompute::None, 0);
    let planned = Planned::new(&step.graph, policy, Kept::First(0), 1, 2);
    let outcome = step.run(&planned, cpu());
    ["values", "ids", "lse"].map(|name| outcome.of(name).to_vec())
}

#[test]
fn the_likeliest_tokens_are_as_sorting_finds_them() {
    let mut random = Random(3);
    for (rows, vocabulary, count) in [(1, 9, 9), (5, 700, 1), (3, 4000, 16)] {
        // Few different numbers: many are equal.
        let logits: Vec<f64> = (0..rows * vocabulary)
            .map(|_| random.below(300) as f64 / 16.0 - 9.0)
            .collect();
        let banned: Vec<i64> = (0..rows * 3)
            .map(|at| match at % 3 {
                0 => -1,
                _ => random.below(vocabulary) as i64,
            })
            .collect();
        let [values, ids, lse] = top_tokens(&logits, &banned, rows, count);
        for (row, &lse) in lse.iter().enumerate() {
            let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
            let banned = &banned[row * 3..(row + 1) * 3];
            let mut expected: Vec<usize> = (0..vocabulary)
                .filter(|&id| !banned.contains(&(id as i64)))
                .collect();
            expected.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            let found = &ids[row * count..(row + 1) * count];
            for (at, &id) in expected.iter().take(count).enumerate() {
                assert_eq!(found[at], id as f64, "row {row}, place {at}");
                assert_eq!(values[row * count + at], logits[id]);
            }
            let none = expected.len().min(count);
            let values = &values[row * count..(row + 1) * count];
            assert!(found[none..].iter().all(|&id| id == -1.0));
            assert!(values[none..].iter().all(|&v| v == f64::NEG_INFINITY));
            let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
            assert!((lse - sum.ln()).abs() < 1e-6 * sum.ln().abs());
        }
    }
}

/// What is no number is not chosen, and is seen in the sum.
#[test]
fn logits_that_are_no_numbers() {
    let [values, ids, lse] = top_tokens(&[1.0, f64::NAN, 3.0, f64::NEG_INFINITY], &[-1], 1, 4);
    assert_eq!(ids, [2.0, 0.0, -1.0, -1.0]);
    assert_eq!(values[..2], [3.0, 1.0]);
    assert!(lse[0].is_nan());
}
