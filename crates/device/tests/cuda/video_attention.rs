//! Attention as models of clips and captions have it: few queries over many keys, as many keys as there are, and long texts.
//!
//! Legend: `b` samples, `t` queries, `s` keys, `d` width of all heads.

use holdall_graph::ValueId;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};

use super::harness::{FORMATS, Gpu, Sketch};

/// Sizes of one attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    b: usize,
    t: usize,
    s: usize,
    heads: usize,
    head: usize,
}

/// How many keys each sample has: all, one, none, and some.
fn lengths(sizes: Sizes) -> Vec<i64> {
    let all = sizes.s as i64;
    let each = [all, all / 2 + 1, 1, all - 1, 0, all / 3 + 1];
    (0..sizes.b).map(|sample| each[sample % 6]).collect()
}

/// Queries of one tensor over keys and values of another, as a decoder asks frame tokens.
fn cross(s: &mut Sketch, sizes: Sizes, has_lengths: bool, causal: bool) -> Vec<ValueId> {
    let Sizes { b, t, heads, .. } = sizes;
    let d = heads * sizes.head;
    let q_btd = s.input(&[b, t, d]);
    let kv_bsd = s.input(&[b, sizes.s, 2 * d]);
    let [k_bsd, v_bsd] = [0, d].map(|start| s.graph.columns(kv_bsd, start, d));
    let lengths_b = has_lengths.then(|| s.indices(&[b], &lengths(sizes)));
    let parts = [q_btd, k_bsd, v_bsd];
    let mixed = s.graph.attention("o", parts, lengths_b, heads, causal);
    // A single key has a weight of one, whatever the query: another reader gives the query a gradient.
    vec![s.graph.add("y", mixed, q_btd)]
}

/// Samples, queries, keys, heads and the size of a head.
fn sizes([b, t, s, heads, head]: [usize; 5]) -> Sizes {
    Sizes {
        b,
        t,
        s,
        heads,
        head,
    }
}

fn compare_all(gpu: &Gpu, [all, paths]: [&[[usize; 5]]; 2], causal: bool) {
    for sizes in gpu.sizes(all, paths).into_iter().map(sizes) {
        for has_lengths in [false, true] {
            let what = format!("{sizes:?}, lengths {has_lengths}, causal {causal}");
            gpu.compare(&what, FORMATS, |s| cross(s, sizes, has_lengths, causal));
        }
    }
}

#[test]
fn video_cross_attention_over_frame_tokens() {
    let Some(gpu) = Gpu::open() else { return };
    let all = [
        [6, 64, 400, 8, 64],
        [6, 64, 400, 8, 32],
        [2, 5, 400, 2, 64],
        [2, 17, 81, 2, 64],
        [3, 48, 65, 2, 32],
        [2, 63, 129, 3, 64],
        [2, 65, 400, 2, 64],
        [2, 100, 400, 2, 32],
        [2, 12, 3152, 2, 64],
        [2, 40, 1000, 2, 80],
        // As many heads and samples as fill a card.
        [48, 30, 100, 12, 64],
        [48, 64, 197, 12, 32],
    ];
    let paths = [
        [2, 5, 130, 2, 64],
        [2, 17, 81, 2, 64],
        [3, 48, 65, 2, 32],
        [2, 63, 129, 3, 64],
        [2, 65, 200, 2, 64],
        [2, 100, 200, 2, 32],
        [2, 40, 100, 2, 80],
        // As many heads and samples as fill the software card's 24 multiprocessors.
        [6, 64, 130, 8, 64],
        [8, 30, 100, 6, 32],
    ];
    compare_all(&gpu, [&all, &paths], false);
}

#[test]
fn video_attention_of_a_few_beams_over_frame_tokens() {
    let Some(gpu) = Gpu::open() else { return };
    for head in [32, 64] {
        let all = [1, 2, 3, 4, 5].map(|t| [6, t, 400, 8, head]);
        let paths = [1, 2, 5].map(|t| [6, t, 130, 8, head]);
        compare_all(&gpu, [&all, &paths], false);
    }
}

#[test]
fn video_attention_of_long_texts_and_of_frames() {
    let Some(gpu) = Gpu::open() else { return };
    let all = [
        [3, 512, 512, 12, 64],
        [2, 512, 512, 4, 32],
        [6, 8, 8, 12, 64],
        [6, 16, 16, 8, 64],
    ];
    let paths = [
        [2, 197, 197, 2, 64],
        [2, 197, 197, 2, 32],
        [6, 8, 8, 2, 64],
        [6, 16, 16, 2, 64],
    ];
    compare_all(&gpu, [&all, &paths], false);
}

