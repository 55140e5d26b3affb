//! The graph's parameters match the state dict, and every parameter has an initial distribution.

use holdall_graph::{DType, Op};

use super::config::{BertConfig, DecoderConfig, Pooling, TemporalInput};
use super::*;
use crate::clip::config::Activation;

fn bert() -> BertConfig {
    BertConfig {
        hidden_size: 48,
        intermediate_size: 96,
        num_layers: 2,
        num_heads: 3,
        vocab_size: 60,
        max_positions: 20,
        num_types: 2,
        activation: Activation::Gelu,
        layer_norm_eps: 1e-12,
        hidden_dropout: 0.1,
        attention_dropout: 0.1,
    }
}

/// Every kind of pooling, text tower and decoder.
fn variants() -> Vec<VideoTextConfig> {
    let presets = VideoTextConfig::PRESETS.iter();
    let mut all: Vec<VideoTextConfig> = presets
        .map(|name| VideoTextConfig::preset(name).expect("listed"))
        .collect();
    let demo = VideoTextConfig::preset("video-text-demo").expect("listed");
    let mut mean = demo.clone();
    (mean.pooling, mean.decoder) = (Pooling::Mean, None);
    let mut projected = demo.clone();
    projected.pooling = demo.temporal(2, TemporalInput::Projected);
    let mut attention = demo.clone();
    attention.pooling = Pooling::Attention {
        queries: 5,
        heads: 3,
    };
    (attention.num_frames, attention.num_videos) = (3, 2);
    attention.decoder = None;
    let mut of_bert = demo.clone();
    of_bert.text = TextTower::Bert(bert());
    let decoder = demo.decoder.clone().expect("the demo has one");
    of_bert.decoder = Some(DecoderConfig {
        tied: true,
        ..decoder
    });
    (of_bert.num_frames, of_bert.num_videos) = (4, 3);
    of_bert.frame_positions = false;
    all.extend([mean, projected, attention, of_bert]);
    all
}

fn write(config: &VideoTextConfig, compute: DType) -> Graph {
    const BATCH: usize = 2;
    let mut graph = Graph::new(compute);
    let size = config.vision.image_size;
    let indices =
        |graph: &mut Graph, name: &str, dims: &[usize]| graph.input(name, dims, DType::I64);
    let dims = [BATCH, config.frames(), size, size, 3];
    let pixels = graph.input("pixels", &dims, DType::U8);
    let counts = FrameCounts {
        frames: indices(&mut graph, "frame counts", &[BATCH]),
        tokens: indices(&mut graph, "frame token counts", &[BATCH]),
    };
    let inputs = TextInputs {
        ids: indices(&mut graph, "ids", &[BATCH, 7]),
        lengths: indices(&mut graph, "lengths", &[BATCH]),
        end: Some(indices(&mut graph, "end", &[BATCH])),
        order: None,
    };
    let [clips, texts] = ["clips", "texts"].map(|name| {
        let dims = [BATCH, config.projection_dim];
        graph.statistic(name, &dims)
    });
    logit_scale(&mut graph);
    let frame_tokens = video(
        &mut graph,
        config,
        Clips::Pixels(pixels),
        Some(counts),
        clips,
    );
    text(&mut graph, config, &inputs, texts, None);
    assert_eq!(frame_tokens.is_some(), config.decoder.is_some());
    if let (Some(tokens), Some(decoder)) = (frame_tokens, &config.decoder) {
        let expected = [BATCH, config.num_frame_tokens(), decoder.width];
        assert_eq!(graph.shape(tokens).dims(), expected);
        let captions = CaptionInputs {
            ids_bt: indices(&mut graph, "caption ids", &[BATCH, 6]),
            order_bt: None,
        };
        let x = caption_states(&mut graph, config, tokens, Some(counts), &captions);
        assert_eq!(graph.shape(x).dims(), [BATCH, 6, decoder.width]);
        let weight = head_weight(&mut graph, config);
        let shape = [decoder.vocab_size, decoder.width];
        assert_eq!(graph.shape(weight).dims(), shape);
    }
    graph
}

fn sizes(graph: &Graph) -> Vec<(String, usize)> {
    let parameters = graph.parameters().iter();
    let mut sizes: Vec<(String, usize)> = parameters
        .map(|p| (p.name.clone(), graph.shape(p.value).num_elements()))
        .collect();
    sizes.sort();
    sizes
}

#[test]
fn the_graph_has_the_parameters_of_the_state_dict() {
    for config in variants() {
        let tensors = config.tensors().into_iter();
        let mut expected: Vec<(String, usize)> = tensors
            .map(|(name, dims)| (name, dims.iter().product()))
            .collect();
        expected.sort();
        for compute in [DType::F32, DType::Bf16] {
            let graph = write(&config, compute);
            assert_eq!(sizes(&graph), expected, "{:?}", config.pooling);
            let scale = graph.parameters().iter().find(|p| p.name == "logit_scale");
            assert!(scale.is_some_and(|scale| scale.maximum.is_some()));
        }
    }
}

