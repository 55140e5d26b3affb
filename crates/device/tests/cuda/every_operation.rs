//! No operation is forgotten: each is planned for every device, run on the CPU one instruction at a time, and compared with a
//! GPU where there is one.
//!
//! A new operation fails here until an example has it.
//!
//! Legend: `b` samples, `t` tokens, `n` patches, `d` width; of pictures `n` samples, `h` and `w` pixels, `c` channels.

use std::collections::BTreeSet;

use holdall_device::Arithmetic;
use holdall_device::cpu::{Arena, CpuTarget};
use holdall_device::cuda::CudaTarget;
use holdall_device::cuda::cards::CARDS;
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddRounded;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::ops::fill::Fill;
use holdall_graph::ops::normalize_pixels::PixelDepth;
use holdall_graph::ops::overlap::{OverlapLoss, Reduction};
use holdall_graph::ops::pixel_loss::PixelLossKind;
use holdall_graph::ops::pool2d::Pool;
use holdall_graph::ops::update::{
    AdamW, AdamWParameter, AverageAction, GradientNorm, MomentFormat, WeightAverages,
};
use holdall_graph::ops::upsample2d::Upsampling;
use holdall_graph::{
    Copies, DType, MemorySpace, NodeView, Op, Output, Role, Section, Shape, ValueId,
};
use holdall_plan::{Instruction, Place, Program, Stage, Target, lifetimes_of};

use super::harness::{ALL, Case, F32, Gpu, Settings, Sketch, cpu};
use super::step::{Contents, NORMALIZATION, flat, write};
use super::tokens::sorted_places;

/// What a forward pass is written by: the values that gradients come back from.
type Example = fn(&mut Sketch) -> Vec<ValueId>;

/// Together they have every operation.
const EXAMPLES: [(&str, Example); 10] = [
    ("transformer block", transformer_block),
    ("texts", texts),
    ("clips and captions", clips_and_captions),
    ("decoding", decoding),
    ("pictures and heads", pictures_and_heads),
    ("features of pairs", features_of_pairs),
    ("convolutions", convolutions),
    ("pixels and their losses", pixels_and_losses),
    ("masks", masks),
    ("update", update),
];

fn transformer_block(s: &mut Sketch) -> Vec<ValueId> {
    let [b, t, d] = [2, 5, 16];
    let x_btd = s.input(&[b, t, d]);
    let (gamma_d, beta_d) = (s.parameter(&[d]), s.parameter(&[d]));
    let h_btd = s.graph.layer_norm("norm", x_btd, gamma_d, beta_d, 1e-5);
    let (weight, bias) = (s.parameter(&[3 * d, d]), s.parameter(&[3 * d]));
    let qkv = s.graph.linear("qkv", h_btd, weight, Some(bias), None);
    let parts = [0, d, 2 * d].map(|start| s.graph.columns(qkv, start, d));
    let o_btd = s.graph.attention("o", parts, None, 2, false);
    let x_btd = s.graph.add("sum", o_btd, x_btd);
    let (weight, bias) = (s.parameter(&[24, d]), s.parameter(&[24]));
    let gelu = Activation::Gelu;
    let inner = s.graph.linear_activated("inner", x_btd, weight, bias, gelu);
    let weight = s.adapted("fc2", 1, [d, 24], 4);
    let y_btd = s.graph.linear("y", inner, weight, None, Some(x_btd));
    vec![s.graph.activate("a", y_btd, Activation::QuickGelu)]
}

fn texts(s: &mut Sketch) -> Vec<ValueId> {
    let ids = [3, 0, 0, 2, 1, 3];
    let ends = [2, 1];
    let order = sorted_places(&ids, &ends, 3);
    let (ids_bt, order_bt) = (s.indices(&[2, 3], &ids), s.indices(&[2, 3], &order));
    let (table_vd, positions_td) = (s.parameter(&[4, 8]), s.parameter(&[3, 8]));
    let x_btd = s
        .graph
        .embedding("x", ids_bt, table_vd, positions_td, Some(order_bt));
    let ends_b = s.indices(&[2], &ends.map(|end| end as i64));
    vec![s.graph.gather_rows("y", x_btd, ends_b)]
}

