//! Model folders: what is written is read back bit for bit, what is broken is refused with a reason.

#![allow(clippy::unwrap_used)]

mod bad_config;
mod bad_shards;
mod bad_weights;
mod classifiers;
mod fuzz;
mod unets;
mod video_texts;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use holdall_models::ModelError;
use holdall_models::clip::NORMALIZATION;
use holdall_models::config::{Activation, ClipConfig, TextConfig, TextPooling, VisionConfig};
use holdall_models::folder::{Head, ModelFolder, StoredType, write_folder};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

/// A few kilobytes of a model.
fn tiny() -> ClipConfig {
    ClipConfig {
        text: TextConfig {
            hidden_size: 8,
            intermediate_size: 16,
            num_layers: 2,
            num_heads: 2,
            vocab_size: 16,
            max_positions: 4,
            activation: Activation::Gelu,
            layer_norm_eps: 1e-6,
            pooling: TextPooling::FirstEos(15),
        },
        vision: VisionConfig {
            hidden_size: 12,
            intermediate_size: 20,
            num_layers: 1,
            num_heads: 3,
            image_size: 8,
            patch_size: 4,
            num_channels: 3,
            activation: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            normalization: NORMALIZATION,
        },
        projection_dim: 6,
        logit_scale_init: 2.5,
    }
}

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// Values that differ from tensor to tensor, among them zeros of both signs and a NaN.
fn tensors_of(config: &ClipConfig) -> Tensors {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let shapes = config.tensors().into_iter();
    let mut tensors: Tensors = shapes
        .map(|(name, shape)| {
            let values = (0..shape.iter().product()).map(|_| next()).collect();
            (name, shape, values)
        })
        .collect();
    tensors[1].2[..4].copy_from_slice(&[0.0, -0.0, 65504.0, f32::MIN_POSITIVE / 2.0]);
    tensors
}

fn write(folder: &Path, tensors: &Tensors, head: Option<&Head>, shard_bytes: Option<u64>) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape, values)| (name.clone(), shape.clone(), values.as_slice()))
        .collect();
    write_folder(folder, &tiny(), &views, head, shard_bytes).unwrap();
}

fn tiny_folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    write(folder.path(), &tensors_of(&tiny()), None, None);
    folder
}

/// Writes the tiny model with other tensors than its configuration asks for.
fn folder_with(dtype: Dtype, tensors: &[(String, Vec<usize>, Vec<u8>)]) -> TempDir {
    let folder = tiny_folder();
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(folder.path().join("model.safetensors"), file).unwrap();
    folder
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn read_bits(folder: &ModelFolder, name: &str, len: usize) -> Vec<u32> {
    let mut values = vec![9.0; len];
    folder.read_f32(name, &mut values).unwrap();
    values.iter().map(|value| value.to_bits()).collect()
}

fn assert_holds(folder: &Path, tensors: &Tensors) {
    let opened = ModelFolder::open(folder).unwrap();
    opened.check().unwrap();
    assert_eq!(opened.clip_config().unwrap(), &tiny());
    assert_eq!(opened.names().count(), tensors.len());
    for (name, shape, values) in tensors {
        assert_eq!(opened.tensor(name).unwrap().shape, shape);
        let bits: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(read_bits(&opened, name, values.len()), bits, "{name}");
    }
}

/// The message of a refusal: it must end with a hint, and name what `parts` says.
fn assert_refused<T>(result: Result<T, ModelError>, parts: &[&str]) {
    let message = result.err().expect("refused").to_string();
    let (_, hint) = message.split_once("\nhint: ").expect(&message);
    assert!(!hint.is_empty(), "{message}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in:\n{message}");
    }
}

#[test]
fn a_single_file_is_read_back_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let tensors = tensors_of(&tiny());
    write(folder.path(), &tensors, None, Some(1 << 30));
    assert_eq!(
        names_in(folder.path()),
        set(&["config.json", "model.safetensors"])
    );
    assert_holds(folder.path(), &tensors);
}

#[test]
fn shards_are_read_back_bit_for_bit() {
    let folder = TempDir::new().unwrap();
    let tensors = tensors_of(&tiny());
    let limit_bytes = 4096;
    write(folder.path(), &tensors, None, Some(limit_bytes));
    let names = names_in(folder.path());
    assert!(names.contains("model.safetensors.index.json"));
    let shards: Vec<&String> = names
        .iter()
        .filter(|name| name.starts_with("model-"))
        .collect();
    assert!(shards.len() > 2, "{names:?}");
    assert_eq!(names.len(), shards.len() + 2);
    for shard in shards {
        let bytes = fs::read(folder.path().join(shard)).unwrap();
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert!(header.data_len() as u64 <= limit_bytes);
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    }
    assert_holds(folder.path(), &tensors);
}

