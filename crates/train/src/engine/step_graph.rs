//! Writes the graph of a training step: the forward pass per micro-batch, losses over the whole effective batch, the backward
//! pass, and the update. The task writes model and losses; the order of the passes, and the exactness under any split of the
//! batch, are decided here.
//!
//! Three kinds of loss, each exact under any split. Separable (labels): each micro-batch adds its sum, and the seed divides
//! by the count of the whole batch. Coupled through features: features of all micro-batches first, then the loss and its
//! gradients once, then each micro-batch's backward pass from its own rows. Coupled through sums: the first pass adds them
//! ([`Graph::leave_by_first_pass`]), the second uses them.
//!
//! A device may replay programs at fixed addresses, so only copies touch the rows that move from micro-batch to micro-batch:
//! features are computed in one place and copied to their rows, and so are their gradients in the backward pass.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use holdall_device::Arithmetic;
use holdall_graph::adapters::adapted_module;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::collective::{Exchange, Processes};
use holdall_graph::ops::fill::Fill;
use holdall_graph::{
    Copies, DType, Graph, Node, NodeId, Op, Role, Section, StorageId, ValueId, Write, backward,
    backward_into, needs_gradients,
};
use holdall_plan::StepShape;

use crate::config::{GradientFormat, matches};
use crate::engine::frozen::Frozen;
use crate::engine::lora::Lora;
use crate::engine::optimizer::{FIXED_RATES, OptimizerConfig};
use crate::engine::task::{FillWeights, Task};
use crate::engine::update_graph::write_update;
use crate::error::TrainError;

/// Model, losses and numerics of a training step.
#[derive(Clone)]
pub struct StepConfig {
    pub task: Arc<dyn Task>,
    /// Constants of the optimizer.
    pub optimizer: OptimizerConfig,
    /// Parameters that are not trained.
    pub frozen: Frozen,
    /// Name patterns of parameters with a learning rate of their own; the first match counts.
    pub rate_patterns: Vec<String>,
    /// Samples per run of a forward program; a micro-batch by default.
    pub evaluation_batch: Option<usize>,
    pub arithmetic: Arithmetic,
    pub gradients: GradientFormat,
    /// Low-rank adapters; the pretrained parameters are frozen then.
    pub lora: Option<Lora>,
    /// Processes that share the step. Batch size and accumulation are those of one process.
    pub processes: Processes,
    /// Whether each process keeps the optimizer state of its share of the parameters only.
    pub is_sharded: bool,
}

impl fmt::Debug for StepConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepConfig")
            .field("task", &self.task.timing_key())
            .field("frozen", &self.frozen)
            .field("rate_patterns", &self.rate_patterns)
            .field("evaluation_batch", &self.evaluation_batch)
            .field("arithmetic", &self.arithmetic)
            .field("gradients", &self.gradients)
            .field("moments", &self.optimizer.moments)
            .field("averaging", &self.optimizer.averaging)
            .field("lora", &self.lora)
            .field("num_processes", &self.processes.count)
            .field("is_sharded", &self.is_sharded)
            .finish_non_exhaustive()
    }
}

impl StepConfig {
    /// Every parameter trained, in f32.
    pub fn new(task: Arc<dyn Task>) -> StepConfig {
        StepConfig {
            task,
            optimizer: OptimizerConfig::default(),
            frozen: Frozen::default(),
            rate_patterns: Vec::new(),
            evaluation_batch: None,
            arithmetic: Arithmetic::F32,
            gradients: GradientFormat::F32,
            lora: None,
            processes: Processes::default(),
            is_sharded: false,
        }
    }

    /// Whether this process holds the optimizer state of some parameters only.
    pub fn shards_state(&self) -> bool {
        self.is_sharded && !self.processes.is_alone()
    }

