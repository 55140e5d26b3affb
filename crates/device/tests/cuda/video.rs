//! What models of clips and captions have: rows of tables, means over as many frames as there are, pairs that share a text, the loss
//! over a vocabulary, and one token of decoding.
//!
//! Legend: `b` samples, `t` tokens, `n` rows of a table, `d` width, `v` vocabulary, `r` rows of decoding, `l` longest caption.

use holdall_graph::ValueId;
use holdall_graph::ops::contrastive::CONTRASTIVE_TILE;

use super::harness::{ALL, F32, FORMATS, FULL, Gpu, Settings, Sketch};
use super::losses::unit_rows;
use super::step::Outcome;
use super::tokens::sorted_places;

#[test]
fn video_positions_of_every_width_and_repeat() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).long_sums();
    // Samples, rows of the table, tokens that share one, width.
    for [b, n, repeat, d] in [
        [3, 8, 1, 64],
        [2, 8, 50, 512],
        [1, 3, 2, 7],
        [130, 3, 4, 24],
        [70, 2, 400, 40],
        [5, 1, 1, 1],
    ] {
        let what = format!("positions: {b} samples, {n} rows for {repeat} tokens each, {d} wide");
        gpu.compare_with(&what, settings, |s| {
            let x_btd = s.input(&[b, n * repeat, d]);
            let table_nd = s.parameter(&[n, d]);
            vec![s.graph.add_positions("y", x_btd, table_nd, repeat)]
        });
    }
}

#[test]
fn video_positions_of_several_tables_and_readers() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("positions of frames and of videos", FORMATS, |s| {
        let x_btd = s.input(&[3, 12, 32]);
        let [frames, all_videos] = [[6, 32], [4, 32]].map(|dims| s.parameter(&dims));
        // The first rows of a longer table.
        let videos = s.graph.rows(all_videos, 0, 2);
        let placed = s.graph.add_positions("placed", x_btd, frames, 2);
        let placed = s.graph.add_positions("videos", placed, videos, 6);
        // x has another reader, and the first table is added twice.
        let again = s.graph.add_positions("again", x_btd, frames, 2);
        vec![placed, again]
    });
    gpu.compare("frozen positions", FORMATS, |s| {
        let x_btd = s.input(&[3, 12, 32]);
        let table_nd = s.parameter(&[3, 32]);
        s.freeze(table_nd);
        vec![s.graph.add_positions("y", x_btd, table_nd, 4)]
    });
}

#[test]
fn video_repeated_tables_of_every_width() {
    let Some(gpu) = Gpu::open() else { return };
    for [b, n, d] in [
        [5, 4, 64],
        [128, 1, 768],
        [3, 7, 37],
        [300, 2, 8],
        [1, 1, 1],
    ] {
        gpu.compare(&format!("a table of {n} x {d} for {b}"), FORMATS, |s| {
            let table_nd = s.parameter(&[n, d]);
            vec![s.graph.repeat("y", table_nd, b)]
        });
    }
}

#[test]
fn video_learned_queries_over_frame_tokens() {
    let Some(gpu) = Gpu::open() else { return };
    gpu.compare("attention pooling", FORMATS, |s| {
        let [b, n, t, d] = [4, 5, 100, 128];
        let table_nd = s.parameter(&[n, d]);
        let q_bnd = s.graph.repeat("queries", table_nd, b);
        let kv = s.input(&[b, t, 2 * d]);
        let [k, v] = [0, d].map(|start| s.graph.columns(kv, start, d));
        let lengths_b = s.indices(&[b], &[100, 1, 50, 25]);
        let pooled = s
            .graph
            .attention("o", [q_bnd, k, v], Some(lengths_b), 2, false);
        vec![s.graph.mean_tokens("mean", pooled, 0, None)]
    });
}