/// Frames of two videos, learned queries over those that are there, and a caption's loss.
fn clips_and_captions(s: &mut Sketch) -> Vec<ValueId> {
    let [b, frames, t, d, v] = [3, 6, 4, 32, 40];
    let x_bsd = s.input(&[b, frames, d]);
    let (videos_nd, queries_td) = (s.parameter(&[2, d]), s.parameter(&[t, d]));
    let x_bsd = s.graph.add_positions("videos", x_bsd, videos_nd, 3);
    let queries = s.graph.repeat("queries", queries_td, b);
    let (weight, bias) = (s.parameter(&[2 * d, d]), s.parameter(&[2 * d]));
    let kv = s
        .graph
        .linear_with_keys("keys and values", x_bsd, weight, bias, 0..d);
    let [keys, values] = [0, d].map(|start| s.graph.columns(kv, start, d));
    let counts_b = s.indices(&[b], &[6, 3, 1]);
    let parts = [queries, keys, values];
    let h_btd = s.graph.attention("h", parts, Some(counts_b), 2, false);
    let pooled = s.graph.mean_tokens("pooled", x_bsd, 0, Some(counts_b));
    let head_vd = s.parameter(&[v, d]);
    let labels = s.indices(&[b, t], &[3, 0, 39, -1, 7, 7, -1, -1, 1, 2, 3, 4]);
    let token_weights = s.full_constant(&[b, t], &[1.0, 5.0, 0.5].repeat(t));
    let sample_weights = s.full_constant(&[b], &[1.0, 1.0, 0.0]);
    let sum = s.total();
    s.graph.vocabulary_loss_into(
        "caption",
        h_btd,
        head_vd,
        labels,
        token_weights,
        sample_weights,
        sum,
        0.1,
        5,
    );
    vec![sum, pooled]
}

