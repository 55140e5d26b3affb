//! A step with its data: what a graph needs to run, and what it left behind.

use std::collections::BTreeSet;

use holdall_device::cpu::{Arena, Cpu, CpuTarget};
use holdall_graph::ops::dropout::mix;
use holdall_graph::ops::fill::Fill;
use holdall_graph::ops::patchify::Normalization;
use holdall_graph::{DType, Graph, Role, Section, Shape, StorageId, Value, ValueId};
use holdall_plan::{Place, Program, RecomputePolicy, Stage, StepPlan, lifetimes_of};

/// Of pictures, different in every channel.
pub const NORMALIZATION: Normalization = Normalization {
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
};

/// SplitMix64: the same numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits
    }

    /// Between -1 and 1.
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub fn floats(&mut self, count: usize) -> Contents {
        Contents::Floats((0..count).map(|_| self.uniform()).collect())
    }

    pub fn indices(&mut self, count: usize, end: usize) -> Contents {
        Contents::Indices((0..count).map(|_| self.below(end) as i64).collect())
    }
}

/// Elements of a tensor, in whatever format the graph wants them.
#[derive(Clone, Debug)]
pub enum Contents {
    Floats(Vec<f64>),
    Indices(Vec<i64>),
    Bytes(Vec<u8>),
}

/// A graph and everything that comes from outside.
#[derive(Clone)]
pub struct Step {
    pub graph: Graph,
    /// Per input, what it holds for each micro-batch (one entry: the same for all).
    pub inputs: Vec<(ValueId, Vec<Contents>)>,
    /// What weights and optimizer state hold at the start.
    pub initial: Vec<(StorageId, Vec<f64>)>,
}

/// Which micro-batches have a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The first ones, in slots that are emptied in the order of micro-batches: gradients add up as without slots.
    First(usize),
    /// The last ones.
    Last(usize),
}

impl Kept {
    fn count(self) -> usize {
        match self {
            Kept::First(count) | Kept::Last(count) => count,
        }
    }

    /// Micro-batches by slot.
    fn slots(self, accumulation: usize) -> Vec<usize> {
        match self {
            Kept::First(count) => (0..count).rev().collect(),
            Kept::Last(count) => (accumulation - count..accumulation).collect(),
        }
    }
}

/// One run of one program.
#[derive(Clone, Copy)]
pub struct Run<'p> {
    pub program: &'p Program,
    pub micro_batch: usize,
    pub slot: Option<usize>,
}

/// A plan and the order in which its programs run.
pub struct Planned {
    pub plan: StepPlan,
    pub policy: RecomputePolicy,
    pub kept: Kept,
    pub accumulation: usize,
}

impl Planned {
    pub fn new(
        graph: &Graph,
        policy: RecomputePolicy,
        kept: Kept,
        accumulation: usize,
        num_threads: usize,
    ) -> Planned {
        let target = CpuTarget::new(num_threads).with_baseline(0);
        let plan = lifetimes_of(graph, &policy, &target)
            .pack()
            .plan(kept.count(), accumulation);
        Planned {
            plan,
            policy,
            kept,
            accumulation,
        }
    }

    /// begin, first pass of the rest, kept forward, loss, kept backward, forward and backward, update. Slots fill from the first
    /// to the last and empty the other way round.
    pub fn schedule(&self) -> Vec<Run<'_>> {
        let of = |stage: Stage| self.plan.program(stage);
        let run = |program, micro_batch, slot| Run {
            program,
            micro_batch,
            slot,
        };
        let slots = self.kept.slots(self.accumulation);
        let in_slots = |program| {
            let slots = slots.iter().enumerate();
            slots.map(move |(slot, &micro_batch)| run(program, micro_batch, Some(slot)))
        };
        let rest = |program| {
            let rest = (0..self.accumulation).filter(|micro_batch| !slots.contains(micro_batch));
            rest.map(move |micro_batch| run(program, micro_batch, None))
        };
        let mut runs = vec![run(of(Stage::Begin), 0, None)];
        if self.plan.coupled {
            runs.extend(rest(of(Stage::FirstPass)));
        }
        runs.extend(in_slots(of(Stage::KeptForward)));
        runs.push(run(of(Stage::Loss), 0, None));
        runs.extend(in_slots(of(Stage::KeptBackward)).rev());
        runs.extend(rest(of(Stage::ForwardBackward)));
        runs.push(run(of(Stage::Update), 0, None));
        runs
    }
}

