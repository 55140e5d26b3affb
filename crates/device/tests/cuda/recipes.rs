//! Random stacks of layers as whole steps: how they are drawn, written down and run.
//!
//! Legend: `b` samples of a micro-batch, `t` tokens, `d` width, `r` rows of the effective batch.

use holdall_device::cpu::CpuTarget;
use holdall_device::{Arithmetic, Device, Machine};
use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::fill::Fill;
use holdall_graph::{
    DType, Decay, Graph, Output, Role, Section, StorageId, ValueId, backward, backward_into,
};
use holdall_plan::{RecomputePolicy, Stage, StepPlan, lifetimes_of};

use super::guards::guard_tensors;
use super::harness::{Gpu, assert_same_bits, cpu, get, put, put_input, rounded};
use super::step::{Contents, Outcome, Random, flat, zero_gradients};
use super::tokens::sorted_places;

const CLASSES: usize = 5;
pub const VOCABULARY: usize = 11;
const SEEDS: [f64; 2] = [0.7, 1.3];

/// A layer and whether its parameters are frozen.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub kind: Kind,
    pub frozen: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Norm,
    Mlp(Activation),
    Attention {
        causal: bool,
    },
    /// The tokens of this layer ask, those of the embedding answer.
    CrossToInput,
    Activate(Activation),
    Tied,
    Doubled,
    /// Read and forgotten.
    DeadEnd,
}

const KINDS: [Kind; 10] = [
    Kind::Norm,
    Kind::Mlp(Activation::QuickGelu),
    Kind::Mlp(Activation::Gelu),
    Kind::Attention { causal: false },
    Kind::Attention { causal: true },
    Kind::CrossToInput,
    Kind::Activate(Activation::Gelu),
    Kind::Tied,
    Kind::Doubled,
    Kind::DeadEnd,
];

#[derive(Clone, Debug)]
pub struct Recipe {
    pub batch: usize,
    pub tokens: usize,
    pub heads: usize,
    pub head_width: usize,
    pub accumulation: usize,
    pub frozen_embedding: bool,
    pub gather: bool,
    pub layers: Vec<Layer>,
}

impl Recipe {
    pub fn draw(seed: u64) -> Recipe {
        let mut random = Random(seed);
        let mut coin = || random.below(2) == 1;
        let [frozen_embedding, gather] = [coin(), coin()];
        Recipe {
            batch: 2 + random.below(4),
            tokens: 1 + random.below(40),
            heads: 1 + random.below(3),
            head_width: [8, 32, 64][random.below(3)],
            accumulation: 1 + random.below(3),
            frozen_embedding,
            gather,
            layers: (0..random.below(6))
                .map(|_| Layer {
                    kind: KINDS[random.below(KINDS.len())],
                    frozen: random.below(4) == 0,
                })
                .collect(),
        }
    }

    fn rows(&self) -> usize {
        self.batch * self.accumulation
    }
}

struct Writer {
    g: Graph,
    heads: usize,
    frozen: Vec<String>,
}

impl Writer {
    fn parameter(&mut self, name: String, dims: &[usize], frozen: bool) -> ValueId {
        if frozen {
            self.frozen.push(name.clone());
        }
        self.g.parameter(&name, dims, Decay::Yes)
    }

