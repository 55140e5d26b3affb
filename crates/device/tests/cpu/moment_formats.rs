//! AdamW with moments in 8 bits and in bf16, and averages of weights along with it.
//!
//! `fixtures/make_eight_bit.py` made ten steps of the published 8-bit algorithm, which bitsandbytes agrees with; weights, codes and scales are
//! compared bit for bit.

use std::collections::HashMap;

use holdall_device::cpu::{Arena, Cpu, CpuTarget};
use holdall_graph::ops::update::{
    AdamW, AdamWParameter, AverageAction, GradientNorm, MOMENT_BLOCK, MomentFormat, WeightAverages,
};
use holdall_graph::{DType, Decay, Graph, Output, Role, Section, ValueId};
use holdall_plan::{Recompute, RecomputePolicy, Stage, StepPlan, lifetimes_of};

use super::gradient_check::cpu;
use super::step::Random;

const BETAS: [f64; 2] = [0.9, 0.98];

/// One parameter with its state, and the program that updates it.
struct Update {
    plan: StepPlan,
    arena: Arena,
    values: HashMap<&'static str, ValueId>,
}

impl Update {
    fn new(count: usize, moments: MomentFormat, average_decay: Option<f64>, decay: f64) -> Update {
        Update::with_betas(count, moments, average_decay, decay, BETAS)
    }

    fn with_betas(
        count: usize,
        moments: MomentFormat,
        average_decay: Option<f64>,
        weight_decay: f64,
        betas: [f64; 2],
    ) -> Update {
        let mut g = Graph::new(DType::F32);
        let weight = g.parameter("weight", &[count], Decay::Yes);
        let schedule = g.input("schedule", &[5], DType::F32);
        g.enter(Section::Update);
        let norm = g.tensor("norm", &[2], DType::F32, Role::Feature);
        let gradient = g.weight_gradient(g.value(weight).storage);
        let gradient = g.add_value(holdall_graph::Value::whole(gradient, g.shape(weight)));
        let mut values = HashMap::from([
            ("weight", weight),
            ("schedule", schedule),
            ("norm", norm),
            ("gradient", gradient),
        ]);
        let mut outputs = vec![weight];
        let mut state = |name, count, dtype| {
            let value = g.tensor(name, &[count], dtype, Role::Optimizer);
            values.insert(name, value);
            outputs.push(value);
        };
        let dtype = match moments {
            MomentFormat::F32 => DType::F32,
            MomentFormat::Bf16 => DType::Bf16,
            MomentFormat::EightBit => DType::U8,
        };
        state("m", count, dtype);
        state("v", count, dtype);
        if moments == MomentFormat::EightBit {
            let blocks = count.div_ceil(MOMENT_BLOCK);
            state("m.absmax", blocks, DType::F32);
            state("v.absmax", blocks, DType::F32);
        }
        if average_decay.is_some() {
            state("average", count, DType::F32);
        }
        g.push_new(GradientNorm {}, vec![gradient], &[norm]);
        let operation = AdamW {
            beta1: betas[0],
            beta2: betas[1],
            eps: 1e-6,
            clip_norm: None,
            average_decay,
            parameters: vec![AdamWParameter {
                weight_decay,
                rate: 0,
                maximum: None,
                moments,
                copy: false,
            }],
        };
        let outputs = outputs.into_iter().map(Output::overwrite).collect();
        g.push(operation, vec![schedule, norm, gradient], outputs);
        if let Some(&average) = values.get("average") {
            g.forward_program("exchange", |g| {
                let action = AverageAction::Exchange;
                g.push_new(WeightAverages { action }, Vec::new(), &[weight, average])
            });
        }
        let target = CpuTarget::new(2).with_baseline(0);
        let policy = RecomputePolicy::uniform(Recompute::None, 0);
        let plan = lifetimes_of(&g, &policy, &target).pack().plan(0, 1);
        Update {
            arena: Arena::new(plan.arena_bytes).unwrap(),
            plan,
            values,
        }
    }

    fn write(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        let place = self.plan.place(self.values[name]);
        let to = self.arena.write::<f32>(&place, 0);
        for (to, value) in to.iter_mut().zip(values) {
            *to = value as f32;
        }
    }

    fn floats(&self, name: &str) -> &[f32] {
        self.arena.read(&self.plan.place(self.values[name]), 0)
    }

