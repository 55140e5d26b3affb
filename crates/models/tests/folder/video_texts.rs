//! Folders of video-text models: written, read back, taken apart for transformers, and refused.

use std::fs;
use std::path::Path;

use holdall_models::ModelError;
use holdall_models::folder::{Head, ModelFolder, write_folder};
use holdall_models::model_config::ModelConfig;
use holdall_models::video_text::config::{
    BertConfig, DecoderConfig, Pooling, TemporalInput, TextTower, VideoTextConfig,
};
use holdall_models::video_text::weights::{Origin, WeightSources};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{assert_refused, read_bits, tensors_of, tiny};

type Values = Vec<(String, Vec<usize>, Vec<f32>)>;

fn read(value: &Value) -> Result<(ModelConfig, Vec<String>), ModelError> {
    ModelConfig::from_json(&value.to_string(), Path::new("some/config.json"))
}

fn json_of(config: &VideoTextConfig) -> Value {
    serde_json::from_str(&config.to_json()).unwrap()
}

/// A few kilobytes: two videos of three frames, a temporal transformer on projected frames, a decoder.
fn tiny_video_text() -> VideoTextConfig {
    let clip = holdall_models::config::ClipConfig {
        projection_dim: 8,
        ..tiny()
    };
    let mut config = VideoTextConfig::of_clip(&clip, 3);
    config.pooling = config.temporal(1, TemporalInput::Projected);
    config.decoder = Some(DecoderConfig {
        layers: 1,
        width: 8,
        heads: 2,
        inner: 12,
        ..DecoderConfig::new(16, 5, [13, 14, 0])
    });
    config
}

fn tiny_bert() -> BertConfig {
    BertConfig {
        hidden_size: 6,
        intermediate_size: 10,
        num_layers: 1,
        num_heads: 2,
        vocab_size: 20,
        max_positions: 9,
        num_types: 2,
        activation: holdall_models::config::Activation::Gelu,
        layer_norm_eps: 1e-12,
        hidden_dropout: 0.25,
        attention_dropout: 0.0,
    }
}

fn values_of(tensors: Vec<(String, Vec<usize>)>) -> Values {
    let numbered = tensors.into_iter().enumerate();
    numbered
        .map(|(place, (name, shape))| {
            let count: usize = shape.iter().product();
            let values = (0..count).map(|index| (place * 100_000 + index) as f32);
            (name, shape, values.collect())
        })
        .collect()
}

fn write(folder: &Path, config: impl Into<ModelConfig>, tensors: &Values, head: Option<&Head>) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, values)| (name.clone(), shape.clone(), values.as_slice()))
        .collect();
    write_folder(folder, config, &views, head, None).unwrap();
}

#[test]
fn every_kind_comes_back_from_its_config_json() {
    let mut all: Vec<VideoTextConfig> = VideoTextConfig::PRESETS
        .iter()
        .map(|name| VideoTextConfig::preset(name).unwrap())
        .collect();
    all.push(tiny_video_text());
    let mut other = tiny_video_text();
    other.text = TextTower::Bert(tiny_bert());
    other.pooling = Pooling::Attention {
        queries: 4,
        heads: 3,
    };
    other.num_videos = 2;
    other.decoder = other.decoder.map(|decoder| DecoderConfig {
        tied: true,
        eps: 1e-12,
        ..decoder
    });
    all.push(other.clone());
    (other.pooling, other.decoder) = (Pooling::Mean, None);
    all.push(other);
    for config in all {
        config.validate(Path::new("config.json")).unwrap();
        let (again, notes) = read(&json_of(&config)).unwrap();
        assert_eq!(notes, [] as [String; 0]);
        assert_eq!(again.backbone(), Some(config.backbone()));
        assert_eq!(again, ModelConfig::VideoText(config));
    }
    assert_eq!(VideoTextConfig::preset("video-text-huge"), None);
}

#[test]
fn a_model_is_written_and_read_back_bit_for_bit_with_its_head() {
    let config = tiny_video_text();
    let tensors = values_of(config.tensors());
    let head = Head {
        num_labels: 2,
        weight: vec![0.5; 16],
        bias: vec![1.0, 2.0],
    };
    let folder = TempDir::new().unwrap();
    write(folder.path(), &config, &tensors, Some(&head));
    let again = ModelFolder::open(folder.path()).unwrap();
    again.check().unwrap();
    assert_eq!(again.config(), &ModelConfig::VideoText(config));
    assert_eq!(again.read_head().unwrap(), Some(head));
    for (name, _, values) in &tensors {
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(read_bits(&again, name, values.len()), bits, "{name}");
    }
    assert_refused(
        again.clip_config(),
        &["expected CLIPModel", "a video-text model"],
    );
}

