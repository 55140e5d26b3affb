//! Gradient norm and AdamW against a few lines of plain arithmetic.

use holdall_device::cpu::Arena;
use holdall_graph::ops::update::{AdamW, AdamWParameter, GradientNorm, MomentFormat};
use holdall_graph::{DType, Decay, Graph, Output, Role, Section, StorageId};
use holdall_plan::{Recompute, RecomputePolicy, Stage};

use super::gradient_check::cpu;
use super::step::{Contents, Kept, Outcome, Planned, Random, Step, flat, norm, write};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.98;
const EPS: f64 = 1e-6;
const MAXIMUM: f64 = 0.25;

/// What sets a run apart.
#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    clip_norm: Option<f64>,
    loss_scale: f64,
    step: i32,
    /// Put into one element of one gradient.
    spoiled: Option<f64>,
}

const PLAIN: Case = Case {
    dtype: DType::F64,
    clip_norm: None,
    loss_scale: 1.0,
    step: 1,
    spoiled: None,
};

/// Name, decay coefficient, rate index, maximum; in the order of the graph's parameters.
const PARAMETERS: [(&str, f64, usize, Option<f64>); 4] = [
    ("matrix", 0.1, 0, None), // more elements than one task takes
    ("q", 0.1, 1, None),
    ("k", 0.0, 1, None),
    ("scale", 0.0, 0, Some(MAXIMUM)),
];
const RATES: [f64; 2] = [1e-2, 3e-2];

struct Update {
    step: Step,
    gradients: Vec<(StorageId, Vec<f64>)>,
}

fn write_update(case: Case) -> Update {
    let mut random = Random(5);
    let mut g = Graph::new(case.dtype);
    g.parameter("matrix", &[170, 101], Decay::Yes);
    let packed = [("q".to_owned(), vec![3, 5]), ("k".to_owned(), vec![2, 5])];
    g.packed_parameters(&packed, Decay::Yes);
    g.parameter("scale", &[], Decay::No);
    let corrections = [BETA1, BETA2].map(|beta| 1.0 / (1.0 - beta.powi(case.step)));
    let mut schedule = vec![1.0 / case.loss_scale];
    schedule.extend(corrections);
    schedule.extend(RATES);
    let input = g.input("schedule", &[5], case.dtype);
    let inputs = vec![(input, vec![Contents::Floats(schedule)])];
    g.enter(Section::Update);
    let norm = g.tensor("norm", &[2], case.dtype, Role::Feature);
    let mut outputs = Vec::new();
    let mut gradients = Vec::new();
    for parameter in g.parameters().to_vec() {
        let storage = g.value(parameter.value).storage;
        g.weight_gradient(storage);
        let gradient = g.parameter_gradient(&parameter).unwrap();
        gradients.push(g.add_value(gradient));
        outputs.push(Output::overwrite(parameter.value));
        let shape = g.shape(parameter.value);
        for moment in ["m", "v"] {
            let name = format!("{}.{moment}", parameter.name);
            let state = g.tensor(name, shape.dims(), case.dtype, Role::Optimizer);
            outputs.push(Output::overwrite(state));
        }
    }
    g.push_new(GradientNorm {}, gradients.clone(), &[norm]);
    let operation = AdamW {
        beta1: BETA1,
        beta2: BETA2,
        eps: EPS,
        clip_norm: case.clip_norm,
        average_decay: None,
        parameters: PARAMETERS
            .map(|(_, weight_decay, rate, maximum)| AdamWParameter {
                weight_decay,
                rate,
                maximum,
                moments: MomentFormat::F32,
                copy: false,
            })
            .to_vec(),
    };
    let operands = [input, norm].into_iter().chain(gradients);
    g.push(operation, operands.collect(), outputs);
    let mut step = Step::new(g, inputs, &mut random, 1.0);
    for (storage, values) in &mut step.initial {
        let name = step.graph.storage(*storage).name.as_str();
        match name {
            "scale" => values[0] = MAXIMUM - 1e-4,
            _ if name.ends_with(".m") => values.fill_with(|| 0.1 * random.uniform()),
            _ if name.ends_with(".v") => values.fill_with(|| 0.01 * random.uniform().abs()),
            _ => {}
        }
        if case.dtype == DType::F32 {
            values
                .iter_mut()
                .for_each(|value| *value = f64::from(*value as f32));
        }
    }
    let storages = (0..step.graph.storages().len()).map(StorageId);
    let mut gradients: Vec<(StorageId, Vec<f64>)> = storages
        .filter(|&id| step.graph.storage(id).role == Role::Gradient)
        .map(|id| {
            let storage = step.graph.storage(id);
            let mut draw = || f64::from((case.loss_scale * random.uniform()) as f32);
            let mut values: Vec<f64> = (0..storage.num_elements).map(|_| draw()).collect();
            if storage.name == "scale.grad" {
                values[0] = -case.loss_scale; // up, against the bound
            }
            (id, values)
        })
        .collect();
    if let Some(spoiled) = case.spoiled {
        gradients[0].1[17_000] = spoiled;
    }
    Update { step, gradients }
}

