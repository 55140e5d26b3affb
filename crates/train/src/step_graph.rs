//! What a step computes, written down: towers per micro-batch, losses over the whole effective batch, the way back, and
//! the update.
//!
//! Three kinds of loss, each exact under any split. Separable (labels): each micro-batch adds its sum, and the seed
//! divides by the count of the whole batch. Coupled through features (contrastive): features of all
//! micro-batches first, then the loss and its gradients once, then each micro-batch pulls its rows back.
//! (Coupled through sums joins with segmentation.)
//!
//! A device may replay programs at fixed addresses, so only copies touch the rows that move from micro-batch to
//! micro-batch: towers write features to one place, and gradients are taken to one place before they go back.

use holdall_device::Arithmetic;
use std::collections::HashMap;

use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::collective::Exchange;
use holdall_graph::ops::contrastive::CONTRASTIVE_TILE;
use holdall_graph::ops::fill::Fill;
use holdall_graph::ops::update::GradientNorm;
use holdall_graph::{
    DType, Graph, Node, NodeId, Op, Output, Role, Section, StorageId, ValueId, Write, backward,
    backward_into,
};
use holdall_models::clip::{self, ClipInputs};
use holdall_models::config::ClipConfig;
use holdall_plan::Variant;

use crate::config::matches;
use crate::encoder::EncoderReach;
use crate::optimizer::{FIXED_RATES, OptimizerConfig, SCHEDULE_START};

/// How micro-batches see each other in the contrastive loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// All samples of the effective batch are negatives: exact.
    EffectiveBatch,
    /// Only the micro-batch is, as in plain accumulation: wrong on purpose, so that `verify` can show that it
    /// notices.
    WithinMicroBatch,
}

/// What to train.
#[derive(Clone, Debug, PartialEq)]
pub struct StepConfig {
    /// Sizes.
    pub model: ClipConfig,
    /// Classes of the label head; `None` leaves it out.
    pub num_labels: Option<usize>,
    /// Tokens per caption.
    pub num_tokens: usize,
    /// Number format of the pictures in the batch.
    pub pixels: DType,
    /// Weights of the losses.
    pub contrastive_weight: f64,
    /// Weights of the losses.
    pub label_weight: f64,
    /// Share of a label that is spread over all classes.
    pub label_smoothing: f64,
    /// What a sample of each class counts in the label loss; empty: one each.
    pub class_weights: Vec<f32>,
    /// The optimizer's fixed numbers.
    pub optimizer: OptimizerConfig,
    /// Exact, or wrong on purpose.
    pub coupling: Coupling,
    /// Rows and columns of a tile of the contrastive loss; the whole batch makes it dense.
    pub contrastive_tile: usize,
    /// Parameters whose name starts with one of these are not trained.
    pub frozen: Vec<String>,
    /// Parameters with a learning rate of their own: the first pattern that matches counts.
    pub rate_patterns: Vec<String>,
    /// Samples that evaluation encodes at a time; as many as a micro-batch by default.
    pub evaluation_batch: Option<usize>,
    /// Number formats of the arithmetic.
    pub arithmetic: Arithmetic,
    /// Whether the device wants the order in which gradients of equal token ids are added.
    pub sorted_ids: bool,
}

impl StepConfig {
    /// Contrastive loss and half the label loss, everything trained.
    pub fn new(model: ClipConfig, num_labels: Option<usize>) -> StepConfig {
        StepConfig {
            num_tokens: model.text.max_positions,
            model,
            num_labels,
            pixels: DType::U8,
            contrastive_weight: 1.0,
            label_weight: 0.5,
            label_smoothing: 0.0,
            class_weights: Vec::new(),
            optimizer: OptimizerConfig::default(),
            coupling: Coupling::EffectiveBatch,
            contrastive_tile: CONTRASTIVE_TILE,
            frozen: Vec::new(),
            rate_patterns: Vec::new(),
            evaluation_batch: None,
            arithmetic: Arithmetic::F32,
            sorted_ids: false,
        }
    }

    /// What a sample of this class counts in the label loss: nothing where it has none.
    pub fn class_weight(&self, label: i64) -> f32 {
        match usize::try_from(label) {
            Err(_) => 0.0,
            Ok(label) => self.class_weights.get(label).copied().unwrap_or(1.0),
        }
    }

    /// Learning rates that a step takes.
    pub fn num_rates(&self) -> usize {
        FIXED_RATES + self.rate_patterns.len()
    }
}

