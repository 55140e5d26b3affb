//! One graph on two devices: how a case is written down, run and compared.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use half::{bf16, f16};
use holdall_device::cpu::{Cpu, CpuTarget, Element};
use holdall_device::{Arithmetic, Device, DeviceChoice, Machine};
use holdall_graph::adapters::{Adapters, name_of_a, name_of_b};
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::fill::Fill;
use holdall_graph::{
    Copies, DType, Decay, Graph, Output, Role, Section, StorageId, Value, ValueId, backward,
};
use holdall_plan::{Place, Recompute, RecomputePolicy, Stage, StepPlan, lifetimes_of};

use super::guards::{Apart, guard_tensors, guards_tensors};
use super::step::{Contents, Outcome, Random, flat, norm, trainable, zero_gradients};

/// Every arithmetic.
pub const ALL: &[Arithmetic] = &[
    Arithmetic::F32,
    Arithmetic::Tf32,
    Arithmetic::F16,
    Arithmetic::Bf16,
];
/// One for each number format: where there is no product, tf32 is f32.
pub const FORMATS: &[Arithmetic] = &[Arithmetic::F32, Arithmetic::F16, Arithmetic::Bf16];
/// Activations in 32 bits: widths may be odd.
pub const FULL: &[Arithmetic] = &[Arithmetic::F32, Arithmetic::Tf32];
/// Activations in 16 bits: weights have copies.
pub const HALVES: &[Arithmetic] = &[Arithmetic::F16, Arithmetic::Bf16];
/// Plain f32.
pub const F32: &[Arithmetic] = &[Arithmetic::F32];

/// How a case is run.
#[derive(Clone, Copy)]
pub struct Settings {
    pub arithmetics: &'static [Arithmetic],
    pub copies: Copies,
    /// Largest error where numbers are f32.
    pub full_tolerance: f64,
    /// Whether the operations are in f32 whatever the activations are, as losses are.
    pub kept_full: bool,
}

impl Settings {
    pub fn of(arithmetics: &'static [Arithmetic]) -> Settings {
        Settings {
            arithmetics,
            copies: Copies::Resident,
            full_tolerance: 1e-5,
            kept_full: false,
        }
    }

    /// Sums of many terms, or of terms that nearly cancel.
    pub fn long_sums(self) -> Settings {
        Settings {
            full_tolerance: 1e-4,
            ..self
        }
    }

    pub fn kept_full(self) -> Settings {
        Settings {
            kept_full: true,
            ..self
        }
    }

    fn tolerance(&self, arithmetic: Arithmetic) -> f64 {
        match arithmetic {
            Arithmetic::F32 => self.full_tolerance,
            _ if self.kept_full => self.full_tolerance,
            Arithmetic::Tf32 => 5e-3,
            Arithmetic::F16 => 4e-3,
            Arithmetic::Bf16 => 3e-2,
        }
    }
}

/// Writes a line where it is seen: of a test that passes, what `eprintln` writes is swallowed.
pub fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr can be written");
}

/// The CPU that the card is compared with.
pub fn cpu() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| Device::on_cpu(Cpu::new(None)))
}

/// The card, for one test at a time.
pub struct Gpu {
    pub device: &'static Device,
    _turn: MutexGuard<'static, ()>,
}

impl Gpu {
    /// `None`, and a line that says so, where there is no card.
    pub fn open() -> Option<Gpu> {
        static TURN: Mutex<()> = Mutex::new(());
        static DEVICE: OnceLock<Result<Device, String>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = DEVICE.get_or_init(|| {
            Device::open(DeviceChoice::Cuda(0), Some(2)).map_err(|missing| missing.to_string())
        });
        match opened {
            Ok(device) => Some(Gpu {
                device,
                _turn: turn,
            }),
            Err(missing) => {
                assert!(
                    std::env::var_os("HOLDALL_REQUIRE_GPU").is_none(),
                    "HOLDALL_REQUIRE_GPU is set: {missing}"
                );
                static ONCE: Once = Once::new();
                ONCE.call_once(|| say(&format!("SKIPPED: no GPU: {missing}")));
                None
            }
        }
    }

    /// The sizes to compare: all of them on a card. On the software card, where a kernel takes a thousand times as long, those that take
    /// another path through the kernels.
    pub fn sizes<T: Copy>(&self, all: &[T], paths: &[T]) -> Vec<T> {
        if self.is_software() {
            paths.to_vec()
        } else {
            all.to_vec()
        }
    }