impl Update {
    fn run(&self) -> Outcome {
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let planned = Planned::new(&self.step.graph, policy, Kept::First(0), 1, 2);
        let plan = &planned.plan;
        let mut arena = Arena::new(plan.arena_bytes).unwrap();
        self.step.write_initial(plan, &mut arena);
        self.step.write_inputs(plan, &mut arena, 0);
        for (storage, values) in &self.gradients {
            let place = plan.place_of(&flat(&self.step.graph, *storage));
            write(&mut arena, &place, &Contents::Floats(values.clone()));
        }
        cpu().run(plan.program(Stage::Update), &mut arena, 0, 0);
        self.step.outcome(plan, &arena)
    }

    fn initial(&self, name: &str) -> &[f64] {
        let graph = &self.step.graph;
        let mut initial = self.step.initial.iter();
        let found = initial.find(|(id, _)| graph.storage(*id).name == name);
        &found.unwrap().1
    }

    fn gradient_norm(&self) -> f64 {
        norm(
            self.gradients
                .iter()
                .flat_map(|(_, values)| values.iter().copied()),
        )
    }
}

/// As PyTorch documents it; returns weight, m, v.
fn reference(update: &Update, case: Case, index: usize) -> [Vec<f64>; 3] {
    let (name, weight_decay, rate, maximum) = PARAMETERS[index];
    let graph = &update.step.graph;
    let parameter = &graph.parameters()[index];
    let value = graph.value(parameter.value);
    let range = value.offset..value.offset + value.shape.num_elements();
    let weights = &update.initial(&graph.storage(value.storage).name)[range.clone()];
    let gradient = graph.parameter_gradient(parameter).unwrap().storage;
    let gradients = update
        .gradients
        .iter()
        .find(|(id, _)| *id == gradient)
        .unwrap();
    let norm = update.gradient_norm() / case.loss_scale;
    let clip = case
        .clip_norm
        .map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
    let mut result = [Vec::new(), Vec::new(), Vec::new()];
    let state = ["m", "v"].map(|moment| update.initial(&format!("{name}.{moment}")));
    for (element, &weight) in weights.iter().enumerate() {
        let g = gradients.1[range.start + element] / case.loss_scale * clip;
        let m = BETA1 * state[0][element] + (1.0 - BETA1) * g;
        let v = BETA2 * state[1][element] + (1.0 - BETA2) * g * g;
        let m_hat = m / (1.0 - BETA1.powi(case.step));
        let v_hat = v / (1.0 - BETA2.powi(case.step));
        let decayed = weight - RATES[rate] * weight_decay * weight;
        let moved = decayed - RATES[rate] * m_hat / (v_hat.sqrt() + EPS);
        result[0].push(maximum.map_or(moved, |maximum| moved.min(maximum)));
        result[1].push(m);
        result[2].push(v);
    }
    result
}

fn compare(case: Case) {
    let update = write_update(case);
    let outcome = update.run();
    let tolerance = match case.dtype {
        DType::F64 => 1e-13,
        _ => 1e-6,
    };
    let expected = update.gradient_norm();
    assert!((outcome.of("norm")[0] / expected - 1.0).abs() < tolerance);
    assert_eq!(outcome.of("norm")[1], 1.0);
    let graph = &update.step.graph;
    for (index, (name, ..)) in PARAMETERS.iter().enumerate() {
        let value = graph.value(graph.parameters()[index].value);
        let range = value.offset..value.offset + value.shape.num_elements();
        let weights = &outcome.of(&graph.storage(value.storage).name)[range];
        let [m, v] = ["m", "v"].map(|moment| outcome.of(&format!("{name}.{moment}")));
        for (found, expected) in [weights, m, v]
            .into_iter()
            .zip(reference(&update, case, index))
        {
            assert_eq!(found.len(), expected.len());
            let difference = norm(found.iter().zip(&expected).map(|(a, b)| a - b));
            let error = difference / norm(expected.into_iter());
            assert!(error < tolerance, "{name}: {error:e}");
        }
    }
    if case.clip_norm.is_none() {
        assert_eq!(outcome.of("scale")[0], MAXIMUM);
    }
}

#[test]
fn adamw_as_written_down_with_and_without_clipping() {
    for dtype in [DType::F64, DType::F32] {
        for clip_norm in [None, Some(1.0), Some(1e4)] {
            for step in [1, 100] {
                compare(Case {
                    dtype,
                    clip_norm,
                    step,
                    ..PLAIN
                });
            }
        }
    }
}

#[test]
fn the_loss_scale_is_divided_out_before_the_norm_is_clipped() {
    compare(Case {
        clip_norm: Some(2.0),
        loss_scale: 1024.0,
        ..PLAIN
    });
    compare(Case {
        clip_norm: Some(1e3), // above the norm of 76, far below the scaled one
        loss_scale: 1024.0,
        ..PLAIN
    });
}

#[test]
fn a_gradient_that_is_not_finite_leaves_weights_and_state_as_they_were() {
    for dtype in [DType::F64, DType::F32] {
        for spoiled in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let update = write_update(Case {
                dtype,
                clip_norm: Some(1.0),
                spoiled: Some(spoiled),
                ..PLAIN
            });
            let outcome = update.run();
            assert_eq!(outcome.of("norm")[1], 0.0, "{spoiled} in {dtype:?}");
            for (storage, values) in &update.step.initial {
                let name = &update.step.graph.storage(*storage).name;
                for (found, expected) in outcome.of(name).iter().zip(values) {
                    assert_eq!(found.to_bits(), expected.to_bits(), "{name}");
                }
            }
        }
    }
}