    fn halves(&self, name: &str) -> Vec<f64> {
        let bits: &[u16] = self.arena.read(&self.plan.place(self.values[name]), 0);
        let number = |&bits: &u16| f64::from(f32::from_bits(u32::from(bits) << 16));
        bits.iter().map(number).collect()
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.arena.read(&self.plan.place(self.values[name]), 0)
    }

    /// Everything that a checkpoint would hold.
    fn state(&self) -> Vec<Vec<u8>> {
        let names = ["weight", "m", "v", "m.absmax", "v.absmax", "average"];
        let known = names.iter().filter_map(|name| self.values.get(name));
        known
            .map(|&value| {
                let mut place = self.plan.place(value);
                let bytes = place.shape.num_elements() * place.dtype.bytes();
                place.shape = holdall_graph::Shape::new(&[bytes]);
                (place.strides, place.dtype) = (place.shape.contiguous_strides(), DType::U8);
                self.arena.read::<u8>(&place, 0).to_vec()
            })
            .collect()
    }

    fn step(&mut self, cpu: &Cpu, number: i32, gradient: impl IntoIterator<Item = f64>) {
        self.step_with(cpu, number, gradient, BETAS, 1e-2);
    }

    fn step_with(
        &mut self,
        cpu: &Cpu,
        number: i32,
        gradient: impl IntoIterator<Item = f64>,
        betas: [f64; 2],
        rate: f64,
    ) {
        self.write("gradient", gradient);
        let [first, second] = betas.map(|beta| 1.0 / (1.0 - beta.powi(number)));
        self.write("schedule", [1.0, first, second, rate, f64::from(number)]);
        cpu.run(self.plan.program(Stage::Update), &mut self.arena, 0, 0);
    }
}

/// `make_eight_bit.py` has the same.
fn numbers(count: usize, salt: usize) -> impl Iterator<Item = f64> {
    (0..count)
        .map(move |i| ((i * 7919 + salt * 104_729 + 13) % 1009) as f64 / 256.0 - 1009.0 / 512.0)
}

fn golden_gradient(count: usize, step: usize) -> impl Iterator<Item = f64> {
    let scale = (0..count).map(|i| 2f64.powi(-3 * (i % 7) as i32));
    numbers(count, step)
        .zip(scale)
        .map(|(number, scale)| number * scale)
}

#[test]
fn ten_steps_of_the_published_algorithm_bit_for_bit() {
    const COUNT: usize = 600;
    let golden: HashMap<(&str, &str), Vec<&str>> = include_str!("../fixtures/eight_bit.txt")
        .lines()
        .map(|line| {
            let mut words = line.split(' ');
            let (step, name) = (words.next().unwrap(), words.next().unwrap());
            ((step, name), words.collect())
        })
        .collect();
    let mut update = Update::new(COUNT, MomentFormat::EightBit, None, 0.1);
    update.write("weight", numbers(COUNT, 50).map(|number| number / 16.0));
    let mut compared = 0;
    for step in 1..=10 {
        update.step(cpu(), step as i32, golden_gradient(COUNT, step));
        let of = |name| golden.get(&(step.to_string().as_str(), name)).cloned();
        for name in ["weight", "m.absmax", "v.absmax"] {
            let Some(expected) = of(name) else { continue };
            let bits = expected
                .iter()
                .map(|word| u32::from_str_radix(word, 16).unwrap());
            let found = update.floats(name).iter().map(|value| value.to_bits());
            assert!(bits.eq(found), "{name} after step {step}");
            compared += 1;
        }
        for name in ["m", "v"] {
            let Some(expected) = of(name) else { continue };
            let codes: Vec<u8> = expected.iter().map(|word| word.parse().unwrap()).collect();
            assert_eq!(codes, update.bytes(name), "{name} after step {step}");
            compared += 1;
        }
    }
    assert_eq!(compared, 10, "five tensors after two steps");
}

