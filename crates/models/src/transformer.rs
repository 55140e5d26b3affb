//! Transformer blocks that the models share, with norms before attention and MLP or, as in BERT, after them.
//!
//! ```text
//! before: x += out(attention(qkv(norm1(x))));      x += fc2(activation(fc1(norm2(x))))
//! after:  x = norm1(x + out(attention(qkv(x))));   x = norm2(x + fc2(activation(fc1(x))))
//! ```
//!
//! Where only one token of the last block is read (a class token or an end token), the last block computes keys and values
//! for all tokens and everything else for that token alone: the same numbers and gradients at a fraction of the work.
//!
//! Legend: `b` samples, `t` tokens, `d` width.

use holdall_graph::ops::activation::Activation;
use holdall_graph::ops::dropout::{Dropout, DropoutMode};
use holdall_graph::{Decay, Graph, ValueId};

use crate::init::Start;
use crate::tensor_list::TensorList;

/// Module names inside a block.
#[derive(Debug)]
pub(crate) struct BlockNames {
    pub norm1: &'static str,
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub norm2: &'static str,
    pub mlp_in: &'static str,
    pub mlp_out: &'static str,
    /// Vectors that scale the outputs of attention and MLP by column (layer scale).
    pub layer_scales: Option<[&'static str; 2]>,
}

/// Position of a block's norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NormPlace {
    /// On the inputs of attention and MLP.
    Before,
    /// On the residual stream, after each sum.
    After,
}

/// A stack of equal blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Prefix before a block's number, such as `vision_model.encoder.layers`.
    pub prefix: String,
    pub names: &'static BlockNames,
    pub num_layers: usize,
    pub width: usize,
    pub mlp_width: usize,
    pub num_heads: usize,
    pub activation: Activation,
    pub eps: f64,
    pub norms: NormPlace,
    pub causal: bool,
    pub qkv_bias: bool,
}

/// The only token that is read of the last block: a function that picks it, and how many tokens it attends to.
pub(crate) struct OneToken<'a> {
    pub pick: &'a dyn Fn(&mut Graph, &str, ValueId) -> ValueId,
    pub lengths_b: Option<ValueId>,
}

/// Settings that differ between uses of a transformer.
#[derive(Default)]
pub(crate) struct Use<'a> {
    /// Only this token of the last block is read.
    pub one_token: Option<OneToken<'a>>,
    /// Number of valid tokens of each sample, where samples differ. Nothing attends to the others.
    pub key_lengths_b: Option<ValueId>,
    pub regularization: Option<&'a Regularization>,
    /// Dropout rate of attention probabilities, if `regularization` is given.
    pub attention_dropout: f64,
}

/// Dropout places of attention start behind all other places.
const ATTENTION_PLACES: u64 = 1 << 32;

impl Blocks {
    /// Names and shapes of all tensors, in Hugging Face's convention.
    pub fn list(&self, list: &mut TensorList) {
        let (width, names) = (self.width, self.names);
        for layer in 0..self.num_layers {
            let name = |part: &str| format!("{}.{layer}.{part}", self.prefix);
            for part in [names.key, names.value, names.query] {
                list.add(&format!("{}.weight", name(part)), &[width, width]);
                if self.qkv_bias {
                    list.add(&format!("{}.bias", name(part)), &[width]);
                }
            }
            list.add_weight_and_bias(&name(names.attention_output), &[width, width]);
            list.add_weight_and_bias(&name(names.norm1), &[width]);
            list.add_weight_and_bias(&name(names.mlp_in), &[self.mlp_width, width]);
            list.add_weight_and_bias(&name(names.mlp_out), &[width, self.mlp_width]);
            list.add_weight_and_bias(&name(names.norm2), &[width]);
            for part in names.layer_scales.into_iter().flatten() {
                list.add(&name(part), &[width]);
            }
        }
    }