#[test]
fn video_means_over_as_many_frames_as_there_are() {
    let Some(gpu) = Gpu::open() else { return };
    for [t, d] in [[8, 64], [9, 37], [16, 512], [2, 1]] {
        for first in [0, 1] {
            let what = format!("mean of up to {t} tokens from {first} on, {d} wide");
            gpu.compare(&what, FORMATS, |s| {
                let x_btd = s.input(&[5, t, d]);
                let most = (t - first) as i64;
                let lengths = [most, 1, most / 2 + 1, most, 1];
                let lengths_b = s.indices(&[5], &lengths.map(|length| length.min(most)));
                let mean = s.graph.mean_tokens("mean", x_btd, first, Some(lengths_b));
                // Another reader: the gradient is added to what is there.
                vec![mean, s.graph.mean_tokens("all", x_btd, 0, None)]
            });
        }
    }
}

/// Pairs in groups of one, two and more, each with its share; some rows are padding.
fn grouped(s: &mut Sketch, dims: [usize; 2], padded: bool, trained: [bool; 2]) -> Vec<ValueId> {
    let [rows, _] = dims;
    let [image_bd, text_bd] = trained.map(|wanted| {
        let values = unit_rows(s, dims);
        if wanted {
            s.full_input(&dims, &values)
        } else {
            s.full_constant(&dims, &values)
        }
    });
    let counts: Vec<bool> = (0..rows)
        .map(|row| !padded || (row % 4 != 2 && row + 9 < rows))
        .collect();
    let groups: Vec<i64> = (0..rows)
        .map(|row| match (counts[row], row % 3) {
            (false, _) => -1,
            (true, 0) => row as i64,
            _ => (row * 7 % (rows / 5 + 1)) as i64,
        })
        .collect();
    let mut sizes = std::collections::HashMap::new();
    for group in &groups {
        *sizes.entry(*group).or_insert(0usize) += 1;
    }
    let shares: Vec<f64> = groups
        .iter()
        .map(|group| match group {
            -1 => 0.0,
            group => f64::from(1.0 / sizes[group] as f32),
        })
        .collect();
    let weights: Vec<f64> = counts
        .iter()
        .map(|&counts| f64::from(u8::from(counts)))
        .collect();
    let weights_b = s.full_constant(&[rows], &weights);
    let groups_b = s.indices(&[rows], &groups);
    let shares_b = s.full_constant(&[rows], &shares);
    let logit_scale = s.parameter_of(&[], &[2.6592]);
    let sum = s.total();
    s.graph.contrastive_groups_into(
        [image_bd, text_bd],
        weights_b,
        groups_b,
        shares_b,
        logit_scale,
        sum,
        CONTRASTIVE_TILE,
    );
    vec![sum]
}

#[test]
fn video_pairs_that_share_a_text() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(FORMATS).kept_full().long_sums();
    // The last have several tiles.
    let small = [[17, 512], [17, 5], [128, 64], [300, 48], [2049, 16]];
    let all = [&small[..], &[[5000, 32]]].concat();
    for dims in gpu.sizes(&all, &small) {
        for padded in [false, true] {
            let what = format!("contrastive of groups of {dims:?}, padded {padded}");
            gpu.compare_with(&what, settings, |s| grouped(s, dims, padded, [true; 2]));
        }
    }
    for trained in [[true, false], [false, true]] {
        let what = format!("contrastive of groups, sides trained {trained:?}");
        gpu.compare_with(&what, settings, |s| grouped(s, [40, 64], true, trained));
    }
}

/// Labels of which some are no target, and weights of which some are zero.
fn labels_and_token_weights(s: &mut Sketch, dims: [usize; 2], vocabulary: usize) -> [ValueId; 2] {
    let count = dims[0] * dims[1];
    let labels: Vec<i64> = (0..count)
        .map(|place| match place % 7 {
            5 => -1,
            6 => -100,
            _ => s.random.below(vocabulary) as i64,
        })
        .collect();
    let weights: Vec<f64> = (0..count)
        .map(|place| [1.0, 0.5, 5.0, 0.0, 1.5][place % 5])
        .collect();
    [s.indices(&dims, &labels), s.full_constant(&dims, &weights)]
}

