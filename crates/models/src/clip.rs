//! CLIP as a graph: a vision and a text transformer, both pre-norm, that meet in one space.
//!
//! ```text
//! block: x += out(attention(qkv(norm1(x))));  x += fc2(activation(fc1(norm2(x))))
//! ```
//!
//! Only one token of the last block is read (the class token; the end token), so the last block computes keys and
//! values for all tokens and everything else for that one: the same numbers, and gradients, with a
//! fraction of the work.
//!
//! Legend: `b` samples, `t` tokens, `d` width, `p` projection.

pub mod config;
mod config_json;
mod presets;

use holdall_graph::{DType, Decay, Graph, ValueId};

use config::{Activation, ClipConfig, TextConfig, TextPooling, VisionConfig};

/// What a micro-batch brings along.
#[derive(Clone, Copy, Debug)]
pub struct ClipInputs {
    /// Pictures, `[b, height, width, 3]`.
    pub pixels: ValueId,
    /// Token ids, `[b, t]`.
    pub ids: ValueId,
    /// Position of the end token, `[b]`.
    pub end: ValueId,
    /// The end token's position plus one: how many tokens it may look at.
    pub lengths: ValueId,
    /// Places up to the end tokens, sorted by id, for devices that need it; `[b, t]`.
    pub order: Option<ValueId>,
}

/// Weights that are not a tower's.
#[derive(Clone, Copy, Debug)]
pub struct ClipHeads {
    /// Logarithm of the contrastive scale.
    pub logit_scale: ValueId,
    /// Label head on the normalised image features: weight and bias.
    pub label: Option<[ValueId; 2]>,
}

/// Upper bound of `logit_scale`: ln 100, as in OpenAI's training.
pub const LARGEST_LOGIT_SCALE: f64 = 4.605_170_185_988_092;

/// Declares the inputs of a micro-batch.
pub fn inputs(
    graph: &mut Graph,
    config: &ClipConfig,
    batch: usize,
    tokens: usize,
    pixels: DType,
) -> ClipInputs {
    let size = config.vision.image_size;
    ClipInputs {
        pixels: graph.input("pixels", &[batch, size, size, 3], pixels),
        ids: graph.input("ids", &[batch, tokens], DType::I64),
        end: graph.input("end", &[batch], DType::I64),
        lengths: graph.input("lengths", &[batch], DType::I64),
        order: None,
    }
}

/// Declares the order in which gradients of equal tokens are added, for devices that need it.
pub fn order_input(graph: &mut Graph, inputs: &mut ClipInputs) {
    let shape = graph.shape(inputs.ids);
    inputs.order = Some(graph.input("order of ids", shape.dims(), DType::I64));
}

/// Fills an order for captions of `tokens` each: places up to the end tokens, by id and then by place; -1 behind them.
pub fn sort_places(ids: &[i64], ends: &[i64], tokens: usize, order: &mut [i64]) {
    let mut count = 0;
    for (sample, &end) in ends.iter().enumerate() {
        for place in sample * tokens..=sample * tokens + end as usize {
            order[count] = place as i64;
            count += 1;
        }
    }
    order[..count].sort_unstable_by_key(|&place| (ids[place as usize], place));
    order[count..].fill(-1);
}

/// Declares `logit_scale` and, for `num_labels`, the label head.
pub fn heads(graph: &mut Graph, config: &ClipConfig, num_labels: Option<usize>) -> ClipHeads {
    let logit_scale = graph.parameter("logit_scale", &[], Decay::No);
    let label = num_labels.map(|labels| {
        [
            graph.parameter("head.weight", &[labels, config.projection_dim], Decay::Yes),
            graph.parameter("head.bias", &[labels], Decay::No),
        ]
    });
    graph.configure_parameters(|parameter| {
        if parameter.name == "logit_scale" {
            parameter.maximum = Some(LARGEST_LOGIT_SCALE);
        }
        if parameter.name.starts_with("head.") {
            parameter.rate = 1;
        }
    });
    ClipHeads { logit_scale, label }
}