/// Name of the sum that every micro-batch adds its label loss to.
pub const LABEL_SUM: &str = "label sum";

/// What a step left behind: gradients, features, weights and state, by storage.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome(pub Vec<(String, Vec<f64>)>);

impl Outcome {
    pub fn of(&self, name: &str) -> &[f64] {
        let found = self.0.iter().find(|(other, _)| other == name);
        &found.unwrap_or_else(|| panic!("no storage {name}")).1
    }

    /// Fails at the first element whose bits differ. Sums of losses are left out: they are added up when micro-batches
    /// run forward, and slots change that order.
    pub fn assert_same_bits(&self, other: &Outcome, what: &str) {
        assert_eq!(self.0.len(), other.0.len(), "{what}");
        for ((name, expected), (other_name, found)) in self.0.iter().zip(&other.0) {
            assert_eq!(name, other_name, "{what}");
            for (index, (a, b)) in expected.iter().zip(found).enumerate() {
                let same = match name.as_str() {
                    LABEL_SUM => (a - b).abs() <= 1e-6 * a.abs(),
                    _ => a.to_bits() == b.to_bits(),
                };
                assert!(same, "{what}: {name}[{index}] is {b:e}, expected {a:e}");
            }
        }
    }

    /// Fails where a storage differs by more than `tolerance` of its norm.
    pub fn assert_close(&self, other: &Outcome, tolerance: f64, what: &str) {
        for ((name, expected), (_, found)) in self.0.iter().zip(&other.0) {
            let difference = expected.iter().zip(found).map(|(a, b)| a - b);
            let error = norm(difference) / norm(expected.iter().copied()).max(1e-3);
            assert!(error <= tolerance, "{what}: {name} is off by {error:e}");
        }
    }

    pub fn assert_finite(&self, what: &str) {
        for (name, values) in &self.0 {
            let bad = values.iter().position(|value| !value.is_finite());
            assert!(bad.is_none(), "{what}: {name}[{bad:?}] is not finite");
        }
    }
}

pub fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// The storage as one row.
pub fn flat(graph: &Graph, storage: StorageId) -> Value {
    Value::whole(storage, Shape::new(&[graph.storage(storage).num_elements]))
}

pub fn write(arena: &mut Arena, place: &Place, contents: &Contents) {
    match (contents, place.dtype) {
        (Contents::Floats(from), DType::F64) => arena.write::<f64>(place, 0).copy_from_slice(from),
        (Contents::Floats(from), DType::F32) => {
            for (to, &from) in arena.write::<f32>(place, 0).iter_mut().zip(from) {
                *to = from as f32;
            }
        }
        (Contents::Indices(from), DType::I64) => {
            arena.write::<i64>(place, 0).copy_from_slice(from);
        }
        (Contents::Bytes(from), DType::U8) => arena.write::<u8>(place, 0).copy_from_slice(from),
        (contents, dtype) => panic!("{contents:?} in {dtype:?}"),
    }
}

pub fn read(arena: &Arena, place: &Place) -> Vec<f64> {
    match place.dtype {
        DType::F64 => arena.read::<f64>(place, 0).to_vec(),
        DType::F32 => {
            let values = arena.read::<f32>(place, 0);
            values.iter().map(|&value| f64::from(value)).collect()
        }
        other => panic!("results are floating-point numbers, not {other:?}"),
    }
}