/// Three tokens of two beams, the second of which goes on from the first, and the likeliest of the next.
fn decoding(s: &mut Sketch) -> Vec<ValueId> {
    let [r, l, d, v] = [2, 4, 16, 40];
    let caches = ["keys", "values"].map(|name| s.graph.cache(name, &[r, l, d]));
    s.graph.enter(Section::Begin);
    for cache in caches {
        s.graph.push_new(Fill { value: 0.0 }, Vec::new(), &[cache]);
    }
    s.graph.enter(Section::Forward);
    for (step, ancestors) in [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .into_iter()
    .enumerate()
    {
        let ancestors_rl = s.indices(&[r, l], &ancestors);
        let position_1 = s.indices(&[1], &[step as i64]);
        let parts = [(); 3].map(|()| s.constant(&[r, 1, d]));
        let o_r1d = s
            .graph
            .cached_attention("o", parts, ancestors_rl, position_1, caches, 2);
        s.seen.push(o_r1d);
    }
    let logits = s.numbers(r * v, 4.0);
    let logits_rv = s.full_constant(&[r, v], &logits);
    let banned_rm = s.indices(&[r, 2], &[-1, 3, 0, 39]);
    let [values, ids] = ["likeliest", "ids"].map(|name| s.graph.output(name, &[r, 5]));
    let places = [values, ids, s.graph.output("lse", &[r])];
    s.graph.top_tokens_into("top", logits_rv, banned_rm, places);
    s.seen.extend(places);
    Vec::new()
}

fn pictures_and_heads(s: &mut Sketch) -> Vec<ValueId> {
    let [b, d] = [3, 16];
    let dims = [b, 4, 8, 3];
    let [own, partner] = [37, 91].map(|step| {
        let bytes = (0..dims.iter().product()).map(|index: usize| (index * step % 256) as u8);
        s.given(&dims, DType::U8, Contents::Bytes(bytes.collect()))
    });
    let mix = [0.25, 1.0, 0.0, 3.0, 2.0].repeat(b);
    let mix_b5 = s.full_constant(&[b, 5], &mix);
    let mixed = s
        .graph
        .mix_pictures("mixed", own, partner, mix_b5, NORMALIZATION);
    let patches = s.graph.patchify("patches", mixed, 4, NORMALIZATION);
    let weight = s.parameter(&[d, 48]);
    let embedded_bnd = s.graph.linear("embedded", patches, weight, None, None);
    let (class_kd, positions_td) = (s.parameter(&[2, d]), s.parameter(&[4, d]));
    let x_btd = s
        .graph
        .class_token("x", embedded_bnd, class_kd, positions_td);
    let (samples_b, stream_2) = (s.indices(&[b], &[4, 9, 2]), s.indices(&[2], &[17, 3]));
    let gamma_d = s.parameter(&[d]);
    let mut x_btd = s.graph.scale_columns("scaled", x_btd, gamma_d);
    for mode in [DropoutMode::Element, DropoutMode::Sample] {
        let op = Dropout {
            rate: 0.25,
            layer: 1,
            mode,
        };
        x_btd = s.graph.dropout("left", x_btd, samples_b, stream_2, op);
    }
    let pooled = s.graph.mean_tokens("pooled", x_btd, 1, None);
    let pooled = s.graph.cast("full", pooled, DType::F32);
    let weight = s.parameter(&[8, d]);
    let logits = s.graph.linear("logits", pooled, weight, None, None);
    let sums = [(); 3].map(|()| s.total());
    let heads =
        [(0, 4), (4, 3), (7, 1)].map(|(start, width)| s.graph.columns(logits, start, width));
    let labels_n = s.indices(&[b], &[0, 3, -1]);
    let weights_n = s.full_constant(&[b], &[1.0, 0.5, 1.0]);
    s.graph
        .cross_entropy_into("classes", heads[0], labels_n, weights_n, sums[0], 0.1);
    let class_weights_c = s.full_constant(&[4], &[0.5, 2.0, 1.0, 0.0]);
    let [head, sum] = [heads[0], sums[0]];
    s.graph.weighted_cross_entropy_into(
        "weighted",
        head,
        labels_n,
        weights_n,
        class_weights_c,
        sum,
        0.1,
    );
    let [targets, weights] = [[0.0, 1.0, 0.3], [1.0, 0.0, 2.0]]
        .map(|values| s.full_constant(&[b, 3], &values.repeat(b)));
    s.graph
        .binary_cross_entropy_into("labels", heads[1], targets, weights, sums[1]);
    let [targets, weights] = [targets, weights].map(|all| s.graph.columns(all, 2, 1));
    s.graph
        .squared_error_into("numbers", heads[2], targets, weights, sums[2]);
    sums.to_vec()
}

fn convolutions(s: &mut Sketch) -> Vec<ValueId> {
    let [n, h, w, c] = [2, 6, 4, 8];
    let x_nhwc = s.input(&[n, h, w, c]);
    let (weight, bias) = (s.parameter(&[16, 3, 3, c]), s.parameter(&[16]));
    let half = s
        .graph
        .conv2d("half", x_nhwc, weight, Some(bias), [2, 2], [1, 1]);
    let (weight, bias) = (s.parameter(&[16, 2, 2, c]), s.parameter(&[c]));
    let up_nhwc = s.graph.activation("up", &[n, h, w, c]);
    s.graph
        .transposed_conv2d_into("up", half, weight, Some(bias), [2, 2], up_nhwc);
    vec![up_nhwc]
}

fn pixels_and_losses(s: &mut Sketch) -> Vec<ValueId> {
    let [n, h, w, c] = [2, 4, 4, 3];
    let row_bytes = h * w * (c + 1);
    let bytes = (0..n * row_bytes).map(|at: usize| {
        if at % row_bytes < h * w * c {
            (at * 37 % 256) as u8
        } else {
            [0, 1, 2, 255][at * 7 % 4]
        }
    });
    let rows = s.given(&[n, row_bytes], DType::U8, Contents::Bytes(bytes.collect()));
    let pixels = s.graph.picture_view(rows, 0, &[h, w, c]);
    let labels_nhw = s.graph.picture_view(rows, h * w * c, &[h, w]);
    let (depth, mean, std) = (PixelDepth::Eight, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]);
    let x_nhwc = s.graph.normalize_pixels("x", pixels, depth, &mean, &std);
    let (gamma_c, beta_c) = (s.parameter(&[c]), s.parameter(&[c]));
    let leaky = Some(Activation::LeakyRelu);
    let normed = s
        .graph
        .group_norm("normed", x_nhwc, gamma_c, beta_c, c, 1e-5, leaky, None);
    let pooled = s.graph.pool2d("pooled", normed, Pool::Max, 2);
    let logits = s
        .graph
        .upsample2d("logits", pooled, 2, Upsampling::Bilinear);
    let class_weights = s.full_constant(&[c], &[0.5, 1.0, 2.0]);
    let weights_n = s.full_constant(&[n], &[1.0, 0.5]);
    let [pixel, overlap] = [(); 2].map(|()| s.total());
    let kind = PixelLossKind::Softmax;
    s.graph.pixel_loss_into(
        "pixel",
        logits,
        labels_nhw,
        class_weights,
        weights_n,
        pixel,
        kind,
        Some(2.0),
    );
    let sums = s.graph.overlap_sums("sums", logits, labels_nhw, kind);
    let dice = OverlapLoss {
        reduction: Reduction::Batch,
        alpha: 0.5,
        beta: 0.5,
        smooth: 0.5,
        first_class: 1,
    };
    s.graph
        .overlap_loss_into("overlap", sums, weights_n, overlap, dice);
    vec![pixel, overlap]
}

