//! Folders of vision transformers: those that transformers wrote, with and without a classifier, and those that are written here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use holdall_models::ModelError;
use holdall_models::config::ClipConfig;
use holdall_models::folder::{Head, ModelFolder, write_folder};
use holdall_models::model_config::ModelConfig;
use holdall_models::vit;
use holdall_models::vit::config::{ClassifierConfig, Family, Problem, VisionTransformerConfig};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{assert_refused, read_bits, tiny, tiny_folder};

const FAMILIES: [(&str, Family); 4] = [
    ("vit", Family::Vit),
    ("deit", Family::Deit),
    ("dinov2", Family::Dinov2),
    ("clip", Family::Clip),
];

/// Made by transformers: `make_classifiers.py` lies beside them.
fn fixture(family: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures");
    fixtures.join(format!("classify_{family}"))
}

fn config_of(family: &str) -> Value {
    let text = fs::read_to_string(fixture(family).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The weights of a fixture under other names: `None` leaves a tensor out. More tensors, of zeros, may come along.
fn renamed(
    family: &str,
    config: &Value,
    name: impl Fn(&str) -> Option<String>,
    more: &[(&str, &[usize])],
) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let file = fs::read(fixture(family).join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file)
        .unwrap()
        .tensors();
    let zeros = [0u8; 1 << 16];
    let mut tensors: BTreeMap<String, TensorView<'_>> = tensors
        .into_iter()
        .filter_map(|(stored, view)| Some((name(&stored)?, view)))
        .collect();
    for (name, shape) in more {
        let bytes = &zeros[..4 * shape.iter().product::<usize>()];
        let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
        tensors.insert(name.to_string(), view);
    }
    let file = safetensors::serialize(tensors, None).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

fn read(value: &Value) -> Result<(ModelConfig, Vec<String>), ModelError> {
    ModelConfig::from_json(&value.to_string(), Path::new("some/config.json"))
}

#[test]
fn a_classifier_of_transformers_has_the_tensors_and_labels_that_are_expected() {
    for (name, family) in FAMILIES {
        let folder = ModelFolder::open(&fixture(name)).unwrap();
        folder.check().unwrap();
        assert_eq!(folder.notes(), [] as [String; 0]);
        let config = folder.config().classifier().unwrap();
        assert_eq!(config.backbone.family, family);
        assert_eq!(config.labels, ["red", "green", "blue", "grey", "black"]);
        assert_eq!(folder.new_classifier_reason(&config.labels), None);
        let error = folder.clip_config();
        let architecture = family.classifier_architecture();
        assert_refused(
            error,
            &[name, architecture, "expected CLIPModel", "classify"],
        );
    }
}

#[test]
fn a_classifier_is_written_and_read_back_bit_for_bit() {
    for (name, _) in FAMILIES {
        let original = ModelFolder::open(&fixture(name)).unwrap();
        let mut config = original.config().classifier().unwrap().clone();
        config.problem = Some(Problem::MultiLabel);
        let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = config
            .tensors()
            .into_iter()
            .map(|(name, shape)| {
                let mut values = vec![0.0; shape.iter().product()];
                original.read_f32(&name, &mut values).unwrap();
                (name, shape, values)
            })
            .collect();
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, shape, values)| (name.clone(), shape.clone(), values.as_slice()))
            .collect();
        let folder = TempDir::new().unwrap();
        write_folder(folder.path(), &config, &views, None, Some(1 << 14)).unwrap();
        let again = ModelFolder::open(folder.path()).unwrap();
        again.check().unwrap();
        assert_eq!(again.config(), &ModelConfig::Classifier(config.clone()));
        assert_eq!(again.names().count(), original.names().count());
        for (name, _, values) in &tensors {
            let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
            assert_eq!(read_bits(&again, name, values.len()), bits, "{name}");
        }
        // The label head is CLIP's.
        let head = Head {
            num_labels: 1,
            weight: vec![0.0; 24],
            bias: vec![0.0],
        };
        let result = write_folder(folder.path(), &config, &views, Some(&head), None);
        assert_refused(result, &["head.safetensors", "only beside a CLIPModel"]);
        let backbone = ModelConfig::Backbone(config.backbone.clone());
        let result = write_folder(
            folder.path(),
            backbone,
            &views[..views.len() - 2],
            None,
            None,
        );
        assert_refused(result, &["config.json", "without a classifier"]);
    }
}

