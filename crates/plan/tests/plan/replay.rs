//! A plan computes what its graph says.
//!
//! Numbers are stood in for by hashes: a result is a hash of the operation and of everything that it reads, what is added is
//! added as whole numbers. The graph runs micro-batch by micro-batch, each storage by itself; the plan runs over one arena of bytes that
//! starts as garbage, with garbage in every scratch. Where two tensors overlapped, a slot was emptied in the wrong
//! order, something recomputed came out different or a sum was added twice, the weights and gradients in the end differ.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use holdall_graph::{
    Copies, Graph, MemorySpace, Node, Op, Role, Section, Shape, StorageId, Value, Write,
};
use holdall_plan::{
    HostState, Instruction, LaneOrder, Place, Recompute, RecomputePolicy, Stage, StepPlan,
    lifetimes_of,
};
use proptest::prelude::*;

use crate::toy::{Loss, Toy, ToyDevice, example, shape, toys};

type Token = u64;

fn token(of: impl Hash) -> Token {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Elements of a strided view, in order, from its first.
fn elements(shape: &Shape, strides: &Shape) -> Vec<usize> {
    let mut places = vec![0];
    for (&dim, &stride) in shape.dims().iter().zip(strides.dims()) {
        let along = |place: usize| (0..dim).map(move |index| place + index * stride);
        places = places.into_iter().flat_map(along).collect();
    }
    places
}

/// What an operation makes of its inputs: tokens of each output, as many as it has elements.
fn results(op: &Op, inputs: &[Vec<Token>], sizes: &[usize]) -> Vec<Vec<Token>> {
    let activated = |tokens: &[Token]| tokens.iter().map(|&z| token(("activation", z))).collect();
    if let Op::Activate(_) = op {
        return vec![activated(&inputs[0])];
    }
    if let Op::Fill(_) = op {
        return vec![vec![0; sizes[0]]];
    }
    let digest = token((format!("{op:?}"), inputs));
    let fresh = |(output, &size): (usize, &usize)| -> Vec<Token> {
        (0..size)
            .map(|element| token((digest, output, element)))
            .collect()
    };
    let mut all: Vec<Vec<Token>> = sizes.iter().enumerate().map(fresh).collect();
    if let Op::Linear(linear) = op
        && linear.activation.is_some()
    {
        // `activation(z)` can be had from `z` without the product.
        all[0] = activated(&all[1]);
    }
    all
}

fn garbage(of: impl Hash) -> Token {
    token(("garbage", of))
}

fn input(name: &str, micro_batch: usize, element: usize) -> Token {
    token(("input", name, micro_batch, element))
}

fn weight(name: &str, element: usize) -> Token {
    token(("weight", name, element))
}

/// Storages by themselves.
#[derive(Clone, Default)]
struct Tensors(HashMap<StorageId, Vec<Token>>);

impl Tensors {
    fn of<'t>(&'t mut self, graph: &Graph, id: StorageId) -> &'t mut Vec<Token> {
        self.0.entry(id).or_insert_with(|| {
            let storage = graph.storage(id);
            let initial = |element| match storage.role {
                Role::Weight | Role::Optimizer => weight(&storage.name, element),
                _ => garbage((id.0, element)),
            };
            (0..storage.num_elements).map(initial).collect()
        })
    }

    fn run(&mut self, graph: &Graph, nodes: impl Iterator<Item = Node>, micro_batch: usize) {
        for node in nodes {
            let places = |value: &Value| -> Vec<usize> {
                let first = value.offset + micro_batch * value.micro_stride;
                let places = elements(&value.shape, &value.strides).into_iter();
                places.map(|place| first + place).collect()
            };
            let mut read = vec![];
            for &id in &node.inputs {
                let value = *graph.value(id);
                let storage = self.of(graph, value.storage);
                read.push(
                    places(&value)
                        .into_iter()
                        .map(|place| storage[place])
                        .collect(),
                );
            }
            let sizes: Vec<usize> = (node.outputs.iter())
                .map(|output| graph.shape(output.value).num_elements())
                .collect();
            let results = results(&node.op, &read, &sizes);
            for (output, result) in node.outputs.iter().zip(results) {
                let value = *graph.value(output.value);
                let storage = self.of(graph, value.storage);
                for (place, new) in places(&value).into_iter().zip(result) {
                    storage[place] = written(storage[place], new, output.mode);
                }
            }
        }
    }

    fn feed(&mut self, graph: &Graph, micro_batch: usize) {
        for (index, storage) in graph.storages().iter().enumerate() {
            if storage.role == Role::Input {
                let tokens = (0..storage.num_elements)
                    .map(|element| input(&storage.name, micro_batch, element))
                    .collect();
                self.0.insert(StorageId(index), tokens);
            }
        }
    }
}