    fn layer(&mut self, index: usize, layer: Layer, [x, tied, source]: [ValueId; 3]) -> ValueId {
        let d = self.g.shape(x).width();
        let name = format!("layer {index}");
        let parameter = |w: &mut Writer, part: &str, dims: &[usize]| {
            w.parameter(format!("{name}.{part}"), dims, layer.frozen)
        };
        match layer.kind {
            Kind::Norm => {
                let gamma = parameter(self, "gamma", &[d]);
                let beta = parameter(self, "beta", &[d]);
                self.g.layer_norm(&name, x, gamma, beta, 1e-2)
            }
            Kind::Mlp(activation) => {
                let hidden = 2 * d + 8;
                let weight = parameter(self, "w1", &[hidden, d]);
                let bias = parameter(self, "b1", &[hidden]);
                let inner = self.g.linear_activated(&name, x, weight, bias, activation);
                let weight = parameter(self, "w2", &[d, hidden]);
                let bias = parameter(self, "b2", &[d]);
                self.g.linear(&name, inner, weight, Some(bias), Some(x))
            }
            Kind::Attention { causal } => {
                let weight = parameter(self, "w", &[3 * d, d]);
                let bias = parameter(self, "b", &[3 * d]);
                let qkv = self.g.linear_with_keys(&name, x, weight, bias, d..2 * d);
                let parts = [0, 1, 2].map(|part| self.g.columns(qkv, part * d, d));
                let mixed = self.g.attention(&name, parts, None, self.heads, causal);
                self.g.add(&name, mixed, x)
            }
            Kind::CrossToInput => {
                let weight = parameter(self, "kv", &[2 * d, d]);
                let kv = self.g.linear(&name, source, weight, None, None);
                let [k, v] = [0, d].map(|start| self.g.columns(kv, start, d));
                let mixed = self.g.attention(&name, [x, k, v], None, self.heads, false);
                self.g.add(&name, mixed, x)
            }
            Kind::Activate(activation) => self.g.activate(&name, x, activation),
            Kind::Tied => self.g.linear(&name, x, tied, None, Some(x)),
            Kind::Doubled => self.g.add(&name, x, x),
            Kind::DeadEnd => {
                self.g.linear(&name, x, tied, None, None);
                x
            }
        }
    }

    /// Each layer a block that may be recomputed.
    fn blocks(&mut self, layers: &[Layer], source: ValueId, tied: ValueId) -> ValueId {
        let mut x = source;
        for (index, &layer) in layers.iter().enumerate() {
            // The graph lends itself to the closure, so the writer takes it along.
            let mut g = std::mem::replace(&mut self.g, Graph::new(DType::F32));
            x = g.block("block", |g| {
                std::mem::swap(&mut self.g, g);
                let x = self.layer(index, layer, [x, tied, source]);
                std::mem::swap(&mut self.g, g);
                x
            });
            self.g = g;
        }
        x
    }
}

/// A step with everything that comes from outside.
pub struct Step {
    pub graph: Graph,
    pub accumulation: usize,
    /// Per input, what it holds for each micro-batch (one entry: the same for all).
    pub inputs: Vec<(ValueId, Vec<Contents>)>,
    pub weights: Vec<(StorageId, Vec<f64>)>,
}

/// Two projections of one branch, compared over the effective batch, and a label head; `format` is what weights are
/// rounded to.
pub fn write_step(recipe: &Recipe, [compute, format]: [DType; 2]) -> Step {
    let mut random = Random(recipe.layers.len() as u64);
    let (b, t, rows) = (recipe.batch, recipe.tokens, recipe.rows());
    let d = recipe.heads * recipe.head_width;
    let mut w = Writer {
        g: Graph::new(compute),
        heads: recipe.heads,
        frozen: Vec::new(),
    };
    let ids_bt = w.g.input("ids", &[b, t], DType::I64);
    let order_bt = w.g.input("order", &[b, t], DType::I64);
    let end_b = w.g.input("end", &[b], DType::I64);
    let labels_r = w.g.input("labels", &[rows], DType::I64);
    let weights_r = w.g.input("weights", &[rows], DType::F32);
    let seeds = ["contrastive seed", "label seed"].map(|name| w.g.input(name, &[1], DType::F32));
    let mut inputs = inputs_of_micro_batches(recipe, [ids_bt, order_bt, end_b], &mut random);
    let counts = (0..rows).map(|row| if row % 5 == 4 { 0.0 } else { 1.0 });
    inputs.push((labels_r, vec![random.indices(rows, CLASSES)]));
    inputs.push((weights_r, vec![Contents::Floats(counts.collect())]));
    for (&id, seed) in seeds.iter().zip(SEEDS) {
        inputs.push((id, vec![Contents::Floats(vec![seed])]));
    }

    // Forward of one micro-batch.
    let sums = ["contrastive sum", "label sum"].map(|name| total(&mut w.g, name));
    let frozen = recipe.frozen_embedding;
    let table = w.parameter("table".to_owned(), &[VOCABULARY, d], frozen);
    let positions = w.parameter("positions".to_owned(), &[t, d], frozen);
    let tied = w.parameter("tied".to_owned(), &[d, d], false);
    let source =
        w.g.embedding("tokens", ids_bt, table, positions, Some(order_bt));
    let x = w.blocks(&recipe.layers, source, tied);
    let pooled = if recipe.gather {
        w.g.gather_rows("pooled", x, end_b)
    } else {
        w.g.first_tokens(x)
    };
    let sides = ["left", "right"].map(|name| side(&mut w, name, pooled, [b, rows, d + 8]));
    let head = w.parameter("head".to_owned(), &[CLASSES, d + 8], false);
    let logits = w.g.linear("logits", sides[0].here, head, None, None);
    let [labels_b, weights_b] = [labels_r, weights_r].map(|all| w.g.micro_rows(all, b));
    w.g.cross_entropy_into("label", logits, labels_b, weights_b, sums[1], 0.0);
    let scale = w.parameter("scale".to_owned(), &[], false);
    let frozen = std::mem::take(&mut w.frozen);
    let mut g = w.g;
    g.configure_parameters(|parameter| parameter.trainable = !frozen.contains(&parameter.name));

    // The loss over all rows, and back through one micro-batch.
    zero_gradients(&mut g);
    g.enter(Section::Loss);
    let all = [sides[0].all, sides[1].all];
    g.contrastive_into(all, weights_r, scale, sums[0], 2);
    let targets = sides.each_ref().map(|side| (side.all, side.gradient));
    let seed = [(sums[0], seeds[0])];
    backward_into(&mut g, Section::Loss, Section::Loss, &seed, &targets);
    g.enter(Section::Backward);
    let mut seeds_back = vec![(sums[1], seeds[1])];
    for side in &sides {
        let dims = [b, d + 8];
        let gradient = g.statistic("here.grad", &dims);
        let moving = g.micro_rows(side.gradient, b);
        let moved = vec![Output::overwrite(gradient)];
        g.push(AddInto {}, vec![moving], moved);
        seeds_back.push((side.here, gradient));
    }
    let sections = [Section::Forward, Section::Backward];
    backward(&mut g, sections[0], sections[1], &seeds_back, &[]);
    let weights = draw_weights(&g, format, &mut random);
    Step {
        graph: g,
        accumulation: recipe.accumulation,
        inputs,
        weights,
    }
}