impl Step {
    /// Weights at random, state at zero.
    pub fn new(
        graph: Graph,
        inputs: Vec<(ValueId, Vec<Contents>)>,
        random: &mut Random,
        scale: f64,
    ) -> Step {
        let initial = (0..graph.storages().len())
            .map(StorageId)
            .filter_map(|id| {
                let storage = graph.storage(id);
                let count = 0..storage.num_elements;
                match storage.role {
                    Role::Weight => Some((id, count.map(|_| scale * random.uniform()).collect())),
                    Role::Optimizer => Some((id, vec![0.0; storage.num_elements])),
                    _ => None,
                }
            })
            .collect();
        Step {
            graph,
            inputs,
            initial,
        }
    }

    pub fn write_initial(&self, plan: &StepPlan, arena: &mut Arena) {
        for (storage, values) in &self.initial {
            let place = plan.place_of(&flat(&self.graph, *storage));
            write(arena, &place, &Contents::Floats(values.clone()));
        }
    }

    pub fn write_inputs(&self, plan: &StepPlan, arena: &mut Arena, micro_batch: usize) {
        for (value, per_micro_batch) in &self.inputs {
            let contents = &per_micro_batch[micro_batch.min(per_micro_batch.len() - 1)];
            write(arena, &plan.place(*value), contents);
        }
    }

    pub fn outcome(&self, plan: &StepPlan, arena: &Arena) -> Outcome {
        let kept = |role| {
            matches!(
                role,
                Role::Gradient | Role::Feature | Role::Weight | Role::Optimizer
            )
        };
        let storages = (0..self.graph.storages().len()).map(StorageId);
        Outcome(
            storages
                .filter(|&id| kept(self.graph.storage(id).role))
                .map(|id| {
                    let place = plan.place_of(&flat(&self.graph, id));
                    (self.graph.storage(id).name.clone(), read(arena, &place))
                })
                .collect(),
        )
    }

    /// A whole step in a fresh arena; `before` is called ahead of each program.
    pub fn run_with(
        &self,
        planned: &Planned,
        cpu: &Cpu,
        mut before: impl FnMut(usize, &mut Arena),
    ) -> Outcome {
        let plan = &planned.plan;
        let mut arena = Arena::new(plan.arena_bytes).unwrap();
        for (index, run) in planned.schedule().iter().enumerate() {
            before(index, &mut arena);
            if index == 0 {
                self.write_initial(plan, &mut arena);
            }
            self.write_inputs(plan, &mut arena, run.micro_batch);
            cpu.run(
                run.program,
                &mut arena,
                run.micro_batch,
                run.slot.unwrap_or(0),
            );
        }
        self.outcome(plan, &arena)
    }

    pub fn run(&self, planned: &Planned, cpu: &Cpu) -> Outcome {
        self.run_with(planned, cpu, |_, _| {})
    }
}

/// Weight storages with a trainable parameter, in order.
pub fn trainable(graph: &Graph) -> Vec<StorageId> {
    let storages: BTreeSet<StorageId> = graph
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable)
        .map(|parameter| graph.value(parameter.value).storage)
        .collect();
    storages.into_iter().collect()
}

/// Sets the gradient of every trainable parameter to zero at the start of the loss.
pub fn zero_gradients(graph: &mut Graph) {
    let outer = graph.section();
    graph.enter(Section::Loss);
    for storage in trainable(graph) {
        let gradient = graph.weight_gradient(storage);
        let all = graph.add_value(flat(graph, gradient));
        graph.push_new(Fill { value: 0.0 }, Vec::new(), &[all]);
    }
    graph.enter(outer);
}

/// A sum that starts at zero and lives through the step.
pub fn total(graph: &mut Graph, name: &str) -> ValueId {
    let dtype = graph.compute();
    let sum = graph.tensor(name, &[1], dtype, Role::Feature);
    let outer = graph.section();
    graph.enter(Section::Begin);
    graph.push_new(Fill { value: 0.0 }, Vec::new(), &[sum]);
    graph.enter(outer);
    sum
}
