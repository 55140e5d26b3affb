//! Whole steps: random stacks of layers over micro-batches and slots, and what must hold for any step.

use holdall_device::{Arithmetic, Machine, cuda};
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::update::{AdamW, AdamWParameter, GradientNorm, MomentFormat};
use holdall_graph::{DType, Decay, Output, Role, Section, StorageId, ValueId};
use holdall_plan::{Recompute, RecomputePolicy, Stage};

use super::guards::guard_tensors;
use super::harness::{ALL, Gpu, assert_close, assert_close_above, assert_same_bits, get};
use super::recipes::{Kind, Layer, Recipe, Step, VOCABULARY, write_step};
use super::step::{Contents, Outcome, flat, norm};

const NUM_RECIPES: u64 = 16;

/// All tensors as one: a deep stack adds up the rounding of its layers, and single numbers may be next to nothing.
fn merged(outcome: &Outcome) -> Outcome {
    let tensors = outcome
        .0
        .iter()
        .flat_map(|(_, values)| values.iter().copied());
    Outcome(vec![("everything".to_owned(), tensors.collect())])
}

fn is_gradient(step: &Step, name: &str) -> bool {
    let mut storages = step.graph.storages().iter();
    storages.any(|storage| storage.role == Role::Gradient && storage.name == name)
}

/// A gradient of next to nothing is a sum that cancels, and off by the rounding of its terms. As in a certificate, its error
/// is relative to `1e-3 |r_all| / sqrt(P)`, of all `P` gradients together.
fn least_gradient(step: &Step, expected: &Outcome) -> f64 {
    let gradients = (expected.0.iter()).filter(|(name, _)| is_gradient(step, name));
    let sizes: Vec<f64> = gradients
        .map(|(_, values)| norm(values.iter().copied()))
        .collect();
    1e-3 * norm(sizes.iter().copied()) / (sizes.len() as f64).sqrt()
}

#[test]
fn random_steps_agree_with_the_cpu() {
    let Some(gpu) = Gpu::open() else { return };
    for seed in 0..NUM_RECIPES {
        let recipe = Recipe::draw(seed);
        for &arithmetic in ALL {
            if !gpu.supports(arithmetic) {
                continue;
            }
            let format = arithmetic.compute();
            let step = write_step(&recipe, [format; 2]);
            let policy = RecomputePolicy::uniform(Recompute::None, step.graph.blocks().len());
            let expected = write_step(&recipe, [DType::F32, format]).on_cpu(&policy, 0);
            let found = step.on_gpu(&gpu, arithmetic, &policy, 0);
            let what = format!("recipe {seed}, {}", arithmetic.name());
            println!("{recipe:?}");
            match arithmetic {
                Arithmetic::F32 => {
                    let least = least_gradient(&step, &expected);
                    let least_size = |name: &str, _| match name {
                        // A sum over all pairs of terms of the order of one, which cancel.
                        "scale.grad" => least.max(1e-2),
                        name if is_gradient(&step, name) => least,
                        _ => 0.0,
                    };
                    assert_close_above(&expected, &found, 1e-4, least_size, &what);
                }
                // Operations are held to their formats one by one; this would see what is plainly wrong.
                _ => assert_close(&merged(&expected), &merged(&found), 0.3, &what),
            }
        }
    }
}

/// All recipes on a card; two on the software card, which its seed chooses.
fn recipes(gpu: &Gpu) -> std::ops::Range<u64> {
    if !gpu.is_software() {
        return 0..NUM_RECIPES;
    }
    let seed = std::env::var("HOLDALL_SOFTWARE_GPU_SEED");
    let seed: u64 = seed.map_or(1, |seed| seed.parse().expect("a number"));
    let first = 2 * seed % NUM_RECIPES;
    first..first + 2
}