    pub fn is_software(&self) -> bool {
        std::env::var_os("HOLDALL_SOFTWARE_GPU").is_some()
    }

    /// Whether the card computes in this arithmetic; a line that says so where not.
    pub fn supports(&self, arithmetic: Arithmetic) -> bool {
        let supported = self.device.supports(arithmetic);
        if !supported {
            say(&format!("SKIPPED: this card has no {}", arithmetic.name()));
        }
        supported
    }

    pub fn plan(
        &self,
        graph: &Graph,
        policy: &RecomputePolicy,
        arithmetic: Arithmetic,
        [kept, accumulation]: [usize; 2],
    ) -> StepPlan {
        let target = self.device.target(arithmetic, 0).unwrap();
        let apart = Apart(target.as_ref());
        let target = if guards_tensors() {
            &apart
        } else {
            target.as_ref()
        };
        lifetimes_of(graph, policy, target)
            .pack()
            .plan(kept, accumulation)
    }

    /// Runs what `write` writes on the card alone: for results that are no numbers to compare.
    pub fn alone(
        &self,
        what: &str,
        arithmetic: Arithmetic,
        write: impl Fn(&mut Sketch) -> Vec<ValueId>,
    ) -> Outcome {
        let case = Case::new([arithmetic.compute(); 2], Copies::Resident, &write);
        case.on_gpu(self, arithmetic, what)
    }

    /// Runs what `write` writes on both, and compares all that it names, and every gradient.
    pub fn compare(
        &self,
        what: &str,
        arithmetics: &'static [Arithmetic],
        write: impl Fn(&mut Sketch) -> Vec<ValueId>,
    ) -> Vec<Outcome> {
        self.compare_with(what, Settings::of(arithmetics), write)
    }

    /// The same with settings; returns what the card left behind, arithmetic by arithmetic.
    pub fn compare_with(
        &self,
        what: &str,
        settings: Settings,
        write: impl Fn(&mut Sketch) -> Vec<ValueId>,
    ) -> Vec<Outcome> {
        let mut expected: Option<(DType, Outcome)> = None;
        let mut all = Vec::new();
        for &arithmetic in settings.arithmetics {
            if !self.supports(arithmetic) {
                continue;
            }
            let format = arithmetic.compute();
            let expected = match &expected {
                Some((of, outcome)) if *of == format => outcome,
                _ => {
                    let case = Case::new([DType::F32, format], settings.copies, &write);
                    &expected.insert((format, case.on_cpu())).1
                }
            };
            let case = Case::new([format; 2], settings.copies, &write);
            let found = case.on_gpu(self, arithmetic, what);
            let what = format!("{what}, {}", arithmetic.name());
            let tolerance = settings.tolerance(arithmetic);
            let least_size = |_: &str, num_elements: usize| {
                let steps = STEPS_OFF * smallest_step(format) * (num_elements as f64).sqrt();
                steps / tolerance
            };
            assert_close_above(expected, &found, tolerance, least_size, &what);
            all.push(found);
        }
        all
    }
}

/// Elements may be off by so many of their format's smallest steps: next to zero a format has no digits to be right in.
const STEPS_OFF: f64 = 4.0;

/// Between neighbouring numbers next to zero, in f16. bf16 has the range of f32, but the kernels' error function is no better
/// than that in any 16-bit format.
fn smallest_step(format: DType) -> f64 {
    match format {
        DType::F16 | DType::Bf16 => f64::from(f16::MIN_POSITIVE_SUBNORMAL),
        _ => 0.0,
    }
}

/// Prints the error of every tensor, and fails if one is too large or no number.
pub fn assert_close(expected: &Outcome, found: &Outcome, tolerance: f64, what: &str) {
    assert_close_above(expected, found, tolerance, |_, _| 0.0, what);
}

/// The same; `least_size`, of a tensor's name and number of elements, is what the error of a smaller one is relative to.
pub fn assert_close_above(
    expected: &Outcome,
    found: &Outcome,
    tolerance: f64,
    least_size: impl Fn(&str, usize) -> f64,
    what: &str,
) {
    assert_eq!(expected.0.len(), found.0.len(), "{what}");
    let mut line = format!("{what}:");
    let mut wrong = Vec::new();
    for ((name, expected), (other, found)) in expected.0.iter().zip(&found.0) {
        assert_eq!(name, other, "{what}");
        assert_eq!(expected.len(), found.len(), "{what}: {name}");
        let difference = norm(expected.iter().zip(found).map(|(a, b)| a - b));
        let size = norm(expected.iter().copied());
        // Zero is expected to be zero; what is no number stays none.
        let error = if difference == 0.0 {
            0.0
        } else {
            difference / size.max(least_size(name, expected.len()))
        };
        line.push_str(&format!(" {name} {error:.1e},"));
        if error.is_nan() || error > tolerance {
            wrong.push(format!("{name} is off by {error:.2e} of {size:.2e}"));
        }
    }
    println!("{}", line.trim_end_matches(','));
    assert!(
        wrong.is_empty(),
        "{what}: within {tolerance:e} was expected, {}",
        wrong.join(", ")
    );
}

