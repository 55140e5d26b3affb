//! Random stacks of layers: whatever is kept, recomputed, frozen or shared, the bits are the same, every read is sound, and
//! the gradient points where the loss goes.
//!
//! Legend: `b` samples of a micro-batch, `t` tokens, `d` width.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::{DType, Decay, Graph, Role, Section, ValueId, backward, backward_into};
use holdall_plan::{Recompute, RecomputePolicy};
use proptest::prelude::*;

use super::gradient_check::cpu;
use super::recompute::policies;
use super::shadow;
use super::step::{
    Contents, Kept, LABEL_SUM, Outcome, Planned, Random, Step, norm, total, trainable,
    zero_gradients,
};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Norm,
    Mlp(Activation),
    Attention {
        causal: bool,
    },
    /// The tokens of this layer ask, those of the embedding answer.
    CrossToInput,
    /// Learned queries ask, the tokens of this layer answer.
    Queries,
    /// A row of a table is added to every token, or one to all.
    Positions {
        shared: bool,
    },
    Activate(Activation),
    Tied,
    Doubled,
    /// A branch whose columns are scaled and whose numbers or samples are dropped.
    Dropped(DropoutMode),
    /// Read and forgotten.
    DeadEnd,
}

#[derive(Clone, Copy, Debug)]
struct Layer {
    kind: Kind,
    frozen: bool,
    /// Starts a new block, goes on with the one before, or stands outside.
    block: Option<bool>,
}

/// How the tokens of a sample become one.
#[derive(Clone, Copy, Debug)]
enum Pool {
    Gather,
    First,
    Mean,
    /// Of as many tokens as there are.
    Lengths,
}

#[derive(Clone, Debug)]
struct Recipe {
    batch: usize,
    tokens: usize,
    heads: usize,
    head_width: usize,
    accumulation: usize,
    coupled: bool,
    frozen_embedding: bool,
    /// Every token has a label, and the table of the embedding is the head.
    captions: bool,
    pool: Pool,
    layers: Vec<Layer>,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let activation = prop_oneof![Just(Activation::QuickGelu), Just(Activation::Gelu)];
    let kind = prop_oneof![
        Just(Kind::Norm),
        activation.clone().prop_map(Kind::Mlp),
        any::<bool>().prop_map(|causal| Kind::Attention { causal }),
        Just(Kind::CrossToInput),
        Just(Kind::Queries),
        any::<bool>().prop_map(|shared| Kind::Positions { shared }),
        activation.prop_map(Kind::Activate),
        Just(Kind::Tied),
        Just(Kind::Doubled),
        prop_oneof![Just(DropoutMode::Element), Just(DropoutMode::Sample)].prop_map(Kind::Dropped),
        Just(Kind::DeadEnd),
    ];
    let layer = (
        kind,
        any::<bool>(),
        prop::option::weighted(0.7, any::<bool>()),
    );
    let layer = layer.prop_map(|(kind, frozen, block)| Layer {
        kind,
        frozen,
        block,
    });
    let sizes = (1usize..4, 1usize..5, 1usize..3, 2usize..4, 1usize..4);
    let pool = prop_oneof![
        Just(Pool::Gather),
        Just(Pool::First),
        Just(Pool::Mean),
        Just(Pool::Lengths)
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), pool);
    (sizes, flags, prop::collection::vec(layer, 0..6)).prop_map(|(sizes, flags, layers)| Recipe {
        batch: sizes.0,
        tokens: sizes.1,
        heads: sizes.2,
        head_width: sizes.3,
        accumulation: sizes.4,
        coupled: flags.0,
        frozen_embedding: flags.1,
        captions: flags.2,
        pool: flags.3,
        layers,
    })
}

const CLASSES: usize = 3;
const VOCABULARY: usize = 5;
const SEEDS: [f64; 2] = [0.7, 1.3];

struct Writer {
    g: Graph,
    heads: usize,
    frozen: Vec<String>,
    /// Numbers of the samples, and `[seed, epoch]`.
    samples: [ValueId; 2],
    /// Tokens of each sample that are there; none is possible.
    lengths: ValueId,
}