#[test]
fn a_newer_model_replaces_an_older_one_of_another_layout() {
    let folder = TempDir::new().unwrap();
    let old = tensors_of(&tiny());
    let mut new = old.clone();
    new[3].2.fill(0.25);
    let head = Head {
        num_labels: 1,
        weight: vec![1.0; 6],
        bias: vec![2.0],
    };
    write(folder.path(), &old, Some(&head), Some(4096));
    write(folder.path(), &new, None, None);
    // Neither old shards nor the head of the old model may be taken for parts of the new.
    assert_eq!(
        names_in(folder.path()),
        set(&["config.json", "model.safetensors"])
    );
    assert_holds(folder.path(), &new);
    write(folder.path(), &old, None, Some(4096));
    assert!(!names_in(folder.path()).contains("model.safetensors"));
    assert_holds(folder.path(), &old);
}

#[test]
fn an_open_folder_keeps_its_values_while_it_is_overwritten() {
    let folder = TempDir::new().unwrap();
    let mut tensors = tensors_of(&tiny());
    write(folder.path(), &tensors, None, None);
    let opened = ModelFolder::open(folder.path()).unwrap();
    let (name, before) = (tensors[3].0.clone(), tensors[3].2.clone());
    tensors[3].2.fill(7.0);
    write(folder.path(), &tensors, None, None);
    let bits: Vec<u32> = before.iter().map(|value| value.to_bits()).collect();
    assert_eq!(read_bits(&opened, &name, before.len()), bits);
}

#[test]
fn a_write_that_fails_leaves_no_temporary_files_and_the_old_model() {
    let folder = tiny_folder();
    let tensors = tensors_of(&tiny());
    // A folder under the temporary name of config.json makes its creation fail, after the weights.
    fs::create_dir(folder.path().join("config.json.partial")).unwrap();
    let views: Vec<_> = tensors
        .iter()
        .map(|(n, s, v)| (n.clone(), s.clone(), v.as_slice()))
        .collect();
    let result = write_folder(folder.path(), &tiny(), &views, None, None);
    assert_refused(result, &["config.json.partial", "could not create it"]);
    let left = set(&["config.json", "config.json.partial", "model.safetensors"]);
    assert_eq!(names_in(folder.path()), left);
    assert_holds(folder.path(), &tensors);
}

#[test]
fn a_write_killed_before_its_last_rename_is_not_taken_for_a_model() {
    for last in ["model.safetensors", "model.safetensors.index.json"] {
        let folder = TempDir::new().unwrap();
        let shard_bytes = last.contains("index").then_some(4096);
        write(folder.path(), &tensors_of(&tiny()), None, shard_bytes);
        let path = folder.path().join(last);
        fs::rename(&path, path.with_file_name(format!("{last}.partial"))).unwrap();
        assert_refused(ModelFolder::open(folder.path()), &[".partial"]);
    }
}

#[test]
fn a_head_is_read_back_and_its_absence_is_no_error() {
    let folder = tiny_folder();
    assert_eq!(
        ModelFolder::open(folder.path())
            .unwrap()
            .read_head()
            .unwrap(),
        None
    );
    let weight = (0..18).map(|i| i as f32 / 3.0).collect();
    let head = Head {
        num_labels: 3,
        weight,
        bias: vec![0.5, -0.0, 1.0],
    };
    write(folder.path(), &tensors_of(&tiny()), Some(&head), None);
    assert_eq!(
        ModelFolder::open(folder.path())
            .unwrap()
            .read_head()
            .unwrap(),
        Some(head)
    );
}