    /// Initial distribution of a block's parameter; `None` for an unknown name.
    ///
    /// Projections into the residual stream start smaller the more of them a model has.
    pub fn start_of(&self, name: &str, layer_scale: f64) -> Option<Start> {
        let rest = name.strip_prefix(&self.prefix)?.strip_prefix('.')?;
        let (layer, part) = rest.split_once('.')?;
        if layer.parse::<usize>().ok()? >= self.num_layers {
            return None;
        }
        let names = self.names;
        if names
            .layer_scales
            .is_some_and(|names| names.contains(&part))
        {
            return Some(Start::Constant(layer_scale as f32));
        }
        let is_norm = |norm| start_of_norm(part.strip_prefix(norm)?);
        if let Some(start) = is_norm(names.norm1).or_else(|| is_norm(names.norm2)) {
            return Some(start);
        }
        let width = self.width as f64;
        let scale = width.powf(-0.5);
        let depth = (2.0 * self.num_layers as f64).powf(-0.5);
        let (module, kind) = part.rsplit_once('.')?;
        let is_qkv = [names.query, names.key, names.value].contains(&module);
        let std = if is_qkv {
            scale
        } else if module == names.attention_output || module == names.mlp_out {
            scale * depth
        } else if module == names.mlp_in {
            (2.0 * width).powf(-0.5)
        } else {
            return None;
        };
        match kind {
            "weight" => Some(Start::Normal(std)),
            "bias" if self.qkv_bias || !is_qkv => Some(Start::Constant(0.0)),
            _ => None,
        }
    }

    /// Writes the blocks, named `{label}.0`, `{label}.1` and so on. With `one_token`, the result is that token alone.
    pub fn write(
        &self,
        graph: &mut Graph,
        label: &str,
        mut x_btd: ValueId,
        usage: &Use<'_>,
    ) -> ValueId {
        for layer in 0..self.num_layers {
            let block = BlockWriter {
                of: self,
                layer,
                prefix: format!("{}.{layer}", self.prefix),
                key_lengths_b: usage.key_lengths_b,
                regularization: usage.regularization,
                attention_dropout: usage.attention_dropout,
            };
            let last = layer + 1 == self.num_layers;
            x_btd = graph.block(&format!("{label}.{layer}"), |graph| {
                match &usage.one_token {
                    Some(one_token) if last => block.write_one(graph, x_btd, one_token),
                    _ => block.write(graph, x_btd),
                }
            });
        }
        x_btd
    }
}

/// Initial value of a norm's `.weight` or `.bias`.
pub(crate) fn start_of_norm(kind: &str) -> Option<Start> {
    match kind {
        ".weight" => Some(Start::Constant(1.0)),
        ".bias" => Some(Start::Constant(0.0)),
        _ => None,
    }
}

pub(crate) fn norm(graph: &mut Graph, name: &str, x: ValueId, eps: f64) -> ValueId {
    let width = graph.shape(x).width();
    let gamma = graph.parameter(&format!("{name}.weight"), &[width], Decay::No);
    let beta = graph.parameter(&format!("{name}.bias"), &[width], Decay::No);
    graph.layer_norm(name, x, gamma, beta, eps)
}

/// Declares weight and bias of a linear layer.
pub(crate) fn linear_parameters(
    graph: &mut Graph,
    name: &str,
    [outputs, inputs]: [usize; 2],
) -> [ValueId; 2] {
    [
        graph.parameter(&format!("{name}.weight"), &[outputs, inputs], Decay::Yes),
        graph.parameter(&format!("{name}.bias"), &[outputs], Decay::No),
    ]
}

/// Dropout of training: a function of the stream, the sample and the layer, so that a recomputed forward drops the same elements.
#[derive(Clone, Copy, Debug)]
pub struct Regularization {
    /// Dropout rate of the embedded tokens and of the outputs of attention and MLP.
    pub dropout: f64,
    /// Share of the samples for which the last block adds nothing; the share grows linearly from zero in the first block.
    pub stochastic_depth: f64,
    /// Sample numbers in the data set, `[b]`.
    pub sample_ids_b: ValueId,
    /// Seed and epoch, `[2]`.
    pub stream_2: ValueId,
}