/// Samples, tokens, width, vocabulary, rows of a tile.
fn vocabulary_loss(s: &mut Sketch, [b, t, d, v, tile]: [usize; 5], smoothing: f64) -> Vec<ValueId> {
    let x_btd = s.input(&[b, t, d]);
    let weight_vd = s.parameter(&[v, d]);
    let [labels_bt, token_weights_bt] = labels_and_token_weights(s, [b, t], v);
    let weights: Vec<f64> = (0..b).map(|sample| [1.0, 0.5, 0.0][sample % 3]).collect();
    let weights_b = s.full_constant(&[b], &weights);
    let sum = s.total();
    s.graph.vocabulary_loss_into(
        "loss",
        x_btd,
        weight_vd,
        labels_bt,
        token_weights_bt,
        weights_b,
        sum,
        smoothing,
        tile,
    );
    vec![sum]
}

#[test]
fn video_vocabulary_loss_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(ALL).long_sums();
    let small = [
        [2, 3, 16, 11, 4],
        [3, 5, 32, 50, 64],
        [1, 1, 8, 2, 1],
        [4, 33, 64, 1000, 50],
        [2, 7, 64, 2049, 14],
    ];
    // The last two have the vocabularies of BERT and of CLIP.
    let large = [
        [5, 40, 128, 4104, 64],
        [2, 64, 512, 30_522, 96],
        [2, 64, 512, 49_408, 320],
    ];
    let all = [&small[..], &large].concat();
    let paths = [&small[..], &[[3, 11, 32, 4104, 16]]].concat();
    for sizes in gpu.sizes(&all, &paths) {
        for smoothing in [0.0, 0.1] {
            let what = format!("vocabulary loss of {sizes:?}, smoothing {smoothing}");
            gpu.compare_with(&what, settings, |s| vocabulary_loss(s, sizes, smoothing));
        }
    }
    for sizes in [[2, 3, 5, 11, 4], [3, 5, 13, 50, 64]] {
        let what = format!("vocabulary loss of odd widths, {sizes:?}");
        gpu.compare_with(&what, Settings::of(FULL).long_sums(), |s| {
            vocabulary_loss(s, sizes, 0.1)
        });
    }
}

#[test]
fn video_vocabulary_loss_of_each_micro_batch_has_its_own_rows() {
    let Some(gpu) = Gpu::open() else { return };
    const MICRO_BATCHES: usize = 3;
    let settings = Settings::of(ALL).long_sums();
    gpu.compare_with("vocabulary loss of micro-batches", settings, |s| {
        let [b, t, d, v] = [4, 6, 32, 300];
        s.micro_batches = MICRO_BATCHES;
        let x_btd = s.input(&[b, t, d]);
        let weight_vd = s.parameter(&[v, d]);
        let all = labels_and_token_weights(s, [MICRO_BATCHES * b, t], v);
        let [labels_bt, token_weights_bt] = all.map(|all| s.graph.micro_rows(all, b));
        let weights: Vec<f64> = (0..MICRO_BATCHES * b)
            .map(|sample| [1.0, 0.5, 0.25, 0.0, 2.0][sample % 5])
            .collect();
        let weights = s.full_constant(&[MICRO_BATCHES * b], &weights);
        let weights_b = s.graph.micro_rows(weights, b);
        let sum = s.total();
        s.graph.vocabulary_loss_into(
            "loss",
            x_btd,
            weight_vd,
            labels_bt,
            token_weights_bt,
            weights_b,
            sum,
            0.1,
            10,
        );
        vec![sum]
    });
}