/// A forward pass in the making.
pub struct Sketch {
    pub graph: Graph,
    pub random: Random,
    /// Micro-batches that run backward one after the other.
    pub micro_batches: usize,
    /// Values that are compared although nothing comes back from them.
    pub seen: Vec<ValueId>,
    /// What inputs in the compute format and weights are rounded to: what the card will hold.
    format: DType,
    inputs: Vec<(ValueId, Contents)>,
    weights: Vec<(StorageId, Vec<f64>)>,
    wanted: Vec<ValueId>,
    seeds: Vec<(ValueId, Vec<f64>)>,
}

impl Sketch {
    pub fn new([compute, format]: [DType; 2], copies: Copies) -> Sketch {
        Sketch {
            graph: Graph::with_copies(compute, copies),
            random: Random(7),
            micro_batches: 1,
            seen: Vec::new(),
            format,
            inputs: Vec::new(),
            weights: Vec::new(),
            wanted: Vec::new(),
            seeds: Vec::new(),
        }
    }

    pub fn numbers(&mut self, count: usize, scale: f64) -> Vec<f64> {
        (0..count).map(|_| scale * self.random.uniform()).collect()
    }

    /// Something from outside, in its own format.
    pub fn given(&mut self, dims: &[usize], dtype: DType, contents: Contents) -> ValueId {
        let name = format!("input {}", self.inputs.len());
        let value = self.graph.input(&name, dims, dtype);
        self.inputs.push((value, contents));
        value
    }

    pub fn indices(&mut self, dims: &[usize], indices: &[i64]) -> ValueId {
        self.given(dims, DType::I64, Contents::Indices(indices.to_vec()))
    }

    /// Activations without a gradient.
    pub fn constant(&mut self, dims: &[usize]) -> ValueId {
        self.scaled_constant(dims, 2.0)
    }

    fn scaled_constant(&mut self, dims: &[usize], scale: f64) -> ValueId {
        let format = self.format;
        let values = self.numbers(dims.iter().product(), scale).into_iter();
        let values = values.map(|value| rounded(format, value)).collect();
        self.given(dims, self.graph.compute(), Contents::Floats(values))
    }

    /// Activations whose gradient is compared.
    pub fn input(&mut self, dims: &[usize]) -> ValueId {
        self.scaled_input(dims, 2.0)
    }

    /// The same, between `-scale` and `scale`.
    pub fn scaled_input(&mut self, dims: &[usize], scale: f64) -> ValueId {
        let value = self.scaled_constant(dims, scale);
        self.wanted.push(value);
        value
    }

    /// f32 whatever the compute format, without a gradient: weights of samples, features, logits.
    pub fn full_constant(&mut self, dims: &[usize], values: &[f64]) -> ValueId {
        self.given(dims, DType::F32, Contents::Floats(values.to_vec()))
    }

    /// f32 whatever the compute format, with a gradient that is compared.
    pub fn full_input(&mut self, dims: &[usize], values: &[f64]) -> ValueId {
        let value = self.full_constant(dims, values);
        self.wanted.push(value);
        value
    }

    pub fn parameter(&mut self, dims: &[usize]) -> ValueId {
        let name = format!("parameter {}", self.graph.parameters().len());
        self.packed(&[(&name, dims)])
    }

    /// A parameter that starts at the given numbers.
    pub fn parameter_of(&mut self, dims: &[usize], values: &[f64]) -> ValueId {
        let value = self.parameter(dims);
        let (_, drawn) = self.weights.last_mut().unwrap();
        drawn.copy_from_slice(values);
        value
    }