#[test]
fn video_causal_attention_of_captions() {
    let Some(gpu) = Gpu::open() else { return };
    let all = [
        [3, 64, 64, 8, 64],
        [3, 40, 40, 8, 32],
        [2, 128, 128, 2, 64],
        // Fewer queries than keys: a query sees the keys up to its own place.
        [2, 30, 70, 2, 64],
        [2, 64, 400, 2, 64],
    ];
    let paths = [
        [3, 64, 64, 2, 64],
        [3, 40, 40, 2, 32],
        [2, 128, 128, 2, 64],
        [2, 30, 70, 2, 64],
        [2, 64, 200, 2, 64],
    ];
    compare_all(&gpu, [&all, &paths], true);
}

/// Two readers of the same frame tokens: gradients of keys and values are added to what is there.
#[test]
fn video_cross_attention_adds_to_gradients_that_are_there() {
    let Some(gpu) = Gpu::open() else { return };
    // The last two fill a card: all of these, and the software card's 24 multiprocessors.
    for (t, samples) in gpu.sizes(&[(20, 2), (64, 48), (5, 48)], &[(20, 2), (64, 8), (5, 8)]) {
        for head in [32, 64] {
            let what = format!("two readers of frame tokens, {t} queries, {samples} samples");
            gpu.compare(&what, FORMATS, |s| {
                let [b, keys, heads] = [samples, 130, 6];
                let d = heads * head;
                let q_btd = s.input(&[b, t, d]);
                let [k_bsd, v_bsd] = [(); 2].map(|()| s.input(&[b, keys, d]));
                vec![
                    s.graph
                        .attention("first", [q_btd, k_bsd, v_bsd], None, heads, false),
                    s.graph
                        .attention("second", [q_btd, v_bsd, k_bsd], None, heads, false),
                ]
            });
        }
    }
}

/// A share of the weights is dropped: the same ones on both devices, those of each micro-batch's own samples.
#[test]
fn video_attention_that_drops_weights() {
    let Some(gpu) = Gpu::open() else { return };
    const MICRO_BATCHES: usize = 2;
    let small = [
        [8, 8, 2, 64],
        [77, 77, 2, 64],
        [5, 100, 2, 64],
        [1, 50, 2, 32],
        [33, 20, 2, 80],
        [9, 9, 2, 20],
    ];
    let all = [&small[..], &[[512, 512, 2, 64], [64, 400, 3, 32]]].concat();
    let paths = [&small[..], &[[130, 130, 2, 64], [64, 130, 3, 32]]].concat();
    for [t, keys, heads, head] in gpu.sizes(&all, &paths) {
        for causal in [false, true] {
            for has_lengths in [false, true] {
                if causal && t == 1 {
                    continue; // one key, whose gradient is zero: nothing to be near to
                }
                let what = format!(
                    "attention that drops weights, {t} x {keys}, {heads} heads of {head}, causal {causal}, lengths {has_lengths}"
                );
                gpu.compare(&what, FORMATS, |s| {
                    s.micro_batches = MICRO_BATCHES;
                    let b = 3;
                    let d = heads * head;
                    let q_btd = s.input(&[b, t, d]);
                    let [k_bsd, v_bsd] = [(); 2].map(|()| s.input(&[b, keys, d]));
                    let lengths = [keys as i64, 1 + keys as i64 / 2, 2];
                    let lengths_b = has_lengths.then(|| s.indices(&[b], &lengths));
                    let samples: Vec<i64> =
                        (0..MICRO_BATCHES * b).map(|n| 40 + 3 * n as i64).collect();
                    let samples = s.indices(&[MICRO_BATCHES * b], &samples);
                    let samples_b = s.graph.micro_rows(samples, b);
                    let stream_2 = s.indices(&[2], &[17, 3]);
                    let op = Dropout {
                        rate: 0.3,
                        layer: 4,
                        mode: DropoutMode::Element,
                    };
                    let parts = [q_btd, k_bsd, v_bsd];
                    let dropout = Some((op, [samples_b, stream_2]));
                    let mixed = s
                        .graph
                        .attention_dropped("o", parts, lengths_b, heads, causal, dropout);
                    // A single key has a weight of one, whatever the query: another reader gives the query a gradient.
                    vec![s.graph.add("y", mixed, q_btd)]
                });
            }
        }
    }
}