/// Loss slots in sums and seeds.
pub(crate) const CONTRASTIVE: usize = 0;
/// See [`CONTRASTIVE`].
pub(crate) const LABEL: usize = 1;
const NUM_LOSSES: usize = 2;

/// A step's graph, and where to reach into it.
pub struct StepGraph {
    /// Everything.
    pub graph: Graph,
    /// What the step reads and writes from outside.
    pub reach: Reach,
}

/// Where the step meets the outside.
#[derive(Clone, Debug)]
pub struct Reach {
    /// What each micro-batch brings.
    pub inputs: ClipInputs,
    /// 1 for samples, 0 for padding; whole effective batch.
    pub weights: ValueId,
    /// Classes; whole effective batch.
    pub labels: ValueId,
    /// What each sample counts in the label loss; whole effective batch.
    pub label_weights: ValueId,
    /// Sum of each loss.
    pub sums: ValueId,
    /// What each sum's gradient starts from: weight / count, times the loss scale.
    pub seeds: ValueId,
    /// What the update reads of the moment.
    pub schedule: ValueId,
    /// Gradient norm, and whether it is finite.
    pub norm: ValueId,
    /// Features of the whole effective batch: pictures, captions.
    pub features: [ValueId; 2],
    /// Parameter by parameter: first and second moment.
    pub moments: Vec<[ValueId; 2]>,
    /// The evaluation programs' ends.
    pub encoder: EncoderReach,
}

/// Rows of the feature storage, at least: products of fewer rows than this take another path with another order of
/// summation, and the loss of a small batch would depend on its padding. Rows beyond the batch have weight zero.
const LEAST_ROWS: usize = 17;

/// Writes the step.
pub fn write_step(config: &StepConfig, variant: &Variant) -> StepGraph {
    let &Variant {
        batch_size: batch,
        gradient_accumulation: accumulation,
        copies,
    } = variant;
    let model = &config.model;
    let mut g = Graph::with_copies(config.arithmetic.compute(), copies);
    let padded = (batch * accumulation).max(LEAST_ROWS);
    let projection = model.projection_dim;

    let mut inputs = clip::inputs(&mut g, model, batch, config.num_tokens, config.pixels);
    if config.sorted_ids {
        clip::order_input(&mut g, &mut inputs);
    }
    let weights = g.input("weights", &[padded], DType::F32);
    let labels = g.input("labels", &[padded], DType::I64);
    let label_weights = g.input("label weights", &[padded], DType::F32);
    let seeds = g.input("seeds", &[NUM_LOSSES], DType::F32);
    let schedule = g.input(
        "schedule",
        &[SCHEDULE_START + config.num_rates()],
        DType::F32,
    );
    let whole =
        |g: &mut Graph, name: &str, dims: &[usize]| g.tensor(name, dims, DType::F32, Role::Feature);
    let sums = whole(&mut g, "loss sums", &[NUM_LOSSES]);
    let norm = whole(&mut g, "gradient norm", &[2]);
    let features =
        ["image features", "text features"].map(|name| whole(&mut g, name, &[padded, projection]));

    g.enter(Section::Begin);
    g.push_new(Fill { value: 0.0 }, Vec::new(), &[sums]);

    // Forward of one micro-batch.
    g.enter(Section::Forward);
    let [image, text] = ["image", "text"].map(|name| g.statistic(name, &[batch, projection]));
    clip::vision(&mut g, model, inputs.pixels, image);
    clip::text(&mut g, model, &inputs, text);
    if config.coupling == Coupling::EffectiveBatch {
        for (own, all) in [image, text].into_iter().zip(features) {
            let rows = g.micro_rows(all, batch);
            g.push_new(AddInto {}, vec![own], &[rows]);
        }
    }
    let heads = clip::heads(&mut g, model, config.num_labels);
    g.configure_parameters(|parameter| {
        parameter.trainable = !config
            .frozen
            .iter()
            .any(|prefix| parameter.name.starts_with(prefix.as_str()));
        let patterns = &mut config.rate_patterns.iter();
        if let Some(index) = patterns.position(|pattern| matches(pattern, &parameter.name)) {
            parameter.rate = FIXED_RATES + index;
        }
    });
    let [contrastive_sum, label_sum] = [CONTRASTIVE, LABEL].map(|loss| g.rows(sums, loss, 1));
    let [contrastive_seed, label_seed] = [CONTRASTIVE, LABEL].map(|loss| g.rows(seeds, loss, 1));
    let micro_weights = g.micro_rows(weights, batch);
    if let Some([weight, bias]) = heads.label {
        let logits = g.linear("head", image, weight, Some(bias), None);
        let micro_labels = g.micro_rows(labels, batch);
        let micro_label_weights = g.micro_rows(label_weights, batch);
        g.cross_entropy_into(
            "head",
            logits,
            micro_labels,
            micro_label_weights,
            label_sum,
            config.label_smoothing,
        );
    }

    // Gradients to zero, then what needs the whole effective batch.
    g.enter(Section::Loss);
    zero_gradients(&mut g);
    let mut seeds_back = Vec::new();
    match config.coupling {
        Coupling::EffectiveBatch => {
            g.collective(Exchange::AllGather, 1, &features);
            let [all_image, all_text] = features;
            g.contrastive_into(
                [all_image, all_text],
                weights,
                heads.logit_scale,
                contrastive_sum,
                config.contrastive_tile,
            );
            let gradients = ["image feature gradients", "text feature gradients"]
                .map(|name| whole(&mut g, name, &[padded, projection]));
            backward_into(
                &mut g,
                Section::Loss,
                Section::Loss,
                &[(contrastive_sum, contrastive_seed)],
                &[(all_image, gradients[0]), (all_text, gradients[1])],
            );
            g.enter(Section::Backward);
            for (value, all) in [image, text].into_iter().zip(gradients) {
                let rows = g.micro_rows(all, batch);
                let own = g.statistic("feature gradients", &[batch, projection]);
                g.push_new(AddInto {}, vec![rows], &[own]);
                seeds_back.push((value, own));
            }
        }
        Coupling::WithinMicroBatch => {
            g.enter(Section::Forward);
            let tile = config.contrastive_tile;
            let pair = [image, text];
            // The loss has products, and they have fixed places.
            let own_weights = g.statistic("own weights", &[batch]);
            g.push_new(AddInto {}, vec![micro_weights], &[own_weights]);
            g.contrastive_into(pair, own_weights, heads.logit_scale, contrastive_sum, tile);
            seeds_back.push((contrastive_sum, contrastive_seed));
        }
    }

    // Back through one micro-batch.
    if heads.label.is_some() {
        seeds_back.push((label_sum, label_seed));
    }
    backward(
        &mut g,
        Section::Forward,
        Section::Backward,
        &seeds_back,
        &[],
    );

    if accumulation == 1 {
        replace_instead_of_adding(&mut g);
    }

    let encoder = match config.evaluation_batch {
        Some(other) if other != batch => EncoderReach::write(&mut g, config, other),
        _ => EncoderReach::write_sharing(&mut g, config, batch, inputs, features),
    };
    // Last, when every copy of a weight is known: the optimizer writes them along.
    g.enter(Section::Update);
    let moments = write_update(&mut g, &config.optimizer, schedule, norm);
    let reach = Reach {
        inputs,
        weights,
        labels,
        label_weights,
        sums,
        seeds,
        schedule,
        norm,
        features,
        moments,
        encoder,
    };
    StepGraph { graph: g, reach }
}

