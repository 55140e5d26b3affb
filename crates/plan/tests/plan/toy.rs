//! Small graphs with everything that a step may have, and a device that is only numbers.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::add::AddInto;
use holdall_graph::ops::cast::Cast;
use holdall_graph::ops::fill::Fill;
use holdall_graph::{
    Copies, DType, Decay, Graph, NodeView, Output, Role, Section, Shape, Value, ValueId, backward,
};
use holdall_plan::{Spacing, StepShape, Target};
use proptest::prelude::*;

/// What a block of a branch is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Norm, product with an activation function, product with a residual.
    Residual,
    /// Three views of one product, added up.
    Views,
    /// Two branches of one value, added up.
    Diamond,
    /// Only a column of what enters is read.
    Part,
    /// The same elements under another shape.
    Reshaped,
    /// A product with a weight that other blocks of the branch use too.
    Shared,
}

/// How the loss ties micro-batches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each sample by itself.
    Separable,
    /// Through the features of the whole effective batch, beside a separable one.
    Features,
    /// Through sums over the whole effective batch.
    Sums,
}

/// A step to write.
#[derive(Clone, Debug)]
pub struct Toy {
    pub width: usize,
    /// One lane each.
    pub branches: Vec<Vec<Block>>,
    pub loss: Loss,
    /// About one in this many parameters is frozen; 0 for none.
    pub frozen: usize,
    pub compute: DType,
    /// Forward programs beside the step.
    pub num_programs: usize,
}

pub fn toys() -> impl Strategy<Value = Toy> {
    let block = prop::sample::select(vec![
        Block::Residual,
        Block::Views,
        Block::Diamond,
        Block::Part,
        Block::Reshaped,
        Block::Shared,
    ]);
    let branches = prop::collection::vec(prop::collection::vec(block, 0..5), 1..4);
    let loss = prop::sample::select(vec![Loss::Separable, Loss::Features, Loss::Sums]);
    let compute = prop::sample::select(vec![DType::F32, DType::Bf16]);
    (2..5usize, branches, loss, 0..4usize, compute, 0..3usize).prop_map(
        |(width, branches, loss, frozen, compute, num_programs)| Toy {
            width,
            branches,
            loss,
            frozen,
            compute,
            num_programs,
        },
    )
}

/// One of everything.
pub fn example() -> Toy {
    use Block::*;
    Toy {
        width: 4,
        branches: vec![
            vec![Residual, Views, Shared, Residual, Shared],
            vec![Diamond, Part, Reshaped, Residual],
        ],
        loss: Loss::Features,
        frozen: 3,
        compute: DType::F32,
        num_programs: 2,
    }
}

