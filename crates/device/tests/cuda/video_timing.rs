//! How long the kernels of captions take: prints, asserts nothing. `--ignored --nocapture video_times`.

use std::time::Instant;

use holdall_device::{Arithmetic, Machine};
use holdall_graph::{Copies, ValueId};
use holdall_plan::Stage;

use super::harness::{Case, Gpu, Sketch, put, put_input, say};
use super::step::{Contents, flat};

const RUNS: usize = 30;

/// Seconds of one run of what `write` writes.
fn seconds(gpu: &Gpu, write: impl Fn(&mut Sketch) -> Vec<ValueId>) -> f64 {
    let arithmetic = Arithmetic::Bf16;
    let case = Case::new([arithmetic.compute(); 2], Copies::Resident, &write);
    let plan = gpu.plan(&case.graph, &case.policy(), arithmetic, [0, 1]);
    let mut machine = Machine::new(gpu.device, &plan, arithmetic).unwrap();
    for (storage, values) in &case.weights {
        let place = plan.place_of(&flat(&case.graph, *storage));
        put(&mut machine, &place, &Contents::Floats(values.clone()));
    }
    for stage in [Stage::Refresh, Stage::Begin] {
        machine.run(gpu.device, &plan, stage.id(), 0, 0);
    }
    for (value, contents) in &case.inputs {
        put_input(&mut machine, &plan.place(*value), contents);
    }
    let mut run = |count: usize| {
        for _ in 0..count {
            machine.run(gpu.device, &plan, Stage::ForwardBackward.id(), 0, 0);
        }
        machine.wait().unwrap();
    };
    run(3);
    let start = Instant::now();
    run(RUNS);
    start.elapsed().as_secs_f64() / RUNS as f64
}

/// Forward alone, and backward. Gradients of `inputs` are copied to where they are compared: that is taken off.
fn print(
    gpu: &Gpu,
    what: &str,
    inputs: &[[usize; 3]],
    write: impl Fn(&mut Sketch) -> Vec<ValueId>,
) {
    let forward = seconds(gpu, |s| {
        let outputs = write(s);
        s.seen.extend(outputs);
        Vec::new()
    });
    let both = seconds(gpu, &write);
    let copies = seconds(gpu, |s| {
        for dims in inputs {
            let copied = s.constant(dims);
            s.seen.push(copied);
        }
        Vec::new()
    });
    say(&format!(
        "{what}: forward {:.1} us, backward {:.1} us",
        forward * 1e6,
        (both - forward - copies) * 1e6
    ));
}

#[test]
#[ignore = "prints times"]
fn video_times() {
    let Some(gpu) = Gpu::open() else { return };
    if !gpu.supports(Arithmetic::Bf16) {
        return;
    }
    for tile in [64, 128, 320, 512, 1024, 2048] {
        let what = format!("vocabulary loss, 8192 x 512 x 49408, tiles of {tile}");
        let [b, t, d, v] = [128, 64, 512, 49_408];
        print(&gpu, &what, &[[b, t, d]], |s| {
            let x_btd = s.input(&[b, t, d]);
            let weight_vd = s.parameter(&[v, d]);
            let labels: Vec<i64> = (0..b * t).map(|_| s.random.below(v) as i64).collect();
            let labels_bt = s.indices(&[b, t], &labels);
            let token_weights_bt = s.full_constant(&[b, t], &vec![1.0; b * t]);
            let weights_b = s.full_constant(&[b], &vec![1.0; b]);
            let sum = s.total();
            s.graph.vocabulary_loss_into(
                "loss",
                x_btd,
                weight_vd,
                labels_bt,
                token_weights_bt,
                weights_b,
                sum,
                0.0,
                tile,
            );
            vec![sum]
        });
    }
    for [b, t, keys, heads] in [
        [128, 64, 400, 8],
        [16, 64, 400, 8],
        [128, 32, 400, 8],
        [32, 512, 512, 12],
        [128, 64, 64, 8],
    ] {
        let what = format!("attention, {b} samples, {t} queries, {keys} keys, {heads} heads of 64");
        let d = heads * 64;
        print(&gpu, &what, &[[b, t, d], [b, keys, 2 * d]], |s| {
            let q_btd = s.input(&[b, t, d]);
            let kv_bsd = s.input(&[b, keys, 2 * d]);
            let [k, v] = [0, d].map(|start| s.graph.columns(kv_bsd, start, d));
            vec![s.graph.attention("o", [q_btd, k, v], None, heads, false)]
        });
    }
    for [r, l] in [[128, 64], [512, 64], [128, 256]] {
        let what = format!("cached attention, {r} rows, last of {l} steps, 8 heads of 64");
        let time = seconds(&gpu, |s| {
            let d = 512;
            let caches = ["keys", "values"].map(|name| s.cache(name, &[r, l, d]));
            let qkv = s.constant(&[r, 1, 3 * d]);
            let parts = [0, d, 2 * d].map(|start| s.graph.columns(qkv, start, d));
            let ancestors: Vec<i64> = (0..r * l).map(|_| s.random.below(r) as i64).collect();
            let ancestors_rl = s.indices(&[r, l], &ancestors);
            let position_1 = s.indices(&[1], &[l as i64 - 1]);
            let o = s
                .graph
                .cached_attention("o", parts, ancestors_rl, position_1, caches, 8);
            s.seen.push(o);
            Vec::new()
        });
        say(&format!("{what}: {:.1} us", time * 1e6));
    }
    for count in [1, 8, 32] {
        let time = seconds(&gpu, |s| {
            let [r, v] = [128, 49_408];
            let logits = s.numbers(r * v, 8.0);
            let logits_rv = s.full_constant(&[r, v], &logits);
            let banned_rm = s.indices(&[r, 4], &vec![-1; r * 4]);
            let results =
                [&[r, count][..], &[r, count], &[r]].map(|dims| s.graph.statistic("top", dims));
            s.graph
                .top_tokens_into("top", logits_rv, banned_rm, results);
            s.seen.extend(results);
            Vec::new()
        });
        say(&format!(
            "top {count} of 49408 tokens, 128 rows: {:.1} us",
            time * 1e6
        ));
    }
}