    /// Initialises the task's weights and those of the adapters.
    pub fn weights(&self, seed: u64) -> Result<FillWeights<'_>, TrainError> {
        let mut fill = self.task.weights(seed)?;
        let Some(lora) = &self.lora else {
            return Ok(fill);
        };
        let start = lora.read_start()?;
        Ok(Box::new(move |name, values| {
            if lora.fill(start.as_ref(), seed, name, values) {
                Ok(())
            } else {
                fill(name, values)
            }
        }))
    }

    /// Rows of this process in an effective batch, padding included.
    pub(crate) fn own_rows(&self, batch_size: usize, accumulation: usize) -> usize {
        (batch_size * accumulation).max(LEAST_ROWS.div_ceil(self.processes.count))
    }

    pub fn num_rates(&self) -> usize {
        FIXED_RATES + self.rate_patterns.len()
    }
}

/// Endpoints of every step; a task adds its own.
pub(crate) mod endpoints {
    /// 1 for samples, 0 for padding; whole effective batch. Written only if a task reads it.
    pub const WEIGHTS: &str = "sample weights";
    pub const SUMS: &str = "loss sums";
    /// Start of the backward pass from each sum: weight / count, times the loss scale.
    pub const SEEDS: &str = "loss seeds";
    /// Scalars of the update.
    pub const SCHEDULE: &str = "schedule";
    /// Gradient norm, and whether it is finite.
    pub const NORM: &str = "gradient norm";
}

/// Input that decides random masks: numbers of the samples in the data set.
pub const SAMPLE_IDS: &str = "sample ids";
/// Input that decides random masks: seed and epoch.
pub const STREAM: &str = "stream";

/// Minimum rows of the feature storage. On a card, products with fewer rows take another code path that sums in another order, and
/// the loss of a small batch would depend on its padding. Rows beyond the batch have weight zero.
const LEAST_ROWS: usize = 17;

/// A step under construction; tasks add their model and losses through it.
pub struct StepWriter<'g> {
    pub graph: &'g mut Graph,
    /// Samples of a micro-batch.
    pub batch: usize,
    /// Text length of a step over shorter texts, one of [`Task::lengths`]; `None` for the full length.
    pub length: Option<usize>,
    /// Rows of this process in an effective batch, padding included.
    own_rows: usize,
    processes: Processes,
    sums: ValueId,
    seeds: ValueId,
    /// Features of a micro-batch, and their storage for the whole effective batch.
    features: Vec<(ValueId, ValueId)>,
    separable: Vec<usize>,
    coupled: Vec<usize>,
}

impl StepWriter<'_> {
    /// Adds an input of a micro-batch; `dims` are the dimensions of a sample.
    pub fn input(&mut self, name: &str, dims: &[usize], dtype: DType) -> ValueId {
        let batch = self.batch;
        self.graph.input(name, &with_rows(batch, dims), dtype)
    }

    /// Returns the inputs that decide random masks, [`SAMPLE_IDS`] and [`STREAM`], and adds them if they are missing.
    pub fn mask_inputs(&mut self) -> [ValueId; 2] {
        let known = [SAMPLE_IDS, STREAM].map(|name| self.graph.endpoint(name));
        match known {
            [Some(ids), Some(stream)] => [ids, stream],
            _ => [
                self.input(SAMPLE_IDS, &[], DType::I64),
                self.graph.input(STREAM, &[2], DType::I64),
            ],
        }
    }

    /// Adds an input with all samples of this process and returns the rows of the current micro-batch; `dims` are the
    /// dimensions of a sample.
    pub fn rows_of_own_input(&mut self, name: &str, dims: &[usize], dtype: DType) -> ValueId {
        let own = self
            .graph
            .input(name, &with_rows(self.own_rows, dims), dtype);
        self.graph.micro_rows(own, self.batch)
    }

    /// Adds an input of the whole effective batch; `dims` are the dimensions of a sample.
    pub fn whole_input(&mut self, name: &str, dims: &[usize], dtype: DType) -> ValueId {
        self.graph.input(name, &with_rows(self.rows(), dims), dtype)
    }

    /// 1 for samples and 0 for padding, for the whole effective batch.
    pub fn sample_weights(&mut self) -> ValueId {
        let known = self.graph.endpoint(endpoints::WEIGHTS);
        known.unwrap_or_else(|| self.whole_input(endpoints::WEIGHTS, &[], DType::F32))
    }

    /// Rows of the current micro-batch in a value of the whole effective batch.
    pub fn micro_rows(&mut self, whole: ValueId) -> ValueId {
        let own = self.processes.own(self.rows());
        let own = self.graph.rows(whole, own.start, own.len());
        self.graph.micro_rows(own, self.batch)
    }

    /// Rows of the whole effective batch: those of each process, in the order of the ranks.
    fn rows(&self) -> usize {
        self.own_rows * self.processes.count
    }

    /// Sum of a separable loss, by its index in [`Task::losses`].
    pub fn separable_loss(&mut self, loss: usize) -> ValueId {
        self.separable.push(loss);
        self.graph.rows(self.sums, loss, 1)
    }

    /// Sum of a loss over the whole effective batch, by its index in [`Task::losses`].
    pub fn coupled_loss(&mut self, loss: usize) -> ValueId {
        self.coupled.push(loss);
        self.graph.rows(self.sums, loss, 1)
    }

    /// Stores features `own_bd` of a micro-batch under `name` for the losses of the whole effective batch. Call it after all
    /// lanes: a copy between them would end their parallel execution.
    pub fn leave(&mut self, name: &str, own_bd: ValueId) {
        let width = self.graph.shape(own_bd).width();
        let whole = self.graph.output(name, &[self.rows(), width]);
        self.graph.leave_by_first_pass(whole);
        self.features.push((own_bd, whole));
        let rows = self.micro_rows(whole);
        self.graph.push_new(AddInto {}, vec![own_bd], &[rows]);
    }

    fn seeds_of(&mut self, losses: &[usize]) -> Vec<(ValueId, ValueId)> {
        let pair = |loss: &usize| {
            let sum = self.graph.rows(self.sums, *loss, 1);
            (sum, self.graph.rows(self.seeds, *loss, 1))
        };
        losses.iter().map(pair).collect()
    }
}