#[test]
fn state_does_not_depend_on_threads_and_an_overflow_leaves_every_byte() {
    // More elements than one task takes, and no whole number of blocks.
    const COUNT: usize = (1 << 14) + 700;
    let few = Cpu::new(Some(1));
    for moments in [
        MomentFormat::F32,
        MomentFormat::Bf16,
        MomentFormat::EightBit,
    ] {
        let mut runs = [cpu(), &few].map(|cpu| {
            let mut update = Update::new(COUNT, moments, Some(0.9), 0.1);
            update.write("weight", numbers(COUNT, 50));
            update.write("average", numbers(COUNT, 50));
            for step in 1..=3 {
                update.step(cpu, step as i32, numbers(COUNT, step));
            }
            update
        });
        let [first, second] = runs.each_ref().map(Update::state);
        assert_eq!(first, second, "{moments:?}");
        for spoiled in [f64::NAN, f64::INFINITY, 1e300] {
            let spoil = |(place, number)| if place == 17_000 { spoiled } else { number };
            let update = &mut runs[0];
            update.step(cpu(), 4, numbers(COUNT, 4).enumerate().map(spoil));
            assert_eq!(update.floats("norm")[1], 0.0);
            assert!(update.state() == first, "{moments:?} after {spoiled}");
        }
        let update = &mut runs[0];
        update.step(cpu(), 4, numbers(COUNT, 4));
        assert!(
            update.state() != first,
            "{moments:?}: the step after it is taken"
        );
    }
}

#[test]
fn an_average_follows_its_weight_and_exchanges_places_with_it_bit_for_bit() {
    const COUNT: usize = 700;
    let decay = 0.75;
    for moments in [
        MomentFormat::F32,
        MomentFormat::Bf16,
        MomentFormat::EightBit,
    ] {
        let mut update = Update::new(COUNT, moments, Some(decay), 0.0);
        let mut plain = Update::new(COUNT, moments, None, 0.0);
        for update in [&mut update, &mut plain] {
            update.write("weight", numbers(COUNT, 50));
        }
        update.write("average", numbers(COUNT, 50));
        let mut expected: Vec<f32> = update.floats("average").to_vec();
        for step in 1..=5 {
            update.step(cpu(), step as i32, numbers(COUNT, step));
            plain.step(cpu(), step as i32, numbers(COUNT, step));
            for (average, weight) in expected.iter_mut().zip(plain.floats("weight")) {
                *average += (1.0 - decay as f32) * (weight - *average);
            }
        }
        // The average changes no weight.
        assert_eq!(
            update.floats("weight"),
            plain.floats("weight"),
            "{moments:?}"
        );
        assert_eq!(update.floats("average"), expected, "{moments:?}");
        let exchange = update.plan.forward_program("exchange").unwrap();
        let exchange = update.plan.programs[exchange.0].clone();
        cpu().run(&exchange, &mut update.arena, 0, 0);
        assert_eq!(update.floats("weight"), expected);
        assert_eq!(update.floats("average"), plain.floats("weight"));
        cpu().run(&exchange, &mut update.arena, 0, 0);
        assert_eq!(update.floats("weight"), plain.floats("weight"));
        assert_eq!(update.floats("average"), expected);
    }
}

/// Rounded to the nearest, a second moment of bf16 would never fall with a beta of 0.999: a step takes a thousandth off it, and half
/// a digit is two to four thousandths.
#[test]
fn moments_in_bf16_follow_gradients_that_become_smaller() {
    const COUNT: usize = 512;
    let betas = [0.9, 0.999];
    let mut update = Update::with_betas(COUNT, MomentFormat::Bf16, None, 0.0, betas);
    let mut random = Random(3);
    let mut exact = [0.0, 0.0];
    let mut mean_error = [0.0; 2];
    for step in 1..=2_000 {
        let scale = if step <= 1_000 { 1.0 } else { 0.1 };
        let g = f64::from((scale * random.uniform()) as f32);
        update.step_with(cpu(), step, std::iter::repeat_n(g, COUNT), betas, 0.0);
        exact[0] = betas[0] * exact[0] + (1.0 - betas[0]) * g;
        exact[1] = betas[1] * exact[1] + (1.0 - betas[1]) * g * g;
    }
    for (moment, name) in ["m", "v"].into_iter().enumerate() {
        let halves = update.halves(name);
        mean_error[moment] = halves.iter().sum::<f64>() / COUNT as f64 / exact[moment] - 1.0;
        assert!(
            halves.iter().any(|half| *half != halves[0]),
            "{name}: elements round apart"
        );
    }
    // The mean of 512 roundings; each element is off by a few percent at most.
    assert!(mean_error[0].abs() < 0.01, "m is off by {}", mean_error[0]);
    assert!(mean_error[1].abs() < 0.01, "v is off by {}", mean_error[1]);
    let v = update.halves("v");
    let worst = v
        .iter()
        .map(|v| (v / exact[1] - 1.0).abs())
        .fold(0.0, f64::max);
    assert!(worst < 0.25, "an element of v is off by {worst}");
}