    /// Parameters in one storage, drawn so that a product neither grows nor shrinks what it multiplies.
    pub fn packed(&mut self, parameters: &[(&str, &[usize])]) -> ValueId {
        let parameters: Vec<_> = parameters
            .iter()
            .map(|(name, dims)| ((*name).to_owned(), dims.to_vec()))
            .collect();
        let value = self.graph.packed_parameters(&parameters, Decay::Yes);
        let (shape, storage) = (self.graph.shape(value), self.graph.value(value).storage);
        let scale = match shape.dims().len() {
            0 | 1 => 0.8,
            _ => (3.0 / shape.width() as f64).sqrt(),
        };
        let format = self.format;
        let drawn = self.numbers(shape.num_elements(), scale).into_iter();
        // Products read copies in the format at hand: the CPU is to multiply the same numbers.
        let drawn = drawn.map(|value| rounded(format, value)).collect();
        self.weights.push((storage, drawn));
        value
    }

    /// A frozen layer `[outputs, inputs]` whose parts of so many outputs each have adapters; returns its weight.
    pub fn adapted(
        &mut self,
        layer: &str,
        parts: usize,
        [outputs, inputs]: [usize; 2],
        rank: usize,
    ) -> ValueId {
        let modules: Vec<String> = (0..parts).map(|part| format!("{layer}{part}")).collect();
        let names = |name: fn(&str) -> String| -> Vec<String> {
            modules.iter().map(|module| name(module)).collect()
        };
        let mut packed = |names: &[String], dims: [usize; 2]| {
            let all: Vec<_> = names
                .iter()
                .map(|name| (name.as_str(), &dims[..]))
                .collect();
            self.packed(&all)
        };
        let weights = names(|module| format!("{module}.weight"));
        let weight = packed(&weights, [outputs, inputs]);
        packed(&names(name_of_a), [rank, inputs]);
        for name in names(name_of_b) {
            packed(&[name], [outputs, rank]);
        }
        self.freeze(weight);
        self.graph.adapt(Adapters {
            rank,
            scale: 1.5,
            modules: modules.into_iter().collect(),
            dropout: None,
        });
        weight
    }

    /// A tensor in the compute format that outlives programs, with numbers in it.
    pub fn cache(&mut self, name: &str, dims: &[usize]) -> ValueId {
        let value = self.graph.cache(name, dims);
        let format = self.format;
        let drawn = self.numbers(dims.iter().product(), 1.0).into_iter();
        let drawn = drawn.map(|value| rounded(format, value)).collect();
        self.weights.push((self.graph.value(value).storage, drawn));
        value
    }

    pub fn freeze(&mut self, value: ValueId) {
        let storage = self.graph.value(value).storage;
        let frozen: Vec<ValueId> = (self.graph.parameters().iter())
            .map(|parameter| parameter.value)
            .filter(|&value| self.graph.value(value).storage == storage)
            .collect();
        self.graph.configure_parameters(|parameter| {
            if frozen.contains(&parameter.value) {
                parameter.trainable = false;
            }
        });
    }

    /// A sum that starts at zero.
    pub fn total(&mut self) -> ValueId {
        let sum = self.graph.tensor("sum", &[1], DType::F32, Role::Feature);
        let outer = self.graph.section();
        self.graph.enter(Section::Begin);
        let zero = Fill { value: 0.0 };
        self.graph.push_new(zero, Vec::new(), &[sum]);
        self.graph.enter(outer);
        sum
    }

    /// What the gradient of an output starts from; at random where nothing is said.
    pub fn seed(&mut self, output: ValueId, values: Vec<f64>) {
        self.seeds.push((output, values));
    }

    fn seed_of(&mut self, output: ValueId) -> ValueId {
        let (shape, dtype) = (self.graph.shape(output), self.graph.dtype(output));
        let said = self.seeds.iter().position(|(value, _)| *value == output);
        let values = match said {
            Some(index) => self.seeds.swap_remove(index).1,
            None => self.numbers(shape.num_elements(), 1.0),
        };
        let format = self.format;
        let values = values.into_iter();
        let values = values.map(|value| rounded(format, value)).collect();
        self.given(shape.dims(), dtype, Contents::Floats(values))
    }

