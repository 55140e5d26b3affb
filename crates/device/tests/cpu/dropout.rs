//! Masks of dropout: functions of (seed, epoch, sample, layer, index), and of nothing else.

use holdall_graph::DType;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};

use super::definitions::observed;
use super::gradient_check::Sketch;
use super::step::Contents;

const STREAM: [i64; 2] = [17, 3];

fn op(rate: f64, mode: DropoutMode) -> Dropout {
    Dropout {
        rate,
        layer: 5,
        mode,
    }
}

/// What dropout leaves of ones, sample by sample.
fn masks(
    op: &Dropout,
    samples: &[i64],
    stream: [i64; 2],
    [tokens, width]: [usize; 2],
) -> Vec<Vec<f64>> {
    let mut s = Sketch::new(DType::F32);
    let dims = [samples.len(), tokens, width];
    let ones = vec![1.0; dims.iter().product()];
    let x = s.given(&dims, Contents::Floats(ones));
    let (ids, stream) = (
        s.indices(&[samples.len()], samples),
        s.indices(&[2], &stream),
    );
    let y = s.graph.dropout("y", x, ids, stream, op.clone());
    let all = observed(s, y);
    all.chunks(tokens * width).map(<[f64]>::to_vec).collect()
}

#[test]
fn the_mask_of_a_sample_does_not_depend_on_where_it_lies() {
    for mode in [DropoutMode::Element, DropoutMode::Sample] {
        let op = op(0.3, mode);
        let samples: Vec<i64> = (100..112).collect();
        let whole = masks(&op, &samples, STREAM, [3, 7]);
        for (half, expected) in samples.chunks(6).zip(whole.chunks(6)) {
            assert_eq!(masks(&op, half, STREAM, [3, 7]), expected);
        }
        let backwards: Vec<i64> = samples.iter().rev().copied().collect();
        let mut found = masks(&op, &backwards, STREAM, [3, 7]);
        found.reverse();
        assert_eq!(found, whole);
    }
}

#[test]
fn seed_epoch_sample_and_layer_each_draw_anew() {
    let element = op(0.5, DropoutMode::Element);
    let mask = |op: &Dropout, sample, stream| masks(op, &[sample], stream, [1, 64]).remove(0);
    let all = [
        mask(&element, 8, STREAM),
        mask(&element, 9, STREAM),
        mask(&element, 8, [18, 3]),
        mask(&element, 8, [17, 4]),
        mask(&element, 8, [3, 17]),
        mask(
            &Dropout {
                layer: 6,
                ..element.clone()
            },
            8,
            STREAM,
        ),
    ];
    for (index, one) in all.iter().enumerate() {
        for other in &all[..index] {
            let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
            assert!((16..48).contains(&same), "{same} of 64 alike");
        }
    }
}

#[test]
fn the_share_that_is_dropped_is_the_rate_and_the_mean_stays() {
    for rate in [0.0, 0.1, 0.5, 0.9] {
        let samples: Vec<i64> = (0..2000).collect();
        for (mode, dims) in [
            (DropoutMode::Element, [1, 40]),
            (DropoutMode::Sample, [2, 2]),
        ] {
            let masks = masks(&op(rate, mode), &samples, STREAM, dims);
            let draws: Vec<f64> = match mode {
                DropoutMode::Element => masks.concat(),
                DropoutMode::Sample => {
                    assert!(masks.iter().all(|mask| mask.iter().all(|x| *x == mask[0])));
                    masks.iter().map(|mask| mask[0]).collect()
                }
            };
            let scale = f64::from((1.0 / (1.0 - rate)) as f32);
            assert!(draws.iter().all(|&x| x == 0.0 || x == scale));
            let dropped = draws.iter().filter(|&&x| x == 0.0).count() as f64;
            let deviation = (rate * (1.0 - rate) / draws.len() as f64).sqrt();
            let found = dropped / draws.len() as f64;
            assert!(
                (found - rate).abs() <= 4.0 * deviation,
                "{found} for {rate}, {mode:?}"
            );
        }
    }
}

/// The bits are part of a run: a model that is resumed, or verified on another device, draws the same.
#[test]
fn masks_are_these_bits() {
    let mask = masks(&op(0.5, DropoutMode::Element), &[42], [7, 1], [2, 16]).remove(0);
    let bits = mask.iter().map(|&x| if x == 0.0 { '0' } else { '1' });
    // Computed from the formula by another program.
    assert_eq!(bits.collect::<String>(), "11100000010100010011110110101001");
}

/// Probabilities of attention, each divided by the keys there are: queries of zeros, and values of which each is its key's place.
fn attention_masks(
    rate: f64,
    samples: &[i64],
    [heads, queries, keys]: [usize; 3],
) -> Vec<Vec<f64>> {
    let mut s = Sketch::new(DType::F32);
    let width = heads * keys;
    let zeros = |tokens: usize| Contents::Floats(vec![0.0; samples.len() * tokens * width]);
    let q = s.given(&[samples.len(), queries, width], zeros(queries));
    let k = s.given(&[samples.len(), keys, width], zeros(keys));
    let places = (0..keys).flat_map(|key| {
        (0..width).map(move |column| f64::from(u8::from(column % keys == key)) * keys as f64)
    });
    let places: Vec<f64> = places.collect::<Vec<f64>>().repeat(samples.len());
    let v = s.given(&[samples.len(), keys, width], Contents::Floats(places));
    let (ids, stream) = (
        s.indices(&[samples.len()], samples),
        s.indices(&[2], &STREAM),
    );
    let dropout = Some((op(rate, DropoutMode::Element), [ids, stream]));
    let g = &mut s.graph;
    let o = g.attention_dropped("o", [q, k, v], None, heads, false, dropout);
    let all = observed(s, o);
    all.chunks(queries * width).map(<[f64]>::to_vec).collect()
}

#[test]
fn probabilities_are_dropped_by_head_query_and_key() {
    for keys in [20, 16] {
        masks_of_probabilities([3, 5, keys]);
    }
}

fn masks_of_probabilities([heads, queries, keys]: [usize; 3]) {
    let (rate, samples) = (0.4, [7, 1_000_003]);
    let found = attention_masks(rate, &samples, [heads, queries, keys]);
    let op = op(rate, DropoutMode::Element);
    for (masks, sample) in found.iter().zip(samples) {
        let seed = op.key(STREAM, sample);
        for (at, &mask) in masks.iter().enumerate() {
            let (query, head, key) = (at / (heads * keys), at / keys % heads, at % keys);
            let index = (head << 40 | query << 20 | key) as u64;
            let expected = if Dropout::keeps(seed, index, op.threshold()) {
                1.0 / (1.0 - rate)
            } else {
                0.0
            };
            assert!((mask - expected).abs() < 1e-6, "place {at}: {mask}");
        }
    }
    // A shorter text has the same masks.
    let fewer = attention_masks(rate, &samples, [heads, 2, keys]);
    assert_eq!(fewer[1], found[1][..2 * heads * keys]);
    let all = found.concat();
    let kept = all.iter().filter(|&&mask| mask > 0.0).count() as f64 / all.len() as f64;
    assert!((kept - 0.6).abs() < 0.06, "{kept} are left");
}
