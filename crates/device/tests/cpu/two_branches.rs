//! A step of two modalities in small: a text and an image branch in blocks, features of the whole effective batch, contrastive
//! and label loss, gradient norm and AdamW.
//!
//! Legend: `b` samples of a micro-batch, `t` tokens, `d` width, `p` projection.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::update::{AdamW, AdamWParameter, GradientNorm, MomentFormat};
use holdall_graph::{DType, Decay, Graph, Output, Role, Section, ValueId, backward, backward_into};

use super::step::{Contents, LABEL_SUM, Random, Step, total, zero_gradients};

#[derive(Clone, Debug)]
pub struct TwoBranches {
    pub dtype: DType,
    pub batch: usize,
    pub accumulation: usize,
    pub tokens: usize,
    pub width: usize,
    pub heads: usize,
    /// Blocks of each branch.
    pub layers: usize,
    pub projection: usize,
    pub tile: usize,
    pub activation: Activation,
    /// Parameters whose name starts with one of these.
    pub frozen: Vec<String>,
}

const NUM_CLASSES: usize = 3;
const VOCABULARY: usize = 11;
const PATCH_WIDTH: usize = 5;

impl TwoBranches {
    pub fn small(dtype: DType) -> TwoBranches {
        TwoBranches {
            dtype,
            batch: 3,
            accumulation: 3,
            tokens: 5,
            width: 8,
            heads: 2,
            layers: 2,
            projection: 6,
            tile: 4,
            activation: Activation::QuickGelu,
            frozen: Vec::new(),
        }
    }

    pub fn step(&self) -> Step {
        let mut random = Random(3);
        let mut g = Graph::new(self.dtype);
        let mut inputs = Vec::new();
        let (b, t, rows) = (self.batch, self.tokens, self.batch * self.accumulation);
        let mut given = |g: &mut Graph, name: &str, dims: &[usize], contents: Vec<Contents>| {
            let dtype = match &contents[0] {
                Contents::Indices(_) => DType::I64,
                _ => self.dtype,
            };
            let value = g.input(name, dims, dtype);
            inputs.push((value, contents));
            value
        };
        let mut each = |make: &mut dyn FnMut(&mut Random) -> Contents| -> Vec<Contents> {
            (0..self.accumulation).map(|_| make(&mut random)).collect()
        };
        let ids = each(&mut |random| random.indices(b * t, VOCABULARY));
        let end = each(&mut |random| random.indices(b, t));
        let patches = each(&mut |random| random.floats(b * (t - 1) * PATCH_WIDTH));
        let labels = each(&mut |random| random.indices(b, NUM_CLASSES));
        let lengths = end.iter().map(|end| match end {
            Contents::Indices(end) => Contents::Indices(end.iter().map(|end| end + 1).collect()),
            _ => unreachable!("drawn above"),
        });
        let lengths = given(&mut g, "lengths", &[b], lengths.collect());
        let ids = given(&mut g, "ids", &[b, t], ids);
        let end = given(&mut g, "end", &[b], end);
        let patches = given(&mut g, "patches", &[b, t - 1, PATCH_WIDTH], patches);
        let labels = given(&mut g, "labels", &[b], labels);
        // The last sample of all is padding.
        let counts = (0..rows).map(|row| if row + 1 == rows { 0.0 } else { 1.0 });
        let weights = Contents::Floats(counts.collect());
        let weights = given(&mut g, "weights", &[rows], vec![weights]);
        let seeds = Contents::Floats(vec![0.3, 0.2]);
        let seeds = given(&mut g, "seeds", &[2], vec![seeds]);
        let [contrastive_seed, label_seed] = [0, 1].map(|loss| g.rows(seeds, loss, 1));
        let schedule = Contents::Floats(vec![1.0, 10.0, 50.0, 1e-2]);
        let schedule = given(&mut g, "schedule", &[4], vec![schedule]);

        let [contrastive_sum, label_sum] =
            ["contrastive sum", LABEL_SUM].map(|name| total(&mut g, name));
        let whole = |g: &mut Graph, name: &str| {
            g.tensor(name, &[rows, self.projection], self.dtype, Role::Feature)
        };
        let all = ["image", "text"].map(|name| whole(&mut g, name));
        all.iter().for_each(|&all| g.leave_by_first_pass(all));
        let [image_bp, text_bp] = all.map(|all| g.micro_rows(all, b));
        self.image_branch(&mut g, patches, image_bp);
        self.text_branch(&mut g, ids, end, lengths, text_bp);
        let head = g.parameter("head.weight", &[NUM_CLASSES, self.projection], Decay::Yes);
        let bias = g.parameter("head.bias", &[NUM_CLASSES], Decay::No);
        let logit_scale = g.parameter("logit_scale", &[], Decay::No);
        g.configure_parameters(|parameter| {
            let mut frozen = self.frozen.iter();
            parameter.trainable = !frozen.any(|prefix| parameter.name.starts_with(prefix.as_str()));
        });
        let logits = g.linear("head", image_bp, head, Some(bias), None);
        let micro_weights = g.micro_rows(weights, b);
        g.cross_entropy_into("label", logits, labels, micro_weights, label_sum, 0.0);

        zero_gradients(&mut g);
        g.enter(Section::Loss);
        g.contrastive_into(all, weights, logit_scale, contrastive_sum, self.tile);
        let gradients = ["image.grad", "text.grad"].map(|name| whole(&mut g, name));
        let wanted = [(all[0], gradients[0]), (all[1], gradients[1])];
        let seed = [(contrastive_sum, contrastive_seed)];
        backward_into(&mut g, Section::Loss, Section::Loss, &seed, &wanted);
        let [dimage_bp, dtext_bp] = gradients.map(|all| g.micro_rows(all, b));
        let seeds = [
            (image_bp, dimage_bp),
            (text_bp, dtext_bp),
            (label_sum, label_seed),
        ];
        backward(&mut g, Section::Forward, Section::Backward, &seeds, &[]);
        self.update(&mut g, schedule);
        Step::new(g, inputs, &mut random, 0.6)
    }