fn features_of_pairs(s: &mut Sketch) -> Vec<ValueId> {
    let [image_bd, text_bd] = [(); 2].map(|()| {
        let x_bd = s.input(&[19, 8]);
        let features_bd = s.graph.statistic("features", &[19, 8]);
        s.graph.normalize_into("features", x_bd, features_bd);
        features_bd
    });
    let weights_b = s.full_constant(&[19], &[1.0; 19]);
    let logit_scale = s.parameter(&[]);
    let sum = s.total();
    s.graph
        .contrastive_into([image_bd, text_bd], weights_b, logit_scale, sum, 8);
    let groups: Vec<i64> = (0..19).map(|row| row / 2).collect();
    let shares: Vec<f64> = (0..19)
        .map(|row| if row < 18 { 0.5 } else { 1.0 })
        .collect();
    let (groups_b, shares_b) = (s.indices(&[19], &groups), s.full_constant(&[19], &shares));
    let several = s.total();
    s.graph.contrastive_groups_into(
        [image_bd, text_bd],
        weights_b,
        groups_b,
        shares_b,
        logit_scale,
        several,
        8,
    );
    vec![sum, several]
}

/// A U-Net of two levels: bytes in, a skip join, two heads.
fn masks(s: &mut Sketch) -> Vec<ValueId> {
    let [n, side, c] = [2, 8, 16];
    let [pixels, mask] = [side * side * 3, side * side];
    let bytes = (0..n * (pixels + mask)).map(|at| match at % (pixels + mask) {
        pixel if pixel < pixels => (at * 37) as u8,
        label => [0, 1, 2, 255, 1][(label + at) % 5],
    });
    let contents = Contents::Bytes(bytes.collect());
    let rows = s.given(&[n, pixels + mask], DType::U8, contents);
    let g = &mut s.graph;
    let picture = g.picture_view(rows, 0, &[side, side, 3]);
    let labels = g.picture_view(rows, pixels, &[side, side]);
    let (mean, std) = ([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]);
    let x = g.normalize_pixels("x", picture, PixelDepth::Eight, &mean, &std);
    let joined = g.activation("joined", &[n, side, side, 2 * c]);
    let [skip, up] = [0, c].map(|start| g.columns(joined, start, c));
    let weight = s.parameter(&[c, 3, 3, 3]);
    let y = s.graph.conv2d("stage", x, weight, None, [1; 2], [1; 2]);
    let [gamma, beta] = [(); 2].map(|()| s.parameter(&[c]));
    let relu = Some(Activation::Relu);
    s.graph
        .group_norm_into("norm", y, gamma, beta, 8, 1e-5, relu, None, skip);
    let pooled = s.graph.pool2d("pooled", skip, Pool::Max, 2);
    let weight = s.parameter(&[c, 3, 3, c]);
    let y = s.graph.conv2d("deep", pooled, weight, None, [1; 2], [1; 2]);
    let [gamma, beta] = [(); 2].map(|()| s.parameter(&[c]));
    let leaky = Some(Activation::LeakyRelu);
    let deep = s
        .graph
        .group_norm("deep norm", y, gamma, beta, 4, 1e-5, leaky, Some(pooled));
    let (weight, bias) = (s.parameter(&[c, 2, 2, c]), s.parameter(&[c]));
    s.graph
        .transposed_conv2d_into("up", deep, weight, Some(bias), [2; 2], up);
    let (weight, bias) = (s.parameter(&[3, 1, 1, 2 * c]), s.parameter(&[3]));
    let logits = s
        .graph
        .conv2d("logits", joined, weight, Some(bias), [1; 2], [0; 2]);
    let coarse = s.graph.pool2d("coarse", joined, Pool::Average, 4);
    let fine = s.graph.upsample2d("fine", coarse, 2, Upsampling::Bilinear);
    let (weight, bias) = (s.parameter(&[1, 1, 1, 2 * c]), s.parameter(&[1]));
    let binary = s
        .graph
        .conv2d("binary", fine, weight, Some(bias), [1; 2], [0; 2]);
    let few_labels = s.graph.every_pixel(labels, 2);
    let sample_weights = s.full_constant(&[n], &[1.0, 0.5]);
    let heads = [
        (
            logits,
            labels,
            PixelLossKind::Softmax,
            3,
            None,
            Reduction::Batch,
        ),
        (
            binary,
            few_labels,
            PixelLossKind::Sigmoid,
            2,
            Some(2.0),
            Reduction::PerSample,
        ),
    ];
    let mut totals = Vec::new();
    for (logits, labels, kind, classes, focal, reduction) in heads {
        let class_weights = s.full_constant(&[classes], &[0.5, 2.0, 1.0][..classes]);
        let [pixel, overlap] = [(); 2].map(|()| s.total());
        s.graph.pixel_loss_into(
            "pixel",
            logits,
            labels,
            class_weights,
            sample_weights,
            pixel,
            kind,
            focal,
        );
        let sums = s.graph.overlap_sums("sums", logits, labels, kind);
        let op = OverlapLoss {
            reduction,
            alpha: 0.4,
            beta: 0.6,
            smooth: 1.0,
            first_class: usize::from(kind == PixelLossKind::Softmax),
        };
        s.graph
            .overlap_loss_into("overlap", sums, sample_weights, overlap, op);
        totals.extend([pixel, overlap]);
    }
    totals
}