fn with_rows(rows: usize, dims: &[usize]) -> Vec<usize> {
    [&[rows], dims].concat()
}

/// Writes the step, and the same step for each shorter text length.
pub fn write_step(config: &StepConfig, shape: &StepShape) -> Graph {
    let mut graph = write_passes(config, shape, None);
    let g = &mut graph;
    let endpoint = |g: &Graph, name: &str| g.endpoint(name).expect("every step has it");
    let (schedule, norm) = (
        endpoint(g, endpoints::SCHEDULE),
        endpoint(g, endpoints::NORM),
    );
    g.enter(Section::Forward);
    let task = &config.task;
    task.write_programs(g, config.evaluation_batch.unwrap_or(shape.batch_size));
    // The forward programs name parameters again, which resets the parameters' settings.
    configure_parameters(g, config);
    // The update comes last, because the optimizer also writes every copy of a weight.
    g.enter(Section::Update);
    let sharding = config.shards_state().then_some(config.processes);
    write_update(g, &config.optimizer, schedule, norm, sharding);
    let lengths = task.lengths();
    for &length in lengths.split_last().map_or(&[][..], |(_, shorter)| shorter) {
        graph.add_shorter(length, write_passes(config, shape, Some(length)));
    }
    graph
}

/// Writes a step without its update.
fn write_passes(config: &StepConfig, shape: &StepShape, length: Option<usize>) -> Graph {
    let &StepShape {
        batch_size: batch,
        gradient_accumulation: accumulation,
        copies,
    } = shape;
    let task = &config.task;
    let num_losses = task.losses().len();
    let mut graph = Graph::with_copies(config.arithmetic.compute(), copies);
    let g = &mut graph;
    let seeds = g.input(endpoints::SEEDS, &[num_losses], DType::F32);
    let num_scalars = config.optimizer.num_scalars(config.num_rates());
    g.input(endpoints::SCHEDULE, &[num_scalars], DType::F32);
    let sums = g.output(endpoints::SUMS, &[num_losses]);
    g.output(endpoints::NORM, &[2]);

    g.enter(Section::Begin);
    g.push_new(Fill { value: 0.0 }, Vec::new(), &[sums]);

    g.enter(Section::Forward);
    let mut step = StepWriter {
        graph: g,
        batch,
        length,
        own_rows: config.own_rows(batch, accumulation),
        processes: config.processes,
        sums,
        seeds,
        features: Vec::new(),
        separable: Vec::new(),
        coupled: Vec::new(),
    };
    if let Some(lora) = &config.lora {
        let masks = (lora.dropout > 0.0).then(|| step.mask_inputs());
        step.graph.adapt(lora.adapters(masks));
    }
    task.write_forward(&mut step);
    configure_parameters(step.graph, config);

    // Zero the gradients, then the losses over the whole effective batch.
    step.graph.enter(Section::Loss);
    zero_gradients(step.graph);
    let mut seeds_back = write_coupled(&mut step, task);

    let separable = std::mem::take(&mut step.separable);
    seeds_back.extend(step.seeds_of(&separable));
    backward(g, Section::Forward, Section::Backward, &seeds_back, &[]);
    if accumulation == 1 {
        replace_instead_of_adding(g);
    }
    if config.gradients == GradientFormat::Bf16 {
        g.round_gradients();
    }
    g.enter(Section::Reduce);
    let mut reduced = gradients_of_trained(g);
    reduced.push(sums);
    g.collective(Exchange::AllReduce, config.processes, &reduced);
    graph
}