    fn update(&self, g: &mut Graph, schedule: ValueId) {
        g.enter(Section::Update);
        let norm = g.tensor("norm", &[2], self.dtype, Role::Feature);
        let parameters: Vec<_> = g
            .parameters()
            .iter()
            .filter(|p| p.trainable)
            .cloned()
            .collect();
        let mut gradients = Vec::new();
        let mut outputs = Vec::new();
        let mut each = Vec::new();
        for parameter in &parameters {
            let gradient = g.parameter_gradient(parameter).unwrap();
            gradients.push(g.add_value(gradient));
            outputs.push(Output::overwrite(parameter.value));
            let shape = g.shape(parameter.value);
            for moment in ["m", "v"] {
                let name = format!("{}.{moment}", parameter.name);
                let state = g.tensor(name, shape.dims(), self.dtype, Role::Optimizer);
                outputs.push(Output::overwrite(state));
            }
            each.push(AdamWParameter {
                weight_decay: 0.1,
                rate: 0,
                maximum: None,
                moments: MomentFormat::F32,
                copy: false,
            });
        }
        g.push_new(GradientNorm {}, gradients.clone(), &[norm]);
        let operation = AdamW {
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-6,
            clip_norm: Some(1.0),
            average_decay: None,
            parameters: each,
        };
        let mut inputs = vec![schedule, norm];
        inputs.extend(gradients);
        g.push(operation, inputs, outputs);
    }

    fn image_branch(&self, g: &mut Graph, patches: ValueId, features: ValueId) {
        let d = self.width;
        let weight = g.parameter("image.patch", &[d, PATCH_WIDTH], Decay::Yes);
        let class_d = g.parameter("image.class", &[d], Decay::No);
        let positions_td = g.parameter("image.positions", &[self.tokens, d], Decay::Yes);
        let embedded = g.linear("image.embedded", patches, weight, None, None);
        let x_btd = g.class_token("image.tokens", embedded, class_d, positions_td);
        let mut x_btd = norm(g, "image.pre", x_btd);
        for layer in 0..self.layers {
            let name = format!("image.{layer}");
            let last = layer + 1 == self.layers;
            x_btd = g.block(&name, |g| {
                if last {
                    self.last_block(g, &name, x_btd, None, |g, _, x| g.first_tokens(x))
                } else {
                    self.block(g, &name, x_btd, false)
                }
            });
        }
        self.project(g, "image.out", x_btd, features);
    }

    fn text_branch(
        &self,
        g: &mut Graph,
        ids: ValueId,
        end: ValueId,
        lengths: ValueId,
        features: ValueId,
    ) {
        let d = self.width;
        let table_vd = g.parameter("text.table", &[VOCABULARY, d], Decay::Yes);
        let positions = g.parameter("text.positions", &[self.tokens + 2, d], Decay::Yes);
        let positions_td = g.rows(positions, 0, self.tokens);
        let mut x_btd = g.embedding("text.tokens", ids, table_vd, positions_td, None);
        for layer in 0..self.layers {
            let name = format!("text.{layer}");
            let last = layer + 1 == self.layers;
            x_btd = g.block(&name, |g| {
                if last {
                    self.last_block(g, &name, x_btd, Some(lengths), |g, name, x| {
                        g.gather_rows(name, x, end)
                    })
                } else {
                    self.block(g, &name, x_btd, true)
                }
            });
        }
        self.project(g, "text.out", x_btd, features);
    }