/// Position of the token whose feature stands for the caption.
pub fn end_token(ids: &[i64], pooling: TextPooling) -> usize {
    let position = match pooling {
        TextPooling::HighestId => {
            let highest = ids.iter().max();
            ids.iter().position(|id| Some(id) == highest)
        }
        TextPooling::FirstEos(eos) => ids.iter().position(|&id| id == eos),
    };
    // Hugging Face's argmax over "is it the end token?" says 0 where there is none.
    position.unwrap_or(0)
}

/// Lanes of the towers: neither needs the other.
const VISION_LANE: usize = 0;
const TEXT_LANE: usize = 1;

/// Writes the vision tower; unit-length features go to `image_bp`.
pub fn vision(graph: &mut Graph, config: &ClipConfig, pixels: ValueId, image_bp: ValueId) {
    graph.in_lane(VISION_LANE, |graph| {
        write_vision(graph, config, pixels, image_bp)
    });
}

fn write_vision(graph: &mut Graph, config: &ClipConfig, pixels: ValueId, image_bp: ValueId) {
    let VisionConfig {
        hidden_size: width,
        patch_size: patch,
        num_layers,
        ..
    } = config.vision;
    let vision = &config.vision;
    let name = "vision_model";
    let class_d = graph.parameter(
        &format!("{name}.embeddings.class_embedding"),
        &[width],
        Decay::No,
    );
    // A convolution whose stride is its size is a product over patches.
    let patch_weight = graph.parameter(
        &format!("{name}.embeddings.patch_embedding.weight"),
        &[width, vision.num_channels * patch * patch],
        Decay::Yes,
    );
    let positions_td = graph.parameter(
        &format!("{name}.embeddings.position_embedding.weight"),
        &[vision.num_positions(), width],
        Decay::Yes,
    );
    let patches = graph.patchify("vision.patches", pixels, patch, vision.normalization);
    let embedded_bnd = graph.linear("vision.embedded", patches, patch_weight, None, None);
    let x_btd = graph.class_token("vision.tokens", embedded_bnd, class_d, positions_td);
    let eps = vision.layer_norm_eps;
    let mut x_btd = norm(graph, &format!("{name}.pre_layrnorm"), x_btd, eps);
    for layer in 0..num_layers {
        let block = Block {
            prefix: format!("{name}.encoder.layers.{layer}"),
            width,
            mlp_width: vision.intermediate_size,
            num_heads: vision.num_heads,
            activation: vision.activation,
            eps,
            causal: false,
        };
        let last = layer + 1 == num_layers;
        x_btd = graph.block(&format!("vision.{layer}"), |graph| {
            if last {
                block.write_last(graph, x_btd, None, |graph, _, x| graph.first_tokens(x))
            } else {
                block.write(graph, x_btd)
            }
        });
    }
    let pooled = norm(graph, &format!("{name}.post_layernorm"), x_btd, eps);
    project(
        graph,
        "visual_projection",
        pooled,
        config.projection_dim,
        image_bp,
    );
}

/// Writes the text tower; unit-length features go to `text_bp`.
pub fn text(graph: &mut Graph, config: &ClipConfig, inputs: &ClipInputs, text_bp: ValueId) {
    graph.in_lane(TEXT_LANE, |graph| {
        write_text(graph, config, inputs, text_bp)
    });
}