impl Toy {
    pub fn build(&self, shape: &StepShape) -> Graph {
        let (batch, rows) = (
            shape.batch_size,
            shape.batch_size * shape.gradient_accumulation,
        );
        let mut graph = Graph::with_copies(self.compute, shape.copies);
        let g = &mut graph;
        let sums = g.output("sums", &[batch, self.width]);
        g.enter(Section::Begin);
        g.push_new(Fill { value: 0.0 }, vec![], &[sums]);

        g.enter(Section::Forward);
        let features: Vec<ValueId> = (0..self.branches.len())
            .map(|branch| g.in_lane(branch, |g| self.branch(g, branch, batch, "")))
            .collect();
        let mut whole = vec![];
        if self.loss == Loss::Features {
            for (branch, &own) in features.iter().enumerate() {
                let all = g.output(&format!("features {branch}"), &[rows, self.width]);
                g.leave_by_first_pass(all);
                let of_micro_batch = g.micro_rows(all, batch);
                g.push_new(AddInto {}, vec![own], &[of_micro_batch]);
                whole.push(all);
            }
        }
        // A separable sum: added to by every micro-batch.
        let logits = self.product(g, "head", features[0], self.width);
        g.push(AddInto {}, vec![logits], vec![Output::accumulate(sums)]);
        if self.loss == Loss::Sums {
            g.leave_by_first_pass(sums);
        }
        g.configure_parameters(|parameter| parameter.trainable = !self.is_frozen(&parameter.name));

        g.enter(Section::Loss);
        zero_gradients(g);
        let mut seen = vec![logits];
        if self.loss == Loss::Sums {
            let factor = g.tensor("factor", &[batch, self.width], DType::F32, Role::Feature);
            g.push_new(AddInto {}, vec![sums], &[factor]);
            seen.push(factor);
        }
        let gradients: Vec<ValueId> = (whole.iter())
            .map(|_| g.tensor("d features", &[rows, self.width], DType::F32, Role::Feature))
            .collect();
        for &gradient in &gradients {
            g.push_new(AddInto {}, whole.clone(), &[gradient]);
        }

        g.enter(Section::Backward);
        let mut seeds = vec![];
        for (&own, gradient) in features.iter().zip(gradients) {
            let of_micro_batch = g.micro_rows(gradient, batch);
            let own_gradient = g.statistic("d own", &[batch, self.width]);
            g.push_new(AddInto {}, vec![of_micro_batch], &[own_gradient]);
            seeds.push((own, own_gradient));
        }
        let d_logits = g.statistic("d logits", &[batch, self.width]);
        g.push_new(AddInto {}, seen, &[d_logits]);
        seeds.push((logits, d_logits));
        backward(g, Section::Forward, Section::Backward, &seeds, &[]);

        g.enter(Section::Forward);
        // The first program leaves a row for the others.
        let mut cache = None;
        for program in 0..self.num_programs {
            g.forward_program(&format!("program {program}"), |g| {
                let branch = program % self.branches.len();
                let features = self.branch(g, branch, batch + program, "");
                let out = g.output("out", &[batch + program, self.width]);
                g.push_new(AddInto {}, vec![features], &[out]);
                let first = g.rows(out, 0, 1);
                match cache {
                    Some(cache) => {
                        g.push(AddInto {}, vec![cache], vec![Output::accumulate(first)]);
                    }
                    None => {
                        let row = g.forward_cache("cache", &[1, self.width]);
                        g.push_new(AddInto {}, vec![first], &[row]);
                        cache = Some(row);
                    }
                }
            });
        }

        g.enter(Section::Update);
        for parameter in g.parameters().to_vec() {
            let Some(gradient) = g.parameter_gradient(&parameter) else {
                continue;
            };
            let gradient = g.add_value(gradient);
            g.push(
                AddInto {},
                vec![gradient],
                vec![Output::accumulate(parameter.value)],
            );
            if let Some(copy) = g.parameter_copy(&parameter) {
                let copy = g.add_value(copy);
                g.push_new(Cast {}, vec![parameter.value], &[copy]);
            }
        }
        graph
    }

    /// Parts of one product are frozen together.
    fn is_frozen(&self, name: &str) -> bool {
        let of_product = name.trim_end_matches(['q', 'k', 'v']).bytes();
        self.frozen > 0 && of_product.map(usize::from).sum::<usize>() % self.frozen == 0
    }

