//! CLIP as a graph: a vision and a text transformer whose features share one space. Each tower's feature is one token: the
//! class token, or the end token.
//!
//! Legend: `b` samples, `t` tokens, `d` width, `p` projection.

pub mod config;
pub(crate) mod config_json;
pub mod init;
mod presets;

pub use presets::NORMALIZATION;

use holdall_graph::{DType, Decay, Graph, ValueId};

use crate::transformer::{OneToken, Use, norm};
use crate::vit;
use config::{ClipConfig, TextConfig, TextPooling};

/// Inputs of a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct ClipInputs {
    /// Pictures, `[b, height, width, 3]`.
    pub pixels: ValueId,
    /// Token ids, `[b, t]`.
    pub ids: ValueId,
    /// Position of the end token, `[b]`.
    pub end: ValueId,
    /// The end token's position plus one, `[b]`: number of tokens that it attends to.
    pub lengths: ValueId,
    /// Positions up to the end tokens, sorted by id, for devices whose embedding gradient needs it; `[b, t]`.
    pub order: Option<ValueId>,
}

impl ClipInputs {
    /// Inputs of the text tower.
    pub fn text(&self) -> TextInputs {
        TextInputs {
            ids: self.ids,
            lengths: self.lengths,
            end: Some(self.end),
            order: self.order,
        }
    }
}

/// Inputs of a text tower for a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct TextInputs {
    /// Token ids, `[b, t]`.
    pub ids: ValueId,
    /// Number of valid tokens, `[b]`: for CLIP's tower, up to and including the end token.
    pub lengths: ValueId,
    /// Position of the end token, `[b]`, for CLIP's tower; BERT's tower reads the first token instead.
    pub end: Option<ValueId>,
    /// Positions of valid tokens, sorted by id, for devices whose embedding gradient needs it; `[b, t]`.
    pub order: Option<ValueId>,
}

/// Weights outside the towers.
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

/// Fills `order` for captions of `tokens` each: positions up to the end tokens, sorted by id and then by position; -1 behind them.
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

/// Position of the token whose state is the caption's feature.
pub fn end_token(ids: &[i64], pooling: TextPooling) -> usize {
    let position = match pooling {
        TextPooling::HighestId => {
            let highest = ids.iter().max();
            ids.iter().position(|id| Some(id) == highest)
        }
        TextPooling::FirstEos(eos) => ids.iter().position(|&id| id == eos),
    };
    // Hugging Face's argmax over "is it the end token?" gives 0 where no token is.
    position.unwrap_or(0)
}

/// Lanes of the towers, which are independent of each other.
pub(crate) const VISION_LANE: usize = 0;
pub(crate) const TEXT_LANE: usize = 1;

/// Writes the vision tower; unit-length features go to `image_bp`.
pub fn vision(graph: &mut Graph, config: &ClipConfig, pixels: ValueId, image_bp: ValueId) {
    graph.in_lane(VISION_LANE, |graph| {
        write_vision(graph, config, pixels, image_bp)
    });
}

fn write_vision(graph: &mut Graph, config: &ClipConfig, pixels: ValueId, image_bp: ValueId) {
    let backbone = config.backbone();
    let x_btd = vit::embed(graph, &backbone, "vision", pixels);
    let usage = Use {
        one_token: Some(vit::CLASS_TOKEN),
        ..Use::default()
    };
    let x = backbone.blocks().write(graph, "vision", x_btd, &usage);
    let name = "vision_model.post_layernorm";
    let pooled = norm(graph, name, x, config.vision.layer_norm_eps);
    project(
        graph,
        "visual_projection",
        pooled,
        config.projection_dim,
        image_bp,
    );
}

/// Writes the text tower; unit-length features go to `text_bp`.
pub fn text(graph: &mut Graph, config: &ClipConfig, inputs: &TextInputs, text_bp: ValueId) {
    let projection = config.projection_dim;
    graph.in_lane(TEXT_LANE, |graph| {
        write_text(graph, &config.text, inputs, projection, text_bp)
    });
}

/// Writes the text tower in the caller's lane.
pub(crate) fn write_text(
    graph: &mut Graph,
    text: &TextConfig,
    inputs: &TextInputs,
    projection_dim: usize,
    text_bp: ValueId,
) {
    let width = text.hidden_size;
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
    let x_btd = graph.embedding(
        "text.tokens",
        inputs.ids,
        table_vd,
        positions_td,
        inputs.order,
    );
    let end = inputs.end.expect("CLIP's text tower reads its end token");
    let usage = Use {
        one_token: Some(OneToken {
            pick: &|graph, name, x| graph.gather_rows(name, x, end),
            lengths_b: Some(inputs.lengths),
        }),
        ..Use::default()
    };
    let x = text.blocks().write(graph, "text", x_btd, &usage);
    let pooled = norm(
        graph,
        &format!("{name}.final_layer_norm"),
        x,
        text.layer_norm_eps,
    );
    project(graph, "text_projection", pooled, projection_dim, text_bp);
}

/// `pooled W^T`, normalised to unit length, written to `features`.
pub(crate) fn project(
    graph: &mut Graph,
    name: &str,
    pooled: ValueId,
    projection: usize,
    features: ValueId,
) {
    let width = graph.shape(pooled).width();
    let weight = graph.parameter(&format!("{name}.weight"), &[projection, width], Decay::Yes);
    let projected = graph.linear(name, pooled, weight, None, None);
    graph.normalize_into(name, projected, features);
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
            text(&mut graph, &config, &inputs.text(), caption);
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
