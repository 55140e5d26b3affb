//! Gradient checks of the operations that clips and captions need. Sizes are small and uneven on purpose.
//!
//! Legend: `b` samples, `t` tokens or queries, `s` keys, `n` rows of a table, `d` width, `v` vocabulary.

use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::{Op, ValueId};

use super::gradient_check::{Sketch, backward_nodes, check_gradients};
use super::step::Contents;

#[test]
fn positions_of_single_tokens_and_of_runs() {
    for (rows, repeat) in [(6, 1), (2, 3), (1, 6)] {
        let graph = check_gradients(|s| {
            let x_btd = s.input(&[3, 6, 70]); // more columns than a task
            let table_nd = s.parameter(&[rows, 70]);
            vec![s.graph.add_positions("y", x_btd, table_nd, repeat)]
        });
        // The gradient of x is that of y: nothing is copied.
        let nodes = backward_nodes(&graph);
        assert!(
            nodes
                .iter()
                .all(|node| matches!(node.op, Op::AddPositionsGrad(_) | Op::AddInto(_)))
        );
    }
}

#[test]
fn positions_beside_another_reader_and_frozen() {
    for [x, table] in [[true, true], [true, false], [false, true]] {
        check_gradients(|s| {
            let x_btd = if x {
                s.input(&[2, 4, 5])
            } else {
                s.constant(&[2, 4, 5])
            };
            let all_rows = s.parameter(&[7, 5]);
            let table_nd = s.graph.rows(all_rows, 0, 2);
            if !table {
                s.freeze(all_rows);
            }
            let weight = s.parameter(&[3, 5]);
            let z = s.graph.linear("z", x_btd, weight, None, None);
            vec![s.graph.add_positions("y", x_btd, table_nd, 2), z]
        });
    }
}

/// A table that is no parameter has no gradient that begins at zero.
#[test]
fn tables_that_are_computed() {
    check_gradients(|s| {
        let (x_btd, rows) = (s.input(&[3, 4, 5]), s.input(&[2, 5]));
        let weight = s.parameter(&[5, 5]);
        let table_nd = s.graph.linear("table", rows, weight, None, None);
        let queries = s.graph.repeat("queries", table_nd, 3);
        let y = s.graph.add_positions("y", x_btd, table_nd, 2);
        vec![queries, y]
    });
}

#[test]
fn rows_that_every_sample_shares() {
    check_gradients(|s| {
        let table_nd = s.parameter(&[3, 70]);
        let queries = s.graph.repeat("queries", table_nd, 4);
        let y = s.graph.add_positions("y", queries, table_nd, 1);
        vec![y]
    });
}

#[test]
fn means_of_as_many_tokens_as_there_are() {
    for first in [0, 1] {
        check_gradients(|s| {
            let x_btd = s.input(&[5, 4, 5]);
            // Some, one, none, all, more than there are.
            let lengths_b = s.indices(&[5], &[2, 1, 0, 4 - first as i64, 9]);
            let mean_b1d = s.graph.mean_tokens("y", x_btd, first, Some(lengths_b));
            let weight = s.parameter(&[2, 5]);
            vec![mean_b1d, s.graph.linear("z", x_btd, weight, None, None)]
        });
        check_gradients(|s| {
            let x_btd = s.input(&[2, 4, 5]);
            let lengths_b = s.indices(&[2], &[3, 1]);
            vec![s.graph.mean_tokens("y", x_btd, first, Some(lengths_b))]
        });
    }
}

/// What a caption's loss is told beside `x` and the weight.
pub fn targets(s: &mut Sketch, [b, t, v]: [usize; 3]) -> [ValueId; 3] {
    // Every third token has no target, every fifth no weight, and so has the last of several samples.
    let labels = (0..b * t).map(|row| match row % 3 {
        1 => -1,
        _ => (row * 389 % v) as i64,
    });
    let token_weights = (0..b * t).map(|row| [1.0, 0.5, 5.0, 1.5, 0.0][row % 5]);
    let sample_weights = (0..b).map(|sample| match sample {
        0 => 1.0,
        _ if sample == b - 1 => 0.0,
        _ => 0.25,
    });
    [
        s.given(&[b, t], Contents::Indices(labels.collect())),
        s.given(&[b, t], Contents::Floats(token_weights.collect())),
        s.given(&[b], Contents::Floats(sample_weights.collect())),
    ]
}

#[test]
fn the_vocabulary_loss_in_tiles_of_rows_and_chunks_of_tokens() {
    // Tiles of one row, of several, of all; vocabularies within a chunk and of more than one.
    for ([b, t], v, tile) in [
        ([3, 5], 7, 1),
        ([3, 5], 7, 4),
        ([1, 4], 1030, 512),
        ([41, 5], 3, 70),
    ] {
        for smoothing in [0.0, 0.1] {
            check_gradients(|s| {
                let x_btd = s.input(&[b, t, 3]);
                // Of a large vocabulary each row's gradient is small beside the loss: few parameters make them all.
                let weight_vd = if v > 100 {
                    let (rows, weight) = (s.constant(&[v, 2]), s.parameter(&[3, 2]));
                    s.graph.linear("weight", rows, weight, None, None)
                } else {
                    s.parameter(&[v, 3])
                };
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
                vec![sum]
            });
        }
    }
}