#[test]
fn a_model_without_a_classifier_is_a_backbone_and_what_it_has_beside_is_noted() {
    for (name, architecture, prefix, unused) in [
        ("vit", "ViTModel", "vit.", "pooler.dense.weight"),
        ("deit", "DeiTModel", "deit.", "pooler.dense.bias"),
        ("dinov2", "Dinov2Model", "dinov2.", "embeddings.mask_token"),
        (
            "clip",
            "CLIPVisionModel",
            "vision_model.",
            "embeddings.position_ids",
        ),
    ] {
        let mut config = config_of(name);
        if name == "clip" {
            config = config["vision_config"].clone();
        }
        config["architectures"] = json!([architecture]);
        let whole = ModelFolder::open(&fixture(name)).unwrap();
        for stored_prefix in ["", prefix] {
            let rename = |stored: &str| {
                let inner = stored.strip_prefix(prefix)?;
                Some(format!("{stored_prefix}{inner}"))
            };
            let more: &[(&str, &[usize])] = &[(&format!("{stored_prefix}{unused}"), &[24])];
            let folder = renamed(name, &config, rename, more);
            let folder = ModelFolder::open(folder.path()).unwrap();
            folder.check().unwrap();
            assert_eq!(folder.config().backbone(), whole.config().backbone());
            let [note] = folder.notes() else {
                panic!("{:?}", folder.notes());
            };
            assert!(note.contains(unused), "{note}");
            let labels = ["a".to_string()];
            let reason = folder.new_classifier_reason(&labels).unwrap();
            assert!(reason.contains("no classifier"), "{reason}");
            // Tensors have the names of the model with a classifier.
            for (name, shape) in folder.config().tensors() {
                let count = shape.iter().product();
                assert_eq!(
                    read_bits(&folder, &name, count),
                    read_bits(&whole, &name, count)
                );
            }
        }
    }
}

#[test]
fn a_clip_model_is_a_backbone() {
    let folder = tiny_folder();
    let folder = ModelFolder::open(folder.path()).unwrap();
    let backbone = folder.config().backbone().unwrap();
    assert_eq!(backbone, tiny().backbone());
    let reason = folder.new_classifier_reason(&["a".into()]).unwrap();
    assert!(reason.contains("no classifier"), "{reason}");
    for (name, shape) in backbone.tensors() {
        assert_eq!(folder.tensor(&name).unwrap().shape, shape, "{name}");
    }
}

#[test]
fn deit_with_a_teacher_is_a_backbone() {
    let mut config = config_of("deit");
    config["architectures"] = json!(["DeiTForImageClassificationWithTeacher"]);
    let rename = |stored: &str| Some(stored.replace("classifier", "cls_classifier"));
    let more: &[(&str, &[usize])] = &[("distillation_classifier.bias", &[5])];
    let folder = renamed("deit", &config, rename, more);
    let folder = ModelFolder::open(folder.path()).unwrap();
    folder.check().unwrap();
    assert_eq!(folder.config().classifier(), None);
    assert!(folder.notes()[0].contains("distillation_classifier.bias"));
}