fn written(old: Token, new: Token, mode: Write) -> Token {
    match mode {
        Write::Overwrite => new,
        Write::Accumulate => old.wrapping_add(new),
    }
}

/// The graph, section by section: tensors after the passes, and after the update and the forward programs.
fn reference(graph: &Graph, accumulation: usize) -> [Tensors; 2] {
    let section = |wanted: Section| {
        let nodes = graph.nodes().iter();
        nodes.filter(move |node| node.section == wanted).cloned()
    };
    let is_local = |id: &StorageId| graph.storage(*id).role == Role::Activation;
    let mut tensors = Tensors::default();
    for (index, storage) in graph.storages().iter().enumerate() {
        if storage.role != Role::Activation {
            tensors.of(graph, StorageId(index));
        }
    }
    tensors.run(graph, section(Section::Refresh), 0);
    tensors.run(graph, section(Section::Begin), 0);
    // Activations of each micro-batch, all of them kept.
    let mut kept: Vec<HashMap<StorageId, Vec<Token>>> = vec![];
    for micro_batch in 0..accumulation {
        tensors.feed(graph, micro_batch);
        tensors.run(graph, section(Section::Forward), micro_batch);
        let local: Vec<StorageId> = tensors.0.keys().copied().filter(is_local).collect();
        let taken = local
            .into_iter()
            .map(|id| (id, tensors.0.remove(&id).expect("one of its keys")));
        kept.push(taken.collect());
    }
    tensors.run(graph, section(Section::Loss), 0);
    for (micro_batch, local) in kept.into_iter().enumerate() {
        tensors.feed(graph, micro_batch);
        tensors.0.retain(|id, _| !is_local(id));
        tensors.0.extend(local);
        tensors.run(graph, section(Section::Backward), micro_batch);
    }
    let after_passes = tensors.clone();
    tensors.run(graph, section(Section::Update), 0);
    for program in 0..graph.forward_programs().len() {
        tensors.feed(graph, 0);
        tensors.run(graph, section(Section::ForwardProgram(program)), 0);
    }
    [after_passes, tensors]
}

/// An arena, byte by byte.
struct Arena<'p> {
    plan: &'p StepPlan,
    bytes: Vec<Token>,
    time: u64,
    /// Draws the order of lanes.
    dice: u64,
}

