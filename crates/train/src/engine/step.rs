//! One optimizer step, top to bottom.
//!
//! ```text
//! begin
//! first pass of the micro-batches without a slot    where a loss needs the whole effective batch
//! forward of the micro-batches with a slot          activations kept
//! losses over the whole effective batch, and their gradients
//! backward of the micro-batches with a slot         last in, first out
//! forward and backward of the micro-batches without a slot
//! update                                            the commit point
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use holdall_device::{Device, DeviceError, Machine};
use holdall_files::RunningChecksum;
use holdall_graph::adapters::module_of_weight;
use holdall_graph::{DType, Graph, Parameter, Role, Section, Shape, ValueId};
use holdall_plan::{Place, Run, Stage, StepPlan};
use holdall_processes::Group;

use crate::engine::batch::{Batch, IGNORED, MicroBatch, Scope, Values};
use crate::engine::forward::Forward;
use crate::engine::lora;
use crate::engine::operations::Times;
use crate::engine::optimizer::StepScalars;
use crate::engine::scaler::Gradients;
use crate::engine::step_graph::{StepConfig, endpoints, losses_of_every_process};
use crate::engine::task::Task;
use crate::error::TrainError;

mod advance;
mod averages;
mod optimizer_state;
mod state_in_parts;
mod whole_batch;

pub use advance::{Advance, IsToPause};
pub use optimizer_state::ElementsMut;
pub use state_in_parts::StateTensor;
pub(crate) use whole_batch::processes_of;
use whole_batch::{WholeBatch, write_weights};

/// A loss as sum and count; the reader of the mean divides once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSum {
    /// Sum over all samples that count.
    pub sum: f64,
    /// Divisor: number of samples, or the sum of their class weights.
    pub count: f64,
}

impl LossSum {
    /// The mean; zero if no sample counted.
    pub fn mean(&self) -> f64 {
        if self.count == 0.0 {
            0.0
        } else {
            self.sum / self.count
        }
    }
}

/// Number of runs per program that are timed instruction by instruction.
const MOST_TIMED_RUNS: usize = 4;

/// Results of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Weighted sum of the mean losses.
    pub loss: f64,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// Whether the update was applied.
    pub gradients: Gradients,
}

/// A planned step with its memory.
pub struct Step {
    config: StepConfig,
    loss_weights: Vec<f64>,
    /// Divisor of each loss in the last step, and the losses.
    counts: Vec<f64>,
    losses: Vec<LossSum>,
    plan: StepPlan,
    batch_size: usize,
    machine: Machine,
    loaded: LoadedInputs,
    launched: LaunchedPasses,
    /// Inputs that the passes read; every batch must contain them.
    inputs: Vec<String>,
    /// Whether averages are in the place of the weights.
    is_averaged: bool,
    /// Processes that share the step.
    group: Group,
    /// A sample that replaces the missing ones if this process has none.
    stand_in: Option<Batch>,
    /// Losses that every process computes whole: only one process's count is used.
    of_every_process: Vec<usize>,
}

/// Which inputs lie in the machine.
#[derive(Default)]
struct LoadedInputs {
    micro_batch: Option<usize>,
    /// Whether they belong to the next step.
    is_next_step: bool,
}

/// How far a step has come that is not finished.
#[derive(Default)]
struct LaunchedPasses {
    /// `None` if no step is launched.
    loss_scale: Option<f64>,
    /// Number of passes that were launched.
    next: usize,
}

/// A tensor that outlives programs, read on demand: from a GPU, reading copies.
pub struct Stored<'a> {
    machine: &'a Machine,
    place: Place,
    adapter: Option<Box<StoredAdapter>>,
}

/// Location of the adapter that is merged into a weight on reading.
struct StoredAdapter {
    matrices: [Place; 2],
    rank: usize,
    scale: f64,
}

impl<'a> Stored<'a> {
    /// Reads the elements of an f32 tensor.
    pub fn read(&self) -> Result<Cow<'a, [f32]>, DeviceError> {
        let stored = self.machine.read(&self.place)?;
        let Some(adapter) = &self.adapter else {
            return Ok(stored);
        };
        let [a, b] = adapter
            .matrices
            .map(|place| self.machine.read::<f32>(&place));
        let mut merged = stored.into_owned();
        lora::merge(&mut merged, [&a?, &b?], adapter.rank, adapter.scale);
        Ok(Cow::Owned(merged))
    }
}