impl Regularization {
    /// Drops elements of `x`; `layer` distinguishes the places of a model. With rate zero, nothing is written.
    pub(crate) fn drop(
        &self,
        graph: &mut Graph,
        name: &str,
        x: ValueId,
        rate: f64,
        layer: u64,
        mode: DropoutMode,
    ) -> ValueId {
        if rate == 0.0 {
            return x;
        }
        let op = Dropout { rate, layer, mode };
        graph.dropout(name, x, self.sample_ids_b, self.stream_2, op)
    }
}

struct BlockWriter<'a> {
    of: &'a Blocks,
    layer: usize,
    prefix: String,
    key_lengths_b: Option<ValueId>,
    regularization: Option<&'a Regularization>,
    attention_dropout: f64,
}

impl BlockWriter<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    fn norm(&self, graph: &mut Graph, part: &str, x: ValueId) -> ValueId {
        norm(graph, &self.name(part), x, self.of.eps)
    }

    /// Input of attention.
    fn attended(&self, graph: &mut Graph, x: ValueId) -> ValueId {
        match self.of.norms {
            NormPlace::Before => self.norm(graph, self.of.names.norm1, x),
            NormPlace::After => x,
        }
    }

    /// Concatenates q, k and v, so that one product computes all three: weight `[3 d, d]`, bias `[3 d]`.
    fn qkv_parameters(&self, graph: &mut Graph) -> (ValueId, Option<ValueId>) {
        let (d, names) = (self.of.width, self.of.names);
        let packed = |kind: &str, dims: &[usize]| {
            [names.query, names.key, names.value]
                .map(|part| (self.name(&format!("{part}.{kind}")), dims.to_vec()))
        };
        let weight = graph.packed_parameters(&packed("weight", &[d, d]), Decay::Yes);
        let with_bias = self.of.qkv_bias;
        let bias = with_bias.then(|| graph.packed_parameters(&packed("bias", &[d]), Decay::No));
        (weight, bias)
    }

    fn write(&self, graph: &mut Graph, x_btd: ValueId) -> ValueId {
        let d = self.of.width;
        let (weight, bias) = self.qkv_parameters(graph);
        let h_btd = self.attended(graph, x_btd);
        let name = self.name("qkv");
        let qkv = match bias {
            Some(bias) => graph.linear_with_keys(&name, h_btd, weight, bias, d..2 * d),
            None => graph.linear(&name, h_btd, weight, None, None),
        };
        let [q, k, v] = [0, 1, 2].map(|part| graph.columns(qkv, part * d, d));
        let (lengths, causal) = (self.key_lengths_b, self.of.causal);
        let mixed_btd = self.attention(graph, [q, k, v], lengths, causal);
        self.finish(graph, mixed_btd, x_btd)
    }

    /// The last block, for one token.
    fn write_one(&self, graph: &mut Graph, x_btd: ValueId, token: &OneToken<'_>) -> ValueId {
        let d = self.of.width;
        let (weight, bias) = self.qkv_parameters(graph);
        let h_btd = self.attended(graph, x_btd);
        let rows = |graph: &mut Graph, start: usize, count: usize| {
            let bias = |graph: &mut Graph| bias.map(|bias| graph.rows(bias, start, count));
            (graph.rows(weight, start, count), bias(graph))
        };
        let (kv_weight, kv_bias) = rows(graph, d, 2 * d);
        let name = self.name("kv");
        let kv = match kv_bias {
            Some(bias) => graph.linear_with_keys(&name, h_btd, kv_weight, bias, 0..d),
            None => graph.linear(&name, h_btd, kv_weight, None, None),
        };
        let [k, v] = [0, 1].map(|part| graph.columns(kv, part * d, d));
        let picked_h = (token.pick)(graph, &self.name("pooled norm"), h_btd);
        let (q_weight, q_bias) = rows(graph, 0, d);
        let q = graph.linear(&self.name("q"), picked_h, q_weight, q_bias, None);
        // The picked token attends to the keys up to itself, as under a causal mask.
        let mixed = self.attention(graph, [q, k, v], token.lengths_b, false);
        let picked_x = (token.pick)(graph, &self.name("pooled"), x_btd);
        self.finish(graph, mixed, picked_x)
    }

    fn attention(
        &self,
        graph: &mut Graph,
        qkv: [ValueId; 3],
        key_lengths_b: Option<ValueId>,
        causal: bool,
    ) -> ValueId {
        let (name, num_heads) = (self.name("attention"), self.of.num_heads);
        let regularization = self.regularization.filter(|_| self.attention_dropout > 0.0);
        let dropped = regularization.map(|regularization| {
            let op = Dropout {
                rate: self.attention_dropout,
                layer: ATTENTION_PLACES + self.layer as u64,
                mode: DropoutMode::Element,
            };
            (op, [regularization.sample_ids_b, regularization.stream_2])
        });
        graph.attention_dropped(&name, qkv, key_lengths_b, num_heads, causal, dropped)
    }

    /// Output projection and MLP, each added to the residual stream.
    fn finish(&self, graph: &mut Graph, mixed: ValueId, x: ValueId) -> ValueId {
        let (d, mlp, names) = (self.of.width, self.of.mlp_width, self.of.names);
        let name = self.name(names.attention_output);
        let output = linear_parameters(graph, &name, [d, d]);
        let mut x = self.add_branch(graph, 1, mixed, output, x);
        let h = match self.of.norms {
            NormPlace::Before => self.norm(graph, names.norm2, x),
            NormPlace::After => {
                x = self.norm(graph, names.norm1, x);
                x
            }
        };
        let name = self.name(names.mlp_in);
        let [weight, bias] = linear_parameters(graph, &name, [mlp, d]);
        let inner = graph.linear_activated(&name, h, weight, bias, self.of.activation);
        let output = linear_parameters(graph, &self.name(names.mlp_out), [d, mlp]);
        let x = self.add_branch(graph, 2, inner, output, x);
        match self.of.norms {
            NormPlace::Before => x,
            NormPlace::After => self.norm(graph, names.norm2, x),
        }
    }

    /// Adds `inner W^T + b`, with layer scale and dropout if the model has them, to the residual stream, as the first or second branch.
    fn add_branch(
        &self,
        graph: &mut Graph,
        number: usize,
        inner: ValueId,
        [weight, bias]: [ValueId; 2],
        x: ValueId,
    ) -> ValueId {
        let name = self.name(&format!("residual{number}"));
        let scale = self.of.names.layer_scales.map(|names| names[number - 1]);
        if scale.is_none() && self.regularization.is_none() {
            return graph.linear(&name, inner, weight, Some(bias), Some(x));
        }
        let branch = format!("branch{number}");
        let mut y = graph.linear(&self.name(&branch), inner, weight, Some(bias), None);
        if let Some(scale) = scale {
            let gamma = graph.parameter(&self.name(scale), &[self.of.width], Decay::No);
            y = graph.scale_columns(&self.name(&format!("{branch}.scaled")), y, gamma);
        }
        if let Some(regularization) = self.regularization {
            let last = self.of.num_layers.max(2) - 1;
            let depth = regularization.stochastic_depth * self.layer as f64 / last as f64;
            let place = 4 * self.layer as u64 + 2 * number as u64 - 1;
            for (rate, place, mode) in [
                (regularization.dropout, place, DropoutMode::Element),
                (depth, place + 1, DropoutMode::Sample),
            ] {
                let name = self.name(&format!("{branch}.{mode:?} dropout"));
                y = regularization.drop(graph, &name, y, rate, place, mode);
            }
        }
        graph.add(&name, x, y)
    }
}