#[test]
fn parts_are_folders_of_their_own_with_the_same_numbers() {
    let mut config = tiny_video_text();
    config.pooling = Pooling::Mean;
    let tensors = values_of(config.tensors());
    let parts = config.parts();
    assert_eq!(parts.len(), 2);
    for part in parts {
        let folder = TempDir::new().unwrap();
        let own: Values = part
            .tensors
            .iter()
            .map(|tensor| {
                let whole = tensors
                    .iter()
                    .find(|(name, _, _)| *name == tensor.whole_name);
                (
                    tensor.name.clone(),
                    tensor.shape.clone(),
                    whole.unwrap().2.clone(),
                )
            })
            .collect();
        write(folder.path(), part.config.clone(), &own, None);
        let again = ModelFolder::open(folder.path()).unwrap();
        again.check().unwrap();
        assert_eq!(again.config(), &part.config);
        let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        if part.folder == "decoder" {
            assert_eq!(json["architectures"], json!(["BlenderbotForCausalLM"]));
            // Defaults of transformers that would change what is generated.
            assert_eq!(json["forced_eos_token_id"], Value::Null);
            assert_eq!(json["encoder_no_repeat_ngram_size"], json!(0));
            assert!(
                again
                    .names()
                    .any(|name| name == "model.decoder.layer_norm.bias")
            );
            assert!(again.names().any(|name| name == "lm_head.weight"));
        }
    }
}

#[test]
fn what_no_video_text_model_is_is_refused_by_its_key() {
    let wrong: [(&str, Value, &[&str]); 15] = [
        ("/num_frames", json!(0), &["`num_frames`", "1 to 4096"]),
        (
            "/num_videos",
            json!("two"),
            &["`num_videos`", "a whole number"],
        ),
        ("/pooling", Value::Null, &["`pooling.kind`", "attention"]),
        (
            "/pooling/kind",
            json!("max"),
            &["`pooling.kind`", "max", "mean"],
        ),
        (
            "/pooling/place",
            json!("there"),
            &["`pooling.place`", "hidden", "projected"],
        ),
        (
            "/pooling/layers",
            Value::Null,
            &["`pooling.layers`", "a whole number"],
        ),
        (
            "/pooling/heads",
            json!(3),
            &[
                "`pooling.heads`",
                "a divisor of `projection_dim`, which is 8",
            ],
        ),
        ("/pooling/inner", json!(0), &["`pooling.inner`"]),
        (
            "/text_config/model_type",
            json!("gpt2"),
            &["`text_config.model_type`", "gpt2", "bert"],
        ),
        (
            "/decoder_config/d_model",
            json!(9),
            &[
                "`decoder_config.d_model`",
                "a multiple of `decoder_attention_heads`, which is 2",
            ],
        ),
        (
            "/decoder_config/eos_token_id",
            json!(16),
            &[
                "`decoder_config.eos_token_id`",
                "below `vocab_size`, which is 16",
            ],
        ),
        (
            "/decoder_config/activation_function",
            json!("swish"),
            &["`decoder_config.activation_function`", "gelu"],
        ),
        (
            "/decoder_config/scale_embedding",
            json!(true),
            &["`decoder_config.scale_embedding`"],
        ),
        (
            "/vision_config/patch_size",
            json!(3),
            &["`vision_config.image_size`", "a multiple of `patch_size`"],
        ),
        ("/projection_dim", json!(1u64 << 40), &["`projection_dim`"]),
    ];
    for (pointer, value, expected) in wrong {
        let mut config = json_of(&tiny_video_text());
        let (place, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(place).unwrap()[key] = value;
        assert_refused(read(&config), expected);
    }
    let mut bert = tiny_video_text();
    bert.text = TextTower::Bert(tiny_bert());
    let wrong: [(&str, Value, &[&str]); 3] = [
        (
            "position_embedding_type",
            json!("relative_key"),
            &["`text_config.position_embedding_type`", "absolute"],
        ),
        (
            "hidden_dropout_prob",
            json!(1.0),
            &["`text_config.hidden_dropout_prob`", "less than 1"],
        ),
        (
            "num_attention_heads",
            json!(4),
            &["`text_config.hidden_size`"],
        ),
    ];
    for (key, value, expected) in wrong {
        let mut config = json_of(&bert);
        config["text_config"][key] = value;
        assert_refused(read(&config), expected);
    }
}

/// A BERT as its first files had it: a prefix, old names of norms, and what a text tower does not read.
fn old_bert_folder(config: &BertConfig) -> (TempDir, Values) {
    let tensors = values_of(config.tensors());
    let mut stored: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape, values)| {
            let name = name.replace("text_model.", "bert.");
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
            let name = name.replace("LayerNorm.bias", "LayerNorm.beta");
            let bytes = values.iter().flat_map(|value| value.to_le_bytes());
            (name, shape.clone(), bytes.collect())
        })
        .collect();
    for unused in [
        "bert.pooler.dense.weight",
        "cls.predictions.bias",
        "bert.embeddings.position_ids",
    ] {
        stored.push((unused.into(), vec![2], vec![0; 8]));
    }
    let views = stored.iter().map(|(name, shape, bytes)| {
        (
            name,
            TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap(),
        )
    });
    let folder = TempDir::new().unwrap();
    fs::write(
        folder.path().join("model.safetensors"),
        safetensors::serialize(views, None).unwrap(),
    )
    .unwrap();
    let json = json!({
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 6, "intermediate_size": 10,
        "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20, "max_position_embeddings": 9,
        "hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.0,
    });
    fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    (folder, tensors)
}