fn update(s: &mut Sketch) -> Vec<ValueId> {
    s.parameter(&[1]); // tables of the update are as long as there are parameters
    let gradient = s.numbers(70, 1.0);
    let gradient = s.full_constant(&[10, 7], &gradient);
    let schedule = s.full_constant(&[5], &[1.0, 10.0, 50.0, 0.1, 3.0]);
    let g = &mut s.graph;
    let mut tensor = |name: &str, dims: &[usize]| g.tensor(name, dims, DType::F32, Role::Feature);
    let state = ["weight", "m", "v", "average"].map(|name| tensor(name, &[10, 7]));
    let halves = ["halves", "their average"].map(|name| tensor(name, &[10, 7]));
    let codes = ["coded", "its average"].map(|name| tensor(name, &[10, 7]));
    let scales = ["m scales", "v scales"].map(|name| tensor(name, &[1]));
    let norm = tensor("norm", &[2]);
    let mut moments = |name: &str, dtype| {
        ["m", "v"]
            .map(|moment| g.tensor(format!("{name} {moment}"), &[10, 7], dtype, Role::Feature))
    };
    let (half_moments, coded_moments) = (moments("half", DType::Bf16), moments("coded", DType::U8));
    g.enter(Section::Begin);
    for value in [&state[..], &halves, &codes, &scales].concat() {
        g.push_new(Fill { value: 0.5 }, Vec::new(), &[value]);
    }
    g.enter(Section::Update);
    g.push_new(GradientNorm {}, vec![gradient], &[norm]);
    let parameter = |moments| AdamWParameter {
        weight_decay: 0.1,
        rate: 0,
        maximum: None,
        moments,
        copy: false,
    };
    let op = AdamW {
        beta1: 0.9,
        beta2: 0.98,
        eps: 1e-6,
        clip_norm: Some(1.0),
        average_decay: Some(0.75),
        parameters: [
            MomentFormat::F32,
            MomentFormat::Bf16,
            MomentFormat::EightBit,
        ]
        .map(parameter)
        .to_vec(),
    };
    let outputs = [
        &state[..],
        &[halves[0], half_moments[0], half_moments[1], halves[1]],
        &[codes[0], coded_moments[0], coded_moments[1]],
        &scales,
        &[codes[1]],
    ];
    let outputs = outputs.concat().into_iter().map(Output::overwrite);
    let inputs = vec![schedule, norm, gradient, gradient, gradient];
    g.push(op, inputs, outputs.collect());
    for (action, [weight, average]) in [
        (AverageAction::Exchange, halves),
        (AverageAction::Restart, codes),
        (
            AverageAction::Interpolate { share: 0.25 },
            [state[0], state[3]],
        ),
    ] {
        g.push_new(WeightAverages { action }, Vec::new(), &[weight, average]);
    }
    let rounded = g.tensor("rounded", &[10, 7], DType::Bf16, Role::Feature);
    g.push_new(AddRounded {}, vec![gradient], &[rounded]);
    g.push(
        AddRounded {},
        vec![gradient],
        vec![Output::accumulate(rounded)],
    );
    g.enter(Section::Forward);
    s.seen = [&state[..], &halves, &codes, &scales, &[norm]].concat();
    Vec::new()
}