fn inputs_of_micro_batches(
    recipe: &Recipe,
    [ids_bt, order_bt, end_b]: [ValueId; 3],
    random: &mut Random,
) -> Vec<(ValueId, Vec<Contents>)> {
    let (b, t) = (recipe.batch, recipe.tokens);
    let [mut ids, mut orders, mut ends] = [const { Vec::new() }; 3];
    for _ in 0..recipe.accumulation {
        let drawn: Vec<i64> = (0..b * t)
            .map(|_| random.below(VOCABULARY) as i64)
            .collect();
        orders.push(Contents::Indices(sorted_places(&drawn, &vec![t - 1; b], t)));
        ids.push(Contents::Indices(drawn));
        ends.push(random.indices(b, t));
    }
    vec![(ids_bt, ids), (order_bt, orders), (end_b, ends)]
}

/// Features of one kind.
struct Side {
    /// Of this micro-batch.
    here: ValueId,
    /// Of the effective batch.
    all: ValueId,
    gradient: ValueId,
}

fn side(w: &mut Writer, name: &str, pooled: ValueId, [b, rows, width]: [usize; 3]) -> Side {
    let d = w.g.shape(pooled).width();
    let weight = w.parameter(format!("{name}.w"), &[width, d], false);
    let bias = w.parameter(format!("{name}.b"), &[width], false);
    let projected = w.g.linear(name, pooled, weight, Some(bias), None);
    let here = w.g.statistic(&format!("{name}.here"), &[b, width]);
    w.g.normalize_into(name, projected, here);
    let [all, gradient] = [name.to_owned(), format!("{name}.all.grad")]
        .map(|name| w.g.tensor(name, &[rows, width], DType::F32, Role::Feature));
    w.g.leave_by_first_pass(all);
    let moving = w.g.micro_rows(all, b);
    let moved = vec![Output::overwrite(moving)];
    w.g.push(AddInto {}, vec![here], moved);
    Side {
        here,
        all,
        gradient,
    }
}

/// A sum that starts at zero.
fn total(g: &mut Graph, name: &str) -> ValueId {
    let sum = g.tensor(name, &[1], DType::F32, Role::Feature);
    g.enter(Section::Begin);
    g.push_new(Fill { value: 0.0 }, Vec::new(), &[sum]);
    g.enter(Section::Forward);
    sum
}

