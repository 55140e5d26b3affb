//! Gradient norm and AdamW over several steps, against the CPU; copies of weights against the weights.

use holdall_device::cpu::CpuTarget;
use holdall_device::{Arithmetic, Device, Machine};
use holdall_graph::ops::update::{AdamW, AdamWParameter, GradientNorm, MOMENT_BLOCK, MomentFormat};
use holdall_graph::{DType, Decay, Graph, Output, Role, Section, StorageId, Value, ValueId};
use holdall_plan::{Recompute, RecomputePolicy, Stage, StepPlan, lifetimes_of};

use super::guards::guard_tensors;
use super::harness::{
    FORMATS, Gpu, assert_close, assert_same_bits, cpu, get, put, put_input, rounded,
};
use super::step::{Contents, Outcome, Random, flat};

const BETAS: [f64; 2] = [0.9, 0.98];
const RATES: [f64; 2] = [1e-2, 3e-2];
const MAXIMUM: f64 = 0.25;
const NUM_STEPS: usize = 4;
/// Everything is f32 whatever the activations are.
const TOLERANCE: f64 = 1e-5;

/// What sets a run apart.
#[derive(Clone, Copy, Debug)]
struct Kind {
    clip_norm: Option<f64>,
    loss_scale: f64,
    /// Put into one element of one gradient, at one step.
    spoiled: Option<(usize, f64)>,
    moments: MomentFormat,
    average_decay: Option<f64>,
}

const PLAIN: Kind = Kind {
    clip_norm: None,
    loss_scale: 1.0,
    spoiled: None,
    moments: MomentFormat::F32,
    average_decay: None,
};

/// Moments in fewer bits, with an average along.
fn in_fewer_bits() -> [Kind; 2] {
    [MomentFormat::Bf16, MomentFormat::EightBit].map(|moments| Kind {
        moments,
        average_decay: Some(0.75),
        clip_norm: Some(1.0),
        ..PLAIN
    })
}

/// A graph that updates, and what goes into it.
struct Update {
    graph: Graph,
    schedule: ValueId,
    norm: Value,
    /// Weights and moments, with what they start at.
    state: Vec<(StorageId, Vec<f64>)>,
    gradients: Vec<StorageId>,
    /// Weight and copy of each parameter that has one.
    copies: Vec<[Value; 2]>,
}

/// Parameters with copies, which products read, and others of sizes that nothing divides.
fn write_parameters(g: &mut Graph) {
    let x_ni = g.input("x", &[8, 104], g.compute());
    let matrix = g.parameter("matrix", &[168, 104], Decay::Yes); // more elements than two blocks take
    let packed = [
        ("q".to_owned(), vec![8, 104]),
        ("k".to_owned(), vec![16, 104]),
    ];
    let packed = g.packed_parameters(&packed, Decay::Yes);
    let biases = [
        ("q.bias".to_owned(), vec![8]),
        ("k.bias".to_owned(), vec![16]),
    ];
    let bias = g.packed_parameters(&biases, Decay::No);
    g.linear("y", x_ni, matrix, None, None);
    g.linear("z", x_ni, packed, Some(bias), None);
    for (name, dims) in [
        ("odd", vec![171, 101]),
        ("whole blocks", vec![2, 8192]),
        ("three", vec![3]),
        ("one", vec![1]),
        ("scale", vec![]),
    ] {
        g.parameter(name, &dims, Decay::No);
    }
    let mut number = 0;
    g.configure_parameters(|parameter| {
        parameter.rate = number % RATES.len();
        number += 1;
        parameter.maximum = (parameter.name == "scale").then_some(MAXIMUM);
    });
}