#[test]
fn what_is_kept_and_what_is_made_again_changes_no_bit() {
    let Some(gpu) = Gpu::open() else { return };
    for seed in recipes(&gpu) {
        let recipe = Recipe::draw(seed);
        for arithmetic in [Arithmetic::F32, gpu.device.best_arithmetic()] {
            let step = write_step(&recipe, [arithmetic.compute(); 2]);
            let num_blocks = step.graph.blocks().len();
            let all = [Recompute::None, Recompute::Cheap, Recompute::Blocks]
                .map(|recompute| RecomputePolicy::uniform(recompute, num_blocks));
            let mut expected = step.on_gpu(&gpu, arithmetic, &all[0], 0);
            for policy in &all {
                for kept in 0..=recipe.accumulation {
                    let mut found = step.on_gpu(&gpu, arithmetic, policy, kept);
                    // Slots change the order in which micro-batches add to it.
                    for outcome in [&mut expected, &mut found] {
                        outcome.0.retain(|(name, _)| name != "label sum");
                    }
                    let what = format!("recipe {seed}, {policy:?}, {kept} kept");
                    assert_same_bits(&expected, &found, &what);
                }
            }
        }
    }
}

/// A step with something in every program: an optimizer, and forward programs of evaluation.
fn write_full_step(compute: DType) -> (Step, ValueId) {
    let recipe = Recipe {
        batch: 3,
        tokens: 20,
        heads: 2,
        head_width: 32,
        accumulation: 3,
        frozen_embedding: false,
        gather: true,
        layers: [
            Kind::Norm,
            Kind::Attention { causal: true },
            Kind::Mlp(Activation::Gelu),
        ]
        .map(|kind| Layer {
            kind,
            frozen: false,
        })
        .to_vec(),
    };
    let mut step = write_step(&recipe, [compute; 2]);
    let g = &mut step.graph;
    let schedule = g.input("schedule", &[4], DType::F32);
    let numbers = vec![1.0, 10.0, 50.0, 1e-3];
    step.inputs
        .push((schedule, vec![Contents::Floats(numbers)]));
    g.enter(Section::Update);
    let norm = g.tensor("norm", &[2], DType::F32, Role::Feature);
    let (mut operands, mut outputs, mut parameters) = (vec![schedule, norm], vec![], vec![]);
    for parameter in g.parameters().to_vec() {
        let gradient = g.parameter_gradient(&parameter).unwrap();
        operands.push(g.add_value(gradient));
        outputs.push(Output::overwrite(parameter.value));
        let shape = g.shape(parameter.value);
        for moment in ["m", "v"] {
            let state = g.tensor(moment, shape.dims(), DType::F32, Role::Optimizer);
            let zeros = vec![0.0; shape.num_elements()];
            step.weights.push((g.value(state).storage, zeros));
            outputs.push(Output::overwrite(state));
        }
        let copy = g.parameter_copy(&parameter).map(|copy| g.add_value(copy));
        outputs.extend(copy.map(Output::overwrite));
        parameters.push(AdamWParameter {
            weight_decay: 0.1,
            rate: 0,
            maximum: None,
            moments: MomentFormat::F32,
            copy: copy.is_some(),
        });
    }
    g.push_new(GradientNorm {}, operands[2..].to_vec(), &[norm]);
    let operation = AdamW {
        beta1: 0.9,
        beta2: 0.98,
        eps: 1e-6,
        clip_norm: Some(1.0),
        average_decay: None,
        parameters,
    };
    g.push(operation, operands, outputs);
    for name in ["first", "second"] {
        g.forward_program(name, |g| {
            let [ids_bt, end_b] = [step.inputs[0].0, step.inputs[2].0];
            let table = g.parameter("table", &[VOCABULARY, 64], Decay::Yes);
            let positions = g.parameter("positions", &[20, 64], Decay::Yes);
            let x_btd = g.embedding("tokens", ids_bt, table, positions, None);
            let pooled = g.gather_rows("pooled", x_btd, end_b);
            let weight = g.parameter("left.w", &[72, 64], Decay::Yes);
            let projected = g.linear("left", pooled, weight, None, None);
            let features = g.tensor("evaluated", &[3, 72], DType::F32, Role::Feature);
            g.normalize_into("left", projected, features);
        });
    }
    (step, norm)
}

