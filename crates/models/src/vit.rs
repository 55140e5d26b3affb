//! Vision transformers as graphs: ViT, DeiT, DINOv2 and the vision half of CLIP, up to the logits of a classifier.
//!
//! Where the class token alone is read, the last block computes that token only (docs/decisions/0002).
//!
//! Legend: `b` samples, `n` patches, `t` tokens, `d` width, `f` features, `o` outputs.

pub mod config;
mod config_json;
pub mod init;
pub(crate) mod presets;

use holdall_graph::ops::cast::Cast;
use holdall_graph::ops::dropout::DropoutMode;
use holdall_graph::{DType, Decay, Graph, ValueId};

pub(crate) use config_json::is_unnamed;

pub use crate::transformer::Regularization;
use crate::transformer::{OneToken, Use, linear_parameters, norm};
use config::{Pooling, VisionTransformerConfig};

/// Name of the linear layer on the features.
pub(crate) const CLASSIFIER: &str = "classifier";

/// The class token, first of all tokens, whose state is the picture's feature.
pub(crate) const CLASS_TOKEN: OneToken<'static> = OneToken {
    pick: &|graph, _, x_btd| graph.first_tokens(x_btd),
    lengths_b: None,
};

/// Declares the input pictures of a micro-batch, `[b, height, width, 3]`.
pub fn pixels(
    graph: &mut Graph,
    config: &VisionTransformerConfig,
    batch: usize,
    dtype: DType,
) -> ValueId {
    let size = config.vision.image_size;
    graph.input("pixels", &[batch, size, size, 3], dtype)
}

/// Writes the transformer; returns the input of the classifier, `[b, f]`, in full precision. Blocks are named `encoder.0`,
/// `encoder.1` and so on. Forward-only programs have no `regularization`.
pub fn features(
    graph: &mut Graph,
    config: &VisionTransformerConfig,
    pixels: ValueId,
    regularization: Option<&Regularization>,
) -> ValueId {
    let mut x_btd = embed(graph, config, "encoder", pixels);
    if let Some(regularization) = regularization {
        let (rate, mode) = (regularization.dropout, DropoutMode::Element);
        x_btd = regularization.drop(graph, "encoder.dropout", x_btd, rate, 0, mode);
    }
    let (blocks, eps) = (config.blocks(), config.vision.layer_norm_eps);
    let last_norm = config.name(config.family.names().last_norm);
    let first_patch = config.num_prefix_tokens();
    let one_token = config.family.pooling() == Pooling::ClassToken;
    let usage = Use {
        one_token: one_token.then_some(CLASS_TOKEN),
        regularization,
        ..Use::default()
    };
    let x_btd = blocks.write(graph, "encoder", x_btd, &usage);
    let parts = match config.family.pooling() {
        Pooling::ClassToken => {
            vec![norm(graph, &last_norm, x_btd, eps)]
        }
        Pooling::MeanOfPatches => {
            declare_unread_norm(graph, &last_norm, config.vision.hidden_size);
            vec![graph.mean_tokens("mean of patches", x_btd, first_patch, None)]
        }
        Pooling::ClassTokenAndMean => {
            let y_btd = norm(graph, &last_norm, x_btd, eps);
            let mean = graph.mean_tokens("mean of patches", y_btd, first_patch, None);
            vec![graph.first_tokens(y_btd), mean]
        }
    };
    side_by_side(graph, "features", &parts)
}

/// Writes the linear layer on the features; returns logits `[b, o]` in full precision. Its parameters learn at the head
/// rate, the second rate of the schedule.
pub fn classifier(graph: &mut Graph, features_bf: ValueId, num_outputs: usize) -> ValueId {
    let num_features = graph.shape(features_bf).width();
    let [weight, bias] = linear_parameters(graph, CLASSIFIER, [num_outputs, num_features]);
    graph.configure_parameters(|parameter| {
        if parameter.name.starts_with("classifier.") {
            parameter.rate = 1;
        }
    });
    graph.linear("logits", features_bf, weight, Some(bias), None)
}