impl Writer {
    fn parameter(&mut self, name: String, dims: &[usize], frozen: bool) -> ValueId {
        if frozen {
            self.frozen.push(name.clone());
        }
        self.g.parameter(&name, dims, Decay::Yes)
    }

    fn layer(
        &mut self,
        index: usize,
        layer: Layer,
        x: ValueId,
        tied: ValueId,
        source: ValueId,
    ) -> ValueId {
        let d = self.g.shape(x).width();
        let name = format!("layer {index}");
        let parameter = |w: &mut Writer, part: &str, dims: &[usize]| {
            w.parameter(format!("{name}.{part}"), dims, layer.frozen)
        };
        match layer.kind {
            Kind::Norm => {
                let (gamma, beta) = (
                    parameter(self, "gamma", &[d]),
                    parameter(self, "beta", &[d]),
                );
                self.g.layer_norm(&name, x, gamma, beta, 1e-2)
            }
            Kind::Mlp(activation) => {
                let (weight, bias) = (
                    parameter(self, "w1", &[d + 1, d]),
                    parameter(self, "b1", &[d + 1]),
                );
                let inner = self.g.linear_activated(&name, x, weight, bias, activation);
                let (weight, bias) = (
                    parameter(self, "w2", &[d, d + 1]),
                    parameter(self, "b2", &[d]),
                );
                self.g.linear(&name, inner, weight, Some(bias), Some(x))
            }
            Kind::Attention { causal } => {
                let (weight, bias) = (
                    parameter(self, "w", &[3 * d, d]),
                    parameter(self, "b", &[3 * d]),
                );
                let qkv = self.g.linear(&name, x, weight, Some(bias), None);
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
            Kind::Queries => {
                let [batch, tokens, _] = *self.g.shape(x).dims() else {
                    unreachable!("layers have tokens");
                };
                let table = parameter(self, "queries", &[tokens, d]);
                let queries = self.g.repeat(&name, table, batch);
                let weight = parameter(self, "kv", &[2 * d, d]);
                let kv = self.g.linear(&name, x, weight, None, None);
                let [k, v] = [0, d].map(|start| self.g.columns(kv, start, d));
                let lengths = Some(self.lengths);
                let mixed = self
                    .g
                    .attention(&name, [queries, k, v], lengths, self.heads, false);
                self.g.add(&name, mixed, x)
            }
            Kind::Positions { shared } => {
                let tokens = self.g.shape(x).dims()[1];
                let repeat = if shared { tokens } else { 1 };
                let table = parameter(self, "table", &[tokens / repeat, d]);
                self.g.add_positions(&name, x, table, repeat)
            }
            Kind::Activate(activation) => self.g.activate(&name, x, activation),
            Kind::Tied => self.g.linear(&name, x, tied, None, Some(x)),
            Kind::Doubled => self.g.add(&name, x, x),
            Kind::Dropped(mode) => {
                let gamma = parameter(self, "gamma", &[d]);
                let branch = self.g.linear(&name, x, tied, None, None);
                let scaled = self.g.scale_columns(&name, branch, gamma);
                let [samples, stream] = self.samples;
                let op = Dropout {
                    rate: 0.4,
                    layer: index as u64,
                    mode,
                };
                let left = self.g.dropout(&name, scaled, samples, stream, op);
                self.g.add(&name, x, left)
            }
            Kind::DeadEnd => {
                self.g.linear(&name, x, tied, None, None);
                x
            }
        }
    }
}

fn write(recipe: &Recipe) -> Step {
    let mut random = Random(recipe.layers.len() as u64);
    let (b, t, d) = (
        recipe.batch,
        recipe.tokens,
        recipe.heads * recipe.head_width,
    );
    let rows = b * recipe.accumulation;
    let mut g = Graph::new(DType::F64);
    let samples = g.input("samples", &[b], DType::I64);
    let stream = g.input("stream", &[2], DType::I64);
    let end = g.input("end", &[b], DType::I64);
    let mut w = Writer {
        g,
        lengths: end,
        heads: recipe.heads,
        frozen: Vec::new(),
        samples: [samples, stream],
    };
    let mut each = |make: &mut dyn FnMut(&mut Random) -> Contents| -> Vec<Contents> {
        (0..recipe.accumulation)
            .map(|_| make(&mut random))
            .collect()
    };
    let ids = w.g.input("ids", &[b, t], DType::I64);
    let labels = w.g.input("labels", &[b], DType::I64);
    let weights = w.g.input("weights", &[rows], DType::F64);
    let seeds = ["contrastive seed", "label seed"].map(|name| w.g.input(name, &[1], DType::F64));
    let counts = (0..rows).map(|row| if row % 5 == 4 { 0.0 } else { 1.0 });
    let mut inputs = vec![
        (ids, each(&mut |random| random.indices(b * t, VOCABULARY))),
        (end, each(&mut |random| random.indices(b, t))),
        (labels, each(&mut |random| random.indices(b, CLASSES))),
        (samples, each(&mut |random| random.indices(b, 1000))),
        (stream, vec![Contents::Indices(vec![17, 3])]),
        (weights, vec![Contents::Floats(counts.collect())]),
    ];
    inputs.extend(
        seeds
            .iter()
            .zip(SEEDS)
            .map(|(&id, seed)| (id, vec![Contents::Floats(vec![seed])])),
    );
    let sums = ["contrastive sum", LABEL_SUM].map(|name| total(&mut w.g, name));

    let table = w.parameter(
        "table".to_owned(),
        &[VOCABULARY, d],
        recipe.frozen_embedding,
    );
    let positions = w.parameter("positions".to_owned(), &[t, d], recipe.frozen_embedding);
    let tied = w.parameter("tied".to_owned(), &[d, d], false);
    let source = w.g.embedding("tokens", ids, table, positions, None);
    let mut x = source;
    let mut index = 0;
    while index < recipe.layers.len() {
        // A block takes the layers up to the next one that starts another or stands outside.
        let mut end = index + 1;
        if recipe.layers[index].block.is_some() {
            while end < recipe.layers.len() && recipe.layers[end].block == Some(false) {
                end += 1;
            }
        }
        let write_layers = |w: &mut Writer| {
            (index..end).fold(x, |x, index| {
                w.layer(index, recipe.layers[index], x, tied, source)
            })
        };
        x = if recipe.layers[index].block.is_some() {
            // The graph lends itself to the closure, so the writer takes it along.
            let mut g = std::mem::replace(&mut w.g, Graph::new(DType::F64));
            let x = g.block("block", |g| {
                std::mem::swap(&mut w.g, g);
                let x = write_layers(&mut w);
                std::mem::swap(&mut w.g, g);
                x
            });
            w.g = g;
            x
        } else {
            write_layers(&mut w)
        };
        index = end;
    }
    let pooled = match recipe.pool {
        Pool::Gather => w.g.gather_rows("pooled", x, end),
        Pool::First => w.g.first_tokens(x),
        Pool::Mean => w.g.mean_tokens("pooled", x, t / 2, None),
        Pool::Lengths => w.g.mean_tokens("pooled", x, 0, Some(end)),
    };
    let head = w.parameter("head".to_owned(), &[CLASSES, d], false);
    let logits = w.g.linear("logits", pooled, head, None, None);
    let micro_weights = w.g.micro_rows(weights, b);
    w.g.cross_entropy_into("label", logits, labels, micro_weights, sums[1], 0.0);
    if recipe.captions {
        let token_weights = w.g.input("token weights", &[b, t], DType::F64);
        let each = (0..b * t).map(|token| [1.0, 0.5, 0.0][token % 3]).collect();
        inputs.push((token_weights, vec![Contents::Floats(each)]));
        w.g.vocabulary_loss_into(
            "caption",
            x,
            table,
            ids,
            token_weights,
            micro_weights,
            sums[1],
            0.1,
            3,
        );
    }
    let mut seeds_back = vec![(sums[1], seeds[1])];
    let scale = w.parameter("scale".to_owned(), &[], false);
    let sides = recipe.coupled.then(|| {
        ["left", "right"].map(|name| {
            let all = w.g.tensor(name, &[rows, d + 1], DType::F64, Role::Feature);
            let gradient = w.g.tensor(
                format!("{name}.grad"),
                &[rows, d + 1],
                DType::F64,
                Role::Feature,
            );
            let weight = w.parameter(format!("{name}.w"), &[d + 1, d], false);
            let bias = w.parameter(format!("{name}.b"), &[d + 1], false);
            let projected = w.g.linear(name, pooled, weight, Some(bias), None);
            w.g.leave_by_first_pass(all);
            let here = w.g.micro_rows(all, b);
            w.g.normalize_into(name, projected, here);
            seeds_back.push((here, w.g.micro_rows(gradient, b)));
            (all, gradient)
        })
    });
    let frozen = std::mem::take(&mut w.frozen);
    w.g.configure_parameters(|parameter| parameter.trainable = !frozen.contains(&parameter.name));
    zero_gradients(&mut w.g);
    if let Some([left, right]) = sides {
        w.g.enter(Section::Loss);
        w.g.contrastive_into([left.0, right.0], weights, scale, sums[0], 2);
        let seed = [(sums[0], seeds[0])];
        backward_into(
            &mut w.g,
            Section::Loss,
            Section::Loss,
            &seed,
            &[left, right],
        );
    }
    backward(
        &mut w.g,
        Section::Forward,
        Section::Backward,
        &seeds_back,
        &[],
    );
    Step::new(w.g, inputs, &mut random, 0.7)
}

fn run(step: &Step, policy: RecomputePolicy, kept: usize, accumulation: usize) -> Outcome {
    let planned = Planned::new(&step.graph, policy, Kept::First(kept), accumulation, 2);
    let what = format!("{policy:?}, kept {kept}");
    if let Err(wrong) = shadow::check(step, &planned) {
        panic!("{what}: {wrong}");
    }
    let outcome = step.run(&planned, cpu());
    outcome.assert_finite(&what);
    outcome
}

fn loss(outcome: &Outcome) -> f64 {
    SEEDS[0] * outcome.of("contrastive sum")[0] + SEEDS[1] * outcome.of(LABEL_SUM)[0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn policies_agree_and_gradients_point_where_the_loss_goes(recipe in recipes()) {
        let step = write(&recipe);
        let num_blocks = step.graph.blocks().len();
        let none = RecomputePolicy::uniform(Recompute::None, num_blocks);
        let expected = run(&step, none, 0, recipe.accumulation);
        let slots = if recipe.coupled { recipe.accumulation } else { 0 };
        for policy in policies(num_blocks) {
            for kept in 0..=slots {
                let found = run(&step, policy, kept, recipe.accumulation);
                expected.assert_same_bits(&found, &format!("{policy:?}, kept {kept}"));
            }
        }
        // All trainable weights at once, along a random direction.
        let trainable = trainable(&step.graph);
        let mut random = Random(9);
        let direction: Vec<Vec<f64>> = trainable
            .iter()
            .map(|&id| (0..step.graph.storage(id).num_elements).map(|_| random.uniform()).collect())
            .collect();
        let loss_at = |shift: f64| {
            let mut moved = step.clone();
            for (storage, values) in &mut moved.initial {
                if let Some(index) = trainable.iter().position(|id| id == storage) {
                    for (value, along) in values.iter_mut().zip(&direction[index]) {
                        *value += shift * along;
                    }
                }
            }
            let planned = Planned::new(&moved.graph, none, Kept::First(0), recipe.accumulation, 2);
            loss(&moved.run(&planned, cpu()))
        };
        let h = 1e-4;
        let numeric = (8.0 * (loss_at(h) - loss_at(-h)) - (loss_at(2.0 * h) - loss_at(-2.0 * h))) / (12.0 * h);
        let mut analytic = 0.0;
        let mut length = 0.0;
        for (&id, along) in trainable.iter().zip(&direction) {
            let gradient = expected.of(&format!("{}.grad", step.graph.storage(id).name));
            analytic += gradient.iter().zip(along).map(|(g, a)| g * a).sum::<f64>();
            length += norm(gradient.iter().copied()) * norm(along.iter().copied());
        }
        let error = (numeric - analytic).abs() / (length + 1e-3);
        prop_assert!(error < 1e-7, "slope {numeric:e}, expected {analytic:e}: {error:e}");
    }
}