#[test]
fn other_labels_or_another_number_of_them_need_a_new_classifier() {
    let folder = ModelFolder::open(&fixture("vit")).unwrap();
    let labels = |names: &[&str]| {
        names
            .iter()
            .map(|name| name.to_string())
            .collect::<Vec<_>>()
    };
    let reason = |names: &[&str]| folder.new_classifier_reason(&labels(names)).unwrap();
    let fewer = reason(&["red", "green"]);
    assert!(fewer.contains("5 outputs, 2 are asked for"), "{fewer}");
    let other = reason(&["red", "green", "cyan", "grey", "black"]);
    assert!(
        other.contains("`blue` where `cyan` is asked for"),
        "{other}"
    );
    // Outputs without names are whatever they are said to be.
    let mut config = config_of("vit");
    config["id2label"] = Value::Null;
    config["num_labels"] = json!(5);
    let unnamed = renamed("vit", &config, |name| Some(name.into()), &[]);
    let unnamed = ModelFolder::open(unnamed.path()).unwrap();
    unnamed.check().unwrap();
    assert_eq!(
        unnamed.new_classifier_reason(&labels(&["a", "b", "c", "d", "e"])),
        None
    );
}

#[test]
fn tensors_of_another_shape_or_name_are_listed() {
    let mut config = config_of("vit");
    config["id2label"] = json!({"0": "a", "1": "b"});
    let rename = |stored: &str| match stored {
        "vit.embeddings.cls_token" => Some("vit.embeddings.class".to_string()),
        other => Some(other.to_string()),
    };
    let folder = renamed("vit", &config, rename, &[("vit.layernorm.bias", &[1, 24])]);
    let folder = ModelFolder::open(folder.path()).unwrap();
    let parts = [
        "1 missing:\n    vit.embeddings.cls_token",
        "1 unexpected:\n    vit.embeddings.class",
        "classifier.weight: expected [2, 24], found [5, 24]",
        "vit.layernorm.bias: expected [24], found [1, 24]",
    ];
    assert_refused(folder.check(), &parts);
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    for (model_type, architecture, preset) in [
        ("vit", "ViTModel", "google/vit-base-patch16-224"),
        (
            "deit",
            "DeiTModel",
            "facebook/deit-base-distilled-patch16-224",
        ),
        ("dinov2", "Dinov2Model", "dinov2-base-patch14-224"),
    ] {
        let config = json!({"model_type": model_type, "architectures": [architecture]});
        let (config, notes) = read(&config).unwrap();
        let preset = VisionTransformerConfig::preset(preset).unwrap();
        assert_eq!(config, ModelConfig::Backbone(preset));
        assert_eq!(notes, [] as [String; 0]);
    }
    let vision = json!({"model_type": "clip_vision_model", "architectures": ["CLIPVisionModel"]});
    let clip = ClipConfig::preset("openai/clip-vit-base-patch32").unwrap();
    assert_eq!(
        read(&vision).unwrap().0,
        ModelConfig::Backbone(clip.backbone())
    );
    let unnamed = json!({"model_type": "vit", "architectures": ["ViTForImageClassification"]});
    let (config, _) = read(&unnamed).unwrap();
    assert_eq!(config.classifier().unwrap().labels, ["LABEL_0", "LABEL_1"]);
}

#[test]
fn dropout_of_the_residual_stream_is_noted_and_what_changes_the_model_is_refused() {
    let with = |family: &str, key: &str, value: Value| {
        let mut config = config_of(family);
        config[key] = value;
        read(&config)
    };
    let (_, notes) = with("vit", "hidden_dropout_prob", json!(0.1)).unwrap();
    let [note] = notes.as_slice() else {
        panic!("{notes:?}");
    };
    assert!(note.contains("`hidden_dropout_prob` is 0.1"), "{note}");
    for (family, key, value, expected) in [
        ("vit", "attention_probs_dropout_prob", json!(0.1), "0.0"),
        ("vit", "hidden_act", json!("gelu_new"), "\"gelu\""),
        ("vit", "qkv_bias", json!(1), "true or false"),
        (
            "vit",
            "hidden_size",
            json!(25),
            "a multiple of `num_attention_heads`",
        ),
        ("vit", "image_size", json!([16, 16]), "a whole number"),
        ("vit", "id2label", json!(["a"]), "an object"),
        ("vit", "id2label", json!({}), "an object"),
        ("vit", "id2label", json!({"0": "a", "2": "b"}), "an object"),
        ("vit", "problem_type", json!("ranking"), "\"regression\""),
        ("dinov2", "use_swiglu_ffn", json!(true), "false"),
        ("dinov2", "mlp_ratio", json!(u64::MAX), "a ratio that fits"),
        ("deit", "num_hidden_layers", json!(0), "1 to"),
    ] {
        let found = value.to_string();
        let parts = ["some/config.json", key, expected, &found];
        // A size that does not divide is named with its own key.
        let parts = if expected.starts_with("a multiple") {
            &parts[..3]
        } else {
            &parts[..]
        };
        assert_refused(with(family, key, value), parts);
    }
    let mut many = config_of("vit");
    many["id2label"] = Value::Null;
    many["num_labels"] = json!(1u64 << 40);
    assert_refused(read(&many), &["num_labels", "1 to 1048576"]);
    for architecture in [json!(["ViTForMaskedImageModeling"]), json!(null)] {
        let result = with("vit", "architectures", architecture.clone());
        let found = architecture.to_string();
        assert_refused(
            result,
            &["some/config.json", &found, "ViTForImageClassification"],
        );
    }
}