fn case(example: Example, formats: [DType; 2]) -> Case {
    Case::new(formats, Copies::Resident, &example)
}

#[test]
fn the_examples_have_every_operation() {
    let mut missing: BTreeSet<&str> = Op::VARIANTS.iter().copied().collect();
    // It takes several processes: `train/tests/gpu/processes.rs`.
    missing.remove("Collective");
    for (_, example) in EXAMPLES {
        for node in case(example, [DType::F32; 2]).graph.nodes() {
            missing.remove(node.op.variant());
        }
    }
    assert!(missing.is_empty(), "no example has {missing:?}");
}

/// Costs and scratch are numbers that make sense, on every card too, and every example can be planned.
#[test]
fn every_operation_is_answered_for_on_every_device() {
    for (name, example) in EXAMPLES {
        for &arithmetic in ALL {
            let case = case(example, [arithmetic.compute(); 2]);
            let cards = CARDS.iter();
            let cards = cards.filter_map(|card| CudaTarget::for_card(card, arithmetic));
            let mut targets: Vec<Box<dyn Target>> = cards.map(|card| Box::new(card) as _).collect();
            if arithmetic == Arithmetic::F32 {
                targets.push(Box::new(CpuTarget::new(2).with_baseline(0)));
            }
            for target in &targets {
                answers(&case, target.as_ref(), name);
            }
            let smallest = targets.last().expect("a card or the CPU");
            let plan = lifetimes_of(&case.graph, &case.policy(), smallest.as_ref());
            assert!(plan.pack().plan(0, 1).arena_bytes > 0, "{name}");
        }
    }
}

fn answers(case: &Case, target: &dyn Target, name: &str) {
    for node in case.graph.nodes() {
        let view = NodeView {
            graph: &case.graph,
            node,
        };
        let what = format!("{name}, {}", node.op.rules().name());
        let cost = case.graph.cost(node);
        let total = cost.product_flops + cost.element_flops + cost.bytes;
        assert!(total > 0, "{what}: {cost:?}");
        let seconds = target.seconds(view);
        assert!(seconds.is_finite() && seconds < 0.1, "{what}: {seconds} s");
        assert!(seconds > 0.0, "{what}: {seconds} s");
        assert!((0.0..=1.0).contains(&target.busy(view)), "{what}");
        assert!(target.workspace_bytes(view) < 64 << 20, "{what}");
    }
}