/// The weight is the embedding's table too, x has another reader; and either of them may have no gradient.
#[test]
fn video_vocabulary_loss_of_a_tied_table_and_of_sides_without_a_gradient() {
    let Some(gpu) = Gpu::open() else { return };
    let settings = Settings::of(ALL).long_sums();
    gpu.compare_with("vocabulary loss of a tied table", settings, |s| {
        let [b, t, d, v] = [3, 6, 64, 50];
        let ids: Vec<i64> = (0..b * t).map(|_| s.random.below(v) as i64).collect();
        let order = sorted_places(&ids, &[t - 1; 3], t);
        let (ids, order) = (s.indices(&[b, t], &ids), s.indices(&[b, t], &order));
        let (table_vd, positions_td) = (s.parameter(&[v, d]), s.parameter(&[t, d]));
        let x_btd = s
            .graph
            .embedding("x", ids, table_vd, positions_td, Some(order));
        let [labels_bt, token_weights_bt] = labels_and_token_weights(s, [b, t], v);
        let weights_b = s.full_constant(&[b], &[1.0, 0.5, 1.0]);
        let sum = s.total();
        s.graph.vocabulary_loss_into(
            "loss",
            x_btd,
            table_vd,
            labels_bt,
            token_weights_bt,
            weights_b,
            sum,
            0.0,
            8,
        );
        vec![sum, x_btd]
    });
    for [x, weight] in [[true, false], [false, true]] {
        let what = format!("vocabulary loss, gradient of x {x}, of the weight {weight}");
        gpu.compare_with(&what, settings, |s| {
            let [b, t, d, v] = [2, 9, 32, 70];
            let x_btd = if x {
                s.input(&[b, t, d])
            } else {
                s.constant(&[b, t, d])
            };
            let weight_vd = s.parameter(&[v, d]);
            if !weight {
                s.freeze(weight_vd);
            }
            let [labels_bt, token_weights_bt] = labels_and_token_weights(s, [b, t], v);
            let weights_b = s.full_constant(&[b], &[1.0, 2.0]);
            let sum = s.total();
            s.graph.vocabulary_loss_into(
                "loss",
                x_btd,
                weight_vd,
                labels_bt,
                token_weights_bt,
                weights_b,
                sum,
                0.1,
                7,
            );
            vec![sum]
        });
    }
}

/// Rows, longest caption, heads, dims of a head; two tokens from `position` on.
fn two_steps(s: &mut Sketch, [r, l, heads, head]: [usize; 4], position: usize) -> Vec<ValueId> {
    let d = heads * head;
    let caches = ["keys", "values"].map(|name| s.cache(name, &[r, l, d]));
    for step in [position, position + 1] {
        let qkv = s.constant(&[r, 1, 3 * d]);
        let parts = [0, d, 2 * d].map(|start| s.graph.columns(qkv, start, d));
        let ancestors: Vec<i64> = (0..r * l).map(|_| s.random.below(r) as i64).collect();
        let ancestors_rl = s.indices(&[r, l], &ancestors);
        let position_1 = s.indices(&[1], &[step as i64]);
        let o = s
            .graph
            .cached_attention("o", parts, ancestors_rl, position_1, caches, heads);
        s.seen.push(o);
    }
    s.seen.extend(caches);
    Vec::new()
}

#[test]
fn video_cached_attention_of_every_size() {
    let Some(gpu) = Gpu::open() else { return };
    for (sizes, positions) in [
        ([1, 2, 1, 8], &[0][..]),
        ([6, 9, 2, 32], &[0, 1, 7]),
        ([5, 70, 3, 64], &[0, 15, 16, 62, 68]),
        ([7, 300, 2, 64], &[0, 63, 64, 298]),
        ([4, 20, 2, 20], &[0, 18]),
        ([4, 20, 2, 96], &[18]),
        ([3, 20, 2, 3], &[11]),
        ([128, 64, 8, 64], &[62]),
    ] {
        for &position in positions {
            let what = format!("cached attention of {sizes:?} at {position}");
            gpu.compare(&what, FORMATS, |s| two_steps(s, sizes, position));
        }
    }
}

/// Rows, vocabulary, tokens asked for, banned tokens.
fn top_tokens(s: &mut Sketch, [r, v, count, banned]: [usize; 4], logits: &[f32]) -> Vec<ValueId> {
    let values: Vec<f64> = logits.iter().map(|&value| f64::from(value)).collect();
    let logits_rv = s.full_constant(&[r, v], &values);
    let banned_rm = s.indices(&[r, banned], &banned_tokens([r, v, count, banned], logits));
    let results = [&[r, count][..], &[r, count], &[r]].map(|dims| s.graph.statistic("top", dims));
    s.graph
        .top_tokens_into("top", logits_rv, banned_rm, results);
    s.seen.extend(results);
    Vec::new()
}