fn write_update(compute: DType, kind: Kind) -> Update {
    let mut g = Graph::new(compute);
    write_parameters(&mut g);
    // The number of the step behind the rates.
    let schedule = g.input("schedule", &[4 + RATES.len()], DType::F32);
    let norm = g.tensor("norm", &[2], DType::F32, Role::Feature);
    g.enter(Section::Update);
    let (mut operands, mut outputs) = (vec![schedule, norm], Vec::new());
    let (mut parameters, mut copies) = (Vec::new(), Vec::new());
    for parameter in g.parameters().to_vec() {
        g.weight_gradient(g.value(parameter.value).storage);
        let gradient = g.parameter_gradient(&parameter).unwrap();
        operands.push(g.add_value(gradient));
        outputs.push(Output::overwrite(parameter.value));
        let shape = g.shape(parameter.value);
        let mut state = |name: &str, dims: &[usize], dtype| {
            let name = format!("{}.{name}", parameter.name);
            Output::overwrite(g.tensor(name, dims, dtype, Role::Optimizer))
        };
        let moments = match kind.moments {
            MomentFormat::F32 => DType::F32,
            MomentFormat::Bf16 => DType::Bf16,
            MomentFormat::EightBit => DType::U8,
        };
        outputs.extend(["m", "v"].map(|moment| state(moment, shape.dims(), moments)));
        if kind.moments == MomentFormat::EightBit {
            let blocks = [shape.num_elements().div_ceil(MOMENT_BLOCK)];
            outputs.extend(["m.absmax", "v.absmax"].map(|name| state(name, &blocks, DType::F32)));
        }
        let average = kind
            .average_decay
            .map(|_| state("average", shape.dims(), DType::F32));
        let copy = g.parameter_copy(&parameter);
        if let Some(copy) = copy {
            copies.push([*g.value(parameter.value), copy]);
            let copy = g.add_value(copy);
            outputs.push(Output::overwrite(copy));
        }
        outputs.extend(average);
        parameters.push(AdamWParameter {
            weight_decay: if parameter.decay == Decay::Yes {
                0.1
            } else {
                0.0
            },
            rate: parameter.rate,
            maximum: parameter.maximum,
            moments: kind.moments,
            copy: copy.is_some(),
        });
    }
    g.push_new(GradientNorm {}, operands[2..].to_vec(), &[norm]);
    let operation = AdamW {
        beta1: BETAS[0],
        beta2: BETAS[1],
        eps: 1e-6,
        clip_norm: kind.clip_norm,
        average_decay: kind.average_decay,
        parameters,
    };
    g.push(operation, operands, outputs);
    let copied: Vec<StorageId> = copies.iter().map(|[_, copy]| copy.storage).collect();
    let of = |roles: &[Role]| -> Vec<StorageId> {
        let storages = (0..g.storages().len()).map(StorageId);
        storages
            .filter(|id| roles.contains(&g.storage(*id).role) && !copied.contains(id))
            .collect()
    };
    let mut random = Random(5);
    let state = of(&[Role::Weight, Role::Optimizer])
        .into_iter()
        .map(|id| {
            let (name, count) = (&g.storage(id).name, g.storage(id).num_elements);
            let dtype = match g.storage(id).dtype {
                DType::U8 => {
                    let codes = (0..count).map(|_| random.below(256) as f64).collect();
                    return (id, codes);
                }
                dtype => dtype,
            };
            let mut draw = |scale: f64, shift: f64| -> Vec<f64> {
                (0..count)
                    .map(|_| rounded(dtype, scale * random.uniform() + shift))
                    .collect()
            };
            let values = match name.as_str() {
                "scale" => draw(0.0, MAXIMUM - 1e-4),
                name if name.ends_with(".m") => draw(0.1, 0.0),
                name if name.ends_with(".v") || name.ends_with(".absmax") => draw(0.01, 0.01),
                _ => draw(1.0, 0.0),
            };
            (id, values)
        })
        .collect();
    Update {
        norm: *g.value(norm),
        gradients: of(&[Role::Gradient]),
        state,
        copies,
        schedule,
        graph: g,
    }
}

