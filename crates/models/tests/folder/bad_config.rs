//! config.json: defaults and old forms as in transformers, and what is refused.

use std::fs;
use std::path::Path;

use holdall_models::ModelError;
use holdall_models::config::{Activation, ClipConfig, TextPooling};
use holdall_models::folder::ModelFolder;
use serde_json::{Value, json};

use crate::{assert_refused, tiny, tiny_folder};

fn read(value: &Value) -> Result<ClipConfig, ModelError> {
    ClipConfig::from_json(&value.to_string(), Path::new("some/config.json"))
}

/// The tiny model's config.json with one key replaced: `text_config.hidden_size`, or a key on top.
fn tiny_with(key: &str, value: Value) -> Value {
    let mut config: Value = serde_json::from_str(&tiny().to_json()).unwrap();
    match key.split_once('.') {
        Some((section, key)) => config[section][key] = value,
        None => config[key] = value,
    }
    config
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let mut expected = ClipConfig::preset("openai/clip-vit-base-patch32").unwrap();
    expected.text.pooling = TextPooling::FirstEos(49407);
    for config in [
        json!({"model_type": "clip"}),
        json!({"model_type": "clip", "architectures": null, "text_config": null, "vision_config": {}}),
        json!({"model_type": "clip", "architectures": ["CLIPModel"], "text_config_dict": null}),
    ] {
        assert_eq!(read(&config).unwrap(), expected);
    }
}

/// Checked by hand against transformers 5.22: the old section is completed with defaults first.
#[test]
fn an_old_section_overrides_every_key_of_the_new_one() {
    let config = read(&json!({
        "model_type": "clip",
        "text_config": {"hidden_size": 768, "num_attention_heads": 12, "hidden_act": "gelu", "eos_token_id": 2},
        "text_config_dict": {"hidden_size": 640, "num_attention_heads": 10},
        "vision_config_dict": {"hidden_act": "gelu"},
    }))
    .unwrap();
    assert_eq!((config.text.hidden_size, config.text.num_heads), (640, 10));
    assert_eq!(config.text.activation, Activation::QuickGelu);
    assert_eq!(config.text.pooling, TextPooling::FirstEos(49407));
    assert_eq!(config.vision.activation, Activation::Gelu);
}

#[test]
fn end_token_two_means_the_highest_id() {
    let config = read(&tiny_with("text_config.eos_token_id", json!(2))).unwrap();
    assert_eq!(config.text.pooling, TextPooling::HighestId);
}

#[test]
fn other_architectures_are_refused() {
    for (key, value, found) in [
        ("model_type", json!("siglip"), "siglip"),
        ("model_type", json!(null), "null"),
        (
            "architectures",
            json!(["CLIPVisionModelWithProjection"]),
            "CLIPVisionModelWithProjection",
        ),
        ("architectures", json!("CLIPModel"), "and \"CLIPModel\","),
    ] {
        assert_refused(
            read(&tiny_with(key, value)),
            &["some/config.json", found, "[\"CLIPModel\"]"],
        );
    }
}

#[test]
fn other_activations_are_refused() {
    for value in [json!("gelu_new"), json!(null), json!(3)] {
        let result = read(&tiny_with("text_config.hidden_act", value.clone()));
        let parts = [
            "some/config.json",
            "text_config.hidden_act",
            &value.to_string(),
            "\"quick_gelu\" or \"gelu\"",
        ];
        assert_refused(result, &parts);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for (key, value, expected) in [
        ("text_config.hidden_size", json!(0), "1 to"),
        ("text_config.hidden_size", json!(-8), "a whole number"),
        ("text_config.hidden_size", json!(8.0), "a whole number"),
        ("text_config.hidden_size", json!("8"), "a whole number"),
        ("text_config.hidden_size", json!(null), "a whole number"),
        ("text_config.hidden_size", json!(u64::MAX), "1 to"),
        (
            "text_config.num_attention_heads",
            json!(3),
            "a multiple of `num_attention_heads`, which is 3",
        ),
        ("text_config.num_hidden_layers", json!(1u64 << 40), "1 to"),
        ("text_config.eos_token_id", json!([15]), "one token id"),
        (
            "text_config.eos_token_id",
            json!(16),
            "below `vocab_size`, which is 16",
        ),
        (
            "text_config.eos_token_id",
            json!(-1),
            "below `vocab_size`, which is 16",
        ),
        ("text_config.layer_norm_eps", json!(0.0), "between 0 and 1"),
        ("text_config.attention_dropout", json!(0.1), "0.0"),
        ("vision_config.patch_size", json!(0), "1 to"),
        (
            "vision_config.patch_size",
            json!(3),
            "a multiple of `patch_size`, which is 3",
        ),
        ("vision_config.image_size", json!([8, 8]), "a whole number"),
        ("vision_config.num_channels", json!(1 << 20), "1 to"),
        ("projection_dim", json!(null), "a whole number"),
        ("logit_scale_init_value", json!("high"), "a number"),
        ("text_config", json!([1]), "an object"),
    ] {
        if key == "vision_config.num_channels" {
            // Each size is possible, their product is not.
            let mut config = tiny_with(key, value);
            config["vision_config"]["patch_size"] = json!(1 << 20);
            config["vision_config"]["image_size"] = json!(1 << 20);
            assert_refused(read(&config), &["all tensors together", "at most"]);
            continue;
        }
        let result = read(&tiny_with(key, value));
        let named = if expected.starts_with("a multiple") {
            "_size"
        } else {
            key
        };
        assert_refused(result, &["some/config.json", named, expected]);
    }
}

#[test]
fn an_end_token_that_reads_back_as_something_else_is_refused() {
    let mut config = tiny();
    config.text.pooling = TextPooling::FirstEos(2);
    assert_refused(
        config.validate(Path::new("config.json")),
        &["eos_token_id", "highest id"],
    );
}

#[test]
fn what_is_no_json_object_is_refused() {
    let file = Path::new("some/config.json");
    for text in ["", "{", "[]", "nonsense", &"[".repeat(100_000)] {
        assert_refused(
            ClipConfig::from_json(text, file),
            &["some/config.json", "a JSON object"],
        );
    }
}

#[test]
fn a_config_file_that_cannot_be_text_is_refused() {
    let folder = tiny_folder();
    let path = folder.path().join("config.json");
    fs::write(&path, b"{\"model_type\": \"\xff\"}").unwrap();
    assert_refused(
        ModelFolder::open(folder.path()),
        &["config.json", "UTF-8", "16 bytes into it"],
    );

    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_refused(
        ModelFolder::open(folder.path()),
        &["config.json", "at most", "1099511627776"],
    );

    fs::remove_file(&path).unwrap();
    assert_refused(
        ModelFolder::open(folder.path()),
        &["config.json", "found none"],
    );
}