/// The best, the third best, one of no row, and none.
fn banned_tokens([r, v, _, banned]: [usize; 4], logits: &[f32]) -> Vec<i64> {
    let row = |row: usize| {
        let ranked = ranked(&logits[row * v..(row + 1) * v]);
        let all = [ranked[0] as i64, ranked[2 % v] as i64, v as i64 + 5];
        (0..banned).map(move |place| all.get(place).copied().unwrap_or(-1))
    };
    (0..r).flat_map(row).collect()
}

/// Tokens by their logits, equal ones by their ids; those that are no number above minus infinity are left out.
fn ranked(logits: &[f32]) -> Vec<usize> {
    let above = |&token: &usize| logits[token] > f32::NEG_INFINITY;
    let mut tokens: Vec<usize> = (0..logits.len()).filter(above).collect();
    // Zero and minus zero are equal.
    let by_logit = |a: usize, b: usize| logits[b].partial_cmp(&logits[a]).unwrap();
    tokens.sort_by(|&a, &b| by_logit(a, b).then(a.cmp(&b)));
    tokens
}

fn assert_top([r, v, count, banned]: [usize; 4], logits: &[f32], found: &Outcome, what: &str) {
    let all_banned = banned_tokens([r, v, count, banned], logits);
    let [(_, values), (_, ids), _] = &found.0[..] else {
        panic!("{what}: three results")
    };
    for row in 0..r {
        let here = &logits[row * v..(row + 1) * v];
        let banned = &all_banned[row * banned..(row + 1) * banned];
        let left = ranked(here).into_iter();
        let left = left.filter(|&token| !banned.contains(&(token as i64)));
        let mut expected: Vec<[f64; 2]> = left
            .map(|token| [f64::from(here[token]), token as f64])
            .collect();
        expected.resize(count.max(expected.len()), [f64::NEG_INFINITY, -1.0]);
        for (place, [value, id]) in expected.into_iter().take(count).enumerate() {
            let at = row * count + place;
            assert_eq!((values[at], ids[at]), (value, id), "{what}: {row}, {place}");
        }
    }
}

#[test]
fn video_top_tokens_are_the_largest() {
    let Some(gpu) = Gpu::open() else { return };
    for sizes in [
        [1, 3, 1, 1],
        [3, 40, 4, 2],
        [5, 1000, 32, 5],
        [7, 30_522, 8, 64],
        [4, 30_521, 1, 3],
        [128, 49_408, 10, 8],
        [2, 49_408, 32, 70],
    ] {
        let [r, v, count, _] = sizes;
        let mut random = super::step::Random(3);
        // Few different numbers: many are equal.
        let logits: Vec<f32> = (0..r * v)
            .map(|place| match place % 3 {
                0 => (random.uniform() * 40.0).round() as f32 / 4.0,
                _ => 5.0 * random.uniform() as f32,
            })
            .collect();
        let what = format!("top {count} of {sizes:?}");
        let settings = Settings::of(F32).kept_full();
        let found = gpu.compare_with(&what, settings, |s| top_tokens(s, sizes, &logits));
        for found in &found {
            assert_top(sizes, &logits, found, &what);
        }
    }
}

#[test]
fn video_top_tokens_of_rows_that_have_too_few() {
    let Some(gpu) = Gpu::open() else { return };
    let mut logits = vec![f32::NEG_INFINITY; 2 * 40];
    logits[3] = 1.0;
    logits[17] = -2.0;
    logits[4] = -0.0;
    logits[6] = 0.0;
    logits[40 + 39] = 7.0;
    logits[40] = 7.0;
    logits[41] = -1e30;
    let sizes = [2, 40, 6, 2];
    let found = gpu.alone("top of few", F32[0], |s| top_tokens(s, sizes, &logits));
    assert_top(sizes, &logits, &found, "top of few");
}