#[test]
fn nothing_is_allocated_once_a_machine_is_made() {
    let Some(gpu) = Gpu::open() else { return };
    for &arithmetic in ALL {
        if !gpu.supports(arithmetic) {
            continue;
        }
        let (step, norm) = write_full_step(arithmetic.compute());
        let policy = RecomputePolicy::uniform(Recompute::Cheap, step.graph.blocks().len());
        let plan = gpu.plan(&step.graph, &policy, arithmetic, [2, step.accumulation]);
        let mut machine = Machine::new(gpu.device, &plan, arithmetic).unwrap();
        guard_tensors(&plan);
        for program in &plan.programs {
            let may_be_empty = matches!(program.stage, Stage::Refresh | Stage::Reduce);
            assert!(
                !program.instructions.is_empty() || may_be_empty,
                "{}",
                program.name
            );
        }
        step.write_weights(&plan, &mut machine);
        let before = cuda::allocations();
        for _ in 0..20 {
            let mut runs = step.schedule(&plan);
            runs.insert(0, (Stage::Refresh, 0, 0));
            let others = [Stage::Update, Stage::Forward(0), Stage::Forward(1)];
            runs.extend(others.map(|stage| (stage, 0, 0)));
            for (stage, micro, slot) in runs {
                step.write_inputs(&plan, &mut machine, micro);
                machine.run(gpu.device, &plan, stage.id(), micro, slot);
            }
            let norm = get(&machine, &plan.place(norm));
            assert!(norm[0] > 0.0 && norm[1] == 1.0, "{norm:?}");
        }
        machine.wait().unwrap();
        assert_eq!(cuda::allocations(), before, "{}", arithmetic.name());
    }
}

#[test]
fn training_learns_the_labels_and_is_the_same_twice() {
    let Some(gpu) = Gpu::open() else { return };
    for &arithmetic in ALL {
        if !gpu.supports(arithmetic) {
            continue;
        }
        let (step, _) = write_full_step(arithmetic.compute());
        let policy = RecomputePolicy::uniform(Recompute::None, step.graph.blocks().len());
        let plan = gpu.plan(&step.graph, &policy, arithmetic, [1, step.accumulation]);
        let sum = |machine: &Machine| -> f64 {
            let storages = (0..step.graph.storages().len()).map(StorageId);
            let mut sums = storages.filter(|&id| step.graph.storage(id).name.ends_with(" sum"));
            let values = [sums.next().unwrap(), sums.next().unwrap()];
            let values = values.map(|id| get(machine, &plan.place_of(&flat(&step.graph, id)))[0]);
            values.iter().sum()
        };
        let train = || -> Vec<f64> {
            let mut machine = Machine::new(gpu.device, &plan, arithmetic).unwrap();
            guard_tensors(&plan);
            step.write_weights(&plan, &mut machine);
            machine.run(gpu.device, &plan, Stage::Refresh.id(), 0, 0);
            let steps = 0..20;
            steps
                .map(|_| {
                    let mut runs = step.schedule(&plan);
                    runs.push((Stage::Update, 0, 0));
                    for (stage, micro, slot) in runs {
                        step.write_inputs(&plan, &mut machine, micro);
                        machine.run(gpu.device, &plan, stage.id(), micro, slot);
                    }
                    machine.wait().unwrap();
                    sum(&machine)
                })
                .collect()
        };
        let [first, second] = [train(), train()];
        println!("{}: {first:?}", arithmetic.name());
        assert_eq!(first, second, "{}", arithmetic.name());
        assert!(first[19] < 0.9 * first[0], "{}", arithmetic.name());
    }
}