    fn project(&self, g: &mut Graph, name: &str, x: ValueId, features: ValueId) {
        let pooled = norm(g, name, x);
        let weight = g.parameter(
            &format!("{name}.weight"),
            &[self.projection, self.width],
            Decay::Yes,
        );
        let projected = g.linear(name, pooled, weight, None, None);
        g.normalize_into(name, projected, features);
    }

    fn qkv(&self, g: &mut Graph, name: &str) -> [ValueId; 2] {
        let d = self.width;
        let named = |kind: &str, dims: &[usize]| {
            ["q", "k", "v"].map(|part| (format!("{name}.{part}.{kind}"), dims.to_vec()))
        };
        [
            g.packed_parameters(&named("weight", &[d, d]), Decay::Yes),
            g.packed_parameters(&named("bias", &[d]), Decay::No),
        ]
    }

    fn block(&self, g: &mut Graph, name: &str, x_btd: ValueId, causal: bool) -> ValueId {
        let d = self.width;
        let [weight, bias] = self.qkv(g, name);
        let h_btd = norm(g, &format!("{name}.norm1"), x_btd);
        let qkv = g.linear(&format!("{name}.qkv"), h_btd, weight, Some(bias), None);
        let parts = [0, 1, 2].map(|part| g.columns(qkv, part * d, d));
        let mixed_btd = g.attention(&format!("{name}.mixed"), parts, None, self.heads, causal);
        self.mlp(g, name, mixed_btd, x_btd)
    }

    /// All tokens give keys and values; one asks.
    fn last_block(
        &self,
        g: &mut Graph,
        name: &str,
        x_btd: ValueId,
        lengths: Option<ValueId>,
        pool: impl Fn(&mut Graph, &str, ValueId) -> ValueId,
    ) -> ValueId {
        let d = self.width;
        let [weight, bias] = self.qkv(g, name);
        let h_btd = norm(g, &format!("{name}.norm1"), x_btd);
        let (kv_weight, kv_bias) = (g.rows(weight, d, 2 * d), g.rows(bias, d, 2 * d));
        let kv = g.linear(&format!("{name}.kv"), h_btd, kv_weight, Some(kv_bias), None);
        let [k, v] = [0, 1].map(|part| g.columns(kv, part * d, d));
        let pooled_h = pool(g, &format!("{name}.pooled h"), h_btd);
        let (q_weight, q_bias) = (g.rows(weight, 0, d), g.rows(bias, 0, d));
        let q = g.linear(&format!("{name}.q"), pooled_h, q_weight, Some(q_bias), None);
        let mixed = g.attention(
            &format!("{name}.mixed"),
            [q, k, v],
            lengths,
            self.heads,
            false,
        );
        let pooled_x = pool(g, &format!("{name}.pooled x"), x_btd);
        self.mlp(g, name, mixed, pooled_x)
    }

    fn mlp(&self, g: &mut Graph, name: &str, mixed: ValueId, x: ValueId) -> ValueId {
        let (d, wide) = (self.width, 2 * self.width + 1);
        let layer = |g: &mut Graph, part: &str, o: usize, i: usize| {
            let name = format!("{name}.{part}");
            let weight = g.parameter(&format!("{name}.weight"), &[o, i], Decay::Yes);
            (
                name.clone(),
                weight,
                g.parameter(&format!("{name}.bias"), &[o], Decay::No),
            )
        };
        let (part, weight, bias) = layer(g, "out", d, d);
        let x = g.linear(&part, mixed, weight, Some(bias), Some(x));
        let h = norm(g, &format!("{name}.norm2"), x);
        let (part, weight, bias) = layer(g, "fc1", wide, d);
        let inner = g.linear_activated(&part, h, weight, bias, self.activation);
        let (part, weight, bias) = layer(g, "fc2", d, wide);
        g.linear(&part, inner, weight, Some(bias), Some(x))
    }
}

fn norm(g: &mut Graph, name: &str, x: ValueId) -> ValueId {
    let width = g.shape(x).width();
    let gamma = g.parameter(&format!("{name}.gamma"), &[width], Decay::No);
    let beta = g.parameter(&format!("{name}.beta"), &[width], Decay::No);
    g.layer_norm(name, x, gamma, beta, 1e-5)
}