/// With a single micro-batch, a matrix's gradient that one product writes whole need not start at zero and be added to: two
/// passes over it less.
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

/// Every gradient starts a step at zero, and micro-batches add to it.
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

fn write_update(
    g: &mut Graph,
    optimizer: &OptimizerConfig,
    schedule: ValueId,
    norm: ValueId,
) -> Vec<[ValueId; 2]> {
    let parameters: Vec<_> = g
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable)
        .cloned()
        .collect();
    let mut gradients = Vec::new();
    let mut outputs = Vec::new();
    let mut moments = Vec::new();
    for parameter in &parameters {
        let gradient = g
            .parameter_gradient(parameter)
            .expect("every trainable parameter has a gradient");
        gradients.push(g.add_value(gradient));
        let shape = g.shape(parameter.value);
        let state = ["m", "v"].map(|name| {
            let name = format!("{}.{name}", parameter.name);
            g.tensor(name, shape.dims(), DType::F32, Role::Optimizer)
        });
        outputs.push(Output::overwrite(parameter.value));
        outputs.extend(state.map(Output::overwrite));
        if let Some(copy) = g.parameter_copy(parameter) {
            outputs.push(Output::overwrite(g.add_value(copy)));
        }
        moments.push(state);
    }
    g.collective(Exchange::AllReduce, 1, &gradients);
    g.push_new(GradientNorm {}, gradients.clone(), &[norm]);
    let mut inputs = vec![schedule, norm];
    inputs.extend(&gradients);
    let operation = optimizer.operation(g);
    g.push(operation, inputs, outputs);
    moments
}