#[test]
fn a_bert_is_no_clip_and_no_classifier() {
    let (folder, _) = old_bert_folder(&tiny_bert());
    let opened = ModelFolder::open(folder.path()).unwrap();
    let error = opened.clip_config().unwrap_err().to_string();
    let hint = "hint: a BERT reads text, not pictures";
    assert!(error.contains(hint), "{error}");
    assert!(!error.contains("task: classify"), "{error}");
}

#[test]
fn a_bert_folder_is_read_under_the_names_of_a_text_tower() {
    let (folder, tensors) = old_bert_folder(&tiny_bert());
    let bert = ModelFolder::open(folder.path()).unwrap();
    bert.check().unwrap();
    assert_eq!(bert.config(), &ModelConfig::Bert(tiny_bert()));
    assert_eq!(bert.names().count(), tensors.len());
    assert!(bert.notes()[0].contains("a text tower does not use"));
    assert!(bert.notes()[0].contains("pooler"));
}

#[test]
fn weights_come_from_clip_and_bert_folders_and_the_rest_is_drawn() {
    let clip_config = holdall_models::config::ClipConfig {
        projection_dim: 8,
        ..tiny()
    };
    let folder = TempDir::new().unwrap();
    write(folder.path(), &clip_config, &tensors_of(&clip_config), None);
    let clip = ModelFolder::open(folder.path()).unwrap();
    let config = tiny_video_text();
    let sources = WeightSources::new(&config, Some(&clip), None, 7).unwrap();
    let layer = "layers.0.self_attn.q_proj.weight";
    let expected = [
        ("logit_scale", Origin::Model("logit_scale".into())),
        (
            "visual_projection.weight",
            Origin::Model("visual_projection.weight".into()),
        ),
        (
            "temporal.positions",
            Origin::Model("text_model.embeddings.position_embedding.weight".into()),
        ),
        (
            &format!("temporal.{layer}"),
            Origin::Model(format!("text_model.encoder.{layer}")),
        ),
        ("frame_projection.weight", Origin::Drawn),
        ("decoder.embed_tokens.weight", Origin::Drawn),
    ];
    for (name, origin) in expected {
        assert_eq!(sources.origin(name), origin, "{name}");
    }
    // The first rows of the text tower's positions: three frames of four places.
    let mut positions = vec![0.0; 3 * 8];
    sources.fill("temporal.positions", &mut positions).unwrap();
    let name = "text_model.embeddings.position_embedding.weight";
    let bits: Vec<u32> = positions.iter().map(|value| value.to_bits()).collect();
    assert_eq!(read_bits(&clip, name, 4 * 8)[..24], bits);
    let mut drawn = vec![0.0; 8 * 12];
    sources.fill("frame_projection.weight", &mut drawn).unwrap();
    assert!(drawn.iter().any(|value| *value != drawn[0]));
    let summary = sources.summary().join("\n");
    assert!(
        summary.contains("Weights: pretrained from the text tower of"),
        "{summary}"
    );
    assert!(
        summary.contains("RANDOM (frame_projection, decoder, lm_head)"),
        "{summary}"
    );

    // Heads of another width mean other things: such layers are drawn.
    let mut other = config.clone();
    if let Pooling::Temporal { heads, .. } = &mut other.pooling {
        *heads = 4;
    }
    let sources = WeightSources::new(&other, Some(&clip), None, 7).unwrap();
    assert_eq!(sources.origin("temporal.positions"), Origin::Drawn);

    let (folder, _) = old_bert_folder(&tiny_bert());
    let bert = ModelFolder::open(folder.path()).unwrap();
    let mut of_bert = config.clone();
    of_bert.text = TextTower::Bert(tiny_bert());
    let sources = WeightSources::new(&of_bert, Some(&clip), Some(&bert), 7).unwrap();
    let norm = "text_model.embeddings.LayerNorm.weight";
    assert_eq!(sources.origin(norm), Origin::TextModel(norm.into()));
    // CLIP's projection is of another width.
    assert_eq!(sources.origin("text_projection.weight"), Origin::Drawn);
    let mut values = vec![0.0; 6];
    sources.fill(norm, &mut values).unwrap();
    let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
    assert_eq!(read_bits(&bert, norm, 6), bits);

    let refused = WeightSources::new(&of_bert, Some(&bert), None, 7);
    assert_refused(
        refused.map(drop),
        &["a CLIPModel or a video-text model", "a BERT"],
    );
    let refused = WeightSources::new(&of_bert, None, Some(&clip), 7);
    assert_refused(refused.map(drop), &["expected a BERT", "CLIPModel"]);
}