impl Arena<'_> {
    /// A number that survives only if all of its bytes do.
    fn read(&self, byte: u64, size: usize) -> Token {
        let bytes = &self.bytes[byte as usize..][..size];
        if (bytes.iter().enumerate()).all(|(at, &found)| found == bytes[0].wrapping_add(at as u64))
        {
            bytes[0]
        } else {
            garbage(bytes)
        }
    }

    fn write(&mut self, byte: u64, size: usize, value: Token) {
        for at in 0..size {
            self.bytes[byte as usize + at] = value.wrapping_add(at as u64);
        }
    }

    /// Host memory lies behind the arena.
    fn addresses(&self, place: &Place, micro_batch: usize, slot: usize) -> Vec<u64> {
        let base = match place.space {
            MemorySpace::Device => 0,
            MemorySpace::PinnedHost => self.plan.arena_bytes,
        };
        let first = base
            + place.offset
            + micro_batch as u64 * place.micro_stride
            + slot as u64 * place.slot_stride;
        let size = place.dtype.bytes() as u64;
        let elements = elements(&place.shape, &place.strides).into_iter();
        elements
            .map(|element| first + element as u64 * size)
            .collect()
    }

    fn scribble(&mut self, start: u64, bytes: u64) {
        self.time += 1;
        for at in start..start + bytes {
            self.bytes[at as usize] = garbage((self.time, at));
        }
    }

    fn execute(&mut self, instruction: &Instruction, micro_batch: usize, slot: usize) {
        let scratch = instruction.workspace;
        self.scribble(
            scratch.offset + slot as u64 * scratch.slot_stride,
            scratch.bytes,
        );
        let inputs = &self.plan.inputs;
        if let Some(landing) = inputs.landing {
            // The next inputs arrive while programs run.
            self.scribble(landing, inputs.range.end - inputs.range.start);
        }
        let read = |arena: &Self, place: &Place| -> Vec<Token> {
            let addresses = arena.addresses(place, micro_batch, slot).into_iter();
            addresses
                .map(|byte| arena.read(byte, place.dtype.bytes()))
                .collect()
        };
        let inputs: Vec<Vec<Token>> = (instruction.inputs.iter())
            .map(|place| read(self, place))
            .collect();
        let sizes: Vec<usize> = (instruction.outputs.iter())
            .map(|output| output.map_or(0, |(place, _)| place.shape.num_elements()))
            .collect();
        // A fused activation writes `y` from `z`, whether or not anybody keeps `z`.
        let sizes = match (&instruction.op, sizes.as_slice()) {
            (Op::Linear(_), &[y, 0]) => vec![y, y],
            _ => sizes,
        };
        let results = results(&instruction.op, &inputs, &sizes);
        for (output, result) in instruction.outputs.iter().zip(results) {
            let Some((place, mode)) = output else {
                continue;
            };
            let size = place.dtype.bytes();
            let addresses = self.addresses(place, micro_batch, slot);
            for (byte, new) in addresses.into_iter().zip(result) {
                let new = written(self.read(byte, size), new, *mode);
                self.write(byte, size, new);
            }
        }
        // What a kernel leaves in its scratch.
        self.scribble(
            scratch.offset + slot as u64 * scratch.slot_stride,
            scratch.bytes,
        );
    }

    fn run(&mut self, stage: Stage, micro_batch: usize, slot: usize) {
        let plan = self.plan;
        if stage.is_per_micro_batch() || matches!(stage, Stage::Forward(_)) {
            self.feed(micro_batch);
        }
        let instructions = &plan.program(stage).instructions;
        let stretches = instructions.chunk_by(|a, b| a.lane.is_some() && b.lane.is_some());
        for stretch in stretches {
            // Lanes go on in any order, each in its own.
            let mut lanes: Vec<(Option<usize>, Vec<&Instruction>)> = vec![];
            for instruction in stretch.iter().rev() {
                match lanes.iter_mut().find(|(lane, _)| *lane == instruction.lane) {
                    Some((_, waiting)) => waiting.push(instruction),
                    None => lanes.push((instruction.lane, vec![instruction])),
                }
            }
            while !lanes.is_empty() {
                self.dice = token(self.dice);
                let next = (self.dice % lanes.len() as u64) as usize;
                let instruction = lanes[next].1.pop().expect("emptied ones are removed");
                if lanes[next].1.is_empty() {
                    lanes.remove(next);
                }
                self.execute(instruction, micro_batch, slot);
            }
        }
    }

    fn feed(&mut self, micro_batch: usize) {
        let plan = self.plan;
        for (index, storage) in plan.graph.storages().iter().enumerate() {
            if storage.role == Role::Input {
                let tokens = (0..storage.num_elements)
                    .map(|element| input(&storage.name, micro_batch, element));
                self.fill(StorageId(index), tokens.collect());
            }
        }
    }

    fn whole(&self, id: StorageId) -> Place {
        let shape = Shape::new(&[self.plan.graph.storage(id).num_elements]);
        self.plan.place_of(&Value::whole(id, shape))
    }

    fn fill(&mut self, id: StorageId, tokens: Vec<Token>) {
        let place = self.whole(id);
        for (byte, token) in self.addresses(&place, 0, 0).into_iter().zip(tokens) {
            self.write(byte, place.dtype.bytes(), token);
        }
    }

    /// Where the graph and the plan differ, among storages of these roles.
    fn differs(&self, tensors: &Tensors, roles: &[Role]) -> Option<String> {
        let storages = self.plan.graph.storages().iter().enumerate();
        let mut compared = storages.filter(|(_, storage)| roles.contains(&storage.role));
        let different = compared.find(|(index, _)| {
            let id = StorageId(*index);
            let place = self.whole(id);
            let addresses = self.addresses(&place, 0, 0).into_iter();
            let found: Vec<Token> = addresses
                .map(|byte| self.read(byte, place.dtype.bytes()))
                .collect();
            tensors.0[&id] != found && !is_garbage(&tensors.0[&id], id)
        });
        different.map(|(_, storage)| storage.name.clone())
    }
}