/// Gradients of all trained parameters, in the order of the parameters.
pub(crate) fn gradients_of_trained(g: &mut Graph) -> Vec<ValueId> {
    let trained = g.parameters().iter().filter(|one| one.trainable);
    let gradients = trained.map(|one| g.parameter_gradient(one));
    let gradients: Vec<_> = gradients.collect();
    let there = gradients.into_iter().flatten();
    there.map(|gradient| g.add_value(gradient)).collect()
}

/// Writes the losses over features of the whole effective batch and their gradients. Returns the features and gradients that
/// each micro-batch's backward pass starts from.
fn write_coupled(step: &mut StepWriter<'_>, task: &Arc<dyn Task>) -> Vec<(ValueId, ValueId)> {
    if step.features.is_empty() {
        return Vec::new();
    }
    let mut features = step.features.clone();
    let whole: Vec<ValueId> = features.iter().map(|&(_, whole)| whole).collect();
    let processes = step.processes;
    step.graph
        .collective(Exchange::AllGather, processes, &whole);
    task.write_coupled_losses(step);
    step.graph.share_contrastive(processes);
    // Features that no trained parameter leads to need no gradient.
    let needs = needs_gradients(step.graph, Section::Forward);
    features.retain(|&(own, _)| needs[step.graph.value(own).storage.0]);
    let whole: Vec<ValueId> = features.iter().map(|&(_, whole)| whole).collect();
    let gradients: Vec<ValueId> = whole
        .iter()
        .map(|&value| {
            let value = *step.graph.value(value);
            let name = format!("{} gradients", step.graph.storage(value.storage).name);
            let dims = value.shape;
            step.graph
                .tensor(name, dims.dims(), DType::F32, Role::Feature)
        })
        .collect();
    let coupled = std::mem::take(&mut step.coupled);
    let seeds = step.seeds_of(&coupled);
    let targets: Vec<_> = whole.into_iter().zip(gradients.iter().copied()).collect();
    backward_into(step.graph, Section::Loss, Section::Loss, &seeds, &targets);
    count_once(step.graph, processes, step.sums);
    step.graph.enter(Section::Backward);
    let mut seeds_back = Vec::new();
    for ((own, _), gradient) in features.into_iter().zip(gradients) {
        let rows = step.micro_rows(gradient);
        let shape = step.graph.shape(own);
        let own_gradient = step.graph.statistic("feature gradients", shape.dims());
        step.graph.push_new(AddInto {}, vec![rows], &[own_gradient]);
        seeds_back.push((own, own_gradient));
    }
    seeds_back
}

/// Keeps the sum of losses that every process computes whole in the first process only.
fn count_once(g: &mut Graph, processes: Processes, sums: ValueId) {
    if processes.rank == 0 {
        return;
    }
    for loss in losses_of_every_process(g) {
        let sum = g.rows(sums, loss, 1);
        g.push_new(Fill { value: 0.0 }, Vec::new(), &[sum]);
    }
}