#[test]
fn presets_have_as_many_values_as_in_transformers() {
    // As counted over the parameters of ViTModel, DeiTModel and Dinov2Model, less poolers and mask tokens.
    for (preset, expected) in [
        ("google/vit-base-patch16-224", 85_798_656),
        ("vit-large-patch16-224", 303_301_632),
        ("vit-small-patch16-224", 21_665_664),
        ("facebook/deit-tiny-distilled-patch16-224", 5_524_800),
        ("dinov2-small-patch14-224", 21_628_800),
        ("dinov2-base-patch14-224", 85_724_928),
    ] {
        let config = VisionTransformerConfig::preset(preset).unwrap();
        config.validate(Path::new("config.json")).unwrap();
        let tensors = config.tensors();
        let shapes = tensors.iter().map(|(_, shape)| shape.iter());
        let count: usize = shapes.map(|shape| shape.product::<usize>()).sum();
        assert_eq!(count, expected, "{preset}");
    }
}

#[test]
fn every_parameter_of_a_model_has_a_start_and_no_other_name_has() {
    for name in VisionTransformerConfig::PRESETS {
        let backbone = VisionTransformerConfig::preset(name).unwrap();
        let mut config = ClassifierConfig {
            backbone,
            labels: vec!["a".into(), "b".into()],
            problem: None,
        };
        for (name, shape) in config.tensors() {
            let mut values = vec![f32::NAN; shape.iter().product::<usize>().min(1000)];
            vit::init::fill(&config, 1, &name, &mut values).unwrap();
            let is_norm = name.contains("norm") && name.ends_with(".weight");
            let drawn = values.iter().any(|value| *value != values[0]);
            let spread = !is_norm && !name.ends_with(".bias") && !name.ends_with("lambda1");
            assert_eq!(drawn, spread, "{name}");
            assert!(values.iter().all(|value| value.abs() < 2.0), "{name}");
        }
        config.backbone.qkv_bias = false;
        let prefix = config.tensors()[0].0.split_once('.').unwrap().0.to_string();
        for unknown in [
            "head.weight",
            "classifier.scale",
            "embeddings.cls_token",
            &format!("{prefix}.encoder.layer.99.layernorm_before.weight"),
            &format!("{prefix}.encoder.layer.0.attention.attention.query.bias"),
            &format!("{prefix}.encoder.layer.0.other.weight"),
            &format!("{prefix}.pooler.dense.bias"),
        ] {
            let result = vit::init::fill(&config, 1, unknown, &mut [0.0]);
            assert_refused(result, &[unknown, "no rule"]);
        }
    }
    for unknown in [
        "tail.weight",
        "text_model.encoder.layers.9.mlp.fc1.bias",
        "logit_bias",
    ] {
        let result = holdall_models::clip::init::fill(&tiny(), 1, unknown, &mut [0.0]);
        assert_refused(result, &[unknown, "CLIPModel"]);
    }
}
