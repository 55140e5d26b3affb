//! The transformer that the models here share: a stack of pre-norm blocks.
//!
//! ```text
//! block: x += out(attention(qkv(norm1(x))));  x += fc2(activation(fc1(norm2(x))))
//! ```
//!
//! Where only one token of the last block is read (a class token; an end token), the last block computes keys and
//! values for all tokens and everything else for that one: the same numbers, and gradients, with a fraction of the work.
//!
//! Legend: `b` samples, `t` tokens, `d` width.

use holdall_graph::ops::activation::Activation;
use holdall_graph::{Decay, Graph, ValueId};

use crate::tensor_list::TensorList;

/// Names of a block's modules, behind the block's own.
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
}

/// Blocks of one size, one after the other.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// What stands before a block's number, such as `vision_model.encoder.layers`.
    pub prefix: String,
    pub names: &'static BlockNames,
    pub num_layers: usize,
    pub width: usize,
    pub mlp_width: usize,
    pub num_heads: usize,
    pub activation: Activation,
    pub eps: f64,
    pub causal: bool,
    /// Whether query, key and value have biases.
    pub qkv_bias: bool,
}

/// The token that is read of the last block: how it is picked, and how many tokens it sees.
pub(crate) struct OneToken<'a> {
    pub pick: &'a dyn Fn(&mut Graph, &str, ValueId) -> ValueId,
    pub lengths_b: Option<ValueId>,
}

impl Blocks {
    /// Name and shape of every tensor, as Hugging Face has them.
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
        }
    }

    /// Writes the blocks, named `{label}.0`, `{label}.1` and so on. With `one_token`, the result is that token alone.
    pub fn write(
        &self,
        graph: &mut Graph,
        label: &str,
        mut x_btd: ValueId,
        one_token: Option<OneToken<'_>>,
    ) -> ValueId {
        for layer in 0..self.num_layers {
            let block = Block {
                of: self,
                prefix: format!("{}.{layer}", self.prefix),
            };
            let last = layer + 1 == self.num_layers;
            x_btd = graph.block(&format!("{label}.{layer}"), |graph| match &one_token {
                Some(one_token) if last => block.write_one(graph, x_btd, one_token),
                _ => block.write(graph, x_btd),
            });
        }
        x_btd
    }
}

/// A layer norm with its parameters.
pub(crate) fn norm(graph: &mut Graph, name: &str, x: ValueId, eps: f64) -> ValueId {
    let width = graph.shape(x).width();
    let gamma = graph.parameter(&format!("{name}.weight"), &[width], Decay::No);
    let beta = graph.parameter(&format!("{name}.bias"), &[width], Decay::No);
    graph.layer_norm(name, x, gamma, beta, eps)
}

/// Weight and bias of a linear layer.
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

struct Block<'a> {
    of: &'a Blocks,
    prefix: String,
}

impl Block<'_> {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    fn norm(&self, graph: &mut Graph, part: &str, x: ValueId) -> ValueId {
        norm(graph, &self.name(part), x, self.of.eps)
    }

    /// q, k and v one behind the other, so that one product computes them all: weight `[3 d, d]`, bias `[3 d]`.
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
        let h_btd = self.norm(graph, self.of.names.norm1, x_btd);
        let name = self.name("qkv");
        let qkv = match bias {
            Some(bias) => graph.linear_with_keys(&name, h_btd, weight, bias, d..2 * d),
            None => graph.linear(&name, h_btd, weight, None, None),
        };
        let [q, k, v] = [0, 1, 2].map(|part| graph.columns(qkv, part * d, d));
        let (name, num_heads) = (self.name("attention"), self.of.num_heads);
        let mixed_btd = graph.attention(&name, [q, k, v], None, num_heads, self.of.causal);
        self.finish(graph, mixed_btd, x_btd)
    }

    /// The last block, for one token.
    fn write_one(&self, graph: &mut Graph, x_btd: ValueId, token: &OneToken<'_>) -> ValueId {
        let d = self.of.width;
        let (weight, bias) = self.qkv_parameters(graph);
        let h_btd = self.norm(graph, self.of.names.norm1, x_btd);
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
        // The picked token sees what causality lets it see: the keys up to itself.
        let (name, num_heads) = (self.name("attention"), self.of.num_heads);
        let mixed = graph.attention(&name, [q, k, v], token.lengths_b, num_heads, false);
        let picked_x = (token.pick)(graph, &self.name("pooled"), x_btd);
        self.finish(graph, mixed, picked_x)
    }

    /// Output projection and MLP, each added to the residual stream.
    fn finish(&self, graph: &mut Graph, mixed: ValueId, x: ValueId) -> ValueId {
        let (d, mlp, names) = (self.of.width, self.of.mlp_width, self.of.names);
        let name = self.name(names.attention_output);
        let [weight, bias] = linear_parameters(graph, &name, [d, d]);
        let x = graph.linear(&self.name("residual1"), mixed, weight, Some(bias), Some(x));
        let h = self.norm(graph, names.norm2, x);
        let name = self.name(names.mlp_in);
        let [weight, bias] = linear_parameters(graph, &name, [mlp, d]);
        let inner = graph.linear_activated(&name, h, weight, bias, self.of.activation);
        let [weight, bias] = linear_parameters(graph, &self.name(names.mlp_out), [d, mlp]);
        graph.linear(&self.name("residual2"), inner, weight, Some(bias), Some(x))
    }
}