    /// Writes the backward pass, and copies of all that is compared where they outlive programs.
    fn finish(mut self, outputs: &[ValueId]) -> Case {
        zero_gradients(&mut self.graph);
        let seeds: Vec<(ValueId, ValueId)> = outputs
            .iter()
            .map(|&output| (output, self.seed_of(output)))
            .collect();
        let graph = &mut self.graph;
        let wanted = &self.wanted;
        let found = backward(graph, Section::Forward, Section::Backward, &seeds, wanted);
        let mut results = Vec::new();
        for &output in outputs.iter().chain(&self.seen) {
            let name = graph.storage(graph.value(output).storage).name.clone();
            let seen = observe(graph, output, Section::Forward);
            results.push((name, seen));
        }
        for (&value, gradient) in wanted.iter().zip(found) {
            let gradient = gradient.unwrap_or_else(|| panic!("no gradient reached {value:?}"));
            let name = &graph.storage(graph.value(value).storage).name;
            let name = format!("{name}.grad");
            results.push((name, observe(graph, gradient, Section::Backward)));
        }
        for storage in trainable(graph) {
            let gradient = graph.weight_gradient(storage);
            let name = graph.storage(gradient).name.clone();
            results.push((name, flat(graph, gradient)));
        }
        Case {
            graph: self.graph,
            inputs: self.inputs,
            weights: self.weights,
            results,
            micro_batches: self.micro_batches,
        }
    }
}

/// A place that outlives programs, with a copy of a value unless it does so itself.
fn observe(graph: &mut Graph, value: ValueId, section: Section) -> Value {
    let storage = graph.storage(graph.value(value).storage);
    if storage.role == Role::Feature {
        return *graph.value(value);
    }
    let (dtype, shape) = (storage.dtype, graph.shape(value));
    let copy = graph.tensor("observed", shape.dims(), dtype, Role::Feature);
    graph.enter(section);
    let outputs = vec![Output::overwrite(copy)];
    graph.push(AddInto {}, vec![value], outputs);
    *graph.value(copy)
}

/// A graph with its backward pass, and everything that comes from outside.
pub struct Case {
    pub graph: Graph,
    pub inputs: Vec<(ValueId, Contents)>,
    pub weights: Vec<(StorageId, Vec<f64>)>,
    results: Vec<(String, Value)>,
    micro_batches: usize,
}

impl Case {
    pub fn new(
        formats: [DType; 2],
        copies: Copies,
        write: &impl Fn(&mut Sketch) -> Vec<ValueId>,
    ) -> Case {
        let mut sketch = Sketch::new(formats, copies);
        let outputs = write(&mut sketch);
        sketch.finish(&outputs)
    }

    pub fn policy(&self) -> RecomputePolicy {
        RecomputePolicy::uniform(Recompute::None, self.graph.blocks().len())
    }

    fn on_cpu(&self) -> Outcome {
        let device = cpu();
        let target = CpuTarget::new(device.cpu().num_threads()).with_baseline(0);
        let plan = lifetimes_of(&self.graph, &self.policy(), &target)
            .pack()
            .plan(0, self.micro_batches);
        let mut machine = Machine::new(device, &plan, Arithmetic::F32).unwrap();
        self.run(device, &plan, &mut machine)
    }

    /// Twice, with the same bits.
    fn on_gpu(&self, gpu: &Gpu, arithmetic: Arithmetic, what: &str) -> Outcome {
        let sizes = [0, self.micro_batches];
        let plan = gpu.plan(&self.graph, &self.policy(), arithmetic, sizes);
        let mut machine = Machine::new(gpu.device, &plan, arithmetic).unwrap();
        let [first, second] = [(); 2].map(|()| {
            guard_tensors(&plan);
            self.run(gpu.device, &plan, &mut machine)
        });
        assert_same_bits(&first, &second, &format!("{what}, {}", arithmetic.name()));
        first
    }

    /// State in few bits, which no program sets, begins every run at zero.
    fn forget(&self, plan: &StepPlan, machine: &mut Machine) {
        for (index, storage) in self.graph.storages().iter().enumerate() {
            let is_set = self.weights.iter().any(|(set, _)| set.0 == index);
            let place = |id| plan.place_of(&flat(&self.graph, id));
            let zeros = match (storage.role, storage.dtype) {
                _ if is_set => continue,
                (Role::Feature, DType::U8) => Contents::Bytes(vec![0; storage.num_elements]),
                (Role::Feature, DType::Bf16) => Contents::Floats(vec![0.0; storage.num_elements]),
                _ => continue,
            };
            put(machine, &place(StorageId(index)), &zeros);
        }
    }

    fn run(&self, device: &Device, plan: &StepPlan, machine: &mut Machine) -> Outcome {
        for (storage, values) in &self.weights {
            let place = plan.place_of(&flat(&self.graph, *storage));
            put(machine, &place, &Contents::Floats(values.clone()));
        }
        self.forget(plan, machine);
        for stage in [Stage::Refresh, Stage::Begin, Stage::Loss] {
            machine.run(device, plan, stage.id(), 0, 0);
        }
        for micro in 0..self.micro_batches {
            // Every time: a backward pass may add to the seeds, and they are inputs.
            for (value, contents) in &self.inputs {
                put_input(machine, &plan.place(*value), contents);
            }
            machine.run(device, plan, Stage::ForwardBackward.id(), micro, 0);
        }
        machine.run(device, plan, Stage::Update.id(), 0, 0);
        machine.wait().unwrap();
        let results = self.results.iter();
        Outcome(
            results
                .map(|(name, value)| (name.clone(), get(machine, &plan.place_of(value))))
                .collect(),
        )
    }
}