impl Step {
    /// Reserves the arena. `plan` is for a graph that [`crate::engine::step_graph::write_step`] wrote from the same config.
    pub fn new(
        device: &Device,
        config: StepConfig,
        plan: StepPlan,
        batch_size: usize,
    ) -> Result<Step, TrainError> {
        let group = if config.processes.is_alone() {
            Group::alone()
        } else {
            device.group().clone()
        };
        assert_eq!(
            config.processes,
            processes_of(&group),
            "a step is of the process that runs it"
        );
        let machine = Machine::new(device, &plan, config.arithmetic)?;
        let losses = config.task.losses();
        let inputs = inputs_of_batches(&plan.graph, &*config.task);
        let of_every_process = losses_of_every_process(&plan.graph);
        Ok(Step {
            loss_weights: losses.iter().map(|loss| loss.weight).collect(),
            counts: vec![0.0; losses.len()],
            losses: vec![LossSum::default(); losses.len()],
            config,
            plan,
            batch_size,
            machine,
            loaded: LoadedInputs::default(),
            launched: LaunchedPasses::default(),
            inputs,
            is_averaged: false,
            group,
            stand_in: None,
            of_every_process,
        })
    }

    pub fn config(&self) -> &StepConfig {
        &self.config
    }

    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Size of the reserved arena.
    pub fn arena_bytes(&self) -> u64 {
        self.machine.arena_bytes()
    }

    /// All parameters, in the order of the graph.
    pub fn parameters(&self) -> &[Parameter] {
        self.plan.graph.parameters()
    }

    fn parameter(&self, name: &str) -> Option<&Parameter> {
        let mut parameters = self.parameters().iter();
        parameters.find(|parameter| parameter.name == name)
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        device: &Device,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(device, &self.plan, &mut self.machine, fill)
    }