impl Update {
    /// A few steps; what is left of weights, state and norm after each.
    fn run(
        &self,
        kind: Kind,
        device: &Device,
        plan: &StepPlan,
        arithmetic: Arithmetic,
    ) -> Vec<Outcome> {
        let mut machine = Machine::new(device, plan, arithmetic).unwrap();
        if device.is_gpu() {
            guard_tensors(plan);
        }
        for (storage, values) in &self.state {
            let place = plan.place_of(&flat(&self.graph, *storage));
            let contents = match place.dtype {
                DType::U8 => Contents::Bytes(values.iter().map(|&code| code as u8).collect()),
                _ => Contents::Floats(values.clone()),
            };
            put(&mut machine, &place, &contents);
        }
        machine.run(device, plan, Stage::Refresh.id(), 0, 0);
        let mut random = Random(6);
        let steps = 1..=NUM_STEPS;
        steps
            .map(|step| {
                let mut gradients = self.draw_gradients(kind, &mut random);
                if let Some((_, spoiled)) = kind.spoiled.filter(|(at, _)| *at == step) {
                    // The last element of an odd tensor: of the rest that no access of four takes.
                    gradients[3].1[171 * 101 - 1] = spoiled;
                }
                for (storage, values) in gradients {
                    let place = plan.place_of(&flat(&self.graph, storage));
                    put(&mut machine, &place, &Contents::Floats(values));
                }
                let mut schedule = vec![1.0 / kind.loss_scale];
                schedule.extend(BETAS.map(|beta| 1.0 / (1.0 - beta.powi(step as i32))));
                schedule.extend(RATES);
                schedule.push(step as f64);
                let place = plan.place(self.schedule);
                put_input(&mut machine, &place, &Contents::Floats(schedule));
                machine.run(device, plan, Stage::Update.id(), 0, 0);
                machine.wait().unwrap();
                self.outcome(plan, &machine)
            })
            .collect()
    }

    fn draw_gradients(&self, kind: Kind, random: &mut Random) -> Vec<(StorageId, Vec<f64>)> {
        let storages = self.gradients.iter();
        storages
            .map(|&id| {
                let storage = self.graph.storage(id);
                let mut draw = || rounded(DType::F32, kind.loss_scale * random.uniform());
                let values = match storage.name.as_str() {
                    "scale.grad" => vec![-kind.loss_scale], // up, against the bound
                    _ => (0..storage.num_elements).map(|_| draw()).collect(),
                };
                (id, values)
            })
            .collect()
    }

    /// Weights, moments and norm; copies are exactly the weights, rounded.
    fn outcome(&self, plan: &StepPlan, machine: &Machine) -> Outcome {
        for [weight, copy] in &self.copies {
            let dtype = self.graph.storage(copy.storage).dtype;
            let weights = get(machine, &plan.place_of(weight)).into_iter();
            let weights = weights.map(|value| rounded(dtype, value));
            assert!(weights.eq(get(machine, &plan.place_of(copy))));
        }
        let mut all: Vec<(String, Vec<f64>)> = (self.state.iter())
            .map(|(id, _)| {
                let place = plan.place_of(&flat(&self.graph, *id));
                let name = self.graph.storage(*id).name.clone();
                (name, get(machine, &place))
            })
            .collect();
        all.push(("norm".to_owned(), get(machine, &plan.place_of(&self.norm))));
        Outcome(all)
    }

    fn on_cpu(&self, kind: Kind) -> Vec<Outcome> {
        let target = CpuTarget::new(cpu().cpu().num_threads()).with_baseline(0);
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let plan = lifetimes_of(&self.graph, &policy, &target)
            .pack()
            .plan(0, 1);
        self.run(kind, cpu(), &plan, Arithmetic::F32)
    }

    /// Twice, with the same bits.
    fn on_gpu(&self, kind: Kind, gpu: &Gpu, arithmetic: Arithmetic) -> Vec<Outcome> {
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let plan = gpu.plan(&self.graph, &policy, arithmetic, [0, 1]);
        let [first, second] = [(); 2].map(|()| self.run(kind, gpu.device, &plan, arithmetic));
        for (first, second) in first.iter().zip(&second) {
            assert_same_bits(first, second, &format!("{kind:?}"));
        }
        first
    }
}

