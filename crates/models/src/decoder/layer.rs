//! One layer of the decoder, as building blocks that training and decoding combine differently.

use holdall_graph::{Decay, Graph, ValueId};

use super::config::DecoderConfig;
use super::{PREFIX, TokenInputs};
use crate::transformer::{linear_parameters, norm};

/// Module names inside a layer.
pub(super) const WORDS: &str = "self_attn";
pub(super) const WORDS_NORM: &str = "self_attn_layer_norm";
pub(super) const FRAMES: &str = "encoder_attn";
pub(super) const FRAMES_NORM: &str = "encoder_attn_layer_norm";
pub(super) const MLP_IN: &str = "fc1";
pub(super) const MLP_OUT: &str = "fc2";
pub(super) const MLP_NORM: &str = "final_layer_norm";

pub(super) struct Layer<'a> {
    config: &'a DecoderConfig,
    prefix: String,
}

impl Layer<'_> {
    pub fn new(config: &DecoderConfig, number: usize) -> Layer<'_> {
        Layer {
            config,
            prefix: format!("{PREFIX}.layers.{number}"),
        }
    }

    /// `x += out(causal attention(qkv(norm(x))))`
    pub fn attend_words(&self, graph: &mut Graph, x_btd: ValueId) -> ValueId {
        let qkv = self.words_qkv(graph, x_btd);
        let name = self.name("self_attn.attention");
        let mixed_btd = graph.attention(&name, qkv, None, self.config.heads, true);
        self.add_output(graph, WORDS, mixed_btd, x_btd)
    }

    /// Like [`Self::attend_words`] for the newest token, over the cache.
    pub fn attend_cached_words(
        &self,
        graph: &mut Graph,
        x_r1d: ValueId,
        token: &TokenInputs,
        cache: [ValueId; 2],
    ) -> ValueId {
        let qkv = self.words_qkv(graph, x_r1d);
        let mixed_r1d = graph.cached_attention(
            &self.name("self_attn.attention"),
            qkv,
            token.ancestors_rl,
            token.position_1,
            cache,
            self.config.heads,
        );
        self.add_output(graph, WORDS, mixed_r1d, x_r1d)
    }

    /// Keys and values of the frame tokens, side by side.
    pub fn frame_keys_and_values(
        &self,
        graph: &mut Graph,
        frame_tokens_bsd: ValueId,
    ) -> [ValueId; 2] {
        let width = self.config.width;
        let [weight, bias] = self.frames_kv_parameters(graph);
        let name = self.name("encoder_attn.kv");
        let kv = graph.linear_with_keys(&name, frame_tokens_bsd, weight, bias, 0..width);
        [0, 1].map(|part| graph.columns(kv, part * width, width))
    }

    /// Keys and values of the frame tokens, written to caches.
    pub fn fill_frame_caches(
        &self,
        graph: &mut Graph,
        frame_tokens_bsd: ValueId,
        cache: [ValueId; 2],
    ) {
        let width = self.config.width;
        let parameters = self.frames_kv_parameters(graph);
        for (part, to) in cache.into_iter().enumerate() {
            let [weight, bias] = parameters.map(|all| graph.rows(all, part * width, width));
            graph.linear_into(frame_tokens_bsd, weight, bias, to);
        }
    }

    /// `x += out(attention(q(norm(x)), keys, values))`
    pub fn attend_frames(
        &self,
        graph: &mut Graph,
        x_btd: ValueId,
        [keys_bsd, values_bsd]: [ValueId; 2],
        frame_token_counts: Option<ValueId>,
    ) -> ValueId {
        let width = self.config.width;
        let h_btd = self.norm(graph, FRAMES_NORM, x_btd);
        let name = self.name("encoder_attn.q_proj");
        let [weight, bias] = linear_parameters(graph, &name, [width, width]);
        let q_btd = graph.linear(&name, h_btd, weight, Some(bias), None);
        let mixed_btd = graph.attention(
            &self.name("encoder_attn.attention"),
            [q_btd, keys_bsd, values_bsd],
            frame_token_counts,
            self.config.heads,
            false,
        );
        self.add_output(graph, FRAMES, mixed_btd, x_btd)
    }

    /// `x += fc2(activation(fc1(norm(x))))`
    pub fn mlp(&self, graph: &mut Graph, x_btd: ValueId) -> ValueId {
        let DecoderConfig { width, inner, .. } = *self.config;
        let h_btd = self.norm(graph, MLP_NORM, x_btd);
        let name = self.name(MLP_IN);
        let [weight, bias] = linear_parameters(graph, &name, [inner, width]);
        let h = graph.linear_activated(&name, h_btd, weight, bias, self.config.activation);
        let name = self.name(MLP_OUT);
        let [weight, bias] = linear_parameters(graph, &name, [width, inner]);
        graph.linear(&name, h, weight, Some(bias), Some(x_btd))
    }

    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    fn norm(&self, graph: &mut Graph, part: &str, x: ValueId) -> ValueId {
        norm(graph, &self.name(part), x, self.config.eps)
    }

    fn add_output(&self, graph: &mut Graph, part: &str, mixed: ValueId, x: ValueId) -> ValueId {
        let name = self.name(&format!("{part}.out_proj"));
        let [weight, bias] = linear_parameters(graph, &name, [self.config.width; 2]);
        graph.linear(&name, mixed, weight, Some(bias), Some(x))
    }

    fn words_qkv(&self, graph: &mut Graph, x: ValueId) -> [ValueId; 3] {
        let width = self.config.width;
        let [weight, bias] = self.packed(graph, WORDS, &["q_proj", "k_proj", "v_proj"]);
        let h = self.norm(graph, WORDS_NORM, x);
        let name = self.name("self_attn.qkv");
        let qkv = graph.linear_with_keys(&name, h, weight, bias, width..2 * width);
        [0, 1, 2].map(|part| graph.columns(qkv, part * width, width))
    }

    fn frames_kv_parameters(&self, graph: &mut Graph) -> [ValueId; 2] {
        self.packed(graph, FRAMES, &["k_proj", "v_proj"])
    }

    /// Concatenated weights and biases of several projections, so that one product computes them all.
    fn packed(&self, graph: &mut Graph, part: &str, projections: &[&str]) -> [ValueId; 2] {
        let width = self.config.width;
        let all = |kind: &str, dims: &[usize]| -> Vec<(String, Vec<usize>)> {
            let projections = projections.iter();
            let name = |projection| self.name(&format!("{part}.{projection}.{kind}"));
            projections
                .map(|projection| (name(projection), dims.to_vec()))
                .collect()
        };
        [
            graph.packed_parameters(&all("weight", &[width, width]), Decay::Yes),
            graph.packed_parameters(&all("bias", &[width]), Decay::No),
        ]
    }
}