/// Whether nobody ever wrote a storage.
fn is_garbage(tokens: &[Token], id: StorageId) -> bool {
    tokens
        .iter()
        .enumerate()
        .all(|(element, &token)| token == garbage((id.0, element)))
}

/// Replays a step and the forward programs beside it.
fn replay(
    plan: &StepPlan,
    [after_passes, at_the_end]: &[Tensors; 2],
    dice: u64,
) -> Result<(), String> {
    let mut arena = Arena {
        plan,
        bytes: vec![],
        time: 0,
        dice,
    };
    arena.bytes = (0..plan.arena_bytes + plan.host_bytes)
        .map(|byte| garbage(("arena", byte)))
        .collect();
    for (index, storage) in plan.graph.storages().iter().enumerate() {
        if matches!(storage.role, Role::Weight | Role::Optimizer) {
            let tokens = (0..storage.num_elements).map(|element| weight(&storage.name, element));
            arena.fill(StorageId(index), tokens.collect());
        }
    }
    arena.run(Stage::Refresh, 0, 0);
    for run in plan.passes() {
        arena.run(run.stage, run.micro_batch, run.slot);
    }
    let all = [Role::Weight, Role::Gradient, Role::Optimizer, Role::Feature];
    if let Some(name) = arena.differs(after_passes, &all) {
        return Err(format!("{name} differs after the passes"));
    }
    arena.run(Stage::Update, 0, 0);
    for program in 0..plan.graph.forward_programs().len() {
        arena.run(Stage::Forward(program), 0, 0);
    }
    match arena.differs(at_the_end, &[Role::Weight, Role::Optimizer, Role::Feature]) {
        Some(name) => Err(format!("{name} differs in the end")),
        None => Ok(()),
    }
}

fn policies(num_blocks: usize, lanes: LaneOrder) -> Vec<RecomputePolicy> {
    let uniform = |recompute| RecomputePolicy {
        lanes,
        ..RecomputePolicy::uniform(recompute, num_blocks)
    };
    let (cheap, blocks) = (uniform(Recompute::Cheap), uniform(Recompute::Blocks));
    vec![
        uniform(Recompute::None),
        cheap,
        blocks,
        RecomputePolicy { group: 2, ..blocks },
        RecomputePolicy {
            whole_from: Some(num_blocks / 2),
            ..cheap
        },
        RecomputePolicy {
            recomputed_blocks: num_blocks / 2,
            ..cheap
        },
    ]
}

