//! Runs forward programs: evaluation, encoders, prediction.
//!
//! The programs have no backward pass, so gradients cannot leak. They run in the arena of a training step ([`Forward`]), or
//! in an arena of their own without training ([`ForwardModel`]).

use std::borrow::Cow;

use holdall_device::{Arithmetic, Device, DeviceError, HostRow, Machine};
use holdall_graph::Graph;
use holdall_plan::{PlanError, Recompute, RecomputePolicy, StepPlan, Target, lifetimes_of};

use crate::engine::step::{checksum_of_samples, fill_parameters, on_its_threads, place};
use crate::engine::task::Task;
use crate::error::TrainError;

/// Forward programs with the memory that they run in.
pub struct Forward<'a> {
    device: &'a Device,
    plan: &'a StepPlan,
    machine: &'a mut Machine,
}

impl<'a> Forward<'a> {
    pub(crate) fn new(
        device: &'a Device,
        plan: &'a StepPlan,
        machine: &'a mut Machine,
    ) -> Forward<'a> {
        Forward {
            device,
            plan,
            machine,
        }
    }

    /// Rows of an endpoint, which is the largest batch.
    pub fn rows(&self, endpoint: &str) -> usize {
        place(self.plan, endpoint).shape.dims()[0]
    }

    /// Elements per row of an endpoint.
    pub fn width(&self, endpoint: &str) -> usize {
        let shape = place(self.plan, endpoint).shape;
        shape.num_elements() / shape.dims()[0]
    }

    /// Whether the endpoint exists.
    pub fn has(&self, endpoint: &str) -> bool {
        self.plan.endpoint(endpoint).is_some()
    }

    /// Feeds pictures; the remaining rows repeat the first picture.
    ///
    /// # Panics
    /// If there are no pictures, or more than the endpoint has rows.
    pub fn feed_pictures(&mut self, endpoint: &str, pictures: &[HostRow]) {
        let place = place(self.plan, endpoint);
        let (count, rows) = (pictures.len(), place.shape.dims()[0]);
        assert!(
            (1..=rows).contains(&count),
            "{count} pictures, at most {rows}"
        );
        let padding = std::iter::repeat_n(&pictures[0], rows - count);
        self.machine
            .input_rows(&place, pictures.iter().chain(padding));
    }

    /// Feeds bytes; `fill` gets a buffer with arbitrary contents.
    pub fn feed_bytes(&mut self, endpoint: &str, fill: impl FnOnce(&mut [u8])) {
        let place = place(self.plan, endpoint);
        self.machine.input(&place, fill);
    }

    /// Feeds rows of indices; the remaining rows repeat the first, which is in range.
    ///
    /// # Panics
    /// If the indices are not whole rows, at least one and at most as many as the endpoint has.
    pub fn feed_indices(&mut self, endpoint: &str, values: &[i64]) {
        let place = place(self.plan, endpoint);
        let width = self.width(endpoint);
        let is_whole = !values.is_empty() && values.len().is_multiple_of(width);
        assert!(is_whole, "{endpoint}: whole rows of {width}");
        self.machine.input(&place, |to: &mut [i64]| {
            to[..values.len()].copy_from_slice(values);
            for row in to[values.len()..].chunks_mut(width) {
                row.copy_from_slice(&values[..width]);
            }
        });
    }

    /// Runs a program and waits for it.
    ///
    /// # Panics
    /// If the program does not exist.
    pub fn run(&mut self, program: &str) -> Result<(), DeviceError> {
        self.start(program);
        // A synchronisation per batch: its results are read next.
        self.machine.wait()
    }

    /// Runs a program and reads one of its endpoints in a single round trip.
    ///
    /// # Panics
    /// If the program or the endpoint does not exist.
    pub fn run_and_read(
        &mut self,
        program: &str,
        endpoint: &str,
    ) -> Result<Cow<'_, [f32]>, DeviceError> {
        self.start(program);
        let place = place(self.plan, endpoint);
        if !self.device.is_gpu() {
            return self.machine.read(&place);
        }
        let values = self.machine.read(&place)?.into_owned();
        // The device is idle by now: this returns whether the program failed.
        self.machine.wait()?;
        Ok(Cow::Owned(values))
    }

    fn start(&mut self, program: &str) {
        let id = self.plan.forward_program(program);
        let id = id.unwrap_or_else(|| panic!("the graph has no forward program `{program}`"));
        on_its_threads(self.device, || {
            self.machine.run(self.device, self.plan, id, 0, 0);
        });
    }

    /// A parameter's elements by name; `None` if the plan does not have it.
    pub fn parameter(&self, name: &str) -> Result<Option<Cow<'_, [f32]>>, DeviceError> {
        let mut parameters = self.plan.graph.parameters().iter();
        let parameter = parameters.find(|parameter| parameter.name == name);
        let place = parameter.map(|parameter| self.plan.place(parameter.value));
        place.map(|place| self.machine.read(&place)).transpose()
    }

    /// The first rows of an endpoint.
    pub fn read_rows(&self, endpoint: &str, rows: usize) -> Result<Cow<'_, [f32]>, DeviceError> {
        let place = place(self.plan, endpoint);
        let count = rows * (place.shape.num_elements() / place.shape.dims()[0]);
        Ok(match self.machine.read(&place)? {
            Cow::Borrowed(all) => Cow::Borrowed(&all[..count]),
            Cow::Owned(mut all) => {
                all.truncate(count);
                Cow::Owned(all)
            }
        })
    }
}

/// A model for inference: its weights and the forward programs in an arena of their own.
pub struct ForwardModel {
    batch: usize,
    plan: StepPlan,
    machine: Machine,
}