#[test]
fn the_vocabulary_loss_with_a_frozen_side_and_with_another_reader() {
    for [x, weight] in [[true, false], [false, true], [true, true]] {
        check_gradients(|s| {
            let x_btd = if x {
                s.input(&[2, 3, 4])
            } else {
                s.constant(&[2, 3, 4])
            };
            let weight_vd = s.parameter(&[9, 4]);
            if !weight {
                s.freeze(weight_vd);
            }
            let [labels, token_weights, sample_weights] = targets(s, [2, 3, 9]);
            let sum = s.total();
            s.graph.vocabulary_loss_into(
                "loss",
                x_btd,
                weight_vd,
                labels,
                token_weights,
                sample_weights,
                sum,
                0.1,
                4,
            );
            let other = s.parameter(&[2, 4]);
            vec![sum, s.graph.linear("z", x_btd, other, None, None)]
        });
    }
}

/// The table of the embedding is the weight of the head: both add to one gradient.
#[test]
fn the_vocabulary_loss_of_a_tied_embedding() {
    check_gradients(|s| {
        let ids_bt = s.indices(&[2, 3], &[0, 2, 2, 1, 5, 5]);
        let (table_vd, positions_td) = (s.parameter(&[6, 4]), s.parameter(&[3, 4]));
        let x_btd = s.graph.embedding("x", ids_bt, table_vd, positions_td, None);
        let [labels, token_weights, sample_weights] = targets(s, [2, 3, 6]);
        let sum = s.total();
        s.graph.vocabulary_loss_into(
            "loss",
            x_btd,
            table_vd,
            labels,
            token_weights,
            sample_weights,
            sum,
            0.0,
            512,
        );
        vec![sum]
    });
}

/// Groups of rows that are positives of each other: row `i` is of group `i % 3`, every fourth row is padding.
pub fn groups(s: &mut Sketch, rows: usize) -> [ValueId; 3] {
    let counts = |row: &usize| row % 4 != 2;
    let group = |row: usize| if counts(&row) { (row % 3) as i64 } else { -1 };
    let share = |row: usize| {
        let same = (0..rows)
            .filter(counts)
            .filter(|&other| group(other) == group(row));
        if counts(&row) {
            1.0 / same.count() as f64
        } else {
            0.0
        }
    };
    let weights = (0..rows).map(|row| f64::from(u8::from(counts(&row))));
    [
        s.given(&[rows], Contents::Floats(weights.collect())),
        s.given(&[rows], Contents::Indices((0..rows).map(group).collect())),
        s.given(&[rows], Contents::Floats((0..rows).map(share).collect())),
    ]
}

#[test]
fn contrastive_with_several_positives() {
    for (rows, tile) in [(10, 4), (10, 10), (3, 512), (9, 1)] {
        check_gradients(|s| {
            let [image_bd, text_bd] = [(); 2].map(|()| s.input(&[rows, 3]));
            let [weights_b, groups_b, shares_b] = groups(s, rows);
            let logit_scale = s.parameter(&[]);
            let sum = s.total();
            s.graph.contrastive_groups_into(
                [image_bd, text_bd],
                weights_b,
                groups_b,
                shares_b,
                logit_scale,
                sum,
                tile,
            );
            vec![sum]
        });
    }
}

/// Words over the tokens of a clip: more keys than queries, of which some do not exist, in one or several tiles of queries; heads of
/// whole vectors and not.
#[test]
fn cross_attention_over_the_frames_that_are_there() {
    for ([t, k], d) in [
        ([5, 140], 4),
        ([130, 3], 4),
        ([1, 33], 32),
        ([5, 40], 32),
        ([17, 3], 64),
        ([64, 2], 32),
        ([2, 300], 32), // more keys than a run of terms
    ] {
        check_gradients(|s| {
            let q_btd = s.input(&[4, t, d]);
            let kv = s.input(&[4, k, 2 * d]);
            let [k_bsd, v_bsd] = [0, d].map(|start| s.graph.columns(kv, start, d));
            let lengths_b = s.indices(&[4], &[k as i64 - 1, 1, k as i64, 0]);
            let parts = [q_btd, k_bsd, v_bsd];
            vec![s.graph.attention("o", parts, Some(lengths_b), 2, false)]
        });
    }
}

/// Each operand has another reader, whose gradient is there already.
#[test]
fn cross_attention_adds_to_gradients_that_are_there() {
    check_gradients(|s| {
        let q_btd = s.input(&[2, 3, 32]);
        let [k_bsd, v_bsd] = [(); 2].map(|()| s.input(&[2, 5, 32]));
        let lengths_b = s.indices(&[2], &[5, 3]);
        let parts = [q_btd, k_bsd, v_bsd];
        let weight = s.parameter(&[2, 32]);
        let mut outputs = vec![s.graph.attention("o", parts, Some(lengths_b), 2, false)];
        for part in parts {
            outputs.push(s.graph.linear("z", part, weight, None, None));
        }
        outputs
    });
}

#[test]
fn attention_whose_probabilities_are_dropped() {
    for ([t, k, d], causal) in [
        ([5, 5, 4], true),
        ([3, 40, 4], false),
        ([131, 2, 4], false),
        ([3, 40, 32], false),
    ] {
        check_gradients(|s| {
            let q_btd = s.input(&[3, t, d]);
            let [k_bsd, v_bsd] = [(); 2].map(|()| s.input(&[3, k, d]));
            let lengths_b = s.indices(&[3], &[k as i64, 1, k as i64 - 1]);
            let stream = [s.indices(&[3], &[9, 2, 44]), s.indices(&[2], &[17, 3])];
            let op = Dropout {
                rate: 0.4,
                layer: 3,
                mode: DropoutMode::Element,
            };
            let (parts, dropout) = ([q_btd, k_bsd, v_bsd], Some((op, stream)));
            let g = &mut s.graph;
            vec![g.attention_dropped("o", parts, Some(lengths_b), 2, causal, dropout)]
        });
    }
}