#[test]
fn half_and_double_precision_are_converted() {
    let tensors = tensors_of(&tiny());
    let stored = |to_bytes: &dyn Fn(f32) -> Vec<u8>| -> Vec<(String, Vec<usize>, Vec<u8>)> {
        let convert = |values: &[f32]| values.iter().flat_map(|&value| to_bytes(value)).collect();
        tensors
            .iter()
            .map(|(n, s, v)| (n.clone(), s.clone(), convert(v)))
            .collect()
    };
    let as_f16 = |value: f32| f16::from_f32(value);
    let as_bf16 = |value: f32| bf16::from_f32(value);
    type Cast<'a> = &'a dyn Fn(f32) -> f32;
    let cases: [(Dtype, StoredType, Vec<_>, Cast); 3] = [
        (
            Dtype::F16,
            StoredType::F16,
            stored(&|v| as_f16(v).to_le_bytes().into()),
            &|v| as_f16(v).to_f32(),
        ),
        (
            Dtype::BF16,
            StoredType::Bf16,
            stored(&|v| as_bf16(v).to_le_bytes().into()),
            &|v| as_bf16(v).to_f32(),
        ),
        (
            Dtype::F64,
            StoredType::F64,
            stored(&|v| f64::from(v).to_le_bytes().into()),
            &|v| v,
        ),
    ];
    for (dtype, stored_type, bytes, expected) in cases {
        let folder = folder_with(dtype, &bytes);
        let opened = ModelFolder::open(folder.path()).unwrap();
        opened.check().unwrap();
        for (name, _, values) in &tensors {
            assert_eq!(opened.tensor(name).unwrap().stored_type, stored_type);
            let mut read = vec![9.0; values.len()];
            opened.read_f32(name, &mut read).unwrap();
            for (read, &value) in read.iter().zip(values) {
                let expected = expected(value);
                assert_eq!(read.to_bits(), expected.to_bits());
            }
        }
    }
}

#[test]
fn every_f16_is_converted_exactly_across_chunks() {
    let (finite, others): (Vec<u16>, Vec<u16>) =
        (0..=u16::MAX).partition(|&bits| f16::from_bits(bits).is_finite());
    let of_bits = |bits: &[u16]| {
        let bytes = bits.iter().copied().flat_map(u16::to_le_bytes).collect();
        let tensor = ("all".to_string(), vec![bits.len()], bytes);
        let folder = folder_with(Dtype::F16, &[tensor]);
        let opened = ModelFolder::open(folder.path()).unwrap();
        let mut values = vec![9.0; bits.len()];
        opened.read_f32("all", &mut values).map(|()| values)
    };
    let values = of_bits(&finite).unwrap();
    for (&bits, value) in finite.iter().zip(&values) {
        let expected = f16::from_bits(bits).to_f32_const();
        assert_eq!(value.to_bits(), expected.to_bits());
    }
    // The rest is no weight.
    for bits in others.into_iter().step_by(101) {
        let refused = of_bits(&[0, bits]).unwrap_err();
        assert!(matches!(refused, ModelError::NotFinite { ref at, .. } if *at == [1]));
    }
}

#[test]
fn position_counters_of_old_checkpoints_are_no_parameters() {
    let folder = tiny_folder();
    let path = folder.path().join("model.safetensors");
    let file = fs::read(&path).unwrap();
    let mut tensors = safetensors::SafeTensors::deserialize(&file)
        .unwrap()
        .tensors();
    let counters = [0u8; 4 * 8];
    for tower in ["text", "vision"] {
        let view = TensorView::new(Dtype::I64, vec![1, 4], &counters).unwrap();
        tensors.push((format!("{tower}_model.embeddings.position_ids"), view));
    }
    let with_counters = safetensors::serialize(tensors, None).unwrap();
    fs::write(&path, with_counters).unwrap();
    assert_holds(folder.path(), &tensors_of(&tiny()));
}

#[test]
fn tensors_are_those_of_transformers() {
    for (preset, fixture) in [
        ("small", include_str!("../fixtures/clip_tensors_small.txt")),
        (
            "openai/clip-vit-base-patch32",
            include_str!("../fixtures/clip_tensors_base_patch32.txt"),
        ),
    ] {
        let tensors = ClipConfig::preset(preset).unwrap().tensors();
        let lines: Vec<String> = tensors
            .iter()
            .map(|(name, shape)| format!("{name} {shape:?}"))
            .collect();
        assert_eq!(lines, fixture.lines().collect::<Vec<_>>(), "{preset}");
    }
}

#[test]
fn presets_survive_config_json() {
    for name in ClipConfig::PRESETS {
        let config = ClipConfig::preset(name).unwrap();
        let file = Path::new("config.json");
        config.validate(file).unwrap();
        assert_eq!(
            ClipConfig::from_json(&config.to_json(), file).unwrap(),
            config
        );
    }
    assert_eq!(ClipConfig::preset("large"), None);
    let numbers_in = |name| {
        let tensors = ClipConfig::preset(name).unwrap().tensors();
        tensors
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum::<usize>()
    };
    // As counted over the parameters of CLIPModel in transformers.
    assert_eq!(numbers_in("openai/clip-vit-base-patch32"), 151_277_313);
    assert_eq!(numbers_in("openai/clip-vit-base-patch16"), 149_620_737);
    assert_eq!(numbers_in("openai/clip-vit-large-patch14"), 427_616_513);
    assert_eq!(numbers_in("openai/clip-vit-large-patch14-336"), 427_944_193);
}