    /// Reads a parameter's elements.
    pub fn weight(&self, parameter: &Parameter) -> Result<Cow<'_, [f32]>, DeviceError> {
        self.stored_weight(parameter).read()
    }

    /// Checksum of some elements of each parameter, which tells models apart.
    pub fn sampled_checksum(&self) -> Result<String, DeviceError> {
        checksum_of_samples(&self.plan, &self.machine)
    }

    /// A parameter's elements, to be read later.
    pub fn stored_weight(&self, parameter: &Parameter) -> Stored<'_> {
        self.stored_at(self.plan.place(parameter.value))
    }

    /// Like [`Step::exported_weight`], by name.
    pub fn exported_weight_called(&self, name: &str) -> Option<Stored<'_>> {
        self.parameter(name)
            .map(|found| self.exported_weight(found))
    }

    /// A parameter as saved models contain it, merged with its adapter if it has one; to be read later.
    pub fn exported_weight(&self, parameter: &Parameter) -> Stored<'_> {
        let adapter = self.config.lora.as_ref().and_then(|lora| {
            let module = module_of_weight(&parameter.name)?;
            if !lora.modules.contains(module) {
                return None;
            }
            let matrices = lora::names(module).map(|name| {
                let matrix = self.parameter(&name);
                let matrix = matrix.expect("a layer with an adapter has both matrices");
                self.plan.place(matrix.value)
            });
            Some(Box::new(StoredAdapter {
                matrices,
                rank: lora.rank,
                scale: lora.scale(),
            }))
        });
        Stored {
            adapter,
            ..self.stored_weight(parameter)
        }
    }

    /// A parameter's gradient after the last [`Step::gradients`]; `None` if it is frozen.
    pub fn gradient(&self, parameter: &Parameter) -> Result<Option<Cow<'_, [f32]>>, DeviceError> {
        let Some(value) = self.plan.graph.parameter_gradient(parameter) else {
            return Ok(None);
        };
        let place = self.plan.place_of(&value);
        Ok(Some(match place.dtype {
            DType::Bf16 => {
                let bits = self.machine.read::<u16>(&place)?;
                let numbers = bits
                    .iter()
                    .map(|&bits| f32::from_bits(u32::from(bits) << 16));
                Cow::Owned(numbers.collect())
            }
            _ => self.machine.read(&place)?,
        }))
    }

    /// An endpoint that outlives programs, as the last step left it.
    ///
    /// # Panics
    /// If the endpoint does not exist.
    pub fn endpoint(&self, name: &str) -> Result<Cow<'_, [f32]>, DeviceError> {
        self.stored_at(self.place(name)).read()
    }

    fn place(&self, endpoint: &str) -> Place {
        place(&self.plan, endpoint)
    }

    fn stored_at(&self, place: Place) -> Stored<'_> {
        Stored {
            machine: &self.machine,
            place,
            adapter: None,
        }
    }

    /// Computes the gradients of `batch`, without an update.
    pub fn gradients(
        &mut self,
        device: &Device,
        batch: &Batch,
        loss_scale: f64,
    ) -> Result<&[LossSum], DeviceError> {
        self.begin(batch, loss_scale);
        on_its_threads(device, || self.run_passes(device, batch));
        self.wait()?;
        Ok(&self.losses)
    }

    /// Runs a complete step on `batch`, the update included.
    pub fn run(
        &mut self,
        device: &Device,
        batch: &Batch,
        scalars: &StepScalars<'_>,
    ) -> Result<StepReport, DeviceError> {
        self.launch(device, batch, scalars);
        self.finish()
    }

    /// Loads `batch` and starts every program; on a GPU, returns before they finish.
    pub fn launch(&mut self, device: &Device, batch: &Batch, scalars: &StepScalars<'_>) {
        self.start(batch, scalars);
        self.advance(device, batch, &|| false);
    }

    /// Waits for the programs of [`Step::launch`], and returns the results.
    pub fn finish(&mut self) -> Result<StepReport, DeviceError> {
        let loss_scale = self.wait()?;
        let norm = self.endpoint(endpoints::NORM)?;
        Ok(StepReport {
            loss: self.total_loss(),
            gradient_norm: f64::from(norm[0]) / loss_scale,
            gradients: if norm[1] == 1.0 {
                Gradients::Finite
            } else {
                Gradients::Overflowed
            },
        })
    }

    /// Uploads the first inputs of the next step's batch to a GPU that still computes this step. The next launch must use the
    /// same batch.
    pub fn preload(&mut self, device: &Device, batch: &Batch) {
        if !device.is_gpu() {
            return;
        }
        let mut passes = self.plan.passes();
        let first = passes.find(|run| run.stage.is_per_micro_batch());
        self.loaded.micro_batch = None;
        self.load(batch, first.expect("a step has a micro-batch"));
        self.machine.send();
        self.loaded.is_next_step = true;
    }

    /// Each loss of the last step, in the task's order.
    pub fn losses(&self) -> &[LossSum] {
        &self.losses
    }

    /// Weighted sum of the mean losses of the last step.
    pub fn total_loss(&self) -> f64 {
        let weighted = self.losses.iter().zip(&self.loss_weights);
        weighted.map(|(loss, weight)| weight * loss.mean()).sum()
    }

    fn begin(&mut self, batch: &Batch, loss_scale: f64) {
        assert!(!self.is_averaged, "steps are from the weights themselves");
        let most = self.batch_size * self.plan.accumulation;
        let least = usize::from(self.group.size() == 1);
        assert!(
            (least..=most).contains(&batch.num_samples),
            "{} samples for {} micro-batches of {}",
            batch.num_samples,
            self.plan.accumulation,
            self.batch_size
        );
        let inputs = self.inputs.iter().filter(|_| batch.num_samples > 0);
        for input in inputs {
            let mut columns = batch.columns.iter();
            assert!(
                columns.any(|column| column.endpoint == *input),
                "the step reads `{input}`, which the batch does not have"
            );
        }
        if !std::mem::take(&mut self.loaded.is_next_step) {
            self.loaded.micro_batch = None;
        }
        self.load_whole(batch, loss_scale);
        self.launched.loss_scale = Some(loss_scale);
    }

    /// The only synchronisation of a step; reads its losses, and returns its loss scale.
    fn wait(&mut self) -> Result<f64, DeviceError> {
        self.machine.wait()?;
        let sums = self.machine.read::<f32>(&self.place(endpoints::SUMS))?;
        for ((loss, &sum), &count) in self.losses.iter_mut().zip(sums.iter()).zip(&self.counts) {
            *loss = LossSum {
                sum: f64::from(sum),
                count,
            };
        }
        let launched = self.launched.loss_scale.take();
        Ok(launched.expect("a step is launched before it is finished"))
    }

    fn run_passes(&mut self, device: &Device, batch: &Batch) {
        for run in self.plan.passes() {
            let run = self.load(batch, run);
            self.run_one(device, run);
        }
    }

    fn run_one(&mut self, device: &Device, run: Run) {
        let (machine, plan) = (&mut self.machine, &self.plan);
        let (micro, slot) = (run.micro_batch, run.slot);
        if run.is_last {
            machine.run_last(device, plan, run.program, micro, slot)
        } else {
            machine.run(device, plan, run.program, micro, slot)
        }
    }

    /// Runs a pass instruction by instruction and reports the time of each.
    fn profile_one(
        &mut self,
        device: &Device,
        run: Run,
        told: &mut (dyn FnMut(&'static str, f64) + Send),
    ) -> Result<(), DeviceError> {
        let place = [run.micro_batch, run.slot];
        self.machine
            .profile(device, &self.plan, run.program, place, told)
    }

    /// Times one step without an update: (operation, seconds, runs), slowest first.
    pub fn profile(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Vec<(&'static str, f64, usize)>, DeviceError> {
        self.loaded = LoadedInputs::default();
        self.load_whole(batch, 1.0);
        let mut times: HashMap<&'static str, (f64, usize)> = HashMap::new();
        for run in self.plan.passes() {
            let run = self.load(batch, run);
            self.profile_one(device, run, &mut |name, seconds| {
                let entry = times.entry(name).or_default();
                entry.0 += seconds;
                entry.1 += 1;
            })?;
        }
        let mut times: Vec<_> = times
            .into_iter()
            .map(|(name, (s, n))| (name, s, n))
            .collect();
        times.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(times)
    }

    /// Times one step without an update: seconds of every instruction, summed over all runs of its program and extrapolated
    /// from the first few. The next step's results are unaffected.
    pub(crate) fn time_instructions(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Times, DeviceError> {
        self.loaded = LoadedInputs::default();
        self.load_whole(batch, 1.0);
        let mut times = Times::new();
        let kept = self.plan.kept;
        let is_timed = |run: &Run| {
            if run.stage.has_slot() {
                run.slot < MOST_TIMED_RUNS
            } else {
                run.micro_batch < kept + MOST_TIMED_RUNS
            }
        };
        for run in self.plan.passes().filter(is_timed) {
            let run = self.load(batch, run);
            let instructions = self.plan.program(run.stage).instructions.len();
            let of_program = times
                .entry(run.stage)
                .or_insert_with(|| vec![0.0; instructions]);
            let mut next = of_program.iter_mut();
            self.profile_one(device, run, &mut |_, seconds| {
                if let Some(time) = next.next() {
                    *time += seconds;
                }
            })?;
        }
        for (&stage, seconds) in &mut times {
            let runs = self.plan.passes().filter(|run| run.stage == stage).count();
            let scale = runs as f64 / runs.min(MOST_TIMED_RUNS) as f64;
            seconds.iter_mut().for_each(|seconds| *seconds *= scale);
        }
        Ok(times)
    }

    /// Times every instruction of a stage's program in one step without an update.
    pub fn stage_seconds(
        &mut self,
        device: &Device,
        batch: &Batch,
        stage: Stage,
    ) -> Result<Vec<f64>, DeviceError> {
        let mut times = self.time_instructions(device, batch)?;
        Ok(times.remove(&stage).unwrap_or_default())
    }

    /// Times one step without an update by programs: (program, seconds, runs). The host waits for each program.
    pub fn profile_programs(
        &mut self,
        device: &Device,
        batch: &Batch,
    ) -> Result<Vec<(String, f64, usize)>, DeviceError> {
        self.loaded = LoadedInputs::default();
        self.load_whole(batch, 1.0);
        let programs = self.plan.programs.iter();
        let mut times: Vec<_> = programs.map(|one| (one.name.clone(), 0.0, 0)).collect();
        for run in self.plan.passes() {
            let run = self.load(batch, run);
            self.machine.wait()?;
            let started = std::time::Instant::now();
            self.run_one(device, run);
            self.machine.wait()?;
            let entry = &mut times[run.program.0];
            entry.1 += started.elapsed().as_secs_f64();
            entry.2 += 1;
        }
        Ok(times.into_iter().filter(|(_, _, runs)| *runs > 0).collect())
    }

    /// The forward programs, in the arena of the step.
    pub fn forward<'a>(&'a mut self, device: &'a Device) -> Forward<'a> {
        self.loaded = LoadedInputs::default();
        Forward::new(device, &self.plan, &mut self.machine)
    }

    /// Loads the inputs of the whole step: columns of the effective batch, weights of rows, seeds.
    fn load_whole(&mut self, batch: &Batch, loss_scale: f64) {
        let task = &self.config.task;
        task.count_losses(batch, &mut self.counts);
        let own_rows = self
            .config
            .own_rows(self.batch_size, self.plan.accumulation);
        let is_alone = self.group.size() == 1;
        let whole = (!is_alone).then(|| {
            let own = self.counts.clone();
            let counts = &mut self.counts;
            let whole = WholeBatch::exchange(&self.group, &**task, batch, own_rows, counts);
            for &loss in &self.of_every_process {
                counts[loss] = own[loss];
            }
            whole
        });
        if batch.num_samples == 0 {
            self.stand_in.get_or_insert_with(|| task.random_batch(1, 0));
        }
        let (machine, plan) = (&mut self.machine, &self.plan);
        if let Some(weights) = plan.endpoint(endpoints::WEIGHTS) {
            let counts = whole.as_ref().map(|whole| whole.num_samples.as_slice());
            let counts = counts.unwrap_or(std::slice::from_ref(&batch.num_samples));
            machine.input(&weights, |weights: &mut [f32]| {
                write_weights(counts, weights);
            });
        }
        let own = batch.columns.iter();
        let own = own.filter(|one| matches!(one.scope, Scope::OwnBatch | Scope::Step));
        let of_all = whole.as_ref().map_or(batch, |whole| &whole.columns);
        let of_all = of_all.columns.iter();
        let of_all = of_all.filter(|one| one.scope == Scope::EffectiveBatch);
        for column in own.chain(of_all) {
            let place = place(plan, &column.endpoint);
            match &column.values {
                Values::Floats(values) => {
                    machine.input(&place, |to: &mut [f32]| copy_padded(values, to, 0.0));
                }
                Values::Indices(values) => {
                    machine.input(&place, |to: &mut [i64]| copy_padded(values, to, IGNORED));
                }
                Values::Bytes(_) | Values::Rows(_) => {
                    unreachable!("{}: pictures come by micro-batch", column.endpoint)
                }
            }
        }
        let seeds = place(plan, endpoints::SEEDS);
        machine.input(&seeds, |seeds: &mut [f32]| {
            for ((seed, weight), &count) in
                seeds.iter_mut().zip(&self.loss_weights).zip(&self.counts)
            {
                *seed = match count {
                    0.0 => 0.0,
                    count => (weight * loss_scale / count) as f32,
                };
            }
        });
    }

    /// Loads a micro-batch's inputs, and returns the run with the program for the length of its texts.
    fn load(&mut self, batch: &Batch, run: Run) -> Run {
        if !run.stage.is_per_micro_batch() {
            return run;
        }
        let batch = match (batch.num_samples, &self.stand_in) {
            (0, Some(stand_in)) => stand_in,
            _ => batch,
        };
        let micro = MicroBatch {
            batch,
            start: run.micro_batch * self.batch_size,
            size: self.batch_size,
        };
        let (machine, plan, task) = (&mut self.machine, &self.plan, &self.config.task);
        let shorter = if plan.shorter.is_empty() {
            None
        } else {
            plan.shorter_for(task.longest_text(&micro))
        };
        let run = Run {
            program: plan.program_of(run.stage, shorter),
            ..run
        };
        if self.loaded.micro_batch == Some(run.micro_batch) {
            return run;
        }
        self.loaded.micro_batch = Some(run.micro_batch);
        let columns = batch.columns.iter();
        for column in columns.filter(|one| one.scope == Scope::MicroBatch) {
            let place = plan.endpoint_of(&column.endpoint, shorter);
            let place =
                place.unwrap_or_else(|| panic!("the graph has no endpoint `{}`", column.endpoint));
            match &column.values {
                Values::Bytes(bytes) => {
                    machine.input(&place.as_bytes(), |to: &mut [u8]| micro.copy(bytes, to));
                }
                Values::Rows(all) => machine.input_rows(&place, micro.rows(all)),
                Values::Floats(floats) => {
                    machine.input(&place, |to: &mut [f32]| micro.copy(floats, to));
                }
                Values::Indices(indices) => {
                    machine.input(&place, |to: &mut [i64]| micro.copy(indices, to));
                }
            }
        }
        for name in task.derived_inputs() {
            if let Some(place) = plan.endpoint_of(name, shorter) {
                machine.input(&place, |to| task.derive(name, &micro, to));
            }
        }
        for name in task.derived_numbers() {
            if let Some(place) = plan.endpoint_of(name, shorter) {
                machine.input(&place, |to| task.derive_numbers(name, &micro, to));
            }
        }
        run
    }

    /// Copies of all parameters by name, for comparing and saving.
    pub fn named_weights(&self) -> Result<HashMap<String, Vec<f32>>, DeviceError> {
        let named = self.parameters().iter().map(|parameter| {
            let weight = self.weight(parameter)?;
            Ok((parameter.name.clone(), weight.into_owned()))
        });
        named.collect()
    }
}

/// Inputs that the passes read and that a batch must contain, because neither the engine nor the task derives them.
fn inputs_of_batches(graph: &Graph, task: &dyn Task) -> Vec<String> {
    let of_engine = [endpoints::WEIGHTS, endpoints::SEEDS, endpoints::SCHEDULE];
    let is_brought = |name: &str| {
        let derived = [task.derived_inputs(), task.derived_numbers()];
        !of_engine.contains(&name) && !derived.concat().contains(&name) && !name.contains('/')
    };
    let is_read = |value: ValueId| {
        let storage = graph.value(value).storage;
        let passes = [Section::Forward, Section::Loss, Section::Backward];
        let mut nodes = graph.nodes().iter();
        graph.storage(storage).role == Role::Input
            && nodes.any(|node| {
                let mut inputs = node.inputs.iter();
                passes.contains(&node.section)
                    && inputs.any(|&input| graph.value(input).storage == storage)
            })
    };
    graph
        .endpoints()
        .filter(|&(name, value)| is_brought(name) && is_read(value))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Place of an endpoint.
///
/// # Panics
/// If the endpoint does not exist.
pub(crate) fn place(plan: &StepPlan, endpoint: &str) -> Place {
    let found = plan.endpoint(endpoint);
    found.unwrap_or_else(|| panic!("the graph has no endpoint `{endpoint}`"))
}

fn copy_padded<T: Copy>(from: &[T], to: &mut [T], padding: T) {
    to[..from.len()].copy_from_slice(from);
    to[from.len()..].fill(padding);
}

/// Runs `work` on the CPU's thread pool if the CPU computes: programs inside do not pass through the pool's queue again, so
/// they allocate nothing. With a GPU, `work` runs on the calling thread.
pub(crate) fn on_its_threads<R: Send>(device: &Device, work: impl FnOnce() -> R + Send) -> R {
    if device.is_gpu() {
        work()
    } else {
        device.cpu().scope(work)
    }
}

/// Elements of each parameter that count in [`checksum_of_samples`]: all of a large model would take seconds to read from a card.
const SAMPLED_ELEMENTS: usize = 1 << 12;

/// Checksum of the first elements of each parameter. Matrices count too: adapters and frozen parts leave small parameters as they were.
pub(crate) fn checksum_of_samples(
    plan: &StepPlan,
    machine: &Machine,
) -> Result<String, DeviceError> {
    let mut checksum = RunningChecksum::default();
    for parameter in plan.graph.parameters() {
        let whole = plan.place(parameter.value);
        let shape = Shape::new(&[whole.shape.num_elements().min(SAMPLED_ELEMENTS)]);
        let first = Place {
            strides: shape.contiguous_strides(),
            shape,
            ..whole
        };
        checksum.add(parameter.name.as_bytes());
        averages::add_to(&mut checksum, &machine.read(&first)?);
    }
    Ok(checksum.value().to_string())
}

/// Fills every parameter of a plan, then their copies in the compute format: `fill` gets the name and the elements.
pub(crate) fn fill_parameters<E>(
    device: &Device,
    plan: &StepPlan,
    machine: &mut Machine,
    mut fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
) -> Result<(), E> {
    for parameter in plan.graph.parameters() {
        let place = plan.place(parameter.value);
        machine.write(&place, |values| fill(&parameter.name, values))?;
    }
    if !plan.program(Stage::Refresh).instructions.is_empty() {
        machine.run(device, plan, Stage::Refresh.id(), 0, 0);
    }
    Ok(())
}