/// Embeds pictures as tokens: prefix tokens, then patches. `label` is the prefix of value names.
pub(crate) fn embed(
    graph: &mut Graph,
    config: &VisionTransformerConfig,
    label: &str,
    pixels: ValueId,
) -> ValueId {
    let (names, vision) = (config.family.names(), &config.vision);
    let (width, patch) = (vision.hidden_size, vision.patch_size);
    let tokens_kd: Vec<_> = (names.tokens.iter())
        .map(|token| (config.name(token), vec![width]))
        .collect();
    let tokens_kd = graph.packed_parameters(&tokens_kd, Decay::No);
    // A convolution whose stride equals its kernel is a matrix product over patches.
    let name = config.name(names.patches);
    let shape = [width, vision.num_channels * patch * patch];
    let weight = graph.parameter(&format!("{name}.weight"), &shape, Decay::Yes);
    let bias = config.has_patch_bias();
    let bias = bias.then(|| graph.parameter(&format!("{name}.bias"), &[width], Decay::No));
    let name = config.name(names.positions);
    let positions_td = graph.parameter(&name, &[config.num_tokens(), width], Decay::Yes);
    let name = format!("{label}.patches");
    let patches = graph.patchify(&name, pixels, patch, vision.normalization);
    let embedded_bnd = graph.linear(&format!("{label}.embedded"), patches, weight, bias, None);
    let name = format!("{label}.tokens");
    let x_btd = graph.class_token(&name, embedded_bnd, tokens_kd, positions_td);
    match names.pre_norm {
        Some(pre_norm) => norm(graph, &config.name(pre_norm), x_btd, vision.layer_norm_eps),
        None => x_btd,
    }
}

/// Declares a norm of the state dict that the classifier does not use: it stays frozen, so that the saved model has it.
fn declare_unread_norm(graph: &mut Graph, name: &str, width: usize) {
    let parameters = ["weight", "bias"].map(|kind| format!("{name}.{kind}"));
    for parameter in &parameters {
        graph.parameter(parameter, &[width], Decay::No);
    }
    graph.configure_parameters(|parameter| {
        parameter.trainable &= !parameters.contains(&parameter.name);
    });
}

/// Concatenates parts `[b, 1, d]` as columns of one value in full precision.
fn side_by_side(graph: &mut Graph, name: &str, parts_b1d: &[ValueId]) -> ValueId {
    let &[batch, _, width] = graph.shape(parts_b1d[0]).dims() else {
        panic!("features of a sample, expected [batch, 1, width]");
    };
    if let &[part] = parts_b1d
        && graph.dtype(part) == graph.full()
    {
        return graph.reshape(part, &[batch, width]);
    }
    let features = graph.statistic(name, &[batch, 1, width * parts_b1d.len()]);
    for (place, &part) in parts_b1d.iter().enumerate() {
        let columns = graph.columns(features, place * width, width);
        graph.push_new(Cast {}, vec![part], &[columns]);
    }
    graph.reshape(features, &[batch, width * parts_b1d.len()])
}

#[cfg(test)]
mod tests {
    use super::config::{ClassifierConfig, Family};
    use super::*;

    fn written(config: &ClassifierConfig, compute: DType) -> (Graph, ValueId) {
        let mut graph = Graph::new(compute);
        let pixels = pixels(&mut graph, &config.backbone, 2, DType::U8);
        let regularization = Regularization {
            dropout: 0.1,
            stochastic_depth: 0.2,
            sample_ids_b: graph.input("sample ids", &[2], DType::I64),
            stream_2: graph.input("stream", &[2], DType::I64),
        };
        let features = features(&mut graph, &config.backbone, pixels, Some(&regularization));
        let logits = classifier(&mut graph, features, config.labels.len());
        (graph, logits)
    }

    #[test]
    fn the_graph_has_the_parameters_of_the_state_dict() {
        for name in VisionTransformerConfig::PRESETS {
            for qkv_bias in [true, false] {
                let mut backbone = VisionTransformerConfig::preset(name).expect("listed");
                backbone.qkv_bias = qkv_bias;
                let config = ClassifierConfig {
                    backbone,
                    labels: ["a", "b", "c"].map(String::from).to_vec(),
                    problem: None,
                };
                let (graph, logits) = written(&config, DType::Bf16);
                assert_eq!(graph.dtype(logits), DType::F32);
                assert_eq!(graph.shape(logits).dims(), [2, 3]);
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
    }

    #[test]
    fn only_what_the_logits_do_not_depend_on_is_frozen() {
        for family in Family::ALL {
            let config = ClassifierConfig {
                backbone: presets::defaults(family),
                labels: vec!["a".into(), "b".into()],
                problem: None,
            };
            let (graph, _) = written(&config, DType::F32);
            let frozen = graph.parameters().iter().filter(|p| !p.trainable);
            let frozen: Vec<&str> = frozen.map(|p| p.name.as_str()).collect();
            let expected: &[&str] = match family {
                Family::Clip => &[
                    "vision_model.post_layernorm.weight",
                    "vision_model.post_layernorm.bias",
                ],
                _ => &[],
            };
            assert_eq!(frozen, expected);
        }
    }
}
