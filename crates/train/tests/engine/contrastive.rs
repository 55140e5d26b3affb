//! The contrastive loss in tiles, far beyond what could be held densely.

use holdall_device::cpu::{Arena, Cpu, CpuTarget};
use holdall_graph::ops::fill::Fill;
use holdall_graph::{DType, Decay, Graph, Role, Section, ValueId, backward_into};
use holdall_models::init::Draw;
use holdall_plan::{Recompute, RecomputePolicy, Stage, StepPlan, lifetimes_of};

struct Loss {
    plan: StepPlan,
    features: [ValueId; 2],
    gradients: [ValueId; 2],
    weights: ValueId,
    seed: ValueId,
    sum: ValueId,
    logit_scale: ValueId,
}

fn plan_loss(rows: usize, width: usize, tile: usize) -> Loss {
    let mut g = Graph::new(DType::F32);
    let tensor =
        |g: &mut Graph, name: &str| g.tensor(name, &[rows, width], DType::F32, Role::Feature);
    let features = ["image", "text"].map(|name| tensor(&mut g, name));
    let gradients = ["dimage", "dtext"].map(|name| tensor(&mut g, name));
    let weights = g.input("weights", &[rows], DType::F32);
    let seed = g.input("seed", &[1], DType::F32);
    let sum = g.tensor("sum", &[1], DType::F32, Role::Feature);
    let logit_scale = g.parameter("logit_scale", &[], Decay::No);
    g.enter(Section::Loss);
    let storage = g.value(logit_scale).storage;
    let gradient = g.weight_gradient(storage);
    let all = g.add_value(holdall_graph::Value::whole(
        gradient,
        holdall_graph::Shape::new(&[1]),
    ));
    g.push_new(Fill { value: 0.0 }, Vec::new(), &[all]);
    g.push_new(Fill { value: 0.0 }, Vec::new(), &[sum]);
    g.contrastive_into(features, weights, logit_scale, sum, tile);
    let targets = [(features[0], gradients[0]), (features[1], gradients[1])];
    backward_into(
        &mut g,
        Section::Loss,
        Section::Loss,
        &[(sum, seed)],
        &targets,
    );
    let target = CpuTarget::new(2).with_baseline(0);
    let plan = lifetimes_of(&g, &RecomputePolicy::uniform(Recompute::None, 0), &target)
        .pack()
        .plan(0, 1);
    Loss {
        plan,
        features,
        gradients,
        weights,
        seed,
        sum,
        logit_scale,
    }
}

struct Outcome {
    sum: f32,
    gradients: [Vec<f32>; 2],
    dscale: f32,
}

fn run(loss: &Loss, padding: usize, seed: u64) -> Outcome {
    let cpu = Cpu::new(Some(2));
    let mut arena = Arena::new(loss.plan.arena_bytes).unwrap();
    let rows = loss.plan.graph.shape(loss.features[0]).rows();
    for (index, &value) in loss.features.iter().enumerate() {
        let place = loss.plan.place(value);
        let width = place.shape.width();
        let mut draw = Draw::new(seed, if index == 0 { "image" } else { "text" });
        for row in arena.write::<f32>(&place, 0).chunks_mut(width) {
            let numbers: Vec<f64> = (0..width).map(|_| draw.normal()).collect();
            let norm = numbers.iter().map(|x| x * x).sum::<f64>().sqrt();
            for (out, number) in row.iter_mut().zip(numbers) {
                *out = (number / norm) as f32;
            }
        }
    }
    let weights = arena.write::<f32>(&loss.plan.place(loss.weights), 0);
    weights.fill(1.0);
    weights[rows - padding..].fill(0.0);
    arena.write::<f32>(&loss.plan.place(loss.seed), 0)[0] = 1.0 / (rows - padding) as f32;
    arena.write::<f32>(&loss.plan.place(loss.logit_scale), 0)[0] = 3.5;
    cpu.run(loss.plan.program(Stage::Loss), &mut arena, 0, 0);
    let parameter = &loss.plan.graph.parameters()[0];
    let dscale = loss.plan.graph.parameter_gradient(parameter).unwrap();
    Outcome {
        sum: arena.read::<f32>(&loss.plan.place(loss.sum), 0)[0],
        gradients: loss
            .gradients
            .map(|value| arena.read::<f32>(&loss.plan.place(value), 0).to_vec()),
        dscale: arena.read::<f32>(&loss.plan.place_of(&dscale), 0)[0],
    }
}

fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    norm(&mut pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)))
        / norm(&mut expected.iter().map(|&b| f64::from(b)))
}

#[test]
fn tiles_give_the_dense_result() {
    for (rows, tile, padding) in [(700, 256, 0), (1500, 512, 37), (300, 64, 299)] {
        let tiled = run(&plan_loss(rows, 64, tile), padding, 1);
        let dense = run(&plan_loss(rows, 64, rows), padding, 1);
        assert!((tiled.sum / dense.sum - 1.0).abs() < 1e-5 || dense.sum.abs() < 1e-3);
        if padding + 1 < rows {
            for (tiled, dense) in tiled.gradients.iter().zip(&dense.gradients) {
                assert!(relative(tiled, dense) < 1e-5);
            }
            assert!((tiled.dscale / dense.dscale - 1.0).abs() < 1e-4);
        }
        for gradient in &tiled.gradients {
            assert!(
                gradient[(rows - padding) * 64..]
                    .iter()
                    .all(|&value| value == 0.0)
            );
        }
    }
}

/// Beside features and their gradients (64 MiB each way) there are two tiles and a few vectors.
#[test]
fn at_32768_by_32768_the_logits_are_never_held() {
    let (rows, width) = (32_768, 512);
    let loss = plan_loss(
        rows,
        width,
        holdall_graph::ops::contrastive::CONTRASTIVE_TILE,
    );
    let features = 2 * (rows * width * 4) as u64;
    let beside = loss.plan.arena_bytes - features;
    println!(
        "arena {} bytes, {beside} beside the features (gradients included)",
        loss.plan.arena_bytes
    );
    assert!(beside + loss.plan.library_bytes < 512 << 20, "{beside}");
    // Running it takes 4.4 TFLOP; a sixteenth of the rows runs here, the whole with HOLDALL_FULL_SIZE=1.
    let rows = match std::env::var_os("HOLDALL_FULL_SIZE") {
        Some(_) => rows,
        None => rows / 16,
    };
    let loss = plan_loss(
        rows,
        width,
        holdall_graph::ops::contrastive::CONTRASTIVE_TILE,
    );
    let before = holdall_device::cpu::peak_resident_bytes();
    let outcome = run(&loss, 0, 2);
    println!(
        "{rows} rows: loss {}, peak resident {before:?} -> {:?}",
        outcome.sum / rows as f32,
        holdall_device::cpu::peak_resident_bytes()
    );
    // Random features at scale exp(3.5) = 33 in 512 dimensions: scores are nearly normal with a standard deviation of
    // 33 / sqrt(512), so the loss is near ln(rows) + variance / 2.
    let expected = (rows as f64).ln() + 0.5 * (3.5f64.exp().powi(2) / width as f64);
    assert!(
        (f64::from(outcome.sum) / rows as f64 - expected).abs() < 0.1,
        "{expected}"
    );
    assert!(
        outcome
            .gradients
            .iter()
            .flatten()
            .all(|value| value.is_finite())
    );
}