/// Numbers within the tolerance. Where moments are rounded, a last digit of f32 may decide between two neighbours: few of them, and
/// weights feel them.
fn assert_near(kind: Kind, expected: &Outcome, found: &Outcome, what: &str) {
    if kind.moments == MomentFormat::F32 {
        return assert_close(expected, found, TOLERANCE, what);
    }
    let is_rounded = |name: &str| name.ends_with(".m") || name.ends_with(".v");
    let [expected, found] = [expected, found].map(|outcome| {
        let (rounded, numbers): (Vec<_>, Vec<_>) = outcome
            .0
            .iter()
            .cloned()
            .partition(|(name, _)| is_rounded(name));
        (rounded, Outcome(numbers))
    });
    assert_close(&expected.1, &found.1, 1e-3, what);
    let pairs = expected.0.iter().zip(&found.0);
    let pairs = pairs.flat_map(|((_, expected), (_, found))| expected.iter().zip(found));
    let (mut total, mut apart) = (0, 0);
    for (a, b) in pairs {
        total += 1;
        apart += usize::from(a != b);
        let distance = match kind.moments {
            MomentFormat::EightBit => (a - b).abs() / 2.0,
            // Two digits of bf16.
            _ => (a - b).abs() / (a.abs().max(b.abs()).max(1e-30) / 64.0),
        };
        assert!(distance <= 1.0, "{what}: {a} and {b} are no neighbours");
    }
    println!("{what}: {apart} of {total} rounded moments have another neighbour");
    assert!(apart <= total / 1000 + 1, "{what}: {apart} of {total}");
}

fn compare(gpu: &Gpu, kind: Kind) {
    let expected = write_update(DType::F32, kind).on_cpu(kind);
    for &arithmetic in FORMATS {
        if !gpu.supports(arithmetic) {
            continue;
        }
        let update = write_update(arithmetic.compute(), kind);
        assert_eq!(update.copies.is_empty(), arithmetic == Arithmetic::F32);
        let found = update.on_gpu(kind, gpu, arithmetic);
        for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
            let what = format!("{kind:?}, step {}, {}", step + 1, arithmetic.name());
            match kind.spoiled {
                // The norm itself is then no number to compare.
                Some((at, _)) if at == step + 1 => assert_eq!(found.of("norm")[1], 0.0, "{what}"),
                _ => {
                    assert_near(kind, expected, found, &what);
                    assert_eq!(found.of("norm")[1], 1.0, "{what}");
                }
            }
            assert!(found.of("scale")[0] <= MAXIMUM, "{what}");
        }
    }
}

#[test]
fn adamw_with_and_without_clipping() {
    let Some(gpu) = Gpu::open() else { return };
    for clip_norm in [None, Some(1.0), Some(1e4)] {
        compare(&gpu, Kind { clip_norm, ..PLAIN });
    }
}

#[test]
fn moments_in_fewer_bits_and_averages() {
    let Some(gpu) = Gpu::open() else { return };
    for kind in in_fewer_bits() {
        compare(&gpu, kind);
    }
}

#[test]
fn the_loss_scale_is_divided_out_before_the_norm_is_clipped() {
    let Some(gpu) = Gpu::open() else { return };
    for clip_norm in [Some(2.0), Some(1e3)] {
        let loss_scale = 1024.0;
        compare(
            &gpu,
            Kind {
                clip_norm,
                loss_scale,
                ..PLAIN
            },
        );
    }
}

#[test]
fn a_gradient_that_is_not_finite_leaves_every_bit_as_it_was() {
    let Some(gpu) = Gpu::open() else { return };
    for spoiled in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        // In the first step nothing has changed yet; in the second something has, and goes on afterwards.
        let plain = Kind {
            clip_norm: Some(1.0),
            ..PLAIN
        };
        let kinds = [plain].into_iter().chain(in_fewer_bits());
        for (at, kind) in [1, 2]
            .into_iter()
            .flat_map(|at| kinds.clone().map(move |kind| (at, kind)))
        {
            let kind = Kind {
                spoiled: Some((at, spoiled)),
                ..kind
            };
            compare(&gpu, kind);
            for &arithmetic in FORMATS {
                if !gpu.supports(arithmetic) {
                    continue;
                }
                let update = write_update(arithmetic.compute(), kind);
                let found = update.on_gpu(kind, &gpu, arithmetic);
                for (id, initial) in &update.state {
                    let name = &update.graph.storage(*id).name;
                    let before = match at {
                        1 => initial,
                        _ => found[at - 2].of(name),
                    };
                    let same = before.iter().zip(found[at - 1].of(name));
                    assert!(
                        same.into_iter().all(|(a, b)| a.to_bits() == b.to_bits()),
                        "{name} after {spoiled} in {}",
                        arithmetic.name()
                    );
                }
            }
        }
    }
}