/// Indices of the losses that every process computes whole: all losses over the whole effective batch except the contrastive
/// loss, of which each process computes a part.
pub(crate) fn losses_of_every_process(g: &Graph) -> Vec<usize> {
    let sums = g.endpoint(endpoints::SUMS).expect("every step has them");
    let (sums, written) = (g.value(sums).storage, g.nodes().iter());
    let written = written.filter(|node| {
        let is_whole = !node.op.rules().is_shared_by_processes();
        let is_loss = node.section == Section::Loss && !matches!(node.op, Op::Fill(_));
        is_loss && is_whole
    });
    let outputs = written.flat_map(|node| &node.outputs);
    let values = outputs.map(|output| g.value(output.value));
    values
        .filter(|value| value.storage == sums)
        .map(|value| value.offset)
        .collect()
}

/// The smallest graph with every parameter of a step, in the order of the model.
pub(crate) fn write_parameters(config: &StepConfig) -> Graph {
    let shape = StepShape {
        batch_size: 1,
        gradient_accumulation: 1,
        copies: Copies::default(),
    };
    write_passes(config, &shape, None)
}

/// Sets which parameters are trained, and their learning rates.
fn configure_parameters(g: &mut Graph, config: &StepConfig) {
    g.configure_parameters(|parameter| {
        // An adapter is frozen with its layer.
        let adapted = adapted_module(&parameter.name).map(|module| format!("{module}.weight"));
        let name = adapted.as_deref().unwrap_or(&parameter.name);
        parameter.trainable &= !config.frozen.contains(name);
        let lora = config.lora.as_ref();
        parameter.trainable &= lora.is_none_or(|lora| lora.trains(&parameter.name));
        let patterns = &mut config.rate_patterns.iter();
        if let Some(index) = patterns.position(|pattern| matches(pattern, &parameter.name)) {
            parameter.rate = FIXED_RATES + index;
        }
    });
}

/// With a single micro-batch, a matrix gradient that one product writes whole need not be zeroed and added to. This saves two
/// passes over the gradient.
fn replace_instead_of_adding(g: &mut Graph) {
    let mut writers: HashMap<StorageId, Vec<(usize, usize)>> = HashMap::new();
    for (index, node) in g.nodes().iter().enumerate() {
        if node.section != Section::Backward {
            continue;
        }
        for (output, written) in node.outputs.iter().enumerate() {
            let storage = g.value(written.value).storage;
            writers.entry(storage).or_default().push((index, output));
        }
    }
    let alone = |storage: &StorageId| -> Option<(usize, usize)> {
        let [(index, output)] = *writers.get(storage)?.as_slice() else {
            return None;
        };
        let node = &g.nodes()[index];
        let value = g.value(node.outputs[output].value);
        let is_product = matches!(&node.op, Op::LinearWeightGrad(op) if op.weight && output == 0);
        let is_whole =
            value.is_contiguous() && value.shape.num_elements() == g.storage(*storage).num_elements;
        (is_product && is_whole).then_some((index, output))
    };
    let zeroed = |node: &Node| {
        let storage = g.value(node.outputs.first()?.value).storage;
        let clears = matches!(node.op, Op::Fill(_)) && node.section == Section::Loss;
        clears.then_some(storage)
    };
    let replaced: Vec<(usize, (usize, usize))> = (0..g.nodes().len())
        .filter_map(|index| Some((index, alone(&zeroed(&g.nodes()[index])?)?)))
        .collect();
    for &(_, (index, output)) in &replaced {
        g.node_mut(NodeId(index)).outputs[output].mode = Write::Overwrite;
    }
    g.remove_nodes(|index| replaced.iter().any(|&(fill, _)| fill == index));
}

/// Writes the zeroing of every gradient at the start of a step; micro-batches add to it.
fn zero_gradients(g: &mut Graph) {
    let trainable: Vec<ValueId> = g
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable)
        .map(|parameter| parameter.value)
        .collect();
    let mut zeroed = None;
    for value in trainable {
        let weight = g.value(value).storage;
        if zeroed == Some(weight) {
            continue;
        }
        zeroed = Some(weight);
        let gradient = g.weight_gradient(weight);
        let shape = holdall_graph::Shape::new(&[g.storage(gradient).num_elements]);
        let all = g.add_value(holdall_graph::Value::whole(gradient, shape));
        g.push_new(Fill { value: 0.0 }, Vec::new(), &[all]);
    }
}