/// Every policy and number of slots of a toy.
fn check(
    toy: &Toy,
    batch: usize,
    accumulation: usize,
    copies: Copies,
    device: &ToyDevice,
) -> Result<(), String> {
    let graph = toy.build(&shape(batch, accumulation, copies));
    let expected = reference(&graph, accumulation);
    let orders: &[LaneOrder] = if device.has_lanes {
        &[LaneOrder::InTurn, LaneOrder::SideBySide]
    } else {
        &[LaneOrder::InTurn]
    };
    for &lanes in orders {
        let policies = policies(graph.blocks().len(), lanes).into_iter();
        for (index, policy) in policies.enumerate() {
            let on_host = HostState::ALL[1 + index % (HostState::ALL.len() - 1)];
            for state in [HostState::Nothing, on_host] {
                let lifetimes = lifetimes_of(&graph, &policy, device);
                let layout = lifetimes.with_host_state(state, device).pack();
                for kept in 0..=accumulation {
                    let plan = layout.plan(kept, accumulation);
                    replay(&plan, &expected, kept as u64)
                        .map_err(|error| format!("{policy:?}, {kept} kept, {state:?}: {error}"))?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_step_with_everything_in_it() {
    for compute in [holdall_graph::DType::F32, holdall_graph::DType::Bf16] {
        for loss in [Loss::Separable, Loss::Features, Loss::Sums] {
            let toy = Toy {
                compute,
                loss,
                ..example()
            };
            for copies in [Copies::Resident, Copies::PerUse] {
                for has_lanes in [false, true] {
                    let device = ToyDevice {
                        has_lanes,
                        has_landing: has_lanes,
                    };
                    check(&toy, 2, 3, copies, &device).unwrap();
                }
            }
        }
    }
}

/// The oracle is worth something: a plan that is wrong on purpose is found out.
#[test]
fn a_wrong_plan_is_found_out() {
    let graph = example().build(&shape(2, 3, Copies::Resident));
    let expected = reference(&graph, 3);
    let device = ToyDevice {
        has_lanes: false,
        has_landing: false,
    };
    let policy = RecomputePolicy::uniform(Recompute::Cheap, graph.blocks().len());
    let plan = lifetimes_of(&graph, &policy, &device).pack().plan(2, 3);
    replay(&plan, &expected, 0).unwrap();
    // Slots that lie on each other.
    let mut wrong = plan.clone();
    for stage in [Stage::KeptForward, Stage::KeptBackward] {
        for instruction in &mut wrong.programs[stage.id().0].instructions {
            let outputs = instruction
                .outputs
                .iter_mut()
                .flatten()
                .map(|(place, _)| place);
            for place in instruction.inputs.iter_mut().chain(outputs) {
                place.slot_stride = place.slot_stride.min(32);
            }
        }
    }
    assert!(replay(&wrong, &expected, 0).is_err());
    // A sum that is added a second time.
    let mut wrong = plan.clone();
    let sum = wrong.programs[Stage::KeptForward.id().0]
        .instructions
        .last()
        .cloned();
    wrong.programs[Stage::Loss.id().0]
        .instructions
        .insert(0, sum.unwrap());
    assert!(replay(&wrong, &expected, 0).is_err());
    // One operation less.
    for stage in [Stage::FirstPass, Stage::ForwardBackward, Stage::Update] {
        let mut wrong = plan.clone();
        wrong.programs[stage.id().0].instructions.remove(0);
        assert!(replay(&wrong, &expected, 0).is_err(), "{stage:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_plan_computes_what_its_graph_says(
        toy in toys(),
        (batch, accumulation) in (1..4usize, 1..4usize),
        per_use in any::<bool>(),
        (has_lanes, has_landing) in (any::<bool>(), any::<bool>()),
    ) {
        let copies = if per_use { Copies::PerUse } else { Copies::Resident };
        let device = ToyDevice { has_lanes, has_landing };
        let checked = check(&toy, batch, accumulation, copies, &device);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}
