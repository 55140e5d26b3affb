//! Attention by every kernel there is: a head in one block, tiles, and plain arithmetic.
//!
//! Legend: `b` samples, `t` queries, `s` keys, `d` width of all heads.

use holdall_graph::ValueId;

use super::harness::{ALL, FORMATS, Gpu, Sketch};

/// Sizes on both sides of every border between kernels, and those of models.
const TOKENS: [usize; 10] = [1, 13, 50, 64, 65, 77, 80, 197, 257, 577];
const HEADS: usize = 2;

/// Queries, keys and values side by side in one tensor.
fn packed(s: &mut Sketch, qkv_btd: ValueId, causal: bool) -> ValueId {
    let d = s.graph.shape(qkv_btd).width() / 3;
    let parts = [0, 1, 2].map(|part| s.graph.columns(qkv_btd, part * d, d));
    s.graph.attention("o", parts, None, HEADS, causal)
}

/// One tile of queries and of keys, and four: more than the kernels hold at a time.
const TILES: [usize; 8] = [1, 13, 50, 64, 65, 77, 80, 197];
/// Heads without tensor cores: a warp for each row of any number of keys.
const PLAIN: [usize; 4] = [1, 13, 65, 130];

fn of_packed_columns(head: usize, paths: &[usize]) {
    let Some(gpu) = Gpu::open() else { return };
    for t in gpu.sizes(&TOKENS, paths) {
        for causal in [false, true] {
            let what = format!("attention of {t} tokens, heads of {head}, causal {causal}");
            gpu.compare(&what, FORMATS, |s| {
                let qkv_btd = s.input(&[2, t, 3 * HEADS * head]);
                vec![packed(s, qkv_btd, causal)]
            });
        }
    }
}

#[test]
fn attention_of_packed_columns_in_heads_of_32() {
    of_packed_columns(32, &TILES);
}

#[test]
fn attention_of_packed_columns_in_heads_of_64() {
    of_packed_columns(64, &TILES);
}

#[test]
fn attention_of_packed_columns_in_heads_of_80() {
    of_packed_columns(80, &PLAIN);
}

#[test]
fn attention_in_heads_of_other_sizes() {
    let Some(gpu) = Gpu::open() else { return };
    for head in [3, 20, 24, 96, 128, 256] {
        for causal in [false, true] {
            let what = format!("attention of 33 tokens, heads of {head}, causal {causal}");
            gpu.compare(&what, FORMATS, |s| {
                let qkv_btd = s.input(&[2, 33, 3 * HEADS * head]);
                vec![packed(s, qkv_btd, causal)]
            });
        }
    }
}

#[test]
fn attention_between_products() {
    let Some(gpu) = Gpu::open() else { return };
    for (t, causal) in [(50, false), (77, true), (197, false)] {
        gpu.compare(
            &format!("attention of {t} tokens between products"),
            ALL,
            |s| {
                let d = HEADS * 64;
                let x_btd = s.input(&[3, t, d]);
                let weight = s.packed(&[("q", &[d, d]), ("k", &[d, d]), ("v", &[d, d])]);
                let bias = s.packed(&[("q.bias", &[d]), ("k.bias", &[d]), ("v.bias", &[d])]);
                let qkv = s
                    .graph
                    .linear_with_keys("qkv", x_btd, weight, bias, d..2 * d);
                let mixed = packed(s, qkv, causal);
                let (weight, bias) = (s.parameter(&[d, d]), s.parameter(&[d]));
                vec![s.graph.linear("y", mixed, weight, Some(bias), Some(x_btd))]
            },
        );
    }
}

#[test]
fn attention_over_another_number_of_keys() {
    let Some(gpu) = Gpu::open() else { return };
    let few = [[3, 7], [1, 50], [50, 77], [77, 50], [50, 1]];
    let all = [&few[..], &[[100, 260], [260, 100]]].concat();
    let paths = [&few[..], &[[70, 200], [200, 70]]].concat();
    for [t, keys] in gpu.sizes(&all, &paths) {
        for head in [32, 64, 80] {
            let what = format!("attention of {t} queries over {keys} keys, heads of {head}");
            gpu.compare(&what, FORMATS, |s| {
                let d = HEADS * head;
                let q_btd = s.input(&[2, t, d]);
                let kv_bsd = s.input(&[2, keys, 2 * d]);
                let [k_bsd, v_bsd] = [0, d].map(|start| s.graph.columns(kv_bsd, start, d));
                // A single key has a weight of one, whatever the query: another reader gives the query a gradient.
                let mixed = s
                    .graph
                    .attention("o", [q_btd, k_bsd, v_bsd], None, HEADS, false);
                vec![s.graph.add("y", mixed, q_btd)]
            });
        }
    }
}

#[test]
fn attention_over_as_many_keys_as_exist() {
    let Some(gpu) = Gpu::open() else { return };
    for t in gpu.sizes(&[13, 50, 77, 130, 257], &[13, 50, 77, 130]) {
        for head in [20, 32, 64, 80] {
            for causal in [false, true] {
                let what = format!("lengths up to {t}, heads of {head}, causal {causal}");
                gpu.compare(&what, FORMATS, |s| {
                    // All of them, more than there are, one, a sample without any, and some.
                    let t_keys = t as i64;
                    let lengths = [t_keys, t_keys + 3, 1, 0, t_keys / 2 + 1];
                    let lengths_b = s.indices(&[lengths.len()], &lengths);
                    let dims = [lengths.len(), t, HEADS * head];
                    let parts = [(); 3].map(|()| s.input(&dims));
                    vec![
                        s.graph
                            .attention("o", parts, Some(lengths_b), HEADS, causal),
                    ]
                });
            }
        }
    }
}

#[test]
fn attention_adds_to_gradients_that_are_there() {
    let Some(gpu) = Gpu::open() else { return };
    for (t, head) in [(50, 64), (77, 32), (130, 64), (130, 32), (50, 80), (33, 20)] {
        for causal in [false, true] {
            let what = format!("two attentions of {t} tokens, heads of {head}, causal {causal}");
            gpu.compare(&what, FORMATS, |s| {
                let parts = [(); 3].map(|()| s.input(&[2, t, HEADS * head]));
                let [q, k, v] = parts;
                vec![
                    s.graph.attention("first", [q, k, v], None, HEADS, causal),
                    // Keys and values the other way round: each gradient is added to by another kernel's sum.
                    s.graph.attention("second", [q, v, k], None, HEADS, false),
                ]
            });
        }
    }
}

#[test]
fn attention_of_many_samples_and_heads() {
    let Some(gpu) = Gpu::open() else { return };
    for (b, t) in gpu.sizes(
        &[(40, 5), (40, 77), (40, 100)],
        &[(40, 5), (6, 77), (6, 100)],
    ) {
        gpu.compare(&format!("{b} samples, 5 heads, {t} tokens"), FORMATS, |s| {
            let parts = [(); 3].map(|()| s.input(&[b, t, 5 * 64]));
            vec![s.graph.attention("o", parts, None, 5, true)]
        });
    }
}