/// What the bytes of scratch are set to before an instruction runs: no number, and zero. Neither may be seen in a result.
const POISON: [u8; 2] = [0xff, 0];
/// Bytes behind the arena that a plan asks for.
const GUARD: u64 = 4096;

#[test]
fn every_operation_keeps_to_its_results_and_its_scratch() {
    for (name, example) in EXAMPLES {
        let case = case(example, [DType::F32; 2]);
        let target = CpuTarget::new(cpu().cpu().num_threads()).with_baseline(0);
        let plan = lifetimes_of(&case.graph, &case.policy(), &target)
            .pack()
            .plan(0, 1);
        let mut arena = Arena::new(plan.arena_bytes + GUARD).unwrap();
        let all = whole(arena.bytes());
        arena.write::<u8>(&all, 0).fill(0xa5);
        for (storage, values) in &case.weights {
            let place = plan.place_of(&flat(&case.graph, *storage));
            write(&mut arena, &place, &Contents::Floats(values.clone()));
        }
        for (value, contents) in &case.inputs {
            write(&mut arena, &plan.place(*value), contents);
        }
        let stages = [
            Stage::Refresh,
            Stage::Begin,
            Stage::Loss,
            Stage::ForwardBackward,
            Stage::Update,
        ];
        for stage in stages {
            for instruction in &plan.program(stage).instructions {
                let what = format!("{name}, {}", instruction.op.rules().name());
                run_alone(instruction, &mut arena, &what);
            }
        }
    }
}

fn whole(bytes: u64) -> Place {
    let shape = Shape::new(&[bytes as usize]);
    Place {
        space: MemorySpace::Device,
        offset: 0,
        micro_stride: 0,
        slot_stride: 0,
        shape,
        strides: shape.contiguous_strides(),
        dtype: DType::U8,
    }
}

/// Runs an instruction over each poison: only results and scratch may change, and the results to the same bits.
fn run_alone(instruction: &Instruction, arena: &mut Arena, what: &str) {
    let all = whole(arena.bytes());
    let program = Program {
        name: "alone".to_owned(),
        stage: Stage::Update,
        instructions: vec![instruction.clone()],
    };
    let scratch = {
        let workspace = instruction.workspace;
        let start = workspace.offset as usize;
        start..start + workspace.bytes as usize
    };
    let mut may_change = vec![false; arena.bytes() as usize];
    may_change[scratch.clone()].fill(true);
    for (place, _) in instruction.outputs.iter().flatten() {
        for start in starts(place) {
            may_change[start..start + place.dtype.bytes()].fill(true);
        }
    }
    let before = arena.read::<u8>(&all, 0).to_vec();
    let mut results = POISON.map(|poison| {
        let bytes = arena.write::<u8>(&all, 0);
        bytes.copy_from_slice(&before);
        bytes[scratch.clone()].fill(poison);
        cpu().cpu().run(&program, arena, 0, 0);
        let mut after = arena.read::<u8>(&all, 0).to_vec();
        let mut changed = (0..after.len()).filter(|&at| after[at] != before[at]);
        let stray = changed.find(|&at| !may_change[at]);
        assert_eq!(
            stray, None,
            "{what}: a byte that is not its own, scratch {scratch:?}"
        );
        after[scratch.clone()].fill(0);
        after
    });
    let [first, second] = &mut results;
    assert!(
        first == second,
        "{what}: scratch is read before it is written"
    );
}

/// The first byte of every element.
fn starts(place: &Place) -> Vec<usize> {
    let mut offsets = vec![0];
    for (&dim, &stride) in place.shape.dims().iter().zip(place.strides.dims()) {
        let along = |offset: usize| (0..dim).map(move |step| offset + step * stride);
        offsets = offsets.into_iter().flat_map(along).collect();
    }
    let start = |offset: usize| place.offset as usize + offset * place.dtype.bytes();
    offsets.into_iter().map(start).collect()
}

#[test]
fn every_operation_gives_the_same_on_a_gpu() {
    let Some(gpu) = Gpu::open() else { return };
    for (name, example) in EXAMPLES {
        // Other formats have the tests of each operation; a whole block adds up their rounding.
        gpu.compare_with(name, Settings::of(F32).long_sums(), example);
    }
}