#[test]
fn decoding_reads_the_decoders_parameters_and_no_others() {
    const LONGEST: usize = 9;
    for config in variants() {
        let Some(decoder) = &config.decoder else {
            continue;
        };
        let (batch, beams) = (2, 3);
        let mut graph = Graph::new(DType::Bf16);
        let caches = |graph: &mut Graph, name: &str, dims: [usize; 3]| -> Vec<[ValueId; 2]> {
            let layers = 0..decoder.layers;
            layers
                .map(|layer| {
                    ["keys", "values"]
                        .map(|kind| graph.cache(&format!("{name} {layer} {kind}"), &dims))
                })
                .collect()
        };
        let frame_dims = [batch, config.num_frame_tokens(), decoder.width];
        let frames = caches(&mut graph, "frames", frame_dims);
        let words = caches(&mut graph, "words", [batch * beams, LONGEST, decoder.width]);
        let tokens = graph.cache("frame tokens", &frame_dims);
        graph.forward_program("caption start", |graph| {
            decoder::start(graph, decoder, tokens, &frames);
        });
        let logits = graph.forward_program("next token", |graph| {
            let token = TokenInputs {
                ids_r: graph.input("ids", &[batch * beams], DType::I64),
                position_1: graph.input("position", &[1], DType::I64),
                ancestors_rl: graph.input("ancestors", &[batch * beams, LONGEST], DType::I64),
                beams,
            };
            let caches = DecodingCaches {
                words: &words,
                frames: &frames,
                frame_token_counts: None,
            };
            decoder::next(graph, decoder, &token, &caches)
        });
        assert_eq!(
            graph.shape(logits).dims(),
            [batch * beams, decoder.vocab_size]
        );
        assert_eq!(graph.dtype(logits), DType::F32);
        let whole = sizes(&write(&config, DType::Bf16));
        let of_decoder = |name: &str| name.starts_with("decoder.") || name == "lm_head.weight";
        let expected: Vec<_> = whole
            .into_iter()
            .filter(|(name, _)| of_decoder(name))
            .collect();
        assert_eq!(sizes(&graph), expected);
    }
}

#[test]
fn every_parameter_has_a_start_and_no_other_name_has() {
    let unknown = [
        "head.weight",
        "decoder.layers.99.fc1.weight",
        "decoder.layers.0.self_attn.weight",
        "decoder.layers.0.fc3.weight",
        "temporal.layers.77.mlp.fc1.weight",
        "attention_pool.z_proj.weight",
        "frame_projection.scale",
        "text_model.pooler.dense.weight",
        "video_embedding.weight",
    ];
    for config in variants() {
        let tensors = config.tensors();
        for (name, _) in &tensors {
            assert!(init::start_of(&config, name).is_some(), "{name}");
        }
        for name in unknown {
            assert!(init::start_of(&config, name).is_none(), "{name}");
        }
        // Tensors that only other variants have are unknown to this one.
        for other in variants() {
            for (name, _) in other.tensors() {
                let known = tensors.iter().any(|(own, _)| *own == name);
                assert_eq!(init::start_of(&config, &name).is_some(), known, "{name}");
            }
        }
    }
}

#[test]
fn a_decoder_and_a_mean_of_frames_are_parts_for_transformers() {
    let folders = |config: &VideoTextConfig| -> Vec<&str> {
        config.parts().iter().map(|part| part.folder).collect()
    };
    let demo = VideoTextConfig::preset("video-text-demo").expect("listed");
    assert_eq!(folders(&demo), ["decoder"]);
    let mut mean = VideoTextConfig {
        pooling: Pooling::Mean,
        ..demo
    };
    assert_eq!(folders(&mean), ["decoder", "clip"]);
    for part in mean.parts() {
        let names = part.tensors.iter();
        let found: Vec<_> = names.map(|t| (t.name.clone(), t.shape.clone())).collect();
        assert_eq!(found, part.config.tensors(), "{}", part.folder);
    }
    mean.num_videos = 2;
    assert_eq!(folders(&mean), ["decoder"]);
    if let Some(decoder) = &mut mean.decoder {
        decoder.eps = 1e-12;
    }
    assert_eq!(folders(&mean), [] as [&str; 0]);
}

#[test]
fn a_bert_drops_in_attention_too_each_place_by_itself() {
    let mut config = VideoTextConfig::preset("video-text-demo").expect("listed");
    config.text = TextTower::Bert(bert());
    let mut graph = Graph::new(DType::F32);
    let indices =
        |graph: &mut Graph, name: &str, dims: &[usize]| graph.input(name, dims, DType::I64);
    let inputs = TextInputs {
        ids: indices(&mut graph, "ids", &[2, 7]),
        lengths: indices(&mut graph, "lengths", &[2]),
        end: None,
        order: None,
    };
    let regularization = Regularization {
        dropout: 0.1,
        stochastic_depth: 0.0,
        sample_ids_b: indices(&mut graph, "sample ids", &[2]),
        stream_2: indices(&mut graph, "stream", &[2]),
    };
    let features = graph.statistic("texts", &[2, config.projection_dim]);
    text(
        &mut graph,
        &config,
        &inputs,
        features,
        Some(&regularization),
    );
    let nodes = graph.nodes().iter();
    let mut places: Vec<u64> = nodes
        .filter_map(|node| match &node.op {
            Op::Dropout(op) => Some(op.layer),
            Op::Attention(op) => Some(op.dropout.as_ref().expect("attention drops").layer),
            _ => None,
        })
        .collect();
    // Embedded tokens, then attention, its branch and the MLP's branch of each of two layers.
    assert_eq!(places.len(), 1 + 2 * 3);
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), 1 + 2 * 3);
}