/// Fails at the first element whose bits differ.
pub fn assert_same_bits(first: &Outcome, second: &Outcome, what: &str) {
    for ((name, first), (_, second)) in first.0.iter().zip(&second.0) {
        for (index, (a, b)) in first.iter().zip(second).enumerate() {
            assert!(
                a.to_bits() == b.to_bits(),
                "{what}: {name}[{index}] is {b:e} the second time, {a:e} the first"
            );
        }
    }
}

/// The nearest number that a format holds, of a number that f32 holds: `half` drops digits of an f64 before it rounds.
pub fn rounded(format: DType, value: f64) -> f64 {
    match format {
        DType::F16 => f16::from_f32(value as f32).to_f64(),
        DType::Bf16 => bf16::from_f32(value as f32).to_f64(),
        _ => f64::from(value as f32),
    }
}

/// Writes between programs.
pub fn put(machine: &mut Machine, place: &Place, contents: &Contents) {
    fn write<T: Element>(machine: &mut Machine, place: &Place, from: &[T]) {
        machine.write(place, |to: &mut [T]| to.copy_from_slice(from));
    }
    match encoded(contents, place.dtype) {
        Encoded::Floats(values) => write(machine, place, &values),
        Encoded::Bits(values) => write(machine, place, &values),
        Encoded::Indices(values) => write(machine, place, &values),
        Encoded::Bytes(values) => write(machine, place, &values),
    }
}

/// Writes for the next program, as training does.
pub fn put_input(machine: &mut Machine, place: &Place, contents: &Contents) {
    fn input<T: Element>(machine: &mut Machine, place: &Place, from: &[T]) {
        machine.input(place, |to: &mut [T]| to.copy_from_slice(from));
    }
    match encoded(contents, place.dtype) {
        Encoded::Floats(values) => input(machine, place, &values),
        Encoded::Bits(values) => input(machine, place, &values),
        Encoded::Indices(values) => input(machine, place, &values),
        Encoded::Bytes(values) => input(machine, place, &values),
    }
}

/// Numbers as they lie in memory.
enum Encoded {
    Floats(Vec<f32>),
    Bits(Vec<u16>),
    Indices(Vec<i64>),
    Bytes(Vec<u8>),
}

fn encoded(contents: &Contents, dtype: DType) -> Encoded {
    match (contents, dtype) {
        (Contents::Floats(values), DType::F32) => {
            Encoded::Floats(values.iter().map(|&value| value as f32).collect())
        }
        (Contents::Floats(values), DType::F16) => {
            let bits = values
                .iter()
                .map(|&value| f16::from_f32(value as f32).to_bits());
            Encoded::Bits(bits.collect())
        }
        (Contents::Floats(values), DType::Bf16) => {
            let bits = values
                .iter()
                .map(|&value| bf16::from_f32(value as f32).to_bits());
            Encoded::Bits(bits.collect())
        }
        (Contents::Indices(values), DType::I64) => Encoded::Indices(values.clone()),
        (Contents::Bytes(values), DType::U8) => Encoded::Bytes(values.clone()),
        (contents, dtype) => panic!("{contents:?} in {dtype:?}"),
    }
}

/// Reads between programs.
pub fn get(machine: &Machine, place: &Place) -> Vec<f64> {
    let bits = |convert: fn(u16) -> f64| {
        let values = machine.read::<u16>(place).unwrap();
        values.iter().map(|&bits| convert(bits)).collect()
    };
    match place.dtype {
        DType::F32 => {
            let values = machine.read::<f32>(place).unwrap();
            values.iter().map(|&value| f64::from(value)).collect()
        }
        DType::F16 => bits(|bits| f16::from_bits(bits).to_f64()),
        DType::Bf16 => bits(|bits| bf16::from_bits(bits).to_f64()),
        DType::U8 => {
            let codes = machine.read::<u8>(place).unwrap();
            codes.iter().map(|&code| f64::from(code)).collect()
        }
        other => panic!("results are numbers or codes, not {other:?}"),
    }
}
