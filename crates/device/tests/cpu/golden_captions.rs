//! The operations of clips and captions against PyTorch: outputs and every gradient, in f64 to the ten digits of the file and in f32 to
//! 1e-5.
//!
//! `fixtures/make_captions.py` made the values; inputs are formulas, here and there.

use std::sync::OnceLock;

use holdall_graph::ValueId;

use super::golden_images::{Golden, check_against, common, parse};
use super::gradient_check::Sketch;
use super::step::Contents;

fn check(case: &str, salts: &[usize], write: impl Fn(&mut Sketch) -> (Vec<ValueId>, ValueId)) {
    static GOLDEN: OnceLock<Golden> = OnceLock::new();
    let golden = GOLDEN.get_or_init(|| parse(include_str!("../fixtures/captions.txt")));
    check_against(golden, case, salts, write);
}

fn tensor(s: &mut Sketch, dims: &[usize], salt: usize) -> ValueId {
    let values = common(dims.iter().product(), salt);
    s.given(dims, Contents::Floats(values))
}

#[test]
fn losses_of_captions() {
    for (case, smoothing) in [("caption", 0.0), ("caption smoothed", 0.1)] {
        for tile in [2, 512] {
            check(case, &[2], |s| {
                let x_btd = tensor(s, &[3, 4, 5], 1);
                let weight_vd = s.parameter(&[11, 5]);
                let labels = s.indices(&[3, 4], &[3, 0, 10, -1, 7, 7, -1, -1, 1, 2, 3, 4]);
                let token_weights = [1.0, 5.0, 0.5, 1.0].repeat(3);
                let token_weights = s.given(&[3, 4], Contents::Floats(token_weights));
                let sample_weights = s.given(&[3], Contents::Floats(vec![1.0, 0.5, 0.0]));
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
                (vec![x_btd], sum)
            });
        }
    }
}

#[test]
fn pairs_with_one_caption() {
    check("groups", &[3], |s| {
        let features = [1, 2].map(|salt| tensor(s, &[5, 4], salt));
        let weights = s.given(&[5], Contents::Floats(vec![1.0, 1.0, 0.0, 1.0, 1.0]));
        let groups = s.indices(&[5], &[0, 1, -1, 1, 0]);
        let shares = s.given(&[5], Contents::Floats(vec![0.5, 0.5, 0.0, 0.5, 0.5]));
        let scale = s.parameter(&[]);
        let sum = s.total();
        s.graph
            .contrastive_groups_into(features, weights, groups, shares, scale, sum, 2);
        (features.to_vec(), sum)
    });
}

#[test]
fn cross_attention_over_the_frames_that_are_there() {
    check("cross-attention", &[], |s| {
        let parts = [(2, 1), (7, 2), (7, 3)].map(|(tokens, salt)| tensor(s, &[3, tokens, 6], salt));
        let lengths_b = s.indices(&[3], &[7, 3, 1]);
        let o_btd = s.graph.attention("o", parts, Some(lengths_b), 2, false);
        (parts.to_vec(), s.graph.reshape(o_btd, &[1, 3, 2, 6]))
    });
}
