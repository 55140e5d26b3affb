//! Folders of U-Nets: written, read back, and refused.

use std::path::Path;

use holdall_models::ModelError;
use holdall_models::folder::{ModelFolder, write_folder};
use holdall_models::model_config::ModelConfig;
use holdall_models::unet::config::UnetConfig;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{assert_refused, read_bits};

fn read(value: &Value) -> Result<(ModelConfig, Vec<String>), ModelError> {
    ModelConfig::from_json(&value.to_string(), Path::new("some/config.json"))
}

fn config_of(preset: &str) -> Value {
    let config = UnetConfig::preset(preset).unwrap();
    serde_json::from_str(&config.to_json()).unwrap()
}

#[test]
fn every_preset_comes_back_from_its_config_json() {
    for name in UnetConfig::PRESETS {
        let preset = UnetConfig::preset(name).unwrap();
        preset.validate(Path::new(name)).unwrap();
        let (config, notes) = read(&config_of(name)).unwrap();
        assert_eq!(config, ModelConfig::Unet(preset), "{name}");
        assert_eq!(notes, [] as [String; 0]);
        assert_eq!(config.backbone(), None);
    }
    assert_eq!(UnetConfig::preset("unet-huge"), None);
}

#[test]
fn a_unet_is_written_and_read_back_bit_for_bit() {
    let config = UnetConfig {
        channels: vec![8, 8, 16],
        encoder_blocks: vec![1, 2, 1],
        image_size: None,
        patch: Some(64),
        ..UnetConfig::preset("nnunet-resenc").unwrap()
    };
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = config
        .tensors()
        .into_iter()
        .enumerate()
        .map(|(place, (name, shape))| {
            let count: usize = shape.iter().product();
            let values = (0..count).map(|index| (place * 1000 + index) as f32);
            (name, shape, values.collect())
        })
        .collect();
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, values)| (name.clone(), shape.clone(), values.as_slice()))
        .collect();
    let folder = TempDir::new().unwrap();
    write_folder(folder.path(), &config, &views, None, None).unwrap();
    let again = ModelFolder::open(folder.path()).unwrap();
    again.check().unwrap();
    assert_eq!(again.config(), &ModelConfig::Unet(config));
    for (name, _, values) in &tensors {
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(read_bits(&again, name, values.len()), bits, "{name}");
    }
    assert_refused(again.clip_config(), &["expected CLIPModel", "a U-Net"]);
}

#[test]
fn what_no_unet_is_is_refused_by_its_key() {
    let wrong: [(&str, Value, &[&str]); 15] = [
        (
            "norm",
            json!("batch"),
            &["`norm`", "batch", "group or instance", "split"],
        ),
        (
            "groups",
            json!(7),
            &["`channels`", "a multiple of `groups`, which is 7"],
        ),
        ("channels", json!([64]), &["`channels`", "2 to 12 stages"]),
        (
            "channels",
            json!("many"),
            &["`channels`", "a list of numbers"],
        ),
        (
            "encoder_blocks",
            json!([2, 2]),
            &["`encoder_blocks`", "one per stage"],
        ),
        (
            "encoder_blocks",
            json!([2, 2, 2, 2, 0]),
            &["`encoder_blocks`", "1 to 64"],
        ),
        (
            "activation",
            json!("mish"),
            &["`activation`", "relu, leaky-relu, gelu"],
        ),
        ("upsampling", Value::Null, &["`upsampling`", "transposed"]),
        ("classes", json!([]), &["`classes`", "1 to 255"]),
        ("mean", json!([0.5]), &["`mean`", "one per channel"]),
        ("std", json!([0.5, 0.0, 0.5]), &["`std`", "above 0"]),
        ("bits", json!(12), &["`bits`", "8 or 16"]),
        (
            "image_size",
            json!([1000, 1024]),
            &["`image_size`", "a multiple of 16"],
        ),
        ("threshold", json!(1.5), &["`threshold`", "between 0 and 1"]),
        ("input_channels", json!(u64::MAX), &["`input_channels`"]),
    ];
    for (key, value, expected) in wrong {
        let mut config = config_of("unet");
        config[key] = value;
        assert_refused(read(&config), expected);
    }
}