fn draw_weights(g: &Graph, format: DType, random: &mut Random) -> Vec<(StorageId, Vec<f64>)> {
    let mut weights: Vec<(StorageId, Vec<f64>)> = Vec::new();
    for parameter in g.parameters() {
        let value = g.value(parameter.value);
        let scale = match value.shape.dims().len() {
            _ if ["table", "positions"].contains(&parameter.name.as_str()) => 1.0,
            0 | 1 => 0.7,
            _ => (3.0 / value.shape.width() as f64).sqrt(),
        };
        let mut draw = || rounded(format, scale * random.uniform());
        let drawn = (0..value.shape.num_elements()).map(|_| draw());
        weights.push((value.storage, drawn.collect()));
    }
    weights
}

impl Step {
    /// Slots are emptied in the order of micro-batches.
    pub fn schedule(&self, plan: &StepPlan) -> Vec<(Stage, usize, usize)> {
        let kept = plan.kept;
        let of = |slot: usize| kept - 1 - slot;
        let mut runs = vec![(Stage::Begin, 0, 0)];
        runs.extend((kept..self.accumulation).map(|micro| (Stage::FirstPass, micro, 0)));
        runs.extend((0..kept).map(|slot| (Stage::KeptForward, of(slot), slot)));
        runs.push((Stage::Loss, 0, 0));
        runs.extend(
            (0..kept)
                .rev()
                .map(|slot| (Stage::KeptBackward, of(slot), slot)),
        );
        runs.extend((kept..self.accumulation).map(|micro| (Stage::ForwardBackward, micro, 0)));
        runs
    }

    pub fn write_weights(&self, plan: &StepPlan, machine: &mut Machine) {
        for (storage, values) in &self.weights {
            let place = plan.place_of(&flat(&self.graph, *storage));
            put(machine, &place, &Contents::Floats(values.clone()));
        }
    }

    pub fn write_inputs(&self, plan: &StepPlan, machine: &mut Machine, micro: usize) {
        for (value, contents) in &self.inputs {
            let contents = &contents[micro.min(contents.len() - 1)];
            put_input(machine, &plan.place(*value), contents);
        }
    }

    fn run(&self, device: &Device, plan: &StepPlan, machine: &mut Machine) -> Outcome {
        self.write_weights(plan, machine);
        machine.run(device, plan, Stage::Refresh.id(), 0, 0);
        for (stage, micro, slot) in self.schedule(plan) {
            self.write_inputs(plan, machine, micro);
            machine.run(device, plan, stage.id(), micro, slot);
        }
        machine.wait().unwrap();
        let storages = (0..self.graph.storages().len()).map(StorageId);
        Outcome(
            storages
                .filter(|&id| matches!(self.graph.storage(id).role, Role::Gradient | Role::Feature))
                .map(|id| {
                    let place = plan.place_of(&flat(&self.graph, id));
                    (self.graph.storage(id).name.clone(), get(machine, &place))
                })
                .collect(),
        )
    }

    pub fn on_cpu(&self, policy: &RecomputePolicy, kept: usize) -> Outcome {
        let target = CpuTarget::new(cpu().cpu().num_threads()).with_baseline(0);
        let plan = lifetimes_of(&self.graph, policy, &target)
            .pack()
            .plan(kept, self.accumulation);
        let mut machine = Machine::new(cpu(), &plan, Arithmetic::F32).unwrap();
        self.run(cpu(), &plan, &mut machine)
    }

    /// Twice, with the same bits.
    pub fn on_gpu(
        &self,
        gpu: &Gpu,
        arithmetic: Arithmetic,
        policy: &RecomputePolicy,
        kept: usize,
    ) -> Outcome {
        let sizes = [kept, self.accumulation];
        let plan = gpu.plan(&self.graph, policy, arithmetic, sizes);
        let mut machine = Machine::new(gpu.device, &plan, arithmetic).unwrap();
        let [first, second] = [(); 2].map(|()| {
            guard_tensors(&plan);
            self.run(gpu.device, &plan, &mut machine)
        });
        let what = format!("{}, {policy:?}, {kept} kept", arithmetic.name());
        assert_same_bits(&first, &second, &what);
        first.assert_finite(&what);
        first
    }
}