fn write_text(graph: &mut Graph, config: &ClipConfig, inputs: &ClipInputs, text_bp: ValueId) {
    let TextConfig {
        hidden_size: width,
        num_layers,
        ..
    } = config.text;
    let text = &config.text;
    let name = "text_model";
    let table_vd = graph.parameter(
        &format!("{name}.embeddings.token_embedding.weight"),
        &[text.vocab_size, width],
        Decay::Yes,
    );
    let all_positions = graph.parameter(
        &format!("{name}.embeddings.position_embedding.weight"),
        &[text.max_positions, width],
        Decay::Yes,
    );
    let tokens = graph.shape(inputs.ids).width();
    let positions_td = graph.rows(all_positions, 0, tokens);
    let mut x_btd = graph.embedding(
        "text.tokens",
        inputs.ids,
        table_vd,
        positions_td,
        inputs.order,
    );
    let eps = text.layer_norm_eps;
    for layer in 0..num_layers {
        let block = Block {
            prefix: format!("{name}.encoder.layers.{layer}"),
            width,
            mlp_width: text.intermediate_size,
            num_heads: text.num_heads,
            activation: text.activation,
            eps,
            causal: true,
        };
        let last = layer + 1 == num_layers;
        x_btd = graph.block(&format!("text.{layer}"), |graph| {
            if last {
                block.write_last(graph, x_btd, Some(inputs.lengths), |graph, name, x| {
                    graph.gather_rows(name, x, inputs.end)
                })
            } else {
                block.write(graph, x_btd)
            }
        });
    }
    let pooled = norm(graph, &format!("{name}.final_layer_norm"), x_btd, eps);
    project(
        graph,
        "text_projection",
        pooled,
        config.projection_dim,
        text_bp,
    );
}

fn project(graph: &mut Graph, name: &str, pooled: ValueId, projection: usize, features: ValueId) {
    let width = graph.shape(pooled).width();
    let weight = graph.parameter(&format!("{name}.weight"), &[projection, width], Decay::Yes);
    let projected = graph.linear(name, pooled, weight, None, None);
    graph.normalize_into(name, projected, features);
}

fn norm(graph: &mut Graph, name: &str, x: ValueId, eps: f64) -> ValueId {
    let width = graph.shape(x).width();
    let gamma = graph.parameter(&format!("{name}.weight"), &[width], Decay::No);
    let beta = graph.parameter(&format!("{name}.bias"), &[width], Decay::No);
    graph.layer_norm(name, x, gamma, beta, eps)
}

/// One transformer block.
struct Block {
    prefix: String,
    width: usize,
    mlp_width: usize,
    num_heads: usize,
    activation: Activation,
    eps: f64,
    causal: bool,
}