    fn branch(&self, g: &mut Graph, branch: usize, batch: usize, prefix: &str) -> ValueId {
        let width = self.width;
        let mut x = g.input(
            &format!("{prefix}pixels {branch}"),
            &[batch, width],
            self.compute,
        );
        for (index, &block) in self.branches[branch].iter().enumerate() {
            let name = format!("{branch}.{index}");
            x = g.block(&name, |g| match block {
                Block::Residual => {
                    let [gamma, beta] = ["gamma", "beta"]
                        .map(|kind| g.parameter(&format!("{name}.{kind}"), &[width], Decay::No));
                    let normed = g.layer_norm(&format!("{name}.norm"), x, gamma, beta, 1e-5);
                    let weight =
                        g.parameter(&format!("{name}.up"), &[2 * width, width], Decay::Yes);
                    let bias = g.parameter(&format!("{name}.up.bias"), &[2 * width], Decay::No);
                    let up = g.linear_activated(&name, normed, weight, bias, Activation::Gelu);
                    let down =
                        g.parameter(&format!("{name}.down"), &[width, 2 * width], Decay::Yes);
                    g.linear(&name, up, down, None, Some(x))
                }
                Block::Views => {
                    let parts =
                        ["q", "k", "v"].map(|part| (format!("{name}.{part}"), vec![width, width]));
                    let weight = g.packed_parameters(&parts, Decay::Yes);
                    let qkv = g.linear(&name, x, weight, None, None);
                    let [q, k, v] = [0, 1, 2].map(|part| g.columns(qkv, part * width, width));
                    let sum = g.add(&name, q, k);
                    g.add(&name, sum, v)
                }
                Block::Diamond => {
                    let left = self.product(g, &format!("{name}.left"), x, width);
                    let left = g.activate(&name, left, Activation::QuickGelu);
                    let right = self.product(g, &format!("{name}.right"), x, width);
                    g.add(&name, left, right)
                }
                Block::Part => {
                    let column = g.columns(x, 1, 1);
                    self.product(g, &name, column, width)
                }
                Block::Reshaped => {
                    let flat = g.reshape(x, &[1, batch * width]);
                    let active = g.activate(&name, flat, Activation::Gelu);
                    g.reshape(active, &[batch, width])
                }
                Block::Shared => self.product(g, &format!("{branch}.shared"), x, width),
            });
        }
        self.product(g, &format!("{branch}.projection"), x, width)
    }

    fn product(&self, g: &mut Graph, name: &str, x: ValueId, outputs: usize) -> ValueId {
        let inputs = g.shape(x).width();
        let weight = g.parameter(name, &[outputs, inputs], Decay::Yes);
        g.linear(name, x, weight, None, None)
    }
}

fn zero_gradients(g: &mut Graph) {
    let trainable = g
        .parameters()
        .iter()
        .filter(|parameter| parameter.trainable);
    let mut weights: Vec<_> = trainable
        .map(|parameter| g.value(parameter.value).storage)
        .collect();
    weights.sort();
    weights.dedup();
    for weight in weights {
        let gradient = g.weight_gradient(weight);
        let shape = Shape::new(&[g.storage(gradient).num_elements]);
        let value = g.add_value(Value::whole(gradient, shape));
        g.push_new(Fill { value: 0.0 }, vec![], &[value]);
    }
}

pub fn shape(batch_size: usize, gradient_accumulation: usize, copies: Copies) -> StepShape {
    StepShape {
        batch_size,
        gradient_accumulation,
        copies,
    }
}

/// Sizes and times out of the costs of operations.
pub struct ToyDevice {
    pub has_lanes: bool,
    pub has_landing: bool,
}

pub const ALIGNMENT: u64 = 32;

impl Target for ToyDevice {
    fn has_lanes(&self) -> bool {
        self.has_lanes
    }

    fn has_landing(&self) -> bool {
        self.has_landing
    }

    fn busy(&self, _: NodeView<'_>) -> f64 {
        0.3
    }

    fn spacing(&self) -> Spacing {
        Spacing::dense(ALIGNMENT)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        let flops = node.graph.cost(node.node).product_flops;
        flops % 7 * 24
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        let cost = node.graph.cost(node.node);
        1e-6 + 1e-9 * (cost.product_flops + cost.element_flops + cost.bytes) as f64
    }

    fn host_bytes_per_second(&self) -> Option<f64> {
        Some(1e8)
    }

    fn pinned_bytes(&self, host_bytes: u64) -> u64 {
        host_bytes / 100
    }

    fn overhead_bytes(&self, largest_library_bytes: u64) -> u64 {
        1000 + largest_library_bytes
    }

    fn page_bytes(&self) -> u64 {
        64
    }

    fn library_bytes(&self, _: NodeView<'_>) -> u64 {
        0
    }
}