/// Batch sizes to try, from the largest on.
const BATCHES: [usize; 8] = [64, 32, 16, 8, 4, 3, 2, 1];

/// Batch sizes of up to `most` samples; 1 in any case.
fn usual_batches(most: usize) -> Vec<usize> {
    let fitting = BATCHES.into_iter().filter(|batch| *batch <= most.max(1));
    fitting.collect()
}

/// Host bytes of a picture. They count towards the budget on the CPU only.
fn row_bytes(device: &Device, task: &dyn Task) -> u64 {
    if device.is_gpu() || task.reads_its_own_pictures() {
        return 0;
    }
    task.picture_bytes() as u64
}

fn plan(task: &dyn Task, target: &dyn Target, arithmetic: Arithmetic, batch: usize) -> StepPlan {
    let mut graph = Graph::new(arithmetic.compute());
    task.write_programs(&mut graph, batch);
    plan_graph(&graph, target)
}

fn plan_graph(graph: &Graph, target: &dyn Target) -> StepPlan {
    let nothing_recomputed = RecomputePolicy::uniform(Recompute::None, 0);
    let lifetimes = lifetimes_of(graph, &nothing_recomputed, target);
    lifetimes.pack().plan(0, 0)
}

/// Resident host memory of caption generation beside the arena: `bench captions --small` held 1.9 MiB more than planned.
const CAPTION_BYTES: u64 = 5 << 19;

impl ForwardModel {
    /// Plans a batch of this size in this arithmetic, without a budget, and reserves the arena.
    pub fn with_arithmetic(
        device: &Device,
        task: &dyn Task,
        arithmetic: Arithmetic,
        batch: usize,
    ) -> Result<ForwardModel, TrainError> {
        let target = device.target(arithmetic, CAPTION_BYTES)?;
        let plan = plan(task, &*target, arithmetic, batch);
        let machine = Machine::new(device, &plan, arithmetic)?;
        let mut model = ForwardModel {
            batch,
            plan,
            machine,
        };
        model.plan.process_bytes += batch as u64 * row_bytes(device, task);
        Ok(model)
    }

    /// Plans the largest batch that fits the budget, or the requested one, and reserves the arena. The arithmetic is f32, so
    /// that scores do not depend on the device's preferred format.
    pub fn new(
        device: &Device,
        task: &dyn Task,
        batch: Option<usize>,
        budget_bytes: Option<u64>,
        host_bytes: u64,
    ) -> Result<ForwardModel, TrainError> {
        let row_bytes = row_bytes(device, task);
        let arithmetic = Arithmetic::F32;
        let target = device.target(arithmetic, host_bytes)?;
        let batches = match batch {
            Some(batch) => vec![batch],
            None => usual_batches(task.max_forward_batch()),
        };
        ForwardModel::largest(device, arithmetic, batches, budget_bytes, &|batch| {
            let mut plan = plan(task, &*target, arithmetic, batch);
            plan.process_bytes += batch as u64 * row_bytes;
            plan
        })
    }

    /// Like [`ForwardModel::new`] for programs that `build` writes for a batch size, in a given arithmetic: at most `most`
    /// samples per batch, with `row_bytes` of host memory each.
    pub(crate) fn of_graph(
        device: &Device,
        build: &dyn Fn(usize) -> Graph,
        arithmetic: Arithmetic,
        (most, row_bytes, budget_bytes): (usize, u64, Option<u64>),
    ) -> Result<ForwardModel, TrainError> {
        let target = device.target(arithmetic, 0)?;
        let batches = usual_batches(most);
        ForwardModel::largest(device, arithmetic, batches, budget_bytes, &|batch| {
            let mut plan = plan_graph(&build(batch), &*target);
            if !device.is_gpu() {
                plan.process_bytes += batch as u64 * row_bytes;
            }
            plan
        })
    }

    /// Takes the first batch size whose plan fits the budget, and reserves the arena.
    fn largest(
        device: &Device,
        arithmetic: Arithmetic,
        batches: Vec<usize>,
        budget_bytes: Option<u64>,
        plan: &dyn Fn(usize) -> StepPlan,
    ) -> Result<ForwardModel, TrainError> {
        let mut smallest = u64::MAX;
        for batch in batches {
            let plan = plan(batch);
            smallest = smallest.min(plan.process_bytes);
            if budget_bytes.is_none_or(|budget| plan.process_bytes <= budget) {
                let machine = Machine::new(device, &plan, arithmetic)?;
                return Ok(ForwardModel {
                    batch,
                    plan,
                    machine,
                });
            }
        }
        Err(PlanError::DoesNotFit {
            budget_bytes: budget_bytes.unwrap_or(0),
            smallest_bytes: smallest,
            changes: Vec::new(),
            available_bytes: None,
            note: None,
        }
        .into())
    }

    /// Samples per batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Adds bytes to the planned memory of the process.
    pub fn hold_more(&mut self, bytes: u64) {
        self.plan.process_bytes += bytes;
    }

    pub fn plan(&self) -> &StepPlan {
        &self.plan
    }

    /// Fills every parameter: `fill` gets its name and its elements.
    pub fn set_weights<E>(
        &mut self,
        device: &Device,
        fill: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        fill_parameters(device, &self.plan, &mut self.machine, fill)
    }

    /// Checksum of some elements of each parameter, which tells models apart.
    pub fn sampled_checksum(&self) -> Result<String, DeviceError> {
        checksum_of_samples(&self.plan, &self.machine)
    }

    /// The forward programs, ready to run.
    pub fn forward<'a>(&'a mut self, device: &'a Device) -> Forward<'a> {
        Forward::new(device, &self.plan, &mut self.machine)
    }
}