impl Block {
    fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.prefix)
    }

    /// q, k and v one behind the other, so that one product computes them all: weight `[3 d, d]`, bias `[3 d]`.
    fn qkv_parameters(&self, graph: &mut Graph) -> [ValueId; 2] {
        let parts = ["q_proj", "k_proj", "v_proj"];
        let named = |kind: &str, dims: &[usize]| {
            parts
                .map(|part| {
                    (
                        self.name(&format!("self_attn.{part}.{kind}")),
                        dims.to_vec(),
                    )
                })
                .to_vec()
        };
        let weights = named("weight", &[self.width, self.width]);
        let biases = named("bias", &[self.width]);
        [
            graph.packed_parameters(&weights, Decay::Yes),
            graph.packed_parameters(&biases, Decay::No),
        ]
    }

    fn linear_parameters(&self, graph: &mut Graph, part: &str, [o, i]: [usize; 2]) -> [ValueId; 2] {
        [
            graph.parameter(&self.name(&format!("{part}.weight")), &[o, i], Decay::Yes),
            graph.parameter(&self.name(&format!("{part}.bias")), &[o], Decay::No),
        ]
    }

    fn write(&self, graph: &mut Graph, x_btd: ValueId) -> ValueId {
        let d = self.width;
        let [weight, bias] = self.qkv_parameters(graph);
        let h_btd = norm(graph, &self.name("layer_norm1"), x_btd, self.eps);
        let qkv = graph.linear_with_keys(&self.name("qkv"), h_btd, weight, bias, d..2 * d);
        let [q, k, v] = [0, 1, 2].map(|part| graph.columns(qkv, part * d, d));
        let name = self.name("attention");
        let mixed_btd = graph.attention(&name, [q, k, v], None, self.num_heads, self.causal);
        self.finish(graph, mixed_btd, x_btd)
    }

    /// The last block, for the token that `pool` picks.
    fn write_last(
        &self,
        graph: &mut Graph,
        x_btd: ValueId,
        lengths_b: Option<ValueId>,
        pool: impl Fn(&mut Graph, &str, ValueId) -> ValueId,
    ) -> ValueId {
        let d = self.width;
        let [weight, bias] = self.qkv_parameters(graph);
        let h_btd = norm(graph, &self.name("layer_norm1"), x_btd, self.eps);
        let (kv_weight, kv_bias) = (graph.rows(weight, d, 2 * d), graph.rows(bias, d, 2 * d));
        let kv = graph.linear_with_keys(&self.name("kv"), h_btd, kv_weight, kv_bias, 0..d);
        let [k, v] = [0, 1].map(|part| graph.columns(kv, part * d, d));
        let pooled_h = pool(graph, &self.name("pooled norm"), h_btd);
        let (q_weight, q_bias) = (graph.rows(weight, 0, d), graph.rows(bias, 0, d));
        let q = graph.linear(&self.name("q"), pooled_h, q_weight, Some(q_bias), None);
        // The picked token sees what causality lets it see: the keys up to itself.
        let name = self.name("attention");
        let mixed = graph.attention(&name, [q, k, v], lengths_b, self.num_heads, false);
        let pooled_x = pool(graph, &self.name("pooled"), x_btd);
        self.finish(graph, mixed, pooled_x)
    }

    /// Output projection and MLP, each added to the residual stream.
    fn finish(&self, graph: &mut Graph, mixed: ValueId, x: ValueId) -> ValueId {
        let (d, mlp) = (self.width, self.mlp_width);
        let [weight, bias] = self.linear_parameters(graph, "self_attn.out_proj", [d, d]);
        let x = graph.linear(&self.name("residual1"), mixed, weight, Some(bias), Some(x));
        let h = norm(graph, &self.name("layer_norm2"), x, self.eps);
        let [weight, bias] = self.linear_parameters(graph, "mlp.fc1", [mlp, d]);
        let name = self.name("mlp.fc1");
        let inner = graph.linear_activated(&name, h, weight, bias, self.activation);
        let [weight, bias] = self.linear_parameters(graph, "mlp.fc2", [d, mlp]);
        graph.linear(&self.name("residual2"), inner, weight, Some(bias), Some(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_has_the_parameters_of_the_state_dict() {
        for name in ClipConfig::PRESETS {
            let config = ClipConfig::preset(name).expect("listed");
            let mut graph = Graph::new(DType::F32);
            let inputs = inputs(&mut graph, &config, 2, config.text.max_positions, DType::U8);
            let image = graph.activation("image", &[2, config.projection_dim]);
            let caption = graph.activation("text", &[2, config.projection_dim]);
            heads(&mut graph, &config, None);
            vision(&mut graph, &config, inputs.pixels, image);
            text(&mut graph, &config, &inputs, caption);
            let mut found: Vec<(String, usize)> = graph
                .parameters()
                .iter()
                .map(|p| (p.name.clone(), graph.shape(p.value).num_elements()))
                .collect();
            let mut expected: Vec<(String, usize)> = config
                .tensors()
                .into_iter()
                .map(|(name, dims)| (name, dims.iter().product()))
                .collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn places_up_to_the_end_are_sorted_by_id_and_then_by_place() {
        let ids = [7, 3, 9, 0, 3, 7, 9, 9];
        let mut order = [0; 8];
        sort_places(&ids, &[2, 3], 4, &mut order);
        assert_eq!(order, [1, 4, 0, 5, 2, 6, 7, -1]);
        sort_places(&ids, &[0, 0], 4, &mut order);
        assert_eq!(order, [4, 0, -1, -1, -1, -1, -1, -1]);
    }

    #[test]
    fn the_end_token_is_the_first_of_the_highest_or_of_the_eos() {
        assert_eq!(end_token(&[5, 9, 2, 9, 0], TextPooling::HighestId), 1);
        assert_eq!(end_token(&[5, 9, 2, 9, 2], TextPooling::FirstEos(2)), 2);
        assert_eq!(end_token(&[5, 9], TextPooling::FirstEos(2)), 0);
    }
}
